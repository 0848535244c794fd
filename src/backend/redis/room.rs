//! Who of this process waits or holds: what the messages of the inbox are for.

mod news;

use std::{
    collections::{HashMap, VecDeque, hash_map},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

pub(super) use super::callers::Asker;
use super::{
    callers::Gate,
    lease::Inner,
    names::Names,
    waiter::{Asked, Together, Waiter},
};
use crate::{
    clock::jittered,
    sync::{HashState, lock},
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
    owners: HashMap<Asker, Entry, HashState>,
    lines: HashMap<Arc<str>, Line, HashState>,
    gates: HashMap<Arc<str>, Arc<Gate>, HashState>,
}

#[derive(Debug)]
enum Entry {
    Waits(Arc<Waiter>),
    Holds(Weak<Inner>),
    /// It is being undone, so many times; what it asks now would be undone too.
    Leaves(u32, CancellationToken),
}

/// What this process knows of an owner that asks.
pub(super) enum Known {
    /// It waits from now on. Another acquire of it, which asked like this, is over.
    Waits(Option<Asked>),
    Holds(Arc<Inner>),
    /// Its lease is being dropped, by another thread.
    Drops,
    /// It may ask when this is cancelled.
    Leaves(CancellationToken),
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

impl Room {
    /// Enters an owner that is about to ask.
    pub(super) fn enter(&self, asker: &Asker, waiter: &Arc<Waiter>) -> Known {
        let mut tables = lock(&self.tables);
        let older = match tables.owners.entry(asker.clone()) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Entry::Waits(waiter.clone()));
                return Known::Waits(None);
            }
            hash_map::Entry::Occupied(mut entry) => match entry.get_mut() {
                Entry::Holds(inner) => return inner.upgrade().map_or(Known::Drops, Known::Holds),
                Entry::Leaves(_, left) => return Known::Leaves(left.clone()),
                Entry::Waits(older) => std::mem::replace(older, waiter.clone()),
            },
        };
        Known::Waits(older.replace())
    }

    /// The owner that waited holds now; if another acquire of it has taken its place, `Err` with
    /// whether that is still there.
    pub(super) fn holds(
        &self,
        asker: &Asker,
        waiter: &Arc<Waiter>,
        inner: &Arc<Inner>,
    ) -> Result<(), bool> {
        match lock(&self.tables).owners.get_mut(asker) {
            Some(entry @ Entry::Waits(_)) if is_waiter(entry, waiter) => {
                *entry = Entry::Holds(Arc::downgrade(inner));
                Ok(())
            }
            Some(Entry::Waits(_) | Entry::Holds(_)) => Err(true),
            Some(Entry::Leaves(..)) | None => Err(false),
        }
    }

    /// The wait is over; whether it is to be undone, which is what [`left`](Self::left) ends.
    /// Not if another acquire of the owner has taken its place: it gets what this one got.
    pub(super) fn leave(&self, asker: &Asker, waiter: &Arc<Waiter>, asked: bool) -> bool {
        let mut tables = lock(&self.tables);
        match tables.owners.get(asker) {
            Some(entry @ Entry::Waits(_)) if !is_waiter(entry, waiter) => false,
            Some(Entry::Holds(_)) => false,
            _ => tables.is_gone(asker, asked),
        }
    }

    /// The last handle of a lease is gone; returns as [`leave`](Self::leave).
    pub(super) fn forget(&self, asker: &Asker, inner: &Inner, held: bool) -> bool {
        let mut tables = lock(&self.tables);
        match tables.owners.get(asker) {
            Some(Entry::Waits(_)) => false,
            Some(Entry::Holds(other)) if !std::ptr::eq(other.as_ptr(), inner) => false,
            _ => tables.is_gone(asker, held),
        }
    }

    /// An owner was undone.
    pub(super) fn left(&self, asker: &Asker) {
        let mut tables = lock(&self.tables);
        if let Some(Entry::Leaves(times, left)) = tables.owners.get_mut(asker) {
            *times -= 1;
            if *times == 0 {
                left.cancel();
                tables.owners.remove(asker);
            }
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
            waiter.ask();
        }
    }

    /// All leases of this process.
    pub(super) fn holders(&self) -> Vec<Arc<Inner>> {
        let tables = lock(&self.tables);
        let leases = tables.owners.values().filter_map(|entry| match entry {
            Entry::Holds(inner) => inner.upgrade(),
            Entry::Waits(_) | Entry::Leaves(..) => None,
        });
        leases.collect()
    }

    /// The lease of an owner, if it has one here.
    pub(super) fn lease(&self, asker: &Asker) -> Option<Arc<Inner>> {
        match lock(&self.tables).owners.get(asker) {
            Some(Entry::Holds(inner)) => inner.upgrade(),
            _ => None,
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
}

impl Tables {
    /// Ends what is known of an owner, at once or when it was undone.
    fn is_gone(&mut self, asker: &Asker, is_undone: bool) -> bool {
        if !is_undone {
            if !matches!(self.owners.get(asker), Some(Entry::Leaves(..))) {
                self.owners.remove(asker);
            }
        } else if let Some(Entry::Leaves(times, _)) = self.owners.get_mut(asker) {
            *times += 1;
        } else {
            let leaves = Entry::Leaves(1, CancellationToken::new());
            self.owners.insert(asker.clone(), leaves);
        }
        is_undone
    }
}

fn is_waiter(entry: &Entry, waiter: &Arc<Waiter>) -> bool {
    matches!(entry, Entry::Waits(other) if Arc::ptr_eq(other, waiter))
}
