//! Small histories by hand, in milliseconds.

use crate::{
    checks::{Found, Kind, Rules, check},
    history::{AttemptId, Event, History, Nanos, Order, What},
};

pub(super) const MS: Nanos = 1_000_000;

/// One key, unless said otherwise. Attempts are named `(process, number)`.
#[derive(Debug, Default)]
pub(super) struct Script {
    events: Vec<Event>,
    accepted: u64,
}

pub(super) type Name = (u32, u64);

pub(super) fn id((process, number): Name) -> AttemptId {
    AttemptId { process, number }
}

impl Script {
    pub(super) fn at(mut self, at: u64, what: What) -> Self {
        let at = at * MS;
        self.events.push(Event { at, what });
        self
    }

    pub(super) fn call(self, at: u64, name: Name, wait: u64) -> Self {
        let what = What::Call {
            id: id(name),
            key: 7,
            order: Order::Fifo,
            wait: wait * MS,
        };
        self.at(at, what)
    }

    pub(super) fn granted(self, at: u64, name: Name, token: u64, valid_until: u64) -> Self {
        let what = What::Granted {
            id: id(name),
            token,
            valid_until: valid_until * MS,
        };
        self.at(at, what)
    }

    pub(super) fn renewed(self, at: u64, name: Name, valid_until: u64) -> Self {
        let what = What::Renewed {
            id: id(name),
            valid_until: valid_until * MS,
        };
        self.at(at, what)
    }

    pub(super) fn releases(self, at: u64, name: Name) -> Self {
        self.at(at, What::Releases { id: id(name) })
    }

    pub(super) fn lost(self, at: u64, name: Name) -> Self {
        self.at(at, What::Lost { id: id(name) })
    }

    pub(super) fn cancelled(self, at: u64, name: Name) -> Self {
        self.at(at, What::Cancelled { id: id(name) })
    }

    pub(super) fn refused(self, at: u64, name: Name) -> Self {
        let why = "timeout".to_owned();
        self.at(at, What::Refused { id: id(name), why })
    }

    /// All of a short hold: called, granted, released.
    pub(super) fn holds(self, call: u64, at: u64, until: u64, name: Name, token: u64) -> Self {
        self.call(call, name, 5000)
            .granted(at, name, token, until + 1000)
            .releases(until, name)
    }

    pub(super) fn claim(self, at: u64, name: Name, token: u64, accepted: bool) -> Self {
        let what = What::Claim {
            id: id(name),
            key: 7,
            token,
            accepted,
        };
        self.at(at, what)
    }

    pub(super) fn write(mut self, at: u64, name: Name, token: u64, accepted: bool) -> Self {
        self.accepted += u64::from(accepted);
        let what = What::Write {
            id: id(name),
            key: 7,
            token,
            accepted,
        };
        self.at(at, what)
    }

    /// What the storage has at the end, but for those that are missing.
    pub(super) fn sum(self, at: u64, missing: u64) -> Self {
        let what = What::Sum {
            key: 7,
            accepted: self.accepted,
            fenced: self.accepted - missing,
            written: self.accepted,
            unfenced: self.accepted,
        };
        self.at(at, what)
    }

    pub(super) fn stopped(self, process: u32, from: u64, to: u64) -> Self {
        self.at(from, What::Stopped { process })
            .at(to, What::Continued { process })
    }

    pub(super) fn fault(self, process: Option<u32>, from: u64, to: u64) -> Self {
        let name = || "cut".to_owned();
        let begins = What::Fault {
            name: name(),
            process,
        };
        let ends = What::Healed {
            name: name(),
            process,
        };
        self.at(from, begins).at(to, ends)
    }

    /// Beats at these times, every 50 ms.
    pub(super) fn beats(mut self, from: u64, to: u64) -> Self {
        for at in (from..=to).step_by(50) {
            self = self.at(at, What::Beat);
        }
        self
    }

    pub(super) fn check(self) -> Found {
        self.check_by(&rules())
    }

    pub(super) fn check_by(self, rules: &Rules) -> Found {
        let history = History::of(self.events).expect("a history");
        check(&history, rules)
    }

    /// Nothing is wrong.
    #[track_caller]
    pub(super) fn passes(self) -> Found {
        let found = self.check();
        assert_eq!(found.violations, [], "{found:#?}");
        found
    }

    /// These and nothing else is wrong, in the order of [`Kind`].
    #[track_caller]
    pub(super) fn fails(self, kinds: &[Kind]) -> Found {
        let found = self.check();
        let mut shown: Vec<_> = found.violations.iter().map(|one| one.kind).collect();
        shown.sort_unstable();
        assert_eq!(shown, kinds, "{found:#?}");
        found
    }
}

pub(super) fn rules() -> Rules {
    Rules {
        order_slack: 20 * MS,
        own_order_slack: 5 * MS,
        reconnects: 50 * MS,
        order_kept_under: vec!["late".to_owned()],
        stopped_by: vec!["blocked".to_owned()],
        answer_slack: 200 * MS,
        told_slack: 100 * MS,
        recovery: 2000 * MS,
        drain: 3000 * MS,
        hand_off: 1500 * MS,
        stall: 300 * MS,
    }
}
