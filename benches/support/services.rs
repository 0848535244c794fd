//! The services under comparison: the same route without a layer, behind a layer that does
//! nothing, behind a layer that somebody might write by hand, and behind `LockLayer`.

use std::{
    convert::Infallible,
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
};

use axum::{
    Router,
    body::Body,
    extract::{FromRequestParts, RawPathParams},
    handler::Handler,
    routing::post,
};
use bytes::Bytes;
use dashmap::DashMap;
use http::{Request, Response, request::Parts};
use http_body_util::Full;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tower::{Layer, Service};
use tower_lock::{
    LockKey, LockLayer, LockManager, LockPolicy,
    key::{self, PathKey},
};

/// Wraps and does nothing.
#[derive(Clone, Copy)]
pub(crate) struct Noop;

#[derive(Clone)]
pub(crate) struct NoopService<S>(S);

impl<S> Layer<S> for Noop {
    type Service = NoopService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        NoopService(inner)
    }
}

impl<S: Service<R>, R> Service<R> for NoopService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.0.call(request)
    }
}

type Locks = Arc<DashMap<String, Arc<Mutex<()>>>>;
type KeyFn = fn(&mut Parts) -> Option<String>;

/// The layer that most people write first: a mutex per key in a concurrent map. It removes its
/// entries, also when the request is cancelled, and has none of the policies: no bound on the
/// waiters or on the wait, no refusals, no end of a lease, no token, no shutdown.
#[derive(Clone)]
pub(crate) struct HandWritten {
    locks: Locks,
    key: KeyFn,
}

impl HandWritten {
    pub(crate) fn new(key: KeyFn) -> Self {
        Self {
            locks: Locks::default(),
            key,
        }
    }

    /// Locks without a request.
    pub(crate) fn lock(&self, key: String) -> impl Future<Output = Held> + use<> {
        Held::lock(self.locks.clone(), key)
    }
}

#[derive(Clone)]
pub(crate) struct HandWrittenService<S> {
    inner: S,
    layer: HandWritten,
}

impl<S> Layer<S> for HandWritten {
    type Service = HandWrittenService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        HandWrittenService {
            inner,
            layer: self.clone(),
        }
    }
}

/// Unlocks, and removes the entry if nobody else wants it.
pub(crate) struct Held {
    locks: Locks,
    key: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Held {
    async fn lock(locks: Locks, key: String) -> Self {
        let mutex = locks.entry(key.clone()).or_default().clone();
        let mut held = Self {
            locks,
            key,
            guard: None,
        };
        held.guard = Some(mutex.lock_owned().await);
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.guard = None;
        self.locks
            .remove_if(&self.key, |_, mutex| Arc::strong_count(mutex) == 1);
    }
}

impl<S, B> Service<Request<B>> for HandWrittenService<S>
where
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let HandWritten { locks, key } = self.layer.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let key = key(&mut parts);
            let request = Request::from_parts(parts, body);
            match key {
                None => inner.call(request).await,
                Some(key) => {
                    let held = Held::lock(locks, key).await;
                    let response = inner.call(request).await;
                    drop(held);
                    response
                }
            }
        })
    }
}

/// The parameter `id` of the route, found as [`PathKey`] finds it.
fn path_param(parts: &mut Parts) -> Option<String> {
    let future = pin!(RawPathParams::from_request_parts(parts, &()));
    let Poll::Ready(Ok(params)) = future.poll(&mut Context::from_waker(Waker::noop())) else {
        return None;
    };
    params
        .iter()
        .find(|(name, _)| *name == "id")
        .map(|(_, value)| value.to_owned())
}

fn header(parts: &Parts) -> Option<&str> {
    parts.headers.get("x-order")?.to_str().ok()
}

/// A policy that admits as many waiters as a bench has.
pub(crate) fn patient() -> LockPolicy {
    LockPolicy::new()
        .with_max_waiters(1 << 20)
        .with_wait(std::time::Duration::from_secs(600))
}

/// A manager that admits as many waiters as a bench has.
pub(crate) fn manager() -> LockManager {
    LockManager::builder(tower_lock::MemoryBackend::new())
        .max_waiters(1 << 20)
        .build()
}

pub(crate) fn lock_by_path(manager: &LockManager, policy: LockPolicy) -> LockLayer {
    LockLayer::new(manager, PathKey::new("order", "id")).with_policy(policy)
}

pub(crate) fn lock_by_header(manager: &LockManager, policy: LockPolicy) -> LockLayer {
    let key = key::from_fn(|parts: &Parts| header(parts).map(|id| LockKey::new("order", id)));
    LockLayer::new(manager, key).with_policy(policy)
}

pub(crate) fn hand_written_by_path() -> HandWritten {
    HandWritten::new(path_param)
}

pub(crate) fn hand_written_by_header() -> HandWritten {
    HandWritten::new(|parts| header(parts).map(str::to_owned))
}

/// A handler that answers at once.
pub(crate) async fn quick() -> &'static str {
    "paid"
}

/// A handler that lets other tasks run while it holds its lock.
pub(crate) async fn yielding() -> &'static str {
    tokio::task::yield_now().await;
    "paid"
}

/// An axum app of one route without a layer.
pub(crate) fn bare_app<H, T>(handler: H) -> Router
where
    H: Handler<T, ()>,
    T: 'static,
{
    Router::new().route("/orders/{id}/pay", post(handler))
}

/// The same with a layer on the route.
pub(crate) fn app<H, T, L>(handler: H, layer: L) -> Router
where
    H: Handler<T, ()>,
    T: 'static,
    L: Layer<axum::routing::Route> + Clone + Send + Sync + 'static,
    L::Service: Service<Request<Body>, Error = Infallible> + Clone + Send + Sync + 'static,
    <L::Service as Service<Request<Body>>>::Response: axum::response::IntoResponse + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send + 'static,
{
    Router::new().route("/orders/{id}/pay", post(handler).route_layer(layer))
}

pub(crate) fn app_request(id: usize) -> Request<Body> {
    Request::post(format!("/orders/{id}/pay"))
        .body(Body::empty())
        .expect("a request")
}

/// A service without axum and without a box.
#[derive(Clone)]
pub(crate) struct Plain;

impl Service<Request<Full<Bytes>>> for Plain {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        std::future::ready(Ok(Response::new(Full::new(Bytes::from_static(b"paid")))))
    }
}

pub(crate) fn plain_request(id: usize) -> Request<Full<Bytes>> {
    Request::post("/")
        .header("x-order", id.to_string())
        .body(Full::default())
        .expect("a request")
}
