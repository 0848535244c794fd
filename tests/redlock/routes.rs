//! What clients of a route see while nodes come and go.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Request, Response, StatusCode},
    routing::post,
};
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;
use tower_lock::{
    FencingToken, LockBackend as _, LockLayer, LockManager, LockPolicy, key::PathKey,
};

use crate::support::{SLACK, builder, deploy, key, timed, until};

/// What the handler adds one to, without any protection of its own, and the tokens it was given.
#[derive(Clone, Debug, Default)]
struct Ledger {
    entries: Arc<AtomicU64>,
    inside: Arc<AtomicU64>,
    highest: Arc<AtomicU64>,
}

async fn pay(State(ledger): State<Ledger>, token: FencingToken) -> StatusCode {
    ledger.inside.fetch_add(1, Ordering::SeqCst);
    let before = ledger.highest.swap(token.get(), Ordering::SeqCst);
    let seen = ledger.entries.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(2)).await;
    ledger.entries.store(seen + 1, Ordering::SeqCst);
    if before < token.get() {
        StatusCode::OK
    } else {
        StatusCode::CONFLICT
    }
}

async fn sleepy(State(ledger): State<Ledger>) {
    ledger.inside.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(600)).await;
}

/// One instance of a service.
fn instance(locks: &LockManager, policy: LockPolicy, ledger: &Ledger) -> Router {
    let layer = LockLayer::new(locks, PathKey::new("order", "id")).with_policy(policy);
    Router::new()
        .route("/orders/{id}/pay", post(pay))
        .route("/orders/{id}/sleep", post(sleepy))
        .route_layer(layer)
        .with_state(ledger.clone())
}

async fn call(app: &Router, path: &str) -> Response<Body> {
    let request = Request::post(path).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().into()).unwrap()
}

/// Two instances, one order, and a node that dies in the middle: no payment is lost, and tokens
/// grow in the order in which handlers ran.
#[tokio::test(flavor = "multi_thread")]
async fn payments_of_one_order_never_overlap_while_a_node_dies() {
    const PAYMENTS: usize = 60;
    let (servers, backend) = deploy(3).await;
    let other = builder(&servers).connect().await.unwrap();
    let ledger = Ledger::default();
    let wait = LockPolicy::new().with_wait(Duration::from_secs(30));
    let apps = [backend, other].map(|backend| {
        let locks = LockManager::new(backend);
        instance(&locks, wait.clone(), &ledger)
    });
    let payments: Vec<_> = (0..PAYMENTS)
        .map(|n| {
            let app = apps[n % 2].clone();
            tokio::spawn(async move { call(&app, "/orders/7/pay").await.status() })
        })
        .collect();
    let inside = || ledger.inside.load(Ordering::SeqCst);
    until("some have paid", async || inside() >= PAYMENTS as u64 / 4).await;
    servers.node(0).kill();
    for payment in payments {
        assert_eq!(payment.await.unwrap(), StatusCode::OK);
    }
    assert_eq!(inside(), PAYMENTS as u64);
    assert_eq!(ledger.entries.load(Ordering::SeqCst), PAYMENTS as u64);
}

/// Without a majority nobody new is let in, and who is inside is ended before its lease is.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_requests_end_as_problems() {
    let (servers, backend) = deploy(3).await;
    let ttl = Duration::from_secs(2);
    let locks = LockManager::new(backend.clone());
    let ledger = Ledger::default();
    let app = instance(&locks, LockPolicy::new().with_ttl(ttl), &ledger);
    let inside = tokio::spawn({
        let app = app.clone();
        async move { call(&app, "/orders/7/sleep").await }
    });
    until("it is inside", async || {
        ledger.inside.load(Ordering::SeqCst) == 1
    })
    .await;
    servers.node(0).pause();
    servers.node(1).kill();
    let (lost, took) = timed(inside).await;
    let lost = lost.unwrap();
    // Whether the payment was made is not known.
    assert_eq!(lost.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text(lost).await.contains("lock-lost"));
    assert!(took < ttl + SLACK, "{took:?}");

    let refused = call(&app, "/orders/8/pay").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    let problem = text(refused).await;
    assert!(problem.contains("backend-unavailable"), "{problem}");
    assert!(!problem.contains("127.0.0.1"), "{problem}");

    servers.node(0).resume();
    until("they are let in again", async || {
        call(&app, "/orders/8/pay").await.status() == StatusCode::OK
    })
    .await;
    until("who was inside has left nothing", async || {
        let state = backend.inspect(&key(7)).await;
        state.is_ok_and(|state| state.holders.is_empty())
    })
    .await;
}
