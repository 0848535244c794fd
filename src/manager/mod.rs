//! The manager: who waits, who holds, renewals, releases and shutdown.

mod acquire;
mod admission;
mod agenda;
mod batch;
mod begin;
mod builder;
mod claim;
mod error;
mod guard;
mod hold;
mod inspect;
pub(crate) mod observe;
pub(crate) mod plan;
mod registry;
mod seat;
mod shutdown;
#[cfg(test)]
mod sim;
mod turns;
mod worker;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::{
    acquire::Wish,
    begin::{Beginning, Begun},
    claim::Releaser,
    guard::Releasing,
    hold::Hold,
};
use self::{
    admission::Admission, agenda::Agenda, batch::Batches, plan::Plan, registry::Registry,
    worker::Reap,
};
pub use self::{
    builder::LockManagerBuilder,
    error::{AcquireError, AcquireErrorKind},
    guard::{HeldLock, HeldLocks, LockGuard},
    inspect::{HeldState, ManagerState, WaitingState},
    shutdown::ShutdownReport,
};
use crate::{
    backend::{Capabilities, DynLockBackend, KeyState, LockBackend},
    clock::nanos,
    error::{BackendError, ConfigError},
    key::{LockKey, LockKeys},
    policy::LockPolicy,
};

/// A release that was not finished at once.
pub(crate) type ReleaseFuture = Pin<Box<dyn Future<Output = Result<(), BackendError>> + Send>>;

/// Holds locks for requests and jobs: bounds the waiters, renews what is held, releases what is
/// dropped, and lets go of everything at shutdown.
///
/// One per backend and process; cloning shares it. Make it before the layers:
///
/// ```
/// use std::time::Duration;
/// use tower_lock::{LockKey, LockManager, LockPolicy, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockManager::new(MemoryBackend::new());
///
/// // Jobs and scheduled work lock without a request.
/// let policy = LockPolicy::new().with_wait(Duration::from_secs(1));
/// let guard = locks.acquire(LockKey::new("report", "daily"), &policy).await?;
/// println!("token for the storage: {}", guard.fencing_token());
/// guard.release().await?;
///
/// locks.shutdown(Duration::from_secs(10)).await;
/// # Ok(())
/// # }
/// ```
///
/// Renewals run on a thread of their own, so a handler that blocks its thread, or all of them,
/// keeps its lock.
#[derive(Clone)]
pub struct LockManager {
    shared: Arc<Shared>,
}

/// What the manager's clones, its guards and its worker share.
pub(crate) struct Shared {
    backend: Arc<dyn DynLockBackend>,
    capabilities: Capabilities,
    single_instance: bool,
    backend_timeout: Duration,
    admission: Admission,
    registry: Registry,
    batches: Arc<Batches>,
    /// The zero of all times kept as nanoseconds.
    base: Instant,
    suspended: AtomicU64,
    watches_suspend: bool,
    agenda: Agenda<Reap>,
    /// Releases that are not finished.
    releases: TaskTracker,
    /// A shutdown has begun; for those who do not wait.
    closing: AtomicBool,
    /// The same, for those who wait.
    draining: CancellationToken,
    /// Notified when a lock is released or a waiter has left while draining.
    released: Notify,
    runtime: Handle,
}

impl LockManager {
    /// A manager with the defaults; see [`builder`](Self::builder).
    ///
    /// # Panics
    ///
    /// If the process cannot start the lock runtime's thread.
    #[track_caller]
    pub fn new(backend: impl LockBackend) -> Self {
        Self::builder(backend).build()
    }

    /// As [`new`](Self::new), for a service of which only one instance ever runs: it may use a
    /// process-scope backend for `Correctness`.
    ///
    /// During a rolling deployment two instances run.
    ///
    /// # Panics
    ///
    /// If the process cannot start the lock runtime's thread.
    #[track_caller]
    pub fn single_instance(backend: impl LockBackend) -> Self {
        Self::builder(backend).single_instance().build()
    }

    /// A manager with other settings.
    pub fn builder(backend: impl LockBackend) -> LockManagerBuilder {
        LockManagerBuilder::new(Arc::new(backend))
    }

    /// What the backend can do.
    pub fn capabilities(&self) -> Capabilities {
        self.shared.capabilities
    }

    /// Acquires the key for work outside HTTP. The policy's `wait`, `ttl`, `fairness`, `mode`,
    /// `max_waiters`, `max_hold` and `guarantee` apply; what concerns a response does not.
    ///
    /// A loss is told by [`LockGuard::lost`]; nothing is aborted, whatever `on_lost` says.
    ///
    /// # Errors
    ///
    /// See [`AcquireErrorKind`]. A backend that does not answer within the operation timeout
    /// after the wait gives `BackendUnavailable`.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future leaves nothing behind: no lock, no place in the queue.
    pub async fn acquire(
        &self,
        key: LockKey,
        policy: &LockPolicy,
    ) -> Result<LockGuard, AcquireError> {
        let plan = Arc::new(self.plan(policy)?);
        let wish = self.job(key, policy, plan, Instant::now());
        self.shared.acquire(wish).await
    }

    /// Acquires several keys in canonical order, so that two callers never deadlock; all or
    /// nothing. Equal keys are acquired once. The wait bounds the whole.
    ///
    /// The guards come in canonical order, which is not the caller's; each has a token of its own.
    ///
    /// ```
    /// # use tower_lock::{LockKey, LockManager, LockPolicy, MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockManager::new(MemoryBackend::new());
    /// let accounts = [9, 4, 9].map(|number| LockKey::new("account", number));
    /// let guards = locks.acquire_all(accounts, &LockPolicy::new()).await?;
    /// assert_eq!(guards.len(), 2);
    /// assert_eq!(guards[0].key(), &LockKey::new("account", 4));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire); what was acquired until then is released before the error
    /// is returned.
    ///
    /// # Cancellation safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_all(
        &self,
        keys: impl IntoIterator<Item = LockKey>,
        policy: &LockPolicy,
    ) -> Result<Vec<LockGuard>, AcquireError> {
        let plan = Arc::new(self.plan(policy)?);
        let now = Instant::now();
        let keys: LockKeys = keys.into_iter().collect();
        let wishes = keys
            .as_slice()
            .iter()
            .cloned()
            .map(|key| self.job(key, policy, plan.clone(), now));
        let all = self.shared.acquire_all(wishes).await;
        all.map_err(|(_, error)| error)
    }

    fn job(&self, key: LockKey, policy: &LockPolicy, plan: Arc<Plan>, now: Instant) -> Wish {
        Wish {
            key,
            mode: policy.mode(),
            wait: plan::wait_bound(policy.wait(), now),
            plan,
            route: None,
            releaser: Releaser::Guard,
            started: now,
        }
    }

    /// What the backend knows of the key, over all instances as far as it reaches. A moment old
    /// when it arrives: for operators, not to decide by. Cancel safe.
    ///
    /// # Errors
    ///
    /// The backend's, such as `Unavailable` where the connection is lost.
    pub async fn inspect_key(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        let shared = &self.shared;
        worker::in_time(shared.backend_timeout, shared.backend.dyn_inspect(key)).await
    }

    /// Takes the key from whoever holds it, here or elsewhere, and tells them. For operators: it
    /// breaks exclusion by intent, and only fencing by the storage stops a holder that does not
    /// look. Returns whether somebody held it. Waiters are served next.
    ///
    /// # Errors
    ///
    /// The backend's. After `Unavailable` the key may have been taken or not; repeating is harmless
    /// to a holder of before and takes the key from a new one.
    ///
    /// # Cancellation safety
    ///
    /// A dropped future may still take effect.
    pub async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        let shared = &self.shared;
        worker::in_time(
            shared.backend_timeout,
            shared.backend.dyn_force_release(key),
        )
        .await
    }

    pub(crate) fn plan(&self, policy: &LockPolicy) -> Result<Plan, ConfigError> {
        Plan::new(
            policy,
            &self.shared.capabilities,
            self.shared.single_instance,
        )
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockManager").field(&self.shared).finish()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("backend", &self.backend)
            .field("held", &self.registry.len())
            .field("waiting", &self.admission.total())
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// Nanoseconds from the manager's start to this moment.
    fn nanos(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.base))
    }

    fn instant(&self, nanos: u64) -> Instant {
        self.base + Duration::from_nanos(nanos)
    }

    /// Time of suspends as the worker last saw it: never too much, at most a second late.
    fn suspended(&self) -> Duration {
        Duration::from_nanos(self.suspended.load(Ordering::Relaxed))
    }

    /// How many wait in this process for the key.
    pub(crate) fn waiting_for(&self, key: &LockKey) -> usize {
        self.admission.waiting_for(key)
    }

    /// A lock that this process holds on the key.
    pub(crate) fn held_here(&self, key: &LockKey) -> Option<Arc<Hold>> {
        self.registry.find(key)
    }
}
