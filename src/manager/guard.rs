//! `LockGuard` owns a lock and releases it; `HeldLock` is the handler's view and releases nothing.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::runtime::Handle;

use super::{Hold, Releaser};
use crate::{
    backend::Mode,
    error::BackendError,
    key::LockKey,
    lease::{FencingToken, Loss},
};

/// Owns a lock: releases it when told to, or from the reaper when dropped.
///
/// `Drop` never blocks, waits, spawns or panics: it wakes the manager's reaper, which releases
/// from the lock runtime, a moment later. Call [`release`](Self::release) to know the outcome.
///
/// The manager renews the lock for as long as the guard lives, up to the policy's `max_hold`. It
/// aborts nothing: work beside [`lost`](Self::lost), so that the work ends with the lock.
///
/// ```
/// # use tower_lock::{LockKey, LockManager, LockPolicy, MemoryBackend};
/// # async fn send_invoices() {}
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockManager::new(MemoryBackend::new());
/// let guard = locks.acquire(LockKey::new("job", "invoices"), &LockPolicy::new()).await?;
/// tokio::select! {
///     loss = guard.lost() => eprintln!("stopped: {}", loss.as_str()),
///     () = send_invoices() => guard.release().await?,
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    hold: Arc<Hold>,
    releaser: Releaser,
}

impl LockGuard {
    pub(crate) fn new(hold: Arc<Hold>, releaser: Releaser) -> Self {
        Self { hold, releaser }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// What is locked.
    pub fn key(&self) -> &LockKey {
        &self.hold.key
    }

    /// Exclusive or shared.
    pub fn mode(&self) -> Mode {
        self.hold.mode
    }

    /// The token of this grant: show it to the storage on the first contact, reads included.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token
    }

    /// How long the acquire took.
    pub fn waited(&self) -> Duration {
        self.hold.waited()
    }

    /// Whether the holder may act now: not lost, and inside the lease.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// What remains of the lease; zero once lost. Renewals make it grow again.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Resolves when the lock is lost. Cancel safe.
    pub async fn lost(&self) -> Loss {
        self.hold.lease.dyn_lost().wait().await
    }

    /// A view of the lock that releases nothing.
    pub fn held(&self) -> HeldLock {
        HeldLock::new(self.hold.clone())
    }

    /// Releases the lock and waits until the backend has confirmed it.
    ///
    /// # Errors
    ///
    /// The backend's, such as `Unavailable` where the connection is lost. The lease then runs out
    /// by itself; the reaper goes on trying until it has. A lock that was lost before is no error.
    ///
    /// # Cancellation safety
    ///
    /// The release is sent before the first await; a dropped future is finished by the reaper.
    pub async fn release(self) -> Result<(), BackendError> {
        match self.send_release() {
            Ok(Some(release)) => release.await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes the right to release: whoever gets it must end the hold.
    pub(super) fn claim(&self) -> bool {
        self.hold.begin_release(self.releaser)
    }

    /// Sends the release; what is not finished at once is returned.
    pub(crate) fn start_release(&self) -> Option<Releasing> {
        // An error is the reaper's to repeat.
        self.send_release().unwrap_or(None)
    }

    fn send_release(&self) -> Result<Option<Releasing>, BackendError> {
        if !self.hold.begin_release(self.releaser) {
            return Ok(None);
        }
        let shared = &self.hold.shared;
        let Some(future) = shared.end_hold(&self.hold) else {
            return Ok(None);
        };
        if Handle::try_current().is_err() {
            // A response body dropped after its runtime: the lock runtime sends the release.
            shared.finish_release(self.hold.clone(), future);
            return Ok(None);
        }
        let mut releasing = Releasing {
            hold: self.hold.clone(),
            future: Some(future),
        };
        match Pin::new(&mut releasing).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result.map(|()| None),
            Poll::Pending => Ok(Some(releasing)),
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.hold.begin_release(self.releaser) {
            self.hold.shared.reap(self.hold.clone());
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(&self.hold).finish()
    }
}

/// A release under way. Dropped, it is finished by the reaper.
pub(crate) struct Releasing {
    hold: Arc<Hold>,
    future: Option<super::ReleaseFuture>,
}

impl Future for Releasing {
    type Output = Result<(), BackendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else {
            return Poll::Ready(Ok(()));
        };
        let result = match future.as_mut().poll(cx) {
            Poll::Ready(result) => result,
            Poll::Pending => return Poll::Pending,
        };
        self.future = None;
        if result.as_ref().is_err_and(BackendError::is_retryable) {
            self.hold.shared.retry_release(self.hold.clone());
        }
        Poll::Ready(result)
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.hold.shared.finish_release(self.hold.clone(), future);
        }
    }
}

/// A view of a held lock: the handler gets it as an extension of its request and as an extractor.
///
/// Cheap to clone; releases nothing. Where several layers locked, [`HeldLocks`] shows all, and this
/// is the innermost one.
///
/// Under [`OnLost::Signal`](crate::OnLost::Signal) a handler looks after its lock itself:
///
/// ```
/// use tower_lock::HeldLock;
///
/// # async fn step(_: u32) {}
/// async fn import(lock: HeldLock) -> &'static str {
///     for part in 0..10 {
///         if !lock.is_held() {
///             return "stopped between two parts";
///         }
///         step(part).await; // shows lock.fencing_token() to the storage
///     }
///     "done"
/// }
/// # #[cfg(feature = "axum")]
/// # let _: axum::Router = axum::Router::new().route("/", axum::routing::post(import));
/// ```
///
/// Outside axum: `request.extensions().get::<HeldLock>()`.
#[derive(Clone)]
pub struct HeldLock {
    hold: Arc<Hold>,
    /// How many keys the layer that inserted this one locked.
    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "only extractors ask")
    )]
    siblings: u32,
    /// The lock that was held before, in this layer or an outer one.
    outer: Option<Arc<HeldLock>>,
}

impl HeldLock {
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Self {
            hold,
            siblings: 1,
            outer: None,
        }
    }

    pub(crate) fn link(hold: Arc<Hold>, siblings: u32, outer: Option<Arc<HeldLock>>) -> Self {
        Self {
            hold,
            siblings,
            outer,
        }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    #[cfg(feature = "axum")]
    pub(crate) fn siblings(&self) -> u32 {
        self.siblings
    }

    /// This lock, then the ones around it.
    pub(crate) fn chain(&self) -> impl Iterator<Item = &HeldLock> {
        std::iter::successors(Some(self), |lock| lock.outer.as_deref())
    }

    /// What is locked.
    pub fn key(&self) -> &LockKey {
        &self.hold.key
    }

    /// Exclusive or shared.
    pub fn mode(&self) -> Mode {
        self.hold.mode
    }

    /// The token of this grant: show it to the storage on the first contact, reads included.
    pub fn fencing_token(&self) -> FencingToken {
        self.hold.token
    }

    /// How long the request waited for the lock.
    pub fn waited(&self) -> Duration {
        self.hold.waited()
    }

    /// Whether the handler may act now: not lost, not released, and inside the lease.
    pub fn is_held(&self) -> bool {
        self.hold.is_held()
    }

    /// What remains of the lease; zero once lost or released. Renewals make it grow again.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Resolves when the lock is lost. Cancel safe. A lock that was released is never lost, so
    /// do not wait for this alone.
    pub async fn lost(&self) -> Loss {
        self.hold.lease.dyn_lost().wait().await
    }

    /// Moves the lock out of the middleware, into a WebSocket, a stream or a task: it is then
    /// released with the guard, not with the response, and its loss is the guard owner's to see:
    /// the handler is no longer dropped for it.
    ///
    /// `None` if it was moved before, is released, or came from
    /// [`LockManager::acquire`](crate::LockManager::acquire).
    pub fn take_guard(&self) -> Option<LockGuard> {
        self.hold
            .take()
            .then(|| LockGuard::new(self.hold.clone(), Releaser::Guard))
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldLock").field(&self.hold).finish()
    }
}

/// All locks that a request holds, the innermost layer's first. An extractor in axum.
///
/// ```
/// use tower_lock::HeldLocks;
///
/// // A layer locks `account` twice, another one `tenant`.
/// async fn transfer(locks: HeldLocks) -> String {
///     let accounts = locks.iter().filter(|lock| lock.key().namespace() == "account");
///     let tokens: Vec<_> = accounts.map(|lock| lock.fencing_token()).collect();
///     format!("{tokens:?}, in canonical order; tenant: {:?}", locks.get("tenant"))
/// }
/// # let _ = transfer(HeldLocks::default());
/// ```
#[derive(Clone, Debug, Default)]
pub struct HeldLocks(Option<HeldLock>);

impl HeldLocks {
    /// The locks of a request.
    pub fn from_extensions(extensions: &http::Extensions) -> Self {
        Self(extensions.get::<HeldLock>().cloned())
    }

    /// All of them, the innermost layer's first; several keys of one layer in canonical order.
    pub fn iter(&self) -> impl Iterator<Item = &HeldLock> {
        self.0.iter().flat_map(HeldLock::chain)
    }

    /// The innermost lock of this namespace.
    pub fn get(&self, namespace: &str) -> Option<&HeldLock> {
        self.iter().find(|held| held.key().namespace() == namespace)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether the request holds no lock.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}
