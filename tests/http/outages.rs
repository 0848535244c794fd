//! A backend that is slow, silent or broken: every request is answered in bounded time, "held by
//! another" and "the backend failed" are never mixed, and no text of the backend gets out.
//!
//! On a memory backend behind a wire that fails on demand, by a paused clock; a server that is
//! really away is in `fleet::away`.

use std::time::Duration;

use axum::{Router, routing::post};
use tokio::time::Instant;
use tower_lock::{
    AcquireErrorKind, BackendErrorKind, HeldLock, LockKey, LockManager, LockPolicy, Wait,
};

use crate::{
    flaky::{Fault, Flaky, Gate, Wire, call, order, outcome, post_to, start, until, waiting},
    logs::Logs,
    support::text,
};

const WAIT: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(1);

fn bounded() -> (Flaky, LockManager) {
    let backend = Flaky::default();
    let locks = LockManager::builder(backend.clone())
        .renew_on_current_runtime()
        .backend_timeout(TIMEOUT)
        .build();
    (backend, locks)
}

/// A silent backend costs a request its wait and one timeout, then it is a 503; a route that fails
/// open runs its handler, without a lock, after the same time.
#[tokio::test(start_paused = true)]
async fn a_hung_backend() {
    let (backend, locks) = bounded();
    *backend.wire.acquire.lock().unwrap() = Fault::Hung;
    let handler = |held: Option<HeldLock>| async move { held.is_some().to_string() };
    let app = Router::new()
        .route(
            "/closed/{id}",
            post(handler).route_layer(order(&locks).with_wait(WAIT)),
        )
        .route(
            "/open/{id}",
            post(handler).route_layer(order(&locks).with_wait(WAIT).with_insecure_fail_open()),
        )
        .route(
            "/try/{id}",
            post(handler).route_layer(order(&locks).with_wait(Wait::Fail)),
        );
    for (path, limit) in [("/closed/7", WAIT + TIMEOUT), ("/try/7", TIMEOUT)] {
        let began = Instant::now();
        let response = call(&app, post_to(path)).await;
        assert_eq!(outcome(&response), (503, "backend-unavailable"));
        assert!(response.headers().contains_key("retry-after"));
        assert!(
            began.elapsed() <= limit + TIMEOUT / 10,
            "{:?}",
            began.elapsed()
        );
    }
    let began = Instant::now();
    assert_eq!(text(call(&app, post_to("/open/7")).await).await, "false");
    assert!(began.elapsed() <= WAIT + TIMEOUT * 11 / 10);
    assert_eq!(waiting(&locks), 0, "no waiter is left behind");
    assert!(backend.below.is_empty());

    // Slow is not hung.
    *backend.wire.acquire.lock().unwrap() = Fault::Slow(TIMEOUT / 2);
    assert_eq!(text(call(&app, post_to("/try/7")).await).await, "true");
    *backend.wire.acquire.lock().unwrap() = Fault::LateReply(TIMEOUT / 2);
    assert_eq!(text(call(&app, post_to("/try/7")).await).await, "true");
    until("all is released", || backend.below.is_empty()).await;
}

/// A reply that comes after the timeout holds nothing: the grant goes back.
#[tokio::test(start_paused = true)]
async fn a_grant_whose_reply_is_too_late() {
    let (backend, locks) = bounded();
    let gate = Gate::shut();
    let app = gate.orders(order(&locks).with_wait(Wait::Fail));
    *backend.wire.acquire.lock().unwrap() = Fault::LateReply(TIMEOUT * 3);
    let response = call(&app, post_to("/orders/7/pay")).await;
    assert_eq!(outcome(&response), (503, "backend-unavailable"));
    tokio::time::sleep(TIMEOUT * 4).await;
    assert!(backend.below.is_empty());
    assert_eq!(gate.inside.visits(), 0);
    // Later than the lease itself: worth nothing to the waiter, who is told that it timed out.
    let layer = order(&locks).with_wait(WAIT).with_ttl(TIMEOUT / 2);
    *backend.wire.acquire.lock().unwrap() = Fault::LateReply(TIMEOUT * 3 / 4);
    let response = call(&gate.orders(layer), post_to("/orders/7/pay")).await;
    assert_eq!(outcome(&response), (409, "lock-timeout"));
    until("all is given back", || backend.below.is_empty()).await;
    assert_eq!(gate.inside.visits(), 0);
}

/// Failing open is for an unavailable backend only: a held key is still refused.
#[tokio::test]
async fn failing_open_does_not_share_a_held_key() {
    let (backend, locks) = bounded();
    let gate = Gate::shut();
    let layer = order(&locks)
        .with_wait(Wait::Fail)
        .with_insecure_fail_open();
    let app = gate.orders(layer);
    let first = start(&app, post_to("/orders/7/pay"));
    gate.until_inside(1).await;
    let second = call(&app, post_to("/orders/7/pay")).await;
    assert_eq!(outcome(&second), (409, "lock-busy"));
    backend.wire.down();
    let third = start(&app, post_to("/orders/7/pay"));
    gate.until_inside(2).await;
    backend.wire.up();
    gate.let_out(2);
    assert_eq!(first.await.unwrap().status(), 200);
    assert_eq!(third.await.unwrap().status(), 200);
    until("all is released", || backend.below.is_empty()).await;
}

/// Every kind of answer that a backend can give, as the manager and as the client see it. What the
/// backend said stands in the log and nowhere else.
#[tokio::test]
async fn outcomes_are_never_mixed() {
    use AcquireErrorKind as A;
    use BackendErrorKind as B;
    let logs = Logs::capture();
    let (backend, locks) = bounded();
    let gate = Gate::shut();
    let app = gate.orders(order(&locks));
    let table = [
        (B::Contended, A::Contended, (409, "lock-busy")),
        (B::WaitTimedOut, A::WaitTimedOut, (409, "lock-timeout")),
        (
            B::Unavailable,
            A::BackendUnavailable,
            (503, "backend-unavailable"),
        ),
        (
            B::Misconfigured,
            A::BackendUnavailable,
            (503, "backend-unavailable"),
        ),
        (B::Lost, A::BackendUnavailable, (503, "backend-unavailable")),
        (B::Unsupported, A::Config, (500, "lock-misconfigured")),
    ];
    for (backend_kind, kind, answer) in table {
        *backend.wire.acquire.lock().unwrap() = Fault::Error(backend_kind);
        let error = locks
            .acquire(LockKey::new("order", 7), &LockPolicy::new())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{backend_kind:?}");
        assert_eq!(error.is_retryable(), kind != A::Config);
        assert!(!error.to_string().contains("secret-context"));
        let response = call(&app, post_to("/orders/7/pay")).await;
        assert_eq!(outcome(&response), answer, "{backend_kind:?}");
        for value in response.headers().values() {
            assert!(!value.to_str().unwrap().contains("secret-context"));
        }
        let body = text(response).await;
        assert!(
            !body.contains("secret-context") && !body.contains("1.7;"),
            "{body}"
        );
    }
    assert_eq!(gate.inside.visits(), 0);
    assert!(!logs.find(&["order:1.7;"]), "a key is in the log: {logs:?}");
    assert_eq!(Wire::count(&backend.wire.acquires), table.len() * 2);
}

/// A release that fails is repeated until it works: the key does not stay for its whole lease.
#[tokio::test(start_paused = true)]
async fn a_failed_release_is_repeated() {
    let (backend, locks) = bounded();
    let gate = Gate::shut();
    let app = gate.orders(order(&locks));
    let request = start(&app, post_to("/orders/7/pay"));
    gate.until_inside(1).await;
    *backend.wire.release.lock().unwrap() = Fault::Error(BackendErrorKind::Unavailable);
    gate.let_out(1);
    assert_eq!(
        request.await.unwrap().status(),
        200,
        "the handler's answer stands"
    );
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(backend.below.len(), 1);
    assert!(Wire::count(&backend.wire.releases) > 2);
    backend.wire.up();
    let began = Instant::now();
    while !backend.below.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "long before the ttl of 30 s"
        );
    }
}
