//! The middleware's service, and the future of a request.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::serve::{Settings, Visit};
use crate::{
    error::BoxError,
    key::KeyExtractor,
    route::{Work, pass},
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
            return IdempotencyFuture(Work::attached(pass(
                inner,
                request.map(RequestBody::streaming),
            )));
        }
        let settings = self.settings.clone();
        let on_disconnect = settings.policy.lock().on_disconnect();
        IdempotencyFuture(Work::new(on_disconnect, |progress| {
            let visit = Visit { settings, progress };
            visit.serve(self.key.clone(), inner, request)
        }))
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

/// The future of a request behind an [`IdempotencyLayer`](crate::IdempotencyLayer).
#[must_use = "futures do nothing unless polled"]
pub struct IdempotencyFuture<R, E>(Work<R, E>);

impl<R, E> Future for IdempotencyFuture<R, E> {
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<R, E> fmt::Debug for IdempotencyFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyFuture").finish_non_exhaustive()
    }
}
