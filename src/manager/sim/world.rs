//! What is true of a history at each of its moments.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Display,
    rc::Rc,
    time::Duration,
};

use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};

use crate::{
    backend::{LockBackend, MemoryBackend, Mode},
    key::LockKey,
    manager::{HeldLock, LockGuard},
    simulation::History,
};

pub(super) struct World {
    pub(super) keys: Vec<LockKey>,
    pub(super) memory: MemoryBackend,
    began: Instant,
    history: RefCell<History>,
    /// Those who believe that they hold.
    holders: RefCell<Vec<(u64, HeldLock)>>,
    /// Those who wait, by arrival.
    waiters: RefCell<BTreeMap<u64, Waits>>,
    arrivals: Cell<u64>,
    /// The highest token of each key, and of its exclusive grants.
    tokens: RefCell<Vec<(u64, u64)>>,
    /// When something last happened to a key that takes grants away before they are taken.
    disturbed: RefCell<Vec<Instant>>,
    pub(super) closing: Cell<bool>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    pub(super) caller: u64,
    pub(super) key: usize,
    pub(super) mode: Mode,
    /// It counts on its place.
    pub(super) fifo: bool,
    pub(super) since: Instant,
    /// It is not polled.
    pub(super) hangs: bool,
}

impl World {
    pub(super) fn new(keys: usize, memory: MemoryBackend) -> Self {
        let began = Instant::now();
        Self {
            keys: (0..keys).map(|n| LockKey::new("sim", n)).collect(),
            memory,
            began,
            history: RefCell::default(),
            holders: RefCell::default(),
            waiters: RefCell::default(),
            arrivals: Cell::new(0),
            tokens: RefCell::new(vec![(0, 0); keys]),
            disturbed: RefCell::new(vec![began; keys]),
            closing: Cell::new(false),
        }
    }

    /// Something that happened, counted unless it has no name.
    pub(super) fn event(&self, name: &'static str, what: impl Display) {
        let mut history = self.history.borrow_mut();
        history.event(self.began.elapsed(), what);
        if !name.is_empty() {
            history.seen.add(name, 1);
        }
    }

    pub(super) fn problem(&self, what: impl Display) {
        let mut history = self.history.borrow_mut();
        history.problem(self.began.elapsed(), what);
    }

    pub(super) fn end(&self) -> History {
        self.history.take()
    }

    /// Grants may be taken away before their callers have them, so that these queue anew.
    pub(super) fn disturb(&self, key: Option<usize>) {
        let now = Instant::now();
        for (at, disturbed) in self.disturbed.borrow_mut().iter_mut().enumerate() {
            if key.is_none_or(|key| key == at) {
                *disturbed = now;
            }
        }
    }

    pub(super) fn is_disturbed(&self, key: usize, since: Instant) -> bool {
        self.disturbed.borrow()[key] >= since
    }

    pub(super) fn arrives(&self, waits: Waits) -> u64 {
        let arrival = self.arrivals.get();
        self.arrivals.set(arrival + 1);
        self.waiters.borrow_mut().insert(arrival, waits);
        arrival
    }

    /// Its caller polls it no more, or again.
    pub(super) fn hangs(&self, arrival: u64, hangs: bool) {
        if let Some(waits) = self.waiters.borrow_mut().get_mut(&arrival) {
            waits.hangs = hangs;
        }
        if let Some(waits) = self.waiters.borrow().get(&arrival) {
            // What it was offered goes to others, by a roll call.
            self.disturb(Some(waits.key));
        }
    }

    pub(super) fn leaves(&self, arrival: u64) {
        self.waiters.borrow_mut().remove(&arrival);
    }

    pub(super) fn granted(&self, caller: u64, key: usize, waits: (u64, Waits), guard: &LockGuard) {
        let (arrival, waits) = waits;
        let mut holders = self.holders.borrow_mut();
        holders.retain(|(_, held)| held.is_held());
        for (other, held) in &*holders {
            let same = held.key() == guard.key();
            if same && (held.mode() == Mode::Exclusive || guard.mode() == Mode::Exclusive) {
                self.problem(format_args!("{caller} and {other} both hold key {key}"));
            }
        }
        if guard.is_held() {
            holders.push((caller, guard.held()));
        }
        let token = guard.fencing_token().get();
        let (highest, exclusive) = &mut self.tokens.borrow_mut()[key];
        let below = match guard.mode() {
            Mode::Exclusive => *highest,
            Mode::Shared => *exclusive,
        };
        if token <= below {
            self.problem(format_args!(
                "the token of {caller} for key {key} does not grow"
            ));
        }
        *highest = token.max(*highest);
        if guard.mode() == Mode::Exclusive {
            *exclusive = token;
        }
        if waits.fifo && !self.is_disturbed(key, waits.since) {
            for (_, other) in self.waiters.borrow().range(..arrival) {
                // Readers have it together, and hear of it in any order.
                let together = other.mode == Mode::Shared && guard.mode() == Mode::Shared;
                if other.key == key
                    && other.fifo
                    && !together
                    && !self.is_disturbed(key, other.since)
                {
                    self.problem(format_args!("{caller} overtakes {}", other.caller));
                }
            }
        }
    }

    /// It holds no more, whatever comes of its release.
    pub(super) fn gives_back(&self, guard: &LockGuard) {
        let mut holders = self.holders.borrow_mut();
        holders.retain(|(_, held)| {
            held.key() != guard.key() || held.fencing_token() != guard.fencing_token()
        });
    }

    async fn is_idle(&self, key: usize) -> bool {
        let now = Instant::now();
        let waits = |w: &Waits| w.key == key && w.since < now;
        if !self.waiters.borrow().values().any(waits) {
            return false;
        }
        let state = self.memory.inspect(&self.keys[key]).await;
        state.is_ok_and(|state| state.holders.is_empty())
    }

    pub(super) fn somebody_hangs(&self) -> bool {
        self.waiters.borrow().values().any(|w| w.hangs)
    }
}

/// Looks for keys that are free while somebody waits, at moments at which nothing else is to be
/// done.
pub(super) async fn watch(world: Rc<World>) {
    loop {
        sleep(Duration::from_millis(7)).await;
        for key in 0..world.keys.len() {
            let now = Instant::now();
            for _ in 0..100 {
                if !world.is_idle(key).await {
                    break;
                }
                yield_now().await;
            }
            // An offer to who is not polled goes on after a second, and a roll call.
            let excused = now.checked_sub(Duration::from_millis(1300));
            if world.is_idle(key).await
                && !world.somebody_hangs()
                && !excused.is_some_and(|since| world.is_disturbed(key, since))
            {
                world.problem(format_args!("key {key} is free, and somebody waits"));
                return;
            }
        }
    }
}
