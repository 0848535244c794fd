//! The middleware's service, and the future of a request.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tokio::runtime::Handle;
use tower_service::Service;

use super::serve::{Progress, Settings, Visit, pass};
use crate::{
    error::BoxError,
    key::KeyExtractor,
    manager::{HeldLock, LockGuard},
    policy::{OnDisconnect, OnLost},
    web::{RequestBody, ResponseBody},
};

/// A service behind an [`IdempotencyLayer`](crate::IdempotencyLayer).
#[derive(Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    settings: Arc<Settings>,
    key: Arc<dyn KeyExtractor>,
}

impl<S> IdempotencyService<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>, key: Arc<dyn KeyExtractor>) -> Self {
        Self {
            inner,
            settings,
            key,
        }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Body + Send + 'static,
    B::Data: From<Bytes> + Send,
    B::Error: Into<BoxError>,
    R: Body + Send + 'static,
    R::Data: From<Bytes> + Send,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = IdempotencyFuture<R, S::Error>;

    /// Always ready: a reserved slot of the inner service must not wait for a lock.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = self.inner.clone();
        if !self.settings.route.methods.matches(request.method()) {
            let passed = pass(inner, request.map(RequestBody::streaming));
            let work = async move { Ok(passed.await?.map(ResponseBody::inner)) };
            return IdempotencyFuture::new(Box::pin(work), None);
        }
        let detaches = self.settings.policy.lock().on_disconnect() == OnDisconnect::Detach;
        let progress = Arc::<Progress>::default();
        let visit = Visit {
            settings: self.settings.clone(),
            progress: progress.clone(),
        };
        let work = visit.serve(self.key.clone(), inner, request);
        IdempotencyFuture::new(Box::pin(work), detaches.then_some(progress))
    }
}

impl<S: fmt::Debug> fmt::Debug for IdempotencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService")
            .field("inner", &self.inner)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

type Work<R, E> =
    Pin<Box<dyn Future<Output = Result<Response<ResponseBody<R>>, E>> + Send + 'static>>;

type Detach<R, E> = fn(Work<R, E>, Option<HeldLock>);

/// The future of a request behind an [`IdempotencyLayer`](crate::IdempotencyLayer).
#[must_use = "futures do nothing unless polled"]
pub struct IdempotencyFuture<R, E> {
    work: Option<Work<R, E>>,
    /// Only where the handler is to finish although its caller leaves. A plain function pointer: its
    /// bounds are checked where it is made.
    detach: Option<(Arc<Progress>, Detach<R, E>)>,
}

impl<R: 'static, E: 'static> IdempotencyFuture<R, E> {
    fn new(work: Work<R, E>, progress: Option<Arc<Progress>>) -> Self {
        Self {
            work: Some(work),
            detach: progress.map(|progress| (progress, finish_detached::<R, E> as _)),
        }
    }
}

impl<R, E> Future for IdempotencyFuture<R, E> {
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken while it runs: one that panics must not be detached later.
        let mut work = self.work.take().expect("polled after completion");
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<R, E> Drop for IdempotencyFuture<R, E> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take()
            && let Some((progress, detach)) = self.detach.take()
            && progress.has_begun()
        {
            detach(work, progress.take_outer());
        }
    }
}

/// Runs a handler to its end with nobody to answer to, under the locks of the outer layers too: they
/// end with it, and not with the outer layers' futures, which are being dropped.
fn finish_detached<R: 'static, E: 'static>(work: Work<R, E>, outer: Option<HeldLock>) {
    let chain = outer.iter().flat_map(HeldLock::chain);
    let outer: Vec<LockGuard> = chain.filter_map(HeldLock::take_guard).collect();
    let finishing = async move {
        // Declared in this order: wherever the task ends, the handler is dropped before its locks.
        let outer = outer;
        let mut work = work;
        let mut lost = false;
        poll_fn(|cx| {
            lost = outer.iter().any(|guard| {
                let hold = guard.hold();
                hold.plan.on_lost == OnLost::Abort
                    && hold.lease.dyn_lost().poll_holder(cx).is_ready()
            });
            if lost {
                return Poll::Ready(());
            }
            // The response has no reader: what is stored of it is what counts.
            work.as_mut().poll(cx).map(drop)
        })
        .await;
        if lost {
            tracing::warn!(
                target: "tower_lock",
                "a detached handler was dropped because a lock of an outer layer was lost"
            );
        }
        drop(work);
        drop(outer);
    };
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(finishing)),
        // Dropped outside any runtime, it cannot go on. Its record stays open.
        Err(_) => tracing::warn!(
            target: "tower_lock",
            "a detached handler was dropped because no runtime is running"
        ),
    }
}

impl<R, E> fmt::Debug for IdempotencyFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyFuture").finish_non_exhaustive()
    }
}
