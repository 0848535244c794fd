//! The keys that somebody holds or waits for, in shards.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use hashbrown::{HashTable, hash_table::Entry};
use tokio::time::Instant;

use super::{
    effects::Effects,
    lease::{Grant, MemoryLease, Wish},
    records::Records,
    room::Room,
    slab::{Node, Place},
};
use crate::{
    backend::{AcquireRequest, Mode, WaitBound},
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::{FencingToken, Loss},
    sync::lock,
};

const SHARDS: usize = 64;
/// A table of fewer keys than this is not worth shrinking.
const SMALL: usize = 64;

pub(super) struct Table {
    pub(super) shards: Box<[Shard]>,
    /// The zero of this table's clock.
    epoch: Instant,
    /// The system clock at the epoch, in microseconds.
    wall_epoch: u64,
    /// The last token given.
    last_token: AtomicU64,
    /// The last number given to a future that waits.
    last_seq: AtomicU64,
    pub(super) room_for_records: RoomForRecords,
}

/// How many bytes records may take, and take.
pub(super) struct RoomForRecords {
    pub(super) capacity: usize,
    pub(super) taken: AtomicUsize,
    /// Where to clean up next.
    pub(super) turn: AtomicUsize,
}

/// A cache line or two of its own.
#[repr(align(128))]
pub(super) struct Shard(pub(super) Mutex<Keys>);

/// The keys of a shard.
#[derive(Default)]
pub(super) struct Keys {
    pub(super) slots: HashTable<Slot>,
    /// Made for the first one: most tables have none.
    pub(super) records: Option<Box<Records>>,
}

/// A key that is in use. Most have one holder and no waiter, and cost one pointer.
pub(super) enum Slot {
    Held(Arc<Grant>),
    Room(Box<Room>),
}

impl Slot {
    pub(super) fn key(&self) -> &LockKey {
        match self {
            Self::Held(grant) => &grant.key,
            Self::Room(room) => &room.key,
        }
    }

    fn hash(&self) -> u64 {
        self.key().hash64()
    }

    /// Makes room for more than one.
    pub(super) fn room(&mut self, seq: u64) -> &mut Room {
        if let Self::Held(grant) = self {
            *self = Self::Room(Box::new(Room::around(grant.clone(), seq)));
        }
        match self {
            Self::Room(room) => room,
            Self::Held(_) => unreachable!("it was just replaced"),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self, Self::Room(room) if room.people.is_empty())
    }
}

/// The place of a future that waits.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    pub(super) at: u32,
    pub(super) seq: u64,
}

/// What came of asking once.
pub(super) enum Attempt {
    Ended(Result<MemoryLease, BackendError>),
    Queued(Ticket),
}

impl Table {
    pub(super) fn new(token_floor: u64, record_bytes: usize) -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| Shard(Mutex::default())).collect();
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Arc::new(Self {
            shards,
            epoch: Instant::now(),
            wall_epoch: u64::try_from(wall.as_micros()).unwrap_or(0),
            last_token: AtomicU64::new(token_floor),
            last_seq: AtomicU64::new(0),
            room_for_records: RoomForRecords {
                capacity: record_bytes,
                taken: AtomicUsize::new(0),
                turn: AtomicUsize::new(0),
            },
        })
    }

    pub(super) fn now(&self) -> u64 {
        self.nanos_of(Instant::now())
    }

    fn nanos_of(&self, instant: Instant) -> u64 {
        super::lease::nanos(instant.saturating_duration_since(self.epoch))
    }

    pub(super) fn instant(&self, nanos: u64) -> Instant {
        self.epoch + Duration::from_nanos(nanos)
    }

    /// The end of a wait; `None` for a request that does not wait (any more).
    pub(super) fn deadline(&self, wait: WaitBound, now: u64) -> Option<u64> {
        match wait {
            WaitBound::Fail => None,
            WaitBound::Until(at) => Some(self.nanos_of(at)).filter(|&at| at > now),
            WaitBound::Forever => Some(u64::MAX),
        }
    }

    pub(super) fn seq(&self) -> u64 {
        self.last_seq.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Reserves tokens; the first of them. The clock is the system clock at the epoch and the
    /// monotonic time since: a step of the system clock changes nothing. `None` once they are
    /// used up. The caller has the lock of the key's shard.
    pub(super) fn draw(&self, count: u32, now: u64) -> Option<FencingToken> {
        let clock = self.wall_epoch.saturating_add(now / 1000);
        let more = u64::from(count);
        let first = |last: u64| last.saturating_add(1).max(clock);
        let last = self
            .last_token
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
                let end = first(last).checked_add(more - 1)?;
                (end <= FencingToken::MAX.get()).then_some(end)
            })
            .ok()?;
        FencingToken::new(first(last))
    }

    /// Whether no waiter can ever be granted so many tokens.
    pub(super) fn is_used_up(&self, count: u32) -> bool {
        let left = FencingToken::MAX.get() - self.last_token.load(Ordering::Relaxed);
        left < u64::from(count)
    }

    pub(super) fn shard(&self, hash: u64) -> &Shard {
        // The table inside uses the lowest and the highest seven bits.
        &self.shards[(hash >> 48) as usize % SHARDS]
    }

    /// Runs a critical section, then what it wants done outside.
    pub(super) fn locked<R>(
        &self,
        hash: u64,
        section: impl FnOnce(&mut HashTable<Slot>, &mut Effects) -> R,
    ) -> R {
        let mut fx = Effects::default();
        let mut keys = lock(&self.shard(hash).0);
        let result = section(&mut keys.slots, &mut fx);
        drop(keys);
        fx.run();
        result
    }

    /// Runs a section on the room of a key, if it has one, and clears it away if nobody is left.
    pub(super) fn in_room<R>(
        &self,
        key: &LockKey,
        section: impl FnOnce(&mut Room, &mut Effects) -> R,
    ) -> Option<R> {
        self.locked(key.hash64(), |slots, fx| {
            let mut entry = slots
                .find_entry(key.hash64(), |slot| slot.key() == key)
                .ok()?;
            let Slot::Room(room) = entry.get_mut() else {
                return None;
            };
            let result = section(room, fx);
            if entry.get().is_idle() {
                entry.remove();
                shrink(slots);
            }
            Some(result)
        })
    }

    /// Asks once: grants, refuses, or queues.
    pub(super) fn acquire(self: &Arc<Self>, request: &AcquireRequest) -> Attempt {
        let now = self.now();
        self.locked(request.key.hash64(), |slots, fx| {
            self.acquire_in(slots, request, now, fx)
        })
    }

    /// The same, inside of a critical section.
    pub(super) fn acquire_in(
        self: &Arc<Self>,
        slots: &mut HashTable<Slot>,
        request: &AcquireRequest,
        now: u64,
        fx: &mut Effects,
    ) -> Attempt {
        let key = &request.key;
        let wish = Wish::of(request);
        let entry = slots.entry(key.hash64(), |slot| slot.key() == key, Slot::hash);
        let mut entry = match entry {
            Entry::Vacant(entry) => {
                let Some((grant, lease)) = self.grant(key, &wish, now) else {
                    return Attempt::Ended(Err(used_up()));
                };
                entry.insert(Slot::Held(grant));
                return Attempt::Ended(Ok(lease));
            }
            Entry::Occupied(entry) => entry,
        };
        if let Slot::Held(grant) = entry.get_mut() {
            if grant.expiry() <= now {
                let Some((next, lease)) = self.grant(key, &wish, now) else {
                    return Attempt::Ended(Err(used_up()));
                };
                grant.end();
                fx.lost(std::mem::replace(grant, next), Loss::Expired);
                return Attempt::Ended(Ok(lease));
            }
            if grant.owner == wish.owner {
                return Attempt::Ended(Ok(grant.lease()));
            }
            let joins = grant.mode == Mode::Shared && wish.mode == Mode::Shared;
            if !joins && self.deadline(request.wait, now).is_none() {
                let remaining = grant.expiry().saturating_sub(now);
                return Attempt::Ended(Err(refused(request.wait, Some(remaining))));
            }
        }
        let room = entry.get_mut().room(self.seq());
        let attempt = self.ask(room, request, wish, now, fx);
        if entry.get().is_idle() {
            entry.remove();
            shrink(slots);
        }
        attempt
    }

    fn grant(
        self: &Arc<Self>,
        key: &LockKey,
        wish: &Wish,
        now: u64,
    ) -> Option<(Arc<Grant>, MemoryLease)> {
        let token = self.draw(wish.tokens, now)?;
        let grant = Arc::new(Grant::new(self, key, wish, token, now));
        let lease = grant.lease();
        Some((grant, lease))
    }

    fn ask(
        self: &Arc<Self>,
        room: &mut Room,
        request: &AcquireRequest,
        wish: Wish,
        now: u64,
        fx: &mut Effects,
    ) -> Attempt {
        room.tick(self, now, fx);
        let deadline = self.deadline(request.wait, now);
        if let Some(at) = room.people.find(&wish.owner) {
            match room.people.get(at).place() {
                Place::Holders => {
                    // An older future of this owner finds that the place is not its own.
                    let node = room.people.get_mut(at);
                    node.seq = self.seq();
                    fx.wake(node.waker.take());
                    if let Some(lease) = room.claim(at, now) {
                        return Attempt::Ended(Ok(lease));
                    }
                }
                _ if room.people.get(at).grant.is_some() => {
                    // Granted, taken away, never claimed: this is a new start.
                    let (waker, _) = room.people.remove(at);
                    fx.wake(waker);
                }
                place if deadline.is_some() => {
                    let seq = self.seq();
                    let node = room.people.get_mut(at);
                    node.seq = seq;
                    node.armed = u64::MAX;
                    node.answered = true;
                    fx.wake(node.waker.take());
                    if place == Place::Aside {
                        room.people.relink(at, Place::Queue, false);
                        room.serve(self, fx);
                    }
                    return Attempt::Queued(Ticket { at, seq });
                }
                _ => {
                    let remaining = room.remaining(now);
                    return Attempt::Ended(Err(refused(request.wait, remaining)));
                }
            }
        }
        let seq = self.seq();
        if room.admits_newcomer(wish.mode, request.order) {
            let lease = room.enter(self, wish, request.order, (seq, now), fx);
            return Attempt::Ended(lease.ok_or_else(used_up));
        }
        if deadline.is_none() {
            return Attempt::Ended(Err(refused(request.wait, room.remaining(now))));
        }
        let node = Node::new(Some((wish, request.order)), seq);
        let at = room.people.insert(node, Place::Queue);
        room.serve(self, fx);
        Attempt::Queued(Ticket { at, seq })
    }
}

/// Gives memory back once the table is far too large; rarely enough to cost nothing on average.
pub(super) fn shrink(slots: &mut HashTable<Slot>) {
    if slots.capacity() > SMALL && slots.len() < slots.capacity() / 8 {
        slots.shrink_to(slots.len() * 2, Slot::hash);
    }
}

pub(super) fn refused(wait: WaitBound, remaining: Option<u64>) -> BackendError {
    let kind = match wait {
        WaitBound::Fail => BackendErrorKind::Contended,
        _ => BackendErrorKind::WaitTimedOut,
    };
    BackendError::new(kind, "").with_remaining(remaining.map(Duration::from_nanos))
}

pub(super) fn used_up() -> BackendError {
    BackendError::new(
        BackendErrorKind::Misconfigured,
        "the fencing tokens are used up: the token floor is too high",
    )
}
