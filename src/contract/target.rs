//! What the suite must know of a backend under test.

use std::{future::Future, sync::Arc, time::Duration};

use crate::{
    backend::{DynLockBackend, LockBackend},
    error::BoxError,
};

/// A backend under test, with the server behind it.
pub trait ContractTarget: Send + Sync + 'static {
    /// The backend.
    type Backend: LockBackend;

    /// A new client of the same server, as another process has it; on a process-scope backend
    /// another handle of the same table.
    fn connect(&self) -> impl Future<Output = Result<Self::Backend, BoxError>> + Send;

    /// How many things the server keeps for keys: locks, queues, nodes, rows; no tombstones and
    /// nothing that is shared by all keys. `None` if it cannot be counted.
    fn leftovers(&self) -> impl Future<Output = Option<u64>> + Send;

    /// Restarts the server with its data, if this target can; whether it did. Clients that were
    /// connected before are not used any more.
    fn restart(&self) -> impl Future<Output = bool> + Send;

    /// Delays the replies to clients that connect from now on, if this target can; whether it
    /// does. Zero ends it.
    fn slow_replies(&self, delay: Duration) -> impl Future<Output = bool> + Send;

    /// How much, and how exactly, is checked.
    fn options(&self) -> Options;
}

/// How much, and how exactly, is checked.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How late an event may be on this machine and network.
    pub slack: Duration,
    /// The lease of the checks that let one run out.
    pub short_ttl: Duration,
    /// How long a hung waiter may delay its successors, all re-checks included.
    pub hung_wait: Duration,
    /// How long nothing may take to be left (must 9 says 60 s; undo needs far less).
    pub settle: Duration,
    /// The end of one check's time.
    pub patience: Duration,
    /// How many acquires are aborted at random.
    pub aborts: u32,
    /// How many grants are made to see their tokens grow.
    pub grants: u32,
    /// How many distinct keys are locked once.
    pub keys: u32,
}

impl Options {
    /// For a server on this machine: slack 500 ms, short ttl 1 s, hung wait 3 s, settle 10 s,
    /// patience 120 s, 2000 aborts, 20 000 grants, 10 000 keys.
    pub fn new() -> Self {
        Self {
            slack: Duration::from_millis(500),
            short_ttl: Duration::from_secs(1),
            hung_wait: Duration::from_secs(3),
            settle: Duration::from_secs(10),
            patience: Duration::from_secs(120),
            aborts: 2000,
            grants: 20_000,
            keys: 10_000,
        }
    }

    /// For a backend in this process: 10 000 aborts, 100 000 grants, 1 000 000 keys.
    pub fn in_process() -> Self {
        Self {
            aborts: 10_000,
            grants: 100_000,
            keys: 1_000_000,
            ..Self::new()
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// The same target with its backend behind `Arc<dyn DynLockBackend>`.
#[derive(Clone, Debug)]
pub struct Erased<T>(pub T);

impl<T: ContractTarget> ContractTarget for Erased<T> {
    type Backend = Arc<dyn DynLockBackend>;

    async fn connect(&self) -> Result<Self::Backend, BoxError> {
        Ok(Arc::new(self.0.connect().await?))
    }

    fn leftovers(&self) -> impl Future<Output = Option<u64>> + Send {
        self.0.leftovers()
    }

    fn restart(&self) -> impl Future<Output = bool> + Send {
        self.0.restart()
    }

    fn slow_replies(&self, delay: Duration) -> impl Future<Output = bool> + Send {
        self.0.slow_replies(delay)
    }

    fn options(&self) -> Options {
        self.0.options()
    }
}
