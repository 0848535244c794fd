//! Who of this process waits or holds.

use std::{
    collections::{HashMap, hash_map},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, Weak},
};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    lease::Inner,
    session::Session,
    waiter::{Tick, Waiter},
};
use crate::{
    backend::Mode,
    lease::{Loss, OwnerToken},
    sync::lock,
};

#[derive(Debug, Default)]
pub(super) struct Room {
    owners: Mutex<HashMap<Asker, Entry>>,
    /// Who is about to join a queue, by lock.
    lines: Mutex<HashMap<Arc<str>, Arc<tokio::sync::Mutex<()>>>>,
    /// Waiters that have to show that they live.
    expected: Mutex<Vec<Arc<Waiter>>>,
    /// There was nobody expected, and now there is.
    pub(super) expects: Notify,
}

/// An owner, and the lock that it asks for in which mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    owner: OwnerToken,
    mode: Mode,
    lock: Arc<str>,
}

impl Hash for Asker {
    /// Few owners ask for more than one lock.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.owner.hash64());
    }
}

impl Asker {
    pub(super) fn new(owner: OwnerToken, mode: Mode, lock: Arc<str>) -> Self {
        Self { owner, mode, lock }
    }
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
    /// It waits from now on, in the place of another acquire of it.
    Waits(Option<Arc<Waiter>>),
    Holds(Arc<Inner>),
    /// Its lease is being dropped, by another thread.
    Drops,
    /// It may ask when this is cancelled.
    Leaves(CancellationToken),
}

impl Room {
    /// Enters an owner that is about to ask.
    pub(super) fn enter(&self, asker: &Asker, waiter: &Arc<Waiter>) -> Known {
        let older = match lock(&self.owners).entry(asker.clone()) {
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
        older.replace();
        Known::Waits(Some(older))
    }

    /// A place in the line of those of this process that are about to join the queue of a lock. The
    /// server takes requests of one connection in any order; this keeps them in the one in which
    /// they came.
    pub(super) fn line_up(&self, lock_of: Arc<str>) -> Line<'_> {
        let turn = lock(&self.lines)
            .entry(lock_of.clone())
            .or_default()
            .clone();
        Line {
            room: self,
            lock_of,
            turn,
        }
    }

    /// The owner that waited holds now; `false` if another acquire of it has taken its place.
    pub(super) fn holds(&self, asker: &Asker, waiter: &Arc<Waiter>, inner: &Arc<Inner>) -> bool {
        match lock(&self.owners).get_mut(asker) {
            Some(entry @ Entry::Waits(_)) if is_waiter(entry, waiter) => {
                *entry = Entry::Holds(Arc::downgrade(inner));
                true
            }
            _ => false,
        }
    }

    /// What an owner holds.
    pub(super) fn held(&self, asker: &Asker) -> Option<Arc<Inner>> {
        match lock(&self.owners).get(asker)? {
            Entry::Holds(inner) => inner.upgrade(),
            Entry::Waits(_) | Entry::Leaves(..) => None,
        }
    }

    /// The wait is over; whether it is to be undone, which is what [`left`](Self::left) ends.
    /// Not if another acquire of the owner has taken its place: it has what this one had.
    pub(super) fn leave(&self, asker: &Asker, waiter: &Arc<Waiter>, asked: bool) -> bool {
        let mut owners = lock(&self.owners);
        match owners.get(asker) {
            Some(entry @ Entry::Waits(_)) if !is_waiter(entry, waiter) => false,
            Some(Entry::Holds(_)) => false,
            _ => is_gone(&mut owners, asker, asked),
        }
    }

    /// The last handle of a lease is gone; returns as [`leave`](Self::leave).
    pub(super) fn forget(&self, asker: &Asker, inner: &Inner, held: bool) -> bool {
        let mut owners = lock(&self.owners);
        match owners.get(asker) {
            Some(Entry::Waits(_)) => false,
            Some(Entry::Holds(other)) if !std::ptr::eq(other.as_ptr(), inner) => false,
            _ => is_gone(&mut owners, asker, held),
        }
    }

    /// An owner was undone.
    pub(super) fn left(&self, asker: &Asker) {
        let mut owners = lock(&self.owners);
        if let Some(Entry::Leaves(times, left)) = owners.get_mut(asker) {
            *times -= 1;
            if *times == 0 {
                left.cancel();
                owners.remove(asker);
            }
        }
    }

    /// A session is over: who held by it has lost, who waited by it must stand anew.
    pub(super) fn session_over(&self, session: &Session, loss: Loss) {
        let mut waiters = Vec::new();
        let mut holders = Vec::new();
        for entry in lock(&self.owners).values() {
            match entry {
                Entry::Waits(waiter) => waiters.push(waiter.clone()),
                Entry::Holds(inner) => holders.extend(inner.upgrade()),
                Entry::Leaves(..) => {}
            }
        }
        for inner in holders {
            if std::ptr::eq(&*inner.session, session) {
                inner.lose(loss);
            }
        }
        for waiter in waiters {
            if waiter.is_on(session) {
                self.tell(&waiter);
            }
        }
    }

    /// A waiter has to look again, and soon.
    pub(super) fn tell(&self, waiter: &Arc<Waiter>) {
        if waiter.look() {
            self.expect(waiter);
        }
    }

    /// A waiter has to show that it lives.
    pub(super) fn expect(&self, waiter: &Arc<Waiter>) {
        let mut expected = lock(&self.expected);
        expected.push(waiter.clone());
        if expected.len() == 1 {
            drop(expected);
            self.expects.notify_one();
        }
    }

    /// Whether there is anybody to [`tick`](Self::tick) for.
    pub(super) fn expects_anybody(&self) -> bool {
        !lock(&self.expected).is_empty()
    }

    /// Some time has passed for those who have to show that they live; those who do not.
    pub(super) fn tick(&self) -> Vec<Arc<Waiter>> {
        let expected = std::mem::take(&mut *lock(&self.expected));
        let (mut on, mut hung) = (Vec::new(), Vec::new());
        for waiter in expected {
            match waiter.tick() {
                Tick::Well => {}
                Tick::Waits => on.push(waiter),
                Tick::Doubtful(left) => {
                    for other in self.others(&waiter) {
                        if other.show(left) {
                            on.push(other);
                        }
                    }
                    on.push(waiter);
                }
                Tick::Hung => hung.push(waiter),
            }
        }
        lock(&self.expected).append(&mut on);
        hung
    }

    /// Who else of this process waits for the same lock.
    fn others(&self, waiter: &Arc<Waiter>) -> Vec<Arc<Waiter>> {
        let lock_of = waiter.names.id();
        let owners = lock(&self.owners);
        let others = owners.iter().filter_map(|(asker, entry)| match entry {
            Entry::Waits(other) if asker.lock == lock_of && !Arc::ptr_eq(other, waiter) => {
                Some(other.clone())
            }
            _ => None,
        });
        others.collect()
    }
}

/// See [`Room::line_up`]. Those who wait for their turn get it in the order of their first poll.
pub(super) struct Line<'a> {
    room: &'a Room,
    lock_of: Arc<str>,
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        let mut lines = lock(&self.room.lines);
        // This one and the table's.
        if Arc::strong_count(&self.turn) == 2 {
            lines.remove(&self.lock_of);
        }
    }
}

/// Ends what is known of an owner, at once or when it was undone.
fn is_gone(owners: &mut HashMap<Asker, Entry>, asker: &Asker, is_undone: bool) -> bool {
    if !is_undone {
        if !matches!(owners.get(asker), Some(Entry::Leaves(..))) {
            owners.remove(asker);
        }
    } else if let Some(Entry::Leaves(times, _)) = owners.get_mut(asker) {
        *times += 1;
    } else {
        let leaves = Entry::Leaves(1, CancellationToken::new());
        owners.insert(asker.clone(), leaves);
    }
    is_undone
}

fn is_waiter(entry: &Entry, waiter: &Arc<Waiter>) -> bool {
    matches!(entry, Entry::Waits(other) if Arc::ptr_eq(other, waiter))
}
