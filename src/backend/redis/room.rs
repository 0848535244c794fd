//! Who of this process waits or holds: what the messages of the inbox are for.

use std::{
    collections::{HashMap, VecDeque, hash_map},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{gate::Gate, lease::Inner, names::Names};
use crate::{
    lease::{Loss, OwnerToken},
    sync::lock,
};

/// The longest time that a process lets a key of its waiters go unlooked at.
const CEILING: Duration = Duration::from_secs(1);
/// How soon a key is looked at that is free or in between.
const SOON: Duration = Duration::from_millis(250);
/// How soon, at first, a key is looked at whose holder tells nobody of its release.
const FOREIGN: Duration = Duration::from_millis(25);

#[derive(Debug, Default)]
pub(super) struct Room {
    tables: Mutex<Tables>,
    /// A line is due earlier than the patrol knows.
    pub(super) earlier: Notify,
}

#[derive(Debug, Default)]
struct Tables {
    owners: HashMap<OwnerToken, Entry>,
    lines: HashMap<Arc<str>, Line>,
    gates: HashMap<Arc<str>, Arc<Gate>>,
}

#[derive(Debug)]
enum Entry {
    Waits(Arc<Waiter>),
    Holds(Weak<Inner>),
}

/// What this process knows of an owner that asks.
pub(super) enum Known {
    /// It waits, or nobody knew it; the older wait is over.
    Waits,
    Holds(Arc<Inner>),
}

/// The waiters of one key in this process.
#[derive(Debug)]
struct Line {
    names: Arc<Names>,
    /// In the order in which they came, as they mostly leave.
    waiters: VecDeque<Arc<Waiter>>,
    due: Instant,
    backoff: Duration,
}

/// One acquire that waits.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    told: Mutex<Told>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct Told {
    offer: Option<String>,
    ask: bool,
    replaced: bool,
}

/// Why a waiter was woken.
#[derive(Debug)]
pub(super) enum News {
    /// It may have the key, if it confirms: with this token.
    Offer(String),
    /// It has to ask again.
    Ask,
    /// Another acquire of the same owner has taken its place.
    Replaced,
}

impl Waiter {
    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut lock(&self.told));
        self.woken.notify_one();
    }

    /// Cancel safe: news that are not taken stay.
    pub(super) async fn news(&self) -> News {
        loop {
            {
                let mut told = lock(&self.told);
                if told.replaced {
                    return News::Replaced;
                }
                if let Some(token) = told.offer.take() {
                    return News::Offer(token);
                }
                if std::mem::take(&mut told.ask) {
                    return News::Ask;
                }
            }
            // One task waits, and a permit is kept for it.
            self.woken.notified().await;
        }
    }
}

/// What a script says of a key that is not to be had yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outlook {
    /// Until the holder's lease ends: negative if it never does (-1) or nobody holds (-2).
    pub(super) ms: i64,
    pub(super) foreign: bool,
    pub(super) head_is_here: bool,
}

impl Outlook {
    pub(super) fn remaining(self) -> Option<Duration> {
        u64::try_from(self.ms).ok().map(Duration::from_millis)
    }

    fn due(self, backoff: &mut Duration) -> Instant {
        let ceiling = jittered(CEILING);
        let mut delay = match self.ms {
            // A key ends in the millisecond after its last one.
            0.. => (Duration::from_millis(self.ms as u64 + 2)).min(ceiling),
            -2 => SOON,
            _ => ceiling,
        };
        if !self.foreign {
            *backoff = FOREIGN;
        } else if self.head_is_here {
            delay = delay.min(jittered(*backoff));
            *backoff = (*backoff * 2).min(CEILING);
        }
        Instant::now() + delay
    }
}

/// Within a tenth of it, so that processes do not move in step.
pub(super) fn jittered(duration: Duration) -> Duration {
    duration.mul_f64(0.9 + 0.2 * fastrand::f64())
}

impl Room {
    /// Enters an owner that is about to ask.
    pub(super) fn enter(&self, owner: OwnerToken, waiter: &Arc<Waiter>) -> Known {
        let mut tables = lock(&self.tables);
        let replaced = match tables.owners.entry(owner) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Entry::Waits(waiter.clone()));
                return Known::Waits;
            }
            hash_map::Entry::Occupied(mut entry) => {
                if let Entry::Holds(inner) = entry.get()
                    && let Some(inner) = inner.upgrade()
                {
                    return Known::Holds(inner);
                }
                entry.insert(Entry::Waits(waiter.clone()))
            }
        };
        drop(tables);
        if let Entry::Waits(older) = replaced {
            older.tell(|told| told.replaced = true);
        }
        Known::Waits
    }

    /// The owner that waited holds now; `false` if another acquire of it has taken its place.
    pub(super) fn holds(
        &self,
        owner: OwnerToken,
        waiter: &Arc<Waiter>,
        inner: &Arc<Inner>,
    ) -> bool {
        match lock(&self.tables).owners.get_mut(&owner) {
            Some(entry @ Entry::Waits(_)) if is_waiter(entry, waiter) => {
                *entry = Entry::Holds(Arc::downgrade(inner));
                true
            }
            _ => false,
        }
    }

    /// The wait is over; `false` if another acquire of the owner has taken its place.
    pub(super) fn leave(&self, owner: OwnerToken, waiter: &Arc<Waiter>) -> bool {
        let mut tables = lock(&self.tables);
        let mine = tables
            .owners
            .get(&owner)
            .is_some_and(|entry| is_waiter(entry, waiter));
        if mine {
            tables.owners.remove(&owner);
        }
        mine
    }

    /// The last handle of a lease is gone.
    pub(super) fn forget(&self, owner: OwnerToken) {
        let mut tables = lock(&self.tables);
        if let Some(Entry::Holds(inner)) = tables.owners.get(&owner)
            && inner.strong_count() == 0
        {
            tables.owners.remove(&owner);
        }
    }

    /// Tells the line of a key, which the patrol looks after, of the outlook; a new waiter joins
    /// it.
    pub(super) fn queue(
        &self,
        names: &Arc<Names>,
        newcomer: Option<&Arc<Waiter>>,
        outlook: Outlook,
    ) {
        let mut tables = lock(&self.tables);
        let line = match tables.lines.get_mut(&*names.lock) {
            Some(line) => line,
            None => {
                let line = Line {
                    names: names.clone(),
                    waiters: VecDeque::new(),
                    // Later than what the outlook says, so that the patrol hears of it.
                    due: Instant::now() + CEILING * 60,
                    backoff: FOREIGN,
                };
                tables.lines.entry(names.lock.clone()).or_insert(line)
            }
        };
        line.waiters.extend(newcomer.cloned());
        let due = outlook.due(&mut line.backoff);
        if due < line.due {
            line.due = due;
            drop(tables);
            self.earlier.notify_one();
        }
    }

    pub(super) fn unqueue(&self, names: &Names, waiter: &Arc<Waiter>) {
        let mut tables = lock(&self.tables);
        if let Some(line) = tables.lines.get_mut(&*names.lock) {
            if let Some(at) = line.waiters.iter().position(|w| Arc::ptr_eq(w, waiter)) {
                line.waiters.remove(at);
            }
            if line.waiters.is_empty() {
                tables.lines.remove(&*names.lock);
            }
        }
    }

    /// The lines that are due, each postponed by the ceiling, and when the next one is.
    pub(super) fn due(&self, now: Instant) -> (Vec<Arc<Names>>, Option<Instant>) {
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for line in lock(&self.tables).lines.values_mut() {
            if line.due <= now {
                line.due = now + jittered(CEILING);
                due.push(line.names.clone());
            }
            next = Some(next.map_or(line.due, |next| next.min(line.due)));
        }
        (due, next)
    }

    /// What a look at the key found. `queued`: whether anybody stands in its queue.
    pub(super) fn looked(&self, names: &Names, outlook: Outlook, queued: bool) {
        let mut tables = lock(&self.tables);
        let Some(line) = tables.lines.get_mut(&*names.lock) else {
            return;
        };
        line.due = outlook.due(&mut line.backoff);
        let lost = if queued {
            VecDeque::new()
        } else {
            // The server has forgotten them.
            line.waiters.clone()
        };
        drop(tables);
        for waiter in lost {
            waiter.tell(|told| told.ask = true);
        }
    }

    /// An offer to an owner.
    pub(super) fn offer(&self, owner: OwnerToken, token: &str) {
        if let Some(Entry::Waits(waiter)) = lock(&self.tables).owners.get(&owner) {
            waiter.tell(|told| told.offer = Some(token.into()));
        }
    }

    /// An owner has to ask again.
    pub(super) fn ask(&self, owner: OwnerToken) {
        if let Some(Entry::Waits(waiter)) = lock(&self.tables).owners.get(&owner) {
            waiter.tell(|told| told.ask = true);
        }
    }

    /// An operator took the key from this owner.
    pub(super) fn revoked(&self, owner: OwnerToken) {
        let held = match lock(&self.tables).owners.get(&owner) {
            Some(Entry::Holds(inner)) => inner.upgrade(),
            Some(Entry::Waits(waiter)) => {
                waiter.tell(|told| told.ask = true);
                None
            }
            None => None,
        };
        if let Some(inner) = held {
            inner.lose(Loss::ForceReleased);
        }
    }

    /// All that wait for this key here were taken out of its queue.
    pub(super) fn evicted(&self, name: &str) {
        let waiters = match lock(&self.tables).lines.get(name) {
            Some(line) => line.waiters.clone(),
            None => return,
        };
        for waiter in waiters {
            waiter.tell(|told| told.ask = true);
        }
    }

    /// Messages may have been missed: everybody asks again.
    pub(super) fn gap(&self) {
        let (waiters, gates): (Vec<_>, Vec<_>) = {
            let tables = lock(&self.tables);
            let waiters = tables.owners.values().filter_map(|entry| match entry {
                Entry::Waits(waiter) => Some(waiter.clone()),
                Entry::Holds(_) => None,
            });
            (waiters.collect(), tables.gates.values().cloned().collect())
        };
        for waiter in waiters {
            waiter.tell(|told| told.ask = true);
        }
        for gate in gates {
            gate.open();
        }
    }

    /// Joins those who wait until this key is free.
    pub(super) fn join_gate(&self, names: &Names, create: impl FnOnce() -> Gate) -> Arc<Gate> {
        let mut tables = lock(&self.tables);
        let gate = match tables.gates.get(&*names.lock) {
            Some(gate) => gate.clone(),
            None => {
                let gate = Arc::new(create());
                tables.gates.insert(names.lock.clone(), gate.clone());
                gate
            }
        };
        gate.join();
        gate
    }

    /// Whether the last one left.
    pub(super) fn leave_gate(&self, names: &Names, gate: &Arc<Gate>) -> bool {
        let mut tables = lock(&self.tables);
        let last = gate.leave();
        if last {
            tables.gates.remove(&*names.lock);
        }
        last
    }

    pub(super) fn open_gate(&self, name: &str) {
        let gate = lock(&self.tables).gates.get(name).cloned();
        if let Some(gate) = gate {
            gate.open();
        }
    }
}

fn is_waiter(entry: &Entry, waiter: &Arc<Waiter>) -> bool {
    matches!(entry, Entry::Waits(other) if Arc::ptr_eq(other, waiter))
}
