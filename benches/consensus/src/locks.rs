//! What is compared, all behind one pair of calls.

use std::{future::Future, sync::Arc, time::Duration};

use tower_lock::{
    Fairness, Lease, LockBackend, LockGuard, LockKey, LockManager, LockPolicy, Wait,
    backend::{AcquireRequest, WaitBound},
};

/// Longer than any run: nothing expires under the bench.
pub(crate) const TTL: Duration = Duration::from_secs(60);

/// A lock of one process, shared by its tasks.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    type Held: Send + 'static;

    /// Waits until the key is held.
    fn acquire(&self, key: &str) -> impl Future<Output = Self::Held> + Send;

    /// Returns when the server has said that the key is free.
    fn release(&self, held: Self::Held) -> impl Future<Output = ()> + Send;
}

/// A backend by itself.
#[derive(Debug)]
pub(crate) struct Ours<B>(pub(crate) Arc<B>);

impl<B> Clone for Ours<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: LockBackend> Lock for Ours<B> {
    type Held = B::Lease;

    async fn acquire(&self, key: &str) -> B::Lease {
        let request =
            AcquireRequest::new(LockKey::new("bench", key), TTL).with_wait(WaitBound::Forever);
        self.0.acquire(&request).await.expect("a grant")
    }

    async fn release(&self, held: B::Lease) {
        held.release().await.expect("a release");
    }
}

/// `LockManager` on a backend.
#[derive(Clone, Debug)]
pub(crate) struct Managed(Arc<(LockManager, LockPolicy)>);

impl Managed {
    pub(crate) fn new(backend: impl LockBackend) -> Self {
        let policy = LockPolicy::new()
            .with_ttl(TTL)
            .with_wait(Wait::Forever)
            .with_max_waiters(usize::MAX)
            .with_fairness(Fairness::Fifo);
        Self(Arc::new((LockManager::new(backend), policy)))
    }
}

impl Lock for Managed {
    type Held = LockGuard;

    async fn acquire(&self, key: &str) -> LockGuard {
        let (locks, policy) = &*self.0;
        let held = locks.acquire(LockKey::new("bench", key), policy).await;
        held.expect("a grant")
    }

    async fn release(&self, held: LockGuard) {
        held.release().await.expect("a release");
    }
}
