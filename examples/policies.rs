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
use http::{Method, Request, Response, StatusCode, header::RETRY_AFTER, request::Parts};
use tokio::time::sleep;
use tower::ServiceExt as _;
use tower_lock::{
    LockLayer, LockManager, LockPolicy, MemoryBackend, OnDisconnect, Refusal, ReleaseOn, Wait,
    key::PathKey,
};

fn app(locks: &LockManager) -> Router {
    // Where a layer is built from configuration, one policy can be shared and changed.
    let careful = LockPolicy::new()
        .with_ttl(Duration::from_secs(10))
        .with_on_disconnect(OnDisconnect::Detach) // a payment ends even if the client leaves
        .with_release_on(ReleaseOn::HeadConfirmed); // and the next request finds the order free

    let order = || LockLayer::new(locks, PathKey::new("order", "id"));
    Router::new()
        // Waits for up to two seconds; a client may ask for less with `Prefer: wait=1`.
        .route(
            "/orders/{id}/pay",
            post(work).route_layer(order().with_policy(careful.with_wait(Duration::from_secs(2)))),
        )
        // Does not wait: a busy order is a 423 at once. The same key as above, on purpose.
        .route(
            "/orders/{id}/cancel",
            post(work).route_layer(
                order().with_wait(Wait::Fail).with_contended_status(StatusCode::LOCKED),
            ),
        )
        // Readers share the order; writers have it alone. The refusal is the application's own.
        .route(
            "/orders/{id}",
            get(work).put(work).route_layer(
                order()
                    .with_methods([Method::GET, Method::PUT])
                    .with_shared_methods([Method::GET])
                    .with_wait(Duration::from_millis(50))
                    .on_refuse(in_our_words),
            ),
        )
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
        send(app.clone(), Method::POST, "/orders/7/pay"),    // waits its turn
        send(app.clone(), Method::POST, "/orders/7/cancel"), // 423
        send(app.clone(), Method::GET, "/orders/7"),         // in our words
        send(app.clone(), Method::POST, "/orders/8/cancel"), // another order is free
    );
    paying.await.expect("the request ended");
}

async fn send(app: Router, method: Method, path: &str) {
    let request = Request::builder().method(&method).uri(path).body(Body::empty());
    let response = app.oneshot(request.expect("a request")).await.expect("no error");
    let (status, retry) = (response.status(), response.headers().get(RETRY_AFTER));
    println!("{method:4} {path:17} {status}  retry after: {retry:?}");
}
