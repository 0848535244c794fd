//! `Batched(n)`: one contender per process and key; up to n holders in a row get one grant, each
//! with its own token of the range that was reserved with it.
//!
//! A key's queue exists while somebody has its [`Role`]: the contender, then the holder, then
//! whoever it is handed to. The role is never lost: dropped anywhere, it passes to the next
//! waiter, or ends the queue when there is none. A waiter that finds no role takes it. What a
//! waiter was given and does not take for a second, because nobody polls it, another one takes.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use hashbrown::{HashTable, hash_table::Entry};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    AcquireError, AcquireErrorKind, Hold, ReleaseFuture, Shared,
    acquire::{Granted, Wish},
    seat::Seat,
};
use crate::{
    backend::{DynLease, WaitBound},
    key::LockKey,
    sync::lock,
};

/// How long a waiter has to take its turn before another may.
const OFFER: Duration = Duration::from_secs(1);

/// The queues of this process, by key.
#[derive(Debug)]
pub(super) struct Batches(Mutex<HashTable<Queue>>);

#[derive(Debug)]
struct Queue {
    key: LockKey,
    waiters: VecDeque<Weak<Seat<Turn>>>,
    /// The last waiter that was chosen.
    chosen: Weak<Seat<Turn>>,
    /// When to look for waiters that have gone.
    sweep_at: usize,
}

/// The right to act for a key in this process.
#[derive(Debug)]
struct Role {
    shared: Arc<Shared>,
    key: Option<LockKey>,
}

/// What a waiter is told.
#[derive(Debug)]
enum Turn {
    /// Ask the backend.
    Contend(Role),
    /// Here is the lock.
    Handed(Handed),
}

/// A lease on its way to the next holder. Dropped, it goes on to the next, or back.
#[derive(Debug)]
struct Handed(Option<(Arc<dyn DynLease>, Box<Lineage>)>);

/// Which holder of a grant this is.
#[derive(Debug)]
pub(crate) struct Lineage {
    role: Role,
    used: u32,
    limit: u32,
    /// The lease's, which is the contender's: another route may have another.
    pub(super) ttl: Duration,
    /// Keeps shutdown waiting for a lease that is on its way to a holder.
    _token: TaskTrackerToken,
    /// As in [`Hold::suspended_before`]: it belongs to the lease, not to one of its holders.
    pub(super) suspended_before: Duration,
}

impl Batches {
    pub(super) fn new() -> Self {
        Self(Mutex::default())
    }

    /// The next waiter that is still there. Without one, `end` ends the queue, and with it the
    /// role, in the same breath: a newcomer either queues before or finds the role free.
    fn next(&self, key: &LockKey, end: bool) -> Option<Weak<Seat<Turn>>> {
        let mut table = lock(&self.0);
        let mut queue = table.find_entry(key.hash64(), |q| q.key == *key).ok()?;
        while let Some(waiter) = queue.get_mut().waiters.pop_front() {
            if waiter.strong_count() > 0 {
                queue.get_mut().chosen = waiter.clone();
                return Some(waiter);
            }
        }
        if end {
            queue.remove();
        }
        None
    }

    /// The turn of the waiter that was chosen last, if it does not take it.
    fn take_back(&self, key: &LockKey) -> Option<Turn> {
        let chosen = {
            let table = lock(&self.0);
            table
                .find(key.hash64(), |q| q.key == *key)?
                .chosen
                .upgrade()
        };
        chosen?.take_back(OFFER)
    }
}

impl Shared {
    /// Acquires under `Batched`: from the holder before, or from the backend.
    pub(super) async fn acquire_batched(
        self: &Arc<Self>,
        wish: &Wish,
    ) -> Result<Granted, AcquireError> {
        loop {
            let turn = match self.join(wish) {
                Ok(role) => Turn::Contend(role),
                Err(_) if wish.wait == WaitBound::Fail => {
                    return Err(AcquireError::new(AcquireErrorKind::Contended));
                }
                Err(seat) => match self.wait_for_turn(wish, &seat).await? {
                    Some(turn) => turn,
                    // Another took it meanwhile: this one was not there.
                    None => continue,
                },
            };
            let (lease, lineage) = match turn {
                Turn::Handed(mut handed) => match handed.0.take() {
                    Some(parts) => parts,
                    None => continue,
                },
                Turn::Contend(role) => {
                    let request = wish
                        .plan
                        .request(wish.key.clone(), wish.mode, wish.wait)
                        .with_tokens(wish.plan.batch);
                    let suspended_before = self.suspended();
                    let lease = self.ask_backend(&request).await?;
                    let limit = wish.plan.batch.min(lease.dyn_reserved_tokens());
                    (
                        lease,
                        Box::new(Lineage {
                            role,
                            used: 0,
                            limit,
                            ttl: wish.plan.ttl,
                            _token: self.releases.token(),
                            suspended_before,
                        }),
                    )
                }
            };
            let mut lineage = lineage;
            let token = lease.dyn_fencing_token().offset(u64::from(lineage.used));
            lineage.used += 1;
            let Some(token) = token else {
                // Beyond i64::MAX there is no token; the backend says so at the next acquire.
                self.discard(Granted {
                    token: lease.dyn_fencing_token(),
                    lease,
                    lineage: Some(lineage),
                });
                continue;
            };
            return Ok(Granted {
                lease,
                token,
                lineage: Some(lineage),
            });
        }
    }

    async fn wait_for_turn(
        &self,
        wish: &Wish,
        seat: &Seat<Turn>,
    ) -> Result<Option<Turn>, AcquireError> {
        loop {
            let look = Instant::now() + OFFER.mul_f64(1.0 + fastrand::f64() / 4.0);
            let until = match wish.wait {
                WaitBound::Until(deadline) => deadline.min(look),
                WaitBound::Fail | WaitBound::Forever => look,
            };
            if let Ok(turn) = timeout_at(until, seat.taken()).await {
                return Ok(turn);
            }
            if let Some(turn) = self.batches.take_back(&wish.key) {
                return Ok(Some(turn));
            }
            if matches!(wish.wait, WaitBound::Until(deadline) if deadline <= until) {
                return Err(AcquireError::new(AcquireErrorKind::WaitTimedOut));
            }
        }
    }

    /// Takes the role if nobody has it, else queues.
    fn join(self: &Arc<Self>, wish: &Wish) -> Result<Role, Arc<Seat<Turn>>> {
        let key = &wish.key;
        let mut table = lock(&self.batches.0);
        match table.entry(key.hash64(), |q| q.key == *key, |q| q.key.hash64()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Queue {
                    key: key.clone(),
                    waiters: VecDeque::new(),
                    chosen: Weak::new(),
                    sweep_at: 64,
                });
                Ok(Role {
                    shared: self.clone(),
                    key: Some(key.clone()),
                })
            }
            Entry::Occupied(mut queue) => {
                let queue = queue.get_mut();
                if queue.waiters.len() >= queue.sweep_at {
                    queue.waiters.retain(|w| w.strong_count() > 0);
                    queue.sweep_at = (queue.waiters.len() * 2).max(64);
                }
                let seat = Seat::new();
                queue.waiters.push_back(Arc::downgrade(&seat));
                Err(seat)
            }
        }
    }

    /// Passes the lock of an ended hold to the next waiter of this process, if its grant still
    /// has a token and time; else returns the release.
    pub(super) fn end_lineage(
        &self,
        hold: &Hold,
        mut lineage: Box<Lineage>,
    ) -> Option<ReleaseFuture> {
        let lease = hold.lease.clone();
        let slept = self.suspended().saturating_sub(hold.suspended_before());
        let healthy = lease.dyn_lost().get().is_none()
            && Instant::now() + hold.ttl() / 4 + slept < lease.dyn_valid_until();
        if healthy {
            lineage.suspended_before = hold.suspended_before();
            lineage = hand_on(lease.clone(), lineage)?;
        }
        self.release_then(lease, lineage)
    }

    /// Releases to the backend, then lets the next waiter contend.
    fn release_then(
        &self,
        lease: Arc<dyn DynLease>,
        lineage: Box<Lineage>,
    ) -> Option<ReleaseFuture> {
        let release = self.release(lease)?;
        Some(Box::pin(async move {
            let result = release.await;
            drop(lineage);
            result
        }))
    }

    /// Gives a grant back that nobody will use.
    pub(super) fn discard(self: &Arc<Self>, granted: Granted) {
        let release = match granted.lineage {
            Some(lineage) => self.release_then(granted.lease, lineage),
            None => self.release(granted.lease),
        };
        if let Some(release) = release {
            self.reap_release(release);
        }
    }
}

/// Hands the lease to the next waiter; without one, or without a token for it, gives the lineage
/// back.
fn hand_on(lease: Arc<dyn DynLease>, lineage: Box<Lineage>) -> Option<Box<Lineage>> {
    if lineage.used >= lineage.limit {
        return Some(lineage);
    }
    let (shared, key) = match &lineage.role.key {
        Some(key) => (lineage.role.shared.clone(), key.clone()),
        None => return Some(lineage),
    };
    let mut handed = Handed(Some((lease, lineage)));
    loop {
        // The queue must not end while the lease is ours: that is left to the role's own drop.
        let Some(waiter) = shared.batches.next(&key, false) else {
            return handed.0.take().map(|(_, lineage)| lineage);
        };
        match Seat::give(&waiter, Turn::Handed(handed)) {
            Ok(()) => return None,
            Err(Turn::Handed(back)) => handed = back,
            Err(Turn::Contend(_)) => return None,
        }
    }
}

impl Drop for Handed {
    fn drop(&mut self) {
        let Some((lease, lineage)) = self.0.take() else {
            return;
        };
        let shared = lineage.role.shared.clone();
        let Some(lineage) = hand_on(lease.clone(), lineage) else {
            return;
        };
        if let Some(release) = shared.release_then(lease, lineage) {
            shared.reap_release(release);
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let Some(mut key) = self.key.take() else {
            return;
        };
        while let Some(waiter) = self.shared.batches.next(&key, true) {
            let role = Role {
                shared: self.shared.clone(),
                key: Some(key),
            };
            match Seat::give(&waiter, Turn::Contend(role)) {
                Err(Turn::Contend(mut back)) => match back.key.take() {
                    Some(k) => key = k,
                    None => return,
                },
                _ => return,
            }
        }
    }
}
