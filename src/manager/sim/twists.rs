//! The memory backend, or one with a mistake in it that the simulation has to find.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use crate::{
    backend::{
        AcquireRequest, Capabilities, KeyState, LockBackend, MemoryBackend, Order, WaitBound,
        memory::MemoryLease,
    },
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::{FencingToken, Lease, LossSignal},
    sync::lock,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Twist {
    None,
    /// Losses are not told.
    Untold,
    /// A release is forgotten.
    NeverReleases,
    /// All tokens are the same.
    RepeatsTokens,
    /// Whoever came last is first.
    LastFirst,
    /// A waiter looks first, and registers for the wake-up afterwards.
    LostWakeUp,
    /// A grant to a caller that left stays.
    LeavesGrants,
    /// A wait has no end.
    Overstays,
}

#[derive(Clone, Debug)]
pub(super) struct Twisted {
    memory: MemoryBackend,
    twist: Twist,
    released: Arc<Notify>,
    /// Of `LastFirst`: how many wait for a key.
    stack: Arc<Mutex<HashMap<LockKey, Vec<u64>>>>,
    leaked: Arc<Mutex<Vec<MemoryLease>>>,
}

#[derive(Debug)]
pub(super) struct TwistedLease {
    lease: Option<MemoryLease>,
    backend: Twisted,
    never: LossSignal,
}

impl Twisted {
    pub(super) fn new(memory: MemoryBackend, twist: Twist) -> Self {
        Self {
            memory,
            twist,
            released: Arc::default(),
            stack: Arc::default(),
            leaked: Arc::default(),
        }
    }

    fn try_it(request: &AcquireRequest) -> AcquireRequest {
        request.clone().with_wait(WaitBound::Fail)
    }

    /// Waits on its own, as a backend without a queue would.
    async fn poll_for(&self, request: &AcquireRequest) -> Result<MemoryLease, BackendError> {
        let me = fastrand::u64(..);
        lock(&self.stack)
            .entry(request.key.clone())
            .or_default()
            .push(me);
        struct Leaves<'a>(&'a Twisted, &'a LockKey, u64);
        impl Drop for Leaves<'_> {
            fn drop(&mut self) {
                if let Some(stack) = lock(&self.0.stack).get_mut(self.1) {
                    stack.retain(|other| *other != self.2);
                }
            }
        }
        let _leaves = Leaves(self, &request.key, me);
        loop {
            let last = lock(&self.stack)[&request.key].last() == Some(&me);
            if last && let Ok(lease) = self.memory.acquire(&Self::try_it(request)).await {
                return Ok(lease);
            }
            let until = match request.wait {
                WaitBound::Fail => return Err(BackendError::new(BackendErrorKind::Contended, "")),
                WaitBound::Until(deadline) => deadline,
                WaitBound::Forever => Instant::now() + Duration::from_secs(3600),
            };
            if until <= Instant::now() {
                return Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""));
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Stands in the queue, but hears of a release only while it listens.
    async fn sleep_for(&self, request: &AcquireRequest) -> Result<MemoryLease, BackendError> {
        let first = self.memory.acquire(&Self::try_it(request)).await;
        if first.is_ok() || request.wait == WaitBound::Fail {
            return first;
        }
        tokio::task::yield_now().await;
        let until = match request.wait {
            WaitBound::Until(deadline) => deadline,
            _ => Instant::now() + Duration::from_secs(3600),
        };
        let woken = tokio::time::timeout_at(until, self.released.notified()).await;
        if woken.is_err() {
            return Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""));
        }
        self.memory.acquire(request).await
    }
}

impl LockBackend for Twisted {
    type Lease = TwistedLease;

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<TwistedLease, BackendError> {
        let asked = match (self.twist, request.wait) {
            (Twist::Overstays, WaitBound::Until(_)) => {
                request.clone().with_wait(WaitBound::Forever)
            }
            _ => request.clone(),
        };
        let lease = match self.twist {
            Twist::LastFirst if asked.order == Order::Fifo => self.poll_for(&asked).await?,
            Twist::LostWakeUp => self.sleep_for(&asked).await?,
            _ => self.memory.acquire(&asked).await?,
        };
        let lease = TwistedLease {
            lease: Some(lease),
            backend: self.clone(),
            never: LossSignal::new(),
        };
        if self.twist == Twist::LeavesGrants && request.wait != WaitBound::Fail {
            // Dropped here, the lease drops without its release.
            tokio::task::yield_now().await;
        }
        Ok(lease)
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        self.memory.wait_free(key, wait).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        self.memory.inspect(key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        self.memory.force_release(key).await
    }
}

impl TwistedLease {
    fn lease(&self) -> &MemoryLease {
        self.lease.as_ref().expect("it is taken by a drop only")
    }
}

impl Lease for TwistedLease {
    fn fencing_token(&self) -> FencingToken {
        match self.backend.twist {
            Twist::RepeatsTokens => FencingToken::new(7).expect("not zero"),
            _ => self.lease().fencing_token(),
        }
    }

    fn reserved_tokens(&self) -> u32 {
        self.lease().reserved_tokens()
    }

    fn valid_until(&self) -> Instant {
        self.lease().valid_until()
    }

    async fn renew(&self) -> Result<(), BackendError> {
        self.lease().renew().await
    }

    fn lost(&self) -> &LossSignal {
        match self.backend.twist {
            Twist::Untold => &self.never,
            _ => self.lease().lost(),
        }
    }

    async fn release(&self) -> Result<(), BackendError> {
        match self.backend.twist {
            Twist::NeverReleases => Ok(()),
            _ => {
                let result = self.lease().release().await;
                self.backend.released.notify_waiters();
                result
            }
        }
    }
}

impl Drop for TwistedLease {
    fn drop(&mut self) {
        if matches!(
            self.backend.twist,
            Twist::LeavesGrants | Twist::NeverReleases
        ) && let Some(lease) = self.lease.take()
        {
            lock(&self.backend.leaked).push(lease);
        }
    }
}
