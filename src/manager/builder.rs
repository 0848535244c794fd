//! A manager's settings.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    LockManager, Shared,
    admission::Admission,
    agenda::{self, Agenda},
    batch::Batches,
    registry::Registry,
};
use crate::{backend::DynLockBackend, clock, error::ConfigError, runtime};

/// Makes a [`LockManager`]; from [`LockManager::builder`].
///
/// ```
/// use std::time::Duration;
/// use tower_lock::{LockManager, MemoryBackend};
///
/// let locks = LockManager::builder(MemoryBackend::new())
///     .max_waiters(1000)
///     .backend_timeout(Duration::from_secs(2))
///     .build();
/// ```
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct LockManagerBuilder {
    backend: Arc<dyn DynLockBackend>,
    max_waiters: usize,
    backend_timeout: Duration,
    single_instance: bool,
    current_runtime: bool,
}

impl LockManagerBuilder {
    pub(super) fn new(backend: Arc<dyn DynLockBackend>) -> Self {
        Self {
            backend,
            max_waiters: 4096,
            backend_timeout: Duration::from_secs(5),
            single_instance: false,
            current_runtime: false,
        }
    }

    /// How many requests may wait for locks in this process, over all keys; more are refused with
    /// 503. Default 4096. With a backend over a network, an acquire counts while it is under way.
    pub fn max_waiters(mut self, max: usize) -> Self {
        self.max_waiters = max;
        self
    }

    /// How long a backend may take to answer beyond the wait that it was asked for. Default 5 s.
    /// A last resort: backends have timeouts of their own. A process-scope backend is not cut off
    /// while it waits: nothing lies between that could be silent.
    pub fn backend_timeout(mut self, timeout: Duration) -> Self {
        self.backend_timeout = timeout;
        self
    }

    /// Declares that only one instance of the service ever runs, so that a process-scope backend
    /// is enough for `Correctness`. During a rolling deployment two instances run.
    pub fn single_instance(mut self) -> Self {
        self.single_instance = true;
        self
    }

    /// Renews and releases on the runtime that calls [`build`](Self::build), for tests under
    /// paused time. A handler that blocks its thread may then lose its lock.
    pub fn renew_on_current_runtime(mut self) -> Self {
        self.current_runtime = true;
        self
    }

    /// Makes the manager and starts its worker.
    ///
    /// # Panics
    ///
    /// If the process cannot start the lock runtime's thread, or with
    /// [`renew_on_current_runtime`](Self::renew_on_current_runtime) outside a runtime.
    #[track_caller]
    pub fn build(self) -> LockManager {
        match self.try_build() {
            Ok(manager) => manager,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`build`](Self::build).
    ///
    /// # Errors
    ///
    /// Where `build` panics, and for settings of zero.
    pub fn try_build(self) -> Result<LockManager, ConfigError> {
        if self.max_waiters == 0 {
            return Err(ConfigError::new("max_waiters is 0, accepted is 1 or more"));
        }
        if self.backend_timeout.is_zero() {
            return Err(ConfigError::new(
                "backend_timeout is 0, accepted is more than 0",
            ));
        }
        let runtime = if self.current_runtime {
            Handle::try_current().map_err(|_| {
                ConfigError::new("renew_on_current_runtime needs a tokio runtime to be running")
            })?
        } else {
            runtime::handle()?
        };
        let shared = Arc::new(Shared {
            capabilities: self.backend.dyn_capabilities(),
            backend: self.backend,
            single_instance: self.single_instance,
            backend_timeout: self.backend_timeout,
            admission: Admission::new(self.max_waiters),
            registry: Registry::new(),
            batches: Batches::new(),
            base: Instant::now(),
            suspended: AtomicU64::new(clock::nanos(clock::suspended())),
            watches_suspend: !self.current_runtime,
            agenda: Agenda::new(),
            releases: TaskTracker::new(),
            closing: AtomicBool::new(false),
            draining: CancellationToken::new(),
            released: Notify::new(),
            runtime: runtime.clone(),
        });
        let (weak, wake) = (Arc::downgrade(&shared), shared.agenda.wake());
        runtime.spawn(agenda::run(weak, wake, Shared::work));
        Ok(LockManager { shared })
    }
}
