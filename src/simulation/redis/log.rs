//! What happened, and whether it may have.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Duration,
};

use super::{Time, net::Clock};
use crate::{HeldLock, LockGuard, Mode, simulation::History};

#[derive(Default)]
pub(super) struct Log {
    pub(super) history: History,
    pub(super) beliefs: Vec<Rc<Belief>>,
    /// When the server forgot who holds, or a key was taken away.
    pub(super) amnesia: Vec<Time>,
}

/// That somebody holds a key.
pub(super) struct Belief {
    pub(super) caller: usize,
    pub(super) process: usize,
    pub(super) key: usize,
    pub(super) token: u64,
    mode: Mode,
    asked: Time,
    granted: Time,
    /// Until when it may be, as far as it knows.
    valid: Cell<Time>,
    ended: Cell<Option<Time>>,
    /// Not beyond its end, as it keeps the manager.
    held: RefCell<Option<HeldLock>>,
    clock: Option<Clock>,
}

impl Belief {
    pub(super) fn new(
        caller: usize,
        process: usize,
        key: usize,
        guard: &LockGuard,
        asked: Time,
        granted: Time,
        clock: Clock,
    ) -> Self {
        Self {
            caller,
            process,
            key,
            token: guard.fencing_token().get(),
            mode: guard.mode(),
            asked,
            granted,
            valid: Cell::new(granted + guard.remaining().as_micros() as Time),
            ended: Cell::new(None),
            held: RefCell::new(Some(guard.held())),
            clock: Some(clock),
        }
    }

    /// Of another program, which uses the same keys.
    pub(super) fn foreign(key: usize, from: Time, until: Time) -> Self {
        Self {
            caller: usize::MAX,
            process: usize::MAX,
            key,
            token: 0,
            mode: Mode::Exclusive,
            asked: from,
            granted: from,
            valid: Cell::new(until),
            ended: Cell::new(None),
            held: RefCell::default(),
            clock: None,
        }
    }

    pub(super) fn is_foreign(&self) -> bool {
        self.process == usize::MAX
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    pub(super) fn held(&self) -> Option<HeldLock> {
        self.held.borrow().clone()
    }

    /// So much is left of it, unless it is lost.
    pub(super) fn knows(&self, now: Time, remaining: Time) {
        if remaining > 0 {
            self.valid.set(self.valid.get().max(now + remaining));
        }
    }

    /// From here on it does nothing under the lock.
    pub(super) fn ends(&self) {
        let (Some(held), Some(clock)) = (self.held(), self.clock) else {
            return;
        };
        let now = clock.now();
        self.knows(now, held.remaining().as_micros() as Time);
        self.ends_at(now);
    }

    pub(super) fn ends_at(&self, now: Time) {
        if !self.has_ended() {
            self.ended.set(Some(now.min(self.valid.get())));
            self.held.take();
        }
    }

    fn until(&self) -> Time {
        self.ended.get().unwrap_or(self.valid.get())
    }

    /// The tokens that it, or the rest of its batch, may have.
    pub(super) fn may_stand_for(&self, token: u64) -> bool {
        (token..token + 10).contains(&self.token)
    }
}

impl Log {
    pub(super) fn event(&mut self, at: Time, name: &'static str, what: impl std::fmt::Display) {
        self.history.event(Duration::from_micros(at), what);
        if !name.is_empty() {
            self.history.seen.add(name, 1);
        }
    }

    pub(super) fn problem(&mut self, at: Time, what: impl std::fmt::Display) {
        self.history.problem(Duration::from_micros(at), what);
    }

    /// Of the whole history: exclusion, and tokens.
    pub(super) fn check(&mut self) {
        self.beliefs.sort_by_key(|belief| belief.granted);
        let mut problems = Vec::new();
        for (n, later) in self.beliefs.iter().enumerate() {
            for earlier in &self.beliefs[..n] {
                if earlier.key != later.key
                    || (earlier.mode == Mode::Shared && later.mode == Mode::Shared)
                {
                    continue;
                }
                let forgot = |at: &Time| (earlier.asked..=later.granted).contains(at);
                let excused = self.amnesia.iter().any(forgot);
                if later.granted < earlier.until() && !excused {
                    problems.push((later.granted, "both hold", earlier, later));
                }
                if earlier.is_foreign() || later.is_foreign() {
                    continue;
                }
                let repeats = earlier.token == later.token && later.mode == earlier.mode;
                let falls = earlier.granted <= later.asked && later.token <= earlier.token;
                if repeats || falls {
                    problems.push((
                        later.granted,
                        "have tokens that do not grow",
                        earlier,
                        later,
                    ));
                }
            }
        }
        let problems: Vec<_> = problems
            .into_iter()
            .map(|(at, what, a, b)| (at, format!("{} and {} {what}", a.caller, b.caller)))
            .collect();
        for (at, what) in problems {
            self.problem(at, what);
        }
    }
}
