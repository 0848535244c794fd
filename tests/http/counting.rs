//! A backend that counts what is asked of it, and can behave as a remote one does: its answers
//! take several polls, and a grant stays until it is released, whoever drops the lease.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use tokio::time::Instant;
use tower_lock::{
    BackendError, FencingToken, Lease, LockBackend, LockKey, LockManager, MemoryBackend,
    backend::{AcquireRequest, Capabilities, DynLease, DynLockBackend, KeyState, Scope, WaitBound},
    lease::LossSignal,
};

use crate::{
    backends::{Backend, On},
    support::SOON,
};

/// A backend with counters. Clones share them.
#[derive(Clone)]
pub(crate) struct CountingBackend(Arc<Inner>);

struct Inner {
    below: Backend,
    erased: Arc<dyn DynLockBackend>,
    /// How many polls each step takes that a remote backend would wait for; a memory backend with
    /// any says that it is elsewhere.
    pauses: u32,
    acquires: AtomicUsize,
    /// Grants that were not released, with the count of releases of all.
    grants: Mutex<HashMap<u64, Grant>>,
}

struct Grant {
    lease: Option<Arc<dyn DynLease>>,
    releases: usize,
    confirmed: usize,
}

impl CountingBackend {
    /// Memory that answers at once, as a backend of this process.
    pub(crate) fn local() -> Self {
        Self::remote(0)
    }

    /// Memory that answers after this many polls per step, as a backend elsewhere.
    pub(crate) fn remote(pauses: u32) -> Self {
        Self::over(Backend::Memory(MemoryBackend::new()), pauses)
    }

    /// In each way that there is to answer: memory at once and after so many polls, a server as
    /// it does.
    pub(crate) async fn each(on: On, pauses: u32) -> Vec<Self> {
        match on {
            On::Memory => vec![Self::local(), Self::remote(pauses)],
            #[cfg(feature = "etcd")]
            On::Etcd => vec![Self::on(on).await],
            #[cfg(feature = "redis")]
            On::Redis => vec![Self::on(on).await],
            #[cfg(feature = "zookeeper")]
            On::ZooKeeper => vec![Self::on(on).await],
        }
    }

    /// On this backend.
    pub(crate) async fn on(on: On) -> Self {
        Self::over(on.backend().await, 0)
    }

    fn over(below: Backend, pauses: u32) -> Self {
        Self(Arc::new(Inner {
            erased: below.erased(),
            below,
            pauses,
            acquires: AtomicUsize::new(0),
            grants: Mutex::default(),
        }))
    }

    /// A manager on the lock runtime, which leaves timeouts to what is below.
    pub(crate) fn manager(&self) -> LockManager {
        LockManager::builder(self.clone())
            .backend_timeout(SOON)
            .build()
    }

    /// How often it was asked for a lock.
    pub(crate) fn acquires(&self) -> usize {
        self.0.acquires.load(Ordering::SeqCst)
    }

    /// How often each grant was released, in the order of grants.
    pub(crate) fn releases(&self) -> Vec<usize> {
        self.in_order(|grant| grant.releases)
    }

    /// How many releases of each grant were seen through to their answer.
    pub(crate) fn confirmed(&self) -> Vec<usize> {
        self.in_order(|grant| grant.confirmed)
    }

    fn in_order(&self, count: impl Fn(&Grant) -> usize) -> Vec<usize> {
        let grants = self.0.grants.lock().unwrap();
        let mut counts: Vec<_> = grants.iter().map(|(t, g)| (*t, count(g))).collect();
        counts.sort_unstable();
        counts.into_iter().map(|(_, n)| n).collect()
    }

    /// Whether no key has a holder or a waiter.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.below.is_empty()
    }

    /// What is below.
    pub(crate) fn below(&self) -> &Backend {
        &self.0.below
    }
}

impl fmt::Debug for CountingBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountingBackend")
    }
}

/// Pending this many times.
struct Pauses(u32);

impl Future for Pauses {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl LockBackend for CountingBackend {
    type Lease = CountingLease;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.erased.capabilities();
        capabilities.name = "counting";
        if self.0.pauses > 0 {
            capabilities.scope = Scope::Fleet;
        }
        capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<CountingLease, BackendError> {
        self.0.acquires.fetch_add(1, Ordering::SeqCst);
        Pauses(self.0.pauses).await;
        let lease = self.0.erased.acquire(request).await?;
        // Granted, but the answer is still under way: who leaves now must not keep the key.
        Pauses(self.0.pauses).await;
        let grant = Grant {
            lease: Some(lease.clone()),
            releases: 0,
            confirmed: 0,
        };
        let token = lease.fencing_token().get();
        self.0.grants.lock().unwrap().insert(token, grant);
        Ok(CountingLease {
            lease,
            backend: self.0.clone(),
        })
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        self.0.erased.wait_free(key, wait).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        self.0.erased.inspect(key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        self.0.erased.force_release(key).await
    }
}

/// A lease whose drop frees nothing.
pub(crate) struct CountingLease {
    lease: Arc<dyn DynLease>,
    backend: Arc<Inner>,
}

impl fmt::Debug for CountingLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CountingLease")
    }
}

impl Lease for CountingLease {
    fn fencing_token(&self) -> FencingToken {
        self.lease.fencing_token()
    }

    fn reserved_tokens(&self) -> u32 {
        self.lease.reserved_tokens()
    }

    fn valid_until(&self) -> Instant {
        self.lease.valid_until()
    }

    async fn renew(&self) -> Result<(), BackendError> {
        self.lease.renew().await
    }

    fn lost(&self) -> &LossSignal {
        self.lease.lost()
    }

    async fn release(&self) -> Result<(), BackendError> {
        let token = self.lease.fencing_token().get();
        let kept = {
            let mut grants = self.backend.grants.lock().unwrap();
            let grant = grants.get_mut(&token).expect("granted");
            grant.releases += 1;
            grant.lease.take()
        };
        let result = self.lease.release().await;
        drop(kept);
        // Done, but the answer is still under way.
        Pauses(self.backend.pauses).await;
        let mut grants = self.backend.grants.lock().unwrap();
        grants.get_mut(&token).expect("granted").confirmed += 1;
        result
    }
}
