//! The layer fits any service: any body, any error, and one that is not ready at once.

use std::{
    convert::Infallible,
    fmt,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_lock::{BoxError, HeldLock, LockLayer, LockManager, Wait, key::HeaderKey};

use crate::{
    backends::{On, on_each_backend},
    flaky::{Gate, until_waiting},
};

on_each_backend!(
    a_waiter_reserves_no_slot_of_the_inner_service,
    any_body_and_any_error,
    incoming_bodies_of_hyper,
    readiness_that_fails,
);

fn layer(locks: &LockManager) -> LockLayer {
    LockLayer::new(locks, HeaderKey::new("order", "x-order")).with_wait(Wait::Forever)
}

fn request<B>(order: &str, body: B) -> Request<B> {
    Request::post("/")
        .header("x-order", order)
        .body(body)
        .unwrap()
}

/// A request that waits for its key does not keep the inner service's only slot: a request for
/// another key takes it and goes through.
async fn a_waiter_reserves_no_slot_of_the_inner_service(on: On) {
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let service = ServiceBuilder::new()
        .layer(layer(&locks))
        .layer(ConcurrencyLimitLayer::new(1))
        .service({
            let gate = gate.clone();
            service_fn(move |_: Request<Empty<Bytes>>| {
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
                }
            })
        });
    // Key A is held from outside, so the first request waits for it.
    let key = tower_lock::LockKey::new("order", "a");
    let held = locks.acquire(key, &Default::default()).await.unwrap();
    let waits = tokio::spawn(service.clone().oneshot(request("a", Empty::new())));
    until_waiting(&locks, 1).await;
    let passes = tokio::spawn(service.clone().oneshot(request("b", Empty::new())));
    gate.until_inside(1).await;
    gate.let_out(1);
    assert_eq!(passes.await.unwrap().unwrap().status(), 200);
    assert!(!waits.is_finished());
    held.release().await.unwrap();
    gate.let_out(1);
    assert_eq!(waits.await.unwrap().unwrap().status(), 200);
    backend.freed().await;
}

/// Answers whatever it is asked with a body made by the closure, if the request is locked.
fn answers<B, R, E>(
    make: fn() -> Result<R, E>,
) -> impl Service<Request<B>, Response = Response<R>, Error = E, Future: Send + 'static> + Clone
where
    B: Send + 'static,
    R: Send + 'static,
    E: Send + 'static,
{
    service_fn(move |request: Request<B>| async move {
        assert!(request.extensions().get::<HeldLock>().unwrap().is_held());
        make().map(Response::new)
    })
}

/// Runs one request and returns its body or error.
async fn run<S, B, R>(on: On, service: S, body: B) -> Result<Bytes, S::Error>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send,
    B: Send + 'static,
    R: http_body::Body + Send + 'static,
    R::Data: From<Bytes> + Send,
    R::Error: Into<BoxError>,
{
    let (backend, locks) = on.rig().await;
    let response = layer(&locks)
        .layer(service)
        .oneshot(request("a", body))
        .await;
    // Released on a response and on an error.
    backend.freed().await;
    let body = response?.into_body().collect().await;
    Ok(body.expect("a body").to_bytes())
}

/// An error that converts to nothing: it passes as it is.
#[derive(Debug, PartialEq)]
struct Own(u8);

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "own error {}", self.0)
    }
}

impl std::error::Error for Own {}

async fn any_body_and_any_error(on: On) {
    let full = || Full::new(Bytes::from_static(b"hello"));
    let hello = run(
        on,
        answers::<Full<Bytes>, Full<Bytes>, Infallible>(|| Ok(Full::from("hello"))),
        full(),
    );
    assert_eq!(hello.await.unwrap(), "hello");
    let boxed = run(
        on,
        answers::<Empty<Bytes>, BoxBody<Bytes, BoxError>, BoxError>(|| {
            Ok(Full::from("boxed").map_err(|e| match e {}).boxed())
        }),
        Empty::new(),
    );
    assert_eq!(boxed.await.unwrap(), "boxed");
    let tonic = run(
        on,
        answers::<tonic::body::Body, tonic::body::Body, Own>(|| {
            Ok(tonic::body::Body::new(Full::from("tonic")))
        }),
        tonic::body::Body::empty(),
    );
    assert_eq!(tonic.await.unwrap(), "tonic");
    // Neither body is one at all on the way in: the layer does not look at it.
    let plain = run(on, answers::<u32, Full<Bytes>, Own>(|| Err(Own(7))), 7);
    assert_eq!(plain.await.unwrap_err(), Own(7));
    let error = run(
        on,
        answers::<Full<Bytes>, Full<Bytes>, BoxError>(|| Err("boxed error".into())),
        full(),
    );
    assert_eq!(error.await.unwrap_err().to_string(), "boxed error");
}

/// hyper's own body, over a real connection, without axum.
async fn incoming_bodies_of_hyper(on: On) {
    use hyper_util::{rt::TokioIo, service::TowerToHyperService};

    let (backend, locks) = on.rig().await;
    let service = layer(&locks).layer(service_fn(
        async |request: Request<hyper::body::Incoming>| {
            let body = request.into_body().collect().await?.to_bytes();
            Ok::<_, hyper::Error>(Response::new(Full::new(body)))
        },
    ));
    let (client, server) = tokio::io::duplex(1024);
    tokio::spawn(
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(server), TowerToHyperService::new(service)),
    );
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(client))
        .await
        .unwrap();
    tokio::spawn(connection);
    let response = sender
        .send_request(request("a", Full::<Bytes>::from("over the wire")))
        .await
        .unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "over the wire");
    let response = sender
        .send_request(Request::post("/").body(Full::<Bytes>::default()).unwrap())
        .await
        .unwrap();
    assert_eq!(
        response.status(),
        400,
        "the refusal fits the same body type"
    );
    backend.freed().await;
}

/// Fails to become ready.
#[derive(Clone)]
struct NeverReady;

impl Service<Request<()>> for NeverReady {
    type Response = Response<Full<Bytes>>;
    type Error = Own;
    type Future = std::future::Pending<Result<Self::Response, Own>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Own>> {
        Poll::Ready(Err(Own(1)))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        unreachable!("called although it was not ready")
    }
}

/// The error of a service that does not become ready is the answer, and the key is free again.
async fn readiness_that_fails(on: On) {
    assert_eq!(run(on, NeverReady, ()).await.unwrap_err(), Own(1));
}
