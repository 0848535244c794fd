//! When a violation may be that the table of expectations has: near the fault that brings it.
//!
//! A server that forgets, or whose clock jumps, does so between a fault's beginning and its healing.
//! Who held before counts on its lease for a ttl more at the most: a renewal after the fault fails,
//! or is made where the next holder asks too. Behind Sentinels and in a Cluster, those that still
//! speak to the old master leave it within a second or two. So whatever follows from a fault has
//! happened by a ttl and [`LATE`] after it was healed, and what is found at any other time is a
//! failure, also in a run that has the excuse.
//!
//! Of several faults in one run, each excuses by its own name: one that excuses nothing on a
//! backend leaves no room for anything.

use crate::{
    checks::{Kind, Violation},
    expect::{self, LATE},
    faults::Fault,
    history::{History, Nanos, What},
    stage::Backend,
};

pub(crate) struct Excuses(Vec<Excuse>);

struct Excuse {
    kinds: &'static [Kind],
    name: String,
    process: Option<u32>,
    from: Nanos,
    /// The last moment; no end before it is healed.
    to: Nanos,
}

impl Excuses {
    pub(crate) fn of(backend: Backend, fault: Fault, history: &History) -> Self {
        let mut excuses = Self(Vec::new());
        if backend.is_control() {
            // It is broken all the time.
            let (kinds, _) = expect::allowed(backend, fault);
            excuses.0.push(Excuse {
                kinds,
                name: String::new(),
                process: None,
                from: 0,
                to: Nanos::MAX,
            });
            return excuses;
        }
        let after = (expect::ttl(backend, fault) + LATE).as_nanos() as Nanos;
        for event in &history.events {
            match &event.what {
                What::Fault { name, process } => {
                    let brought = Fault::named(name);
                    let kinds = brought.map_or(&[][..], |it| expect::allowed(backend, it).0);
                    excuses.0.push(Excuse {
                        kinds,
                        name: name.clone(),
                        process: *process,
                        from: event.at,
                        to: Nanos::MAX,
                    });
                }
                What::Healed { name, process } => {
                    let known = excuses.0.iter_mut();
                    let open = known.filter(|it| it.to == Nanos::MAX && it.name == *name);
                    for excuse in open.filter(|it| it.process == *process) {
                        excuse.to = event.at.saturating_add(after);
                    }
                }
                _ => {}
            }
        }
        excuses
    }

    pub(crate) fn cover(&self, violation: &Violation) -> bool {
        self.0.iter().any(|excuse| {
            excuse.kinds.contains(&violation.kind)
                && (excuse.from..=excuse.to).contains(&violation.at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Event;

    const SECOND: Nanos = 1_000_000_000;

    /// Faults by name, each from one second to another.
    fn history(faults: &[(&str, u64, u64)]) -> History {
        let mut events = Vec::new();
        for (name, from, to) in faults {
            let (name, process) = (|| (*name).to_owned(), None);
            events.push(Event {
                at: from * SECOND,
                what: What::Fault {
                    name: name(),
                    process,
                },
            });
            events.push(Event {
                at: to * SECOND,
                what: What::Healed {
                    name: name(),
                    process,
                },
            });
        }
        History::of(events).expect("a history")
    }

    fn at(kind: Kind, at: Nanos) -> Violation {
        Violation {
            kind,
            key: 2,
            at,
            text: String::new(),
        }
    }

    #[test]
    fn only_near_the_fault() {
        let history = history(&[("empty", 10, 11)]);
        let excuses = Excuses::of(Backend::Redis, Fault::Empty, &history);
        let covers = |kind, moment| excuses.cover(&at(kind, moment));
        assert!(!covers(Kind::DoubleHold, 10 * SECOND - 1));
        assert!(covers(Kind::DoubleHold, 10 * SECOND));
        // A ttl and the slack of a busy machine.
        assert!(covers(Kind::DoubleHold, 15 * SECOND));
        assert!(!covers(Kind::DoubleHold, 15 * SECOND + 1));
        // What it does not excuse, it excuses at no time.
        assert!(!covers(Kind::TokenInversion, 10 * SECOND));
    }

    #[test]
    fn of_several_faults_each_by_its_name() {
        let history = history(&[
            ("kill-server", 2, 3),
            ("empty", 20, 21),
            ("stop-server", 40, 43),
        ]);
        let excuses = Excuses::of(Backend::Redis, Fault::Any, &history);
        let covers = |moment| excuses.cover(&at(Kind::LossLate, moment * SECOND));
        assert_eq!(
            [2, 3, 20, 22, 30, 41].map(covers),
            [false, false, true, true, false, false]
        );
        // Behind Sentinels, these are fail-overs, and a fail-over loses grants.
        let excuses = Excuses::of(Backend::Sentinel, Fault::Any, &history);
        let covers = |moment| excuses.cover(&at(Kind::LossLate, moment * SECOND));
        assert_eq!([2, 3, 30, 41].map(covers), [true, true, false, true]);
        // Acknowledged grants are not lost.
        let excuses = Excuses::of(Backend::SentinelAcked, Fault::Any, &history);
        assert!(!excuses.cover(&at(Kind::LossLate, 2 * SECOND)));
    }

    #[test]
    fn what_is_broken_is_so_all_the_time() {
        let history = history(&[]);
        let excuses = Excuses::of(Backend::Naive, Fault::StopClient, &history);
        assert!(excuses.cover(&at(Kind::DoubleHold, SECOND)));
        assert!(!excuses.cover(&at(Kind::Corrupt, SECOND)));
    }
}
