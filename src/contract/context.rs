//! What the checks share: two clients, fresh keys, and bounded waits.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{task::JoinHandle, time::Instant};

use super::{ContractTarget, Options, Violation};
use crate::{
    backend::{AcquireRequest, Capabilities, LockBackend, WaitBound},
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::Lease,
};

/// Breaks off a check with a violation of this must.
macro_rules! ensure {
    ($condition:expr, $must:literal, $($message:tt)+) => {
        if !$condition {
            return Err($crate::contract::Violation::new($must, format!($($message)+)));
        }
    };
}
pub(super) use ensure;

/// A lease that no check outlives.
pub(super) const LONG: Duration = Duration::from_secs(600);

pub(super) type LeaseOf<T> = <<T as ContractTarget>::Backend as LockBackend>::Lease;
pub(super) type Acquiring<T> = JoinHandle<Result<LeaseOf<T>, BackendError>>;

pub(super) struct Context<'a, T: ContractTarget> {
    pub(super) target: &'a T,
    pub(super) options: Options,
    pub(super) capabilities: Capabilities,
    /// Two clients of one server.
    pub(super) one: Arc<T::Backend>,
    pub(super) two: Arc<T::Backend>,
}

impl<'a, T: ContractTarget> Context<'a, T> {
    pub(super) async fn connect(target: &'a T) -> Result<Self, Violation> {
        let one = Arc::new(target.connect().await?);
        Ok(Self {
            target,
            options: target.options(),
            capabilities: one.capabilities(),
            two: Arc::new(target.connect().await?),
            one,
        })
    }

    /// A key that nobody else uses.
    pub(super) fn key(&self) -> LockKey {
        LockKey::new("contract", format_args!("{:016x}", fastrand::u64(..)))
    }

    pub(super) fn short_ttl(&self) -> Duration {
        let shortest = self.capabilities.min_ttl.unwrap_or_default();
        self.options.short_ttl.max(shortest)
    }

    /// Another key, held for a short ttl or waited for with this bound.
    pub(super) fn within(&self, wait: Duration) -> WaitBound {
        WaitBound::Until(Instant::now() + wait)
    }

    /// A request that waits far longer than it should have to.
    pub(super) fn patient(&self, key: &LockKey) -> AcquireRequest {
        request(key).with_wait(self.within(self.options.patience / 2))
    }

    /// A wait of the second client that is in the queue when this returns.
    pub(super) async fn enqueue(&self, request: AcquireRequest) -> Result<Acquiring<T>, Violation> {
        let before = self.one.inspect(&request.key).await?.waiters;
        let key = request.key.clone();
        let two = self.two.clone();
        let task = tokio::spawn(async move { two.acquire(&request).await });
        self.until_waiting(&key, before + 1).await?;
        Ok(task)
    }

    /// Waits until so many wait for the key.
    pub(super) async fn until_waiting(&self, key: &LockKey, count: u64) -> Result<(), Violation> {
        let start = Instant::now();
        while self.one.inspect(key).await?.waiters != count {
            ensure!(
                start.elapsed() < self.options.slack * 4,
                5,
                "inspect did not come to count {count} waiters"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// The outcome of a wait that has to end within `limit`.
    pub(super) async fn granted(
        &self,
        mut task: Acquiring<T>,
        limit: Duration,
        what: &str,
    ) -> Result<LeaseOf<T>, Violation> {
        match tokio::time::timeout(limit, &mut task).await {
            Ok(Ok(result)) => Ok(result?),
            Ok(Err(panic)) => Err(Violation::new(0, format!("acquire panicked: {panic}"))),
            Err(_) => {
                task.abort();
                Err(Violation::new(
                    4,
                    format!("{what} was not granted within {limit:?}"),
                ))
            }
        }
    }

    /// Checks that the key comes to be free: no holder, no waiter, and a newcomer gets it.
    pub(super) async fn until_free(&self, key: &LockKey, why: &str) -> Result<(), Violation> {
        let lease = self
            .two
            .acquire(&request(key).with_wait(self.within(self.options.settle)))
            .await;
        match lease {
            Ok(lease) => lease.release().await?,
            Err(error) => {
                return Err(Violation::new(
                    6,
                    format!("the key is not free {why}: {error}"),
                ));
            }
        }
        let start = Instant::now();
        loop {
            let state = self.one.inspect(key).await?;
            if state.holders.is_empty() && state.waiters == 0 {
                return Ok(());
            }
            ensure!(
                start.elapsed() < self.options.settle,
                6,
                "{} holders and {} waiters are left {why}",
                state.holders.len(),
                state.waiters
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Checks that nothing is left on the server, where the target can count it.
    pub(super) async fn nothing_left(&self, must: u8) -> Result<(), Violation> {
        let start = Instant::now();
        while let Some(count @ 1..) = self.target.leftovers().await {
            if start.elapsed() > self.options.settle {
                return Err(Violation::new(must, format!("{count} things are left")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Checks that nothing more is left on the server than there was before a check.
    pub(super) async fn no_more_left(
        &self,
        before: Option<u64>,
        must: u8,
    ) -> Result<(), Violation> {
        let before = before.unwrap_or_default();
        let start = Instant::now();
        while let Some(more @ 1..) = self
            .target
            .leftovers()
            .await
            .map(|count| count.saturating_sub(before))
        {
            if start.elapsed() > self.options.settle {
                return Err(Violation::new(must, format!("{more} more things are left")));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Checks that an outsider cannot have the key now.
    pub(super) async fn held(&self, key: &LockKey, must: u8, why: &str) -> Result<(), Violation> {
        match self.two.acquire(&request(key)).await {
            Ok(_) => Err(Violation::new(
                must,
                format!("a second owner got a held key {why}"),
            )),
            Err(error) if error.kind() == BackendErrorKind::Contended => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A request that does not wait, with a lease that no check outlives.
pub(super) fn request(key: &LockKey) -> AcquireRequest {
    AcquireRequest::new(key.clone(), LONG)
}

/// Polls once, whether somebody woke it or not.
pub(super) async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(move |_| {
        let mut cx = std::task::Context::from_waker(Waker::noop());
        Poll::Ready(match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Yields up to so many times, and sleeps a moment now and then.
pub(super) async fn a_moment(most: u32) {
    for _ in 0..fastrand::u32(..=most) {
        tokio::task::yield_now().await;
    }
    if fastrand::u8(..8) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
