//! Locks within one process: always there, the default of an embedded service.
//!
//! # What it promises, and what it does not
//!
//! - Exclusion among everything that uses one [`MemoryBackend`] or its clones. It does not reach
//!   beyond the process: two processes, or two backends made apart, know nothing of each other.
//! - Arrival order ([`Order::Fifo`]) with direct hand-off: the release grants the key to the head
//!   of the queue, and no newcomer comes between.
//! - Leases really end. Whoever waits takes over at the ttl, and the old holder's
//!   [`LossSignal`](crate::lease::LossSignal) is fired with [`Loss::Expired`]. If nobody wants
//!   the key, the end is noticed at the next call for it.
//! - A [`MemoryLease`] that is dropped without `release` frees its key at once; so does a panic
//!   that unwinds over it. A leaked one (`mem::forget`) ends by its ttl.
//! - A dropped `acquire` leaves nothing. If it had been granted, the grant passes on.
//! - Fencing tokens grow with every grant of this backend, whatever the system clock does
//!   meanwhile. A new backend starts from the system clock in microseconds, so tokens also grow
//!   over a restart, *unless* the system clock was set back by more than the restart took, or
//!   more tokens than one per microsecond were given since the old backend began. The locks
//!   themselves end with the process, as their holders do: this much `server_restart` and
//!   `clock_step` in its capabilities mean. When moving here from another backend, set a floor
//!   ([`MemoryBackend::with_token_floor`]). Under tokio's paused time the clock is the paused one.
//! - It does not survive `data_loss` beyond that, and `fail_over` and `partition` do not exist.
//!
//! Nothing is left of a key that nobody holds or waits for.
//!
//! # Hung waiters
//!
//! A waiter whose future is alive but not polled (a `select!` that is busy in another branch)
//! cannot take what it was handed. Such an offer lapses after 1 s: the key is then offered to
//! whoever answers a roll call of 50 ms, in queue order, so any number of hung waiters costs
//! their successors one offer. A hung waiter that wakes up later queues again at the end; if
//! nobody else wanted the key meanwhile, it claims its offer, and the ttl begins with the claim.
//!
//! # The protocol and its invariants
//!
//! One mutex per shard guards the keys of that shard; it is never held across an await, and never
//! while foreign code runs: wakers and loss signals are collected under the lock and fired after
//! it (`Effects`), losses first.
//!
//! 1. *One truth.* A grant holds its key if and only if it stands in the table: as the slot's
//!    only grant, or in the room's list of holders. Whatever takes it out marks it ended, in the
//!    same critical section. So release, renewal, expiry, `force_release` and drop cannot both
//!    succeed, and a late one finds nothing of its own (musts 1 and 7).
//! 2. *Holders agree.* The list of holders is empty, one exclusive grant, or shared grants. Every
//!    grant is made by a function that has just checked `Room::admits`, or
//!    into a slot that was empty or expired.
//! 3. *No free key with a `Fifo` queue.* Each critical section that takes a holder or a waiter out,
//!    or puts a waiter in, ends with `Room::serve`, which grants to the head until the
//!    head must wait. So no wake-up can be lost: a waiter sleeps only in a state in which it has to
//!    (musts 4 and 5). The exception is a roll call, which every waiter's timer ends.
//! 4. *Somebody looks.* Every waiter has a timer no later than its deadline, the earliest end of a
//!    lease that it saw, and its re-check ceiling. If a later grant ends earlier, the head is woken
//!    to set its timer anew. So an expired holder blocks nobody.
//! 5. *A place has one future.* A node carries the number of the future that owns it; a newer
//!    request of the same owner writes its own. A future that finds another number ends with
//!    `WaitTimedOut`, and its drop touches nothing (musts 6 and 11).
//! 6. *A slot has a reason.* A room with no node is taken out in the critical section that made it
//!    so (must 9).
//! 7. *A record changes with its lock.* Records stand in the shard of their key, under the same
//!    mutex: a look-up and its grant, a save and its release, are one critical section. A future
//!    claims its grant, and writes its open record, in the poll that returns both, so a dropped one
//!    has written nothing (R8). A save is refused while anybody else stands among the holders,
//!    offers included, and by the token of the record; the token of a record never falls, since
//!    it is written by a grant (a new, higher one) or by a save that was not refused (R2).
//! 8. *Tokens under the lock.* A token is drawn inside the critical section of its grant, so the
//!    order of tokens is the order of grants (must 3).

mod effects;
mod holding;
mod lease;
mod load;
mod operate;
mod records;
mod room;
mod slab;
mod table;
mod wait;

#[cfg(test)]
mod tests;

use std::{fmt, future::Future, sync::Arc};

pub use self::lease::MemoryLease;
use self::table::Table;
#[cfg(doc)]
use super::Order;
use super::{
    AcquireRequest, Capabilities, DynRecords, Faults, Found, KeyState, LockBackend,
    LockingRecordStore, Scope, WaitBound,
};
use crate::{
    error::BackendError,
    key::LockKey,
    lease::{FencingToken, Loss},
    record::{Opening, Record, RecordLimits, RecordStore, Save},
};

/// Locks within one process. Clones share one table.
///
/// See the [module](self) for what it promises. It needs a tokio runtime with a timer, but only
/// for those who wait. There is no connection, so nothing is ever `Unavailable`.
///
/// A test provokes a loss:
///
/// ```
/// use tower_lock::{LockKey, LockManager, LockPolicy, Loss, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = MemoryBackend::new();
/// let locks = LockManager::new(backend.clone());
/// let guard = locks.acquire(LockKey::new("order", 7), &LockPolicy::new()).await?;
///
/// assert!(backend.lose(guard.key(), Loss::Expired));
/// assert_eq!(guard.lost().await, Loss::Expired);
/// # Ok(())
/// # }
/// ```
///
/// # Records
///
/// It keeps [records](crate::record) too, of up to 4 MiB each. Those that have ended are taken out
/// as others are written. All together take up to 256 MiB, unless
/// [`with_record_capacity`](Self::with_record_capacity) says otherwise; beyond that, what would
/// write one is refused with `Unavailable`. They end with the process.
///
/// # An owner that asks again
///
/// A request of an owner that already waits takes over the place in the queue; the older future
/// ends with `WaitTimedOut`. A request of an owner that holds gets the same lease again, which is
/// then freed when both are dropped, or with the first `release`. A request that does not wait
/// never takes over a place.
#[derive(Clone)]
pub struct MemoryBackend {
    table: Arc<Table>,
}

impl MemoryBackend {
    /// An empty table.
    pub fn new() -> Self {
        Self {
            table: Table::new(0, load::CAPACITY),
        }
    }

    /// An empty table whose tokens are all greater than this one: for a service that moves here
    /// from another backend, whose tokens its storage has seen.
    pub fn with_token_floor(floor: FencingToken) -> Self {
        Self {
            table: Table::new(floor.get(), load::CAPACITY),
        }
    }

    /// An empty table whose [records](Self#records) take up to this many bytes together; 256 MiB
    /// without this.
    pub fn with_record_capacity(bytes: usize) -> Self {
        Self {
            table: Table::new(0, bytes),
        }
    }

    /// How many records there are.
    pub fn records_len(&self) -> usize {
        self.table.records()
    }

    /// How many keys have a holder or a waiter.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether no key has a holder or a waiter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the key from all its holders for this reason and serves the waiters; returns whether
    /// somebody held it. An aid for tests, to provoke a loss: `lose(&key, Loss::Expired)` is what
    /// a takeover after the ttl looks like.
    pub fn lose(&self, key: &LockKey, loss: Loss) -> bool {
        self.table.lose(key, loss)
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBackend").finish_non_exhaustive()
    }
}

impl LockBackend for MemoryBackend {
    type Lease = MemoryLease;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: true,
            shared: true,
            consensus: true,
            fencing: true,
            reserves_tokens: true,
            survives: Faults {
                client_crash: true,
                server_restart: true,
                clock_step: true,
                ..Faults::default()
            },
            ..Capabilities::new("memory", Scope::Process)
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<MemoryLease, BackendError> {
        match self.table.acquire(request) {
            table::Attempt::Ended(result) => result,
            table::Attempt::Queued(ticket) => wait::for_grant(&self.table, request, ticket).await,
        }
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        wait::for_free(&self.table, key, wait).await
    }

    fn inspect(
        &self,
        key: &LockKey,
    ) -> impl Future<Output = Result<KeyState, BackendError>> + Send {
        std::future::ready(Ok(self.table.inspect(key)))
    }

    fn force_release(
        &self,
        key: &LockKey,
    ) -> impl Future<Output = Result<bool, BackendError>> + Send {
        let (table, key) = (&self.table, key);
        async move { Ok(table.lose(key, Loss::ForceReleased)) }
    }

    fn records(&self) -> Option<&dyn DynRecords> {
        Some(self)
    }
}

impl RecordStore for MemoryBackend {
    fn limits(&self) -> RecordLimits {
        load::limits()
    }

    async fn load(&self, key: &LockKey) -> Result<Option<Record>, BackendError> {
        Ok(self.table.load(key))
    }

    async fn save(&self, save: &Save) -> Result<(), BackendError> {
        self.table.save(save, false)
    }
}

impl LockingRecordStore for MemoryBackend {
    async fn acquire_or_load(
        &self,
        request: &AcquireRequest,
        open: Option<&Opening>,
    ) -> Result<Found<MemoryLease>, BackendError> {
        request.may_load(&self.limits(), open)?;
        match self.table.acquire_or_load(request, open) {
            load::Asked::Ended(result) => result,
            load::Asked::Queued(place) => load::wait(&self.table, request, open, place).await,
        }
    }

    async fn save_and_release(&self, save: &Save) -> Result<(), BackendError> {
        self.table.save(save, true)
    }
}
