//! A policy per route: what a request does when its order is busy.
//!
//! ```sh
//! cargo run --example policies
//! ```

use std::time::Duration;

use axum::{
    Router,
    body::{Body, Bytes},
    routing::{get, post},
};
use http::{Method, Request, Response, StatusCode, request::Parts};
use tokio::time::sleep;
use tower::ServiceExt as _;
use tower_lock::{
    LockLayer, LockManager, LockPolicy, MemoryBackend, OnDisconnect, Refusal, ReleaseOn, Wait,
    key::PathKey,
};

fn app(locks: &LockManager) -> Router {
    // A policy is a value, to be shared, or read from configuration.
    let careful = LockPolicy::new()
        .with_wait(Duration::from_secs(2)) // a client may ask for less with `Prefer: wait=1`
        .with_on_disconnect(OnDisconnect::Detach) // a payment ends even if the client leaves
        .with_release_on(ReleaseOn::HeadConfirmed); // and the next request finds the order free

    // All three lock the same key, so they exclude each other.
    let order = || LockLayer::new(locks, PathKey::new("order", "id"));
    let waits = order().with_policy(careful);
    let refuses = order()
        .with_wait(Wait::Fail)
        .with_contended_status(StatusCode::LOCKED);
    let shares = order()
        .with_methods([Method::GET, Method::PUT])
        .with_shared_methods([Method::GET])
        .with_wait(Duration::from_millis(50))
        .on_refuse(in_our_words);
    Router::new()
        .route("/orders/{id}/pay", post(work).route_layer(waits))
        .route("/orders/{id}/cancel", post(work).route_layer(refuses))
        .route("/orders/{id}", get(work).put(work).route_layer(shares))
}

async fn work() -> &'static str {
    sleep(Duration::from_millis(200)).await;
    "done"
}

fn in_our_words(refusal: &Refusal, _request: &Parts) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(b"this order is being changed"));
    *response.status_mut() = refusal.status();
    response
}

#[tokio::main]
async fn main() {
    let app = app(&LockManager::new(MemoryBackend::new()));
    let paying = tokio::spawn(send(app.clone(), Method::POST, "/orders/7/pay"));
    sleep(Duration::from_millis(50)).await;
    tokio::join!(
        send(app.clone(), Method::POST, "/orders/7/pay"), // waits its turn
        send(app.clone(), Method::POST, "/orders/7/cancel"), // 423
        send(app.clone(), Method::GET, "/orders/7"),      // 409, in our words
        send(app, Method::POST, "/orders/8/cancel"),      // another order is free
    );
    paying.await.expect("the request ended");
}

async fn send(app: Router, method: Method, path: &str) {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method.clone();
    *request.uri_mut() = path.parse().expect("a path");
    let Ok(response) = app.oneshot(request).await;
    println!("{method} {path}: {}", response.status());
}
