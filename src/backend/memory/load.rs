//! The verbs that look at records: each one critical section with what it does to the lock.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use super::{
    effects::Effects,
    holding::Holding,
    lease::{MemoryLease, nanos},
    records::{Before, Kept, Records},
    table::{Attempt, Keys, Slot, Table, Ticket, shrink},
    wait::{Look, Stand, Waiting, leave, stand, superseded},
};
use crate::{
    backend::{AcquireRequest, Found},
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::{FencingToken, Lease as _},
    record::{Opening, Outcome, Record, RecordLimits, Results, Save},
    sync::lock,
};

pub(super) const LIMITS: (usize, Duration) =
    (4 * 1024 * 1024, Duration::from_secs(10 * 365 * 24 * 3600));

/// What records take together, unless said otherwise.
pub(super) const CAPACITY: usize = 256 * 1024 * 1024;

type Loaded = Result<Found<MemoryLease>, BackendError>;

/// What came of asking once.
pub(super) enum Asked {
    Ended(Loaded),
    Queued(Place),
}

/// A place in the queue, and the token that was held when it was taken.
pub(super) struct Place {
    ticket: Ticket,
    since: Option<FencingToken>,
}

pub(super) fn limits() -> RecordLimits {
    RecordLimits::new(LIMITS.0, LIMITS.1)
}

impl Table {
    /// A critical section with the records of the key's shard.
    fn with_records<R>(
        &self,
        key: &LockKey,
        section: impl FnOnce(&mut Keys, &mut Effects) -> R,
    ) -> R {
        let mut fx = Effects::default();
        let mut keys = lock(&self.shard(key.hash64()).0);
        let before = bytes(&keys);
        let result = section(&mut keys, &mut fx);
        self.count(before, bytes(&keys));
        drop(keys);
        fx.run();
        result
    }

    fn count(&self, before: usize, after: usize) {
        let taken = &self.room_for_records.taken;
        if after >= before {
            taken.fetch_add(after - before, Ordering::Relaxed);
        } else {
            taken.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Cleans up where it is this call's turn: nothing that has ended stays for long where others
    /// are written.
    fn sweep_one(&self) {
        let turn = self.room_for_records.turn.fetch_add(1, Ordering::Relaxed);
        self.sweep(turn % self.shards.len());
    }

    fn sweep(&self, shard: usize) {
        if let Ok(mut keys) = self.shards[shard].0.try_lock()
            && let Some(records) = &mut keys.records
        {
            let before = records.bytes();
            records.sweep(self.now());
            let after = records.bytes();
            if after == 0 {
                keys.records = None;
            }
            self.count(before, after);
        }
    }

    /// Whether so many more bytes may be kept.
    fn fits(&self, more: usize) -> bool {
        let room = &self.room_for_records;
        let fits = || room.taken.load(Ordering::Relaxed).saturating_add(more) <= room.capacity;
        fits() || {
            (0..self.shards.len()).for_each(|shard| self.sweep(shard));
            fits()
        }
    }

    pub(super) fn load(&self, key: &LockKey) -> Option<Record> {
        let now = self.now();
        self.with_records(key, |keys, _| {
            keys.records.as_ref()?.get(key, now)?.record()
        })
    }

    /// How many records there are.
    pub(super) fn records(&self) -> usize {
        let now = self.now();
        let count = |keys: &Keys| keys.records.as_ref().map_or(0, |records| records.len(now));
        self.shards.iter().map(|shard| count(&lock(&shard.0))).sum()
    }

    pub(super) fn acquire_or_load(
        self: &Arc<Self>,
        request: &AcquireRequest,
        open: Option<&Opening>,
    ) -> Asked {
        if let Some(open) = open {
            if !self.fits(open.bytes.len()) {
                return Asked::Ended(Err(full()));
            }
            self.sweep_one();
        }
        let now = self.now();
        let (key, owner) = (&request.key, &request.owner);
        self.with_records(key, |keys, fx| {
            let Keys { slots, records } = keys;
            let kept = records.as_ref().and_then(|records| records.get(key, now));
            if let Some(kept) = kept {
                let (result, orphan) = (kept.result(open, None), kept.orphan(owner, open));
                if result.is_some() || orphan.is_some() {
                    let found = match self.holding(slots, key, owner, now, fx) {
                        Holding::Nobody | Holding::Offered => result.or(orphan),
                        Holding::Another => result,
                        Holding::Me(_) => None,
                    };
                    if let Some(record) = found {
                        self.withdraw(slots, key, owner, fx);
                        return Asked::Ended(Ok(Found::Record(record)));
                    }
                }
            }
            match self.acquire_in(slots, request, now, fx) {
                Attempt::Ended(Ok(lease)) => {
                    Asked::Ended(Ok(begin(records, request, open, lease, now)))
                }
                Attempt::Ended(Err(error)) => Asked::Ended(match error.kind() {
                    BackendErrorKind::Contended | BackendErrorKind::WaitTimedOut => {
                        Ok(held(records, key, now, error.remaining()))
                    }
                    _ => Err(error),
                }),
                Attempt::Queued(ticket) => {
                    let mut since = None;
                    let slot = slots.find_mut(key.hash64(), |slot| slot.key() == key);
                    if let Some(Slot::Room(room)) = slot {
                        room.people.get_mut(ticket.at).loads = true;
                        since = room.holders().next().map(|grant| grant.token);
                    }
                    Asked::Queued(Place { ticket, since })
                }
            }
        })
    }

    pub(super) fn save(self: &Arc<Self>, save: &Save, releases: bool) -> Result<(), BackendError> {
        if let Outcome::Keep { bytes, ttl } = &save.outcome {
            limits().check(bytes, *ttl)?;
            if !self.fits(bytes.len()) {
                return Err(full());
            }
        }
        self.sweep_one();
        let now = self.now();
        let Save {
            key,
            owner,
            token,
            outcome,
        } = save;
        self.with_records(key, |keys, fx| {
            let Keys { slots, records } = keys;
            let holding = self.holding(slots, key, owner, now, fx);
            if let Holding::Another = holding {
                return Err(lost());
            }
            let kept = records.as_ref().and_then(|records| records.get(key, now));
            let refused = kept.is_some_and(|kept| kept.token() > *token);
            match outcome {
                _ if refused => {}
                // The first result of a token stays.
                Outcome::Keep { .. }
                    if kept.is_some_and(|kept| kept.is_closed() && kept.token() == *token) => {}
                Outcome::Keep { bytes, ttl } => {
                    let ends = now.saturating_add(nanos(*ttl));
                    let records = records.get_or_insert_default();
                    records.close(key, *token, bytes.clone(), ends);
                    let slot = slots.find_mut(key.hash64(), |slot| slot.key() == key);
                    if let Some(Slot::Room(room)) = slot {
                        room.tell_loaders(fx);
                    }
                }
                Outcome::Forget => {
                    if let Some(records) = records {
                        records.forget(key, owner);
                    }
                }
            }
            if releases && let Holding::Me(grant) = &holding {
                self.take_out(slots, grant, fx);
            }
            if refused { Err(lost()) } else { Ok(()) }
        })
    }
}

fn bytes(keys: &Keys) -> usize {
    keys.records.as_ref().map_or(0, |records| records.bytes())
}

/// The key is granted: its record says so.
fn begin(
    records: &mut Option<Box<Records>>,
    request: &AcquireRequest,
    open: Option<&Opening>,
    lease: MemoryLease,
    now: u64,
) -> Found<MemoryLease> {
    let (key, owner, token) = (&request.key, &request.owner, lease.fencing_token());
    let kept = records.as_ref().and_then(|records| records.get(key, now));
    let before = match kept {
        // It asks again.
        Some(kept) if kept.is_closed() && !takes_its_place(kept, open, token) => Before::Nothing,
        Some(kept) if kept.token() == token => kept.before_of(owner).cloned().unwrap_or_default(),
        _ => match (open, records) {
            (Some(open), records) => {
                let records = records.get_or_insert_default();
                let before = records.before(key, owner, now);
                records.open(key, *owner, token, open, now);
                before
            }
            (None, Some(records)) => records.before(key, owner, now),
            (None, None) => Before::Nothing,
        },
    };
    Found::Lease {
        lease,
        previous: before.record(),
    }
}

/// Whether a grant of this token is after a result that is not for it.
fn takes_its_place(kept: &Kept, open: Option<&Opening>, token: FencingToken) -> bool {
    kept.token() < token && open.is_some_and(|open| open.results == Results::ForWaiting)
}

fn held(
    records: &Option<Box<Records>>,
    key: &LockKey,
    now: u64,
    remaining: Option<Duration>,
) -> Found<MemoryLease> {
    let kept = records.as_ref().and_then(|records| records.get(key, now));
    let open = kept.and_then(|kept| kept.record());
    Found::Held {
        open: open.filter(|record| !record.is_closed()),
        remaining,
    }
}

/// Waits for the key or its result.
pub(super) async fn wait(
    table: &Arc<Table>,
    request: &AcquireRequest,
    open: Option<&Opening>,
    Place { ticket, since }: Place,
) -> Loaded {
    let key = &request.key;
    let deadline = table.deadline(request.wait, 0).unwrap_or(0);
    let look = |waiting: &Waiting<'_>, waker: &Waker| {
        table.with_records(key, |keys, fx| {
            let Keys { slots, records } = keys;
            let Ok(mut entry) = slots.find_entry(key.hash64(), |slot| slot.key() == key) else {
                return Look::Ready(Err(superseded()));
            };
            let Slot::Room(room) = entry.get_mut() else {
                return Look::Ready(Err(superseded()));
            };
            let now = table.now();
            let at = ticket.at;
            let kept = records.as_ref().and_then(|records| records.get(key, now));
            let is_mine = room.people.owned(at, ticket.seq).is_some();
            let result = kept.and_then(|kept| kept.result(open, since));
            let orphan = kept.and_then(|kept| kept.orphan(&request.owner, open));
            let stands = match result {
                // It is woken for this, or was about to look.
                Some(_) if is_mine => Stand::Granted(now),
                _ => stand(waiting, room, deadline, waker, fx),
            };
            let looked = match (stands, result.or(orphan)) {
                (Stand::Granted(_), Some(record)) => {
                    leave(table, room, at, fx);
                    Look::Ready(Ok(Found::Record(record)))
                }
                (Stand::Granted(now), None) => match room.take_offer(at, now) {
                    Some(lease) => Look::Ready(Ok(begin(records, request, open, lease, now))),
                    None => Look::Ready(Err(superseded())),
                },
                (Stand::Again(again), _) => Look::Again(again),
                (Stand::TimedOut(remaining), _) => {
                    let remaining = remaining.map(Duration::from_nanos);
                    Look::Ready(Ok(held(records, key, now, remaining)))
                }
                (Stand::Ended(error), _) => Look::Ready(Err(error)),
            };
            if entry.get().is_idle() {
                entry.remove();
                shrink(slots);
            }
            looked
        })
    };
    Waiting::new(table, key, ticket).until_ready(look).await
}

fn lost() -> BackendError {
    BackendError::new(
        BackendErrorKind::Lost,
        "the key went to another, or has a newer record",
    )
}

fn full() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unavailable,
        "the memory for records is full",
    )
}
