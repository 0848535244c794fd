//! The dyn twin of the contract: erased once, held as `Arc<dyn DynLockBackend>`.

use std::{
    fmt,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::time::Instant;

use super::{AcquireRequest, Capabilities, DynRecords, KeyState, LockBackend, Scope, WaitBound};
use crate::{
    error::BackendError,
    key::LockKey,
    lease::{FencingToken, Lease, LossSignal},
};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

mod sealed {
    /// Only the blanket implementations exist.
    pub trait Sealed {}
    impl<T: super::LockBackend> Sealed for T {}
}

/// A [`LockBackend`] behind `dyn`. Implemented for every backend; `Arc<dyn DynLockBackend>` is a
/// [`LockBackend`] again.
pub trait DynLockBackend: sealed::Sealed + fmt::Debug + Send + Sync + 'static {
    /// See [`LockBackend::capabilities`].
    fn dyn_capabilities(&self) -> Capabilities;

    /// See [`LockBackend::acquire`].
    fn dyn_acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Result<Arc<dyn DynLease>, BackendError>>;

    /// An acquire without waiting, and without a box, where the backend decides in this
    /// process; `None` elsewhere.
    fn dyn_try_now(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<Arc<dyn DynLease>, BackendError>>;

    /// See [`LockBackend::wait_free`].
    fn dyn_wait_free<'a>(
        &'a self,
        key: &'a LockKey,
        wait: WaitBound,
    ) -> BoxFuture<'a, Result<(), BackendError>>;

    /// See [`LockBackend::inspect`].
    fn dyn_inspect<'a>(&'a self, key: &'a LockKey)
    -> BoxFuture<'a, Result<KeyState, BackendError>>;

    /// See [`LockBackend::force_release`].
    fn dyn_force_release<'a>(
        &'a self,
        key: &'a LockKey,
    ) -> BoxFuture<'a, Result<bool, BackendError>>;

    /// See [`LockBackend::records`].
    fn dyn_records(&self) -> Option<&dyn DynRecords>;
}

/// A [`Lease`] behind `dyn`.
pub trait DynLease: fmt::Debug + Send + Sync + 'static {
    /// See [`Lease::fencing_token`].
    fn dyn_fencing_token(&self) -> FencingToken;

    /// See [`Lease::reserved_tokens`].
    fn dyn_reserved_tokens(&self) -> u32;

    /// See [`Lease::valid_until`].
    fn dyn_valid_until(&self) -> Instant;

    /// See [`Lease::renew`].
    fn dyn_renew(self: Arc<Self>) -> BoxFuture<'static, Result<(), BackendError>>;

    /// See [`Lease::lost`].
    fn dyn_lost(&self) -> &LossSignal;

    /// See [`Lease::release`].
    fn dyn_release(self: Arc<Self>) -> BoxFuture<'static, Result<(), BackendError>>;

    /// A release without a box where the backend decides in this process; `None` elsewhere.
    fn dyn_release_now(&self) -> Option<Result<(), BackendError>>;
}

/// The lease of an erased backend, with what the erasure knows of it.
#[derive(Debug)]
struct Erased<L> {
    lease: L,
    in_process: bool,
}

pub(super) fn erase(lease: impl Lease, in_process: bool) -> Arc<dyn DynLease> {
    Arc::new(Erased { lease, in_process })
}

/// Polls once: what a process-scope backend does is done by then.
fn once<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

impl<T: LockBackend> DynLockBackend for T {
    fn dyn_capabilities(&self) -> Capabilities {
        self.capabilities()
    }

    fn dyn_acquire<'a>(
        &'a self,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Result<Arc<dyn DynLease>, BackendError>> {
        Box::pin(async move {
            let in_process = self.capabilities().scope == Scope::Process;
            let lease = self.acquire(request).await?;
            Ok(erase(lease, in_process))
        })
    }

    fn dyn_try_now(
        &self,
        request: &AcquireRequest,
    ) -> Option<Result<Arc<dyn DynLease>, BackendError>> {
        if self.capabilities().scope != Scope::Process || request.wait != WaitBound::Fail {
            return None;
        }
        once(pin!(self.acquire(request))).map(|result| result.map(|lease| erase(lease, true)))
    }

    fn dyn_wait_free<'a>(
        &'a self,
        key: &'a LockKey,
        wait: WaitBound,
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        Box::pin(self.wait_free(key, wait))
    }

    fn dyn_inspect<'a>(
        &'a self,
        key: &'a LockKey,
    ) -> BoxFuture<'a, Result<KeyState, BackendError>> {
        Box::pin(self.inspect(key))
    }

    fn dyn_force_release<'a>(
        &'a self,
        key: &'a LockKey,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        Box::pin(self.force_release(key))
    }

    fn dyn_records(&self) -> Option<&dyn DynRecords> {
        self.records()
    }
}

impl<L: Lease> DynLease for Erased<L> {
    fn dyn_fencing_token(&self) -> FencingToken {
        self.lease.fencing_token()
    }

    fn dyn_reserved_tokens(&self) -> u32 {
        self.lease.reserved_tokens()
    }

    fn dyn_valid_until(&self) -> Instant {
        self.lease.valid_until()
    }

    fn dyn_renew(self: Arc<Self>) -> BoxFuture<'static, Result<(), BackendError>> {
        Box::pin(async move { self.lease.renew().await })
    }

    fn dyn_lost(&self) -> &LossSignal {
        self.lease.lost()
    }

    fn dyn_release(self: Arc<Self>) -> BoxFuture<'static, Result<(), BackendError>> {
        Box::pin(async move { self.lease.release().await })
    }

    fn dyn_release_now(&self) -> Option<Result<(), BackendError>> {
        if self.in_process {
            once(pin!(self.lease.release()))
        } else {
            None
        }
    }
}

impl LockBackend for Arc<dyn DynLockBackend> {
    type Lease = Arc<dyn DynLease>;

    fn capabilities(&self) -> Capabilities {
        (**self).dyn_capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Self::Lease, BackendError> {
        (**self).dyn_acquire(request).await
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        (**self).dyn_wait_free(key, wait).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        (**self).dyn_inspect(key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        (**self).dyn_force_release(key).await
    }

    fn records(&self) -> Option<&dyn DynRecords> {
        (**self).dyn_records()
    }
}

impl Lease for Arc<dyn DynLease> {
    fn fencing_token(&self) -> FencingToken {
        (**self).dyn_fencing_token()
    }

    fn reserved_tokens(&self) -> u32 {
        (**self).dyn_reserved_tokens()
    }

    fn valid_until(&self) -> Instant {
        (**self).dyn_valid_until()
    }

    async fn renew(&self) -> Result<(), BackendError> {
        self.clone().dyn_renew().await
    }

    fn lost(&self) -> &LossSignal {
        (**self).dyn_lost()
    }

    async fn release(&self) -> Result<(), BackendError> {
        self.clone().dyn_release().await
    }
}
