//! The middleware's service.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    future::ResponseFuture,
    key_source::{FromBody, FromHead},
    start::{self, Start},
};
use crate::{
    error::BoxError,
    policy::OnDisconnect,
    route::Config,
    web::{RequestBody, ResponseBody},
};

/// A service behind a [`LockLayer`](crate::LockLayer).
#[derive(Clone)]
pub struct LockService<S, K = FromHead> {
    inner: S,
    config: Arc<Config>,
    key: K,
}

impl<S, K> LockService<S, K> {
    pub(super) fn new(inner: S, config: Arc<Config>, key: K) -> Self {
        Self { inner, config, key }
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

    /// The future of a request whose way into the lock has begun. The clone of the inner service
    /// is not ready: it is made ready once the lock is held.
    fn run<B, R>(&self, start: Start<B>) -> ResponseFuture<S, B, R>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone,
        S::Future: Send + 'static,
        R: Body,
    {
        let detach = self.config.policy.on_disconnect() == OnDisconnect::Detach;
        ResponseFuture::new(self.inner.clone(), start, detach)
    }
}

impl<S, B, R> Service<Request<B>> for LockService<S, FromHead>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Future: Send + 'static,
    B: Send + 'static,
    R: Body,
    R::Data: From<Bytes>,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, R>;

    /// Always ready: a reserved slot of the inner service must not wait for a lock.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let start = if self.config.methods.matches(request.method()) {
            start::from_head(&self.config, &*self.key.0, request)
        } else {
            Start::Run(request, None)
        };
        self.run(start)
    }
}

impl<S, B, R> Service<Request<B>> for LockService<S, FromBody>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: From<Bytes> + Send,
    B::Error: Into<BoxError>,
    R: Body,
    R::Data: From<Bytes>,
    R::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, RequestBody<B>, R>;

    /// Always ready: a reserved slot of the inner service must not wait for a lock.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let start = if self.config.methods.matches(request.method()) {
            start::from_body(&self.config, self.key.0.clone(), request)
        } else {
            Start::Run(request.map(RequestBody::streaming), None)
        };
        self.run(start)
    }
}

impl<S: fmt::Debug, K: fmt::Debug> fmt::Debug for LockService<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService")
            .field("inner", &self.inner)
            .field("key", &self.key)
            .field("config", &self.config)
            .finish()
    }
}
