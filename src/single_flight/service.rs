//! The middleware's service, and the future of a request.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response, header::UPGRADE};
use http_body::Body;
use tower_service::Service;

use super::{serve::Visit, settings::Settings};
use crate::{
    error::BoxError,
    key::KeyExtractor,
    route::{Work, pass},
    web::ResponseBody,
};

/// A service behind a [`SingleFlightLayer`](crate::SingleFlightLayer).
#[derive(Clone)]
pub struct SingleFlightService<S> {
    inner: S,
    settings: Arc<Settings>,
    key: Arc<dyn KeyExtractor>,
}

impl<S> SingleFlightService<S> {
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

impl<S, B, R> Service<Request<B>> for SingleFlightService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
    R: Body + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = SingleFlightFuture<R, S::Error>;

    /// Always ready: a reserved slot of the inner service must not wait for a leader.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = self.inner.clone();
        // One that becomes another protocol is for its own client.
        if !self.settings.route.methods.matches(request.method())
            || request.headers().contains_key(UPGRADE)
        {
            return SingleFlightFuture(Work::attached(pass(inner, request)));
        }
        let settings = self.settings.clone();
        let on_disconnect = settings.policy.lock().on_disconnect();
        SingleFlightFuture(Work::new(on_disconnect, |progress| {
            let visit = Visit { settings, progress };
            visit.serve(self.key.clone(), inner, request)
        }))
    }
}

impl<S: fmt::Debug> fmt::Debug for SingleFlightService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlightService")
            .field("inner", &self.inner)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// The future of a request behind a [`SingleFlightLayer`](crate::SingleFlightLayer).
#[must_use = "futures do nothing unless polled"]
pub struct SingleFlightFuture<R, E>(Work<R, E>);

impl<R, E> Future for SingleFlightFuture<R, E> {
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<R, E> fmt::Debug for SingleFlightFuture<R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlightFuture").finish_non_exhaustive()
    }
}
