//! What a route can choose: shared or exclusive, several keys, a confirmed release, and how a
//! refusal looks.
//!
//! What a slow or failing release does is tested on a memory backend behind a wire that can be
//! made so; a confirmed release on every backend, in `bodies`.

use std::time::Duration;

use axum::{
    Router,
    body::{Body, Bytes},
    routing::{get, post},
};
use http::{Method, Request, Response, StatusCode, request::Parts};
use tower_lock::{
    BackendErrorKind, FencingToken, HeldLock, HeldLocks, LockKey, LockLayer, LockManager, Mode,
    OnDisconnect, OnLost, Refusal, RefusalKind, ReleaseOn, Wait,
    key::{self, LockKeys},
};

use crate::{
    backends::{On, on_each_backend},
    flaky::{Fault, Gate, Wire, call, flaky, order, outcome, post_to, start, until, until_waiting},
    support::text,
};

on_each_backend!(
    shared_by_method,
    shared_by_closure,
    several_keys_in_one_layer,
    refusals_in_the_applications_words(paused),
    the_status_of_a_contended_key(paused),
    detached_and_told(paused),
);

fn request(method: &Method) -> Request<Body> {
    let request = Request::builder().method(method).uri("/orders/7");
    request.body(Body::empty()).unwrap()
}

/// Readers and writers of one key: readers together, a writer alone, and nobody overtakes, so a
/// stream of readers starves no writer.
async fn readers_and_writers(
    on: On,
    layer: impl Fn(&LockManager) -> LockLayer,
    read: Method,
    write: Method,
) {
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let handler = {
        let gate = gate.clone();
        move |held: HeldLock| async move {
            gate.pass().await;
            format!("{:?}", held.mode())
        }
    };
    let app = Router::new().route(
        "/orders/{id}",
        get(handler.clone())
            .post(handler.clone())
            .put(handler.clone())
            .patch(handler)
            .route_layer(layer(&locks).with_wait(Wait::Forever)),
    );
    let readers: Vec<_> = (0..3).map(|_| start(&app, request(&read))).collect();
    gate.until_inside(3).await;
    let writer = start(&app, request(&write));
    until_waiting(&locks, 1).await;
    let late = [start(&app, request(&read)), start(&app, request(&read))];
    until_waiting(&locks, 3).await;
    assert_eq!(
        gate.inside.now(),
        3,
        "late readers do not overtake the writer"
    );
    gate.let_out(3);
    for reader in readers {
        assert_eq!(text(reader.await.unwrap()).await, "Shared");
    }
    gate.until_inside(1).await;
    until_waiting(&locks, 2).await;
    gate.let_out(1);
    assert_eq!(text(writer.await.unwrap()).await, "Exclusive");
    gate.until_inside(2).await;
    gate.let_out(2);
    for reader in late {
        assert_eq!(text(reader.await.unwrap()).await, "Shared");
    }
    backend.freed().await;
}

async fn shared_by_method(on: On) {
    let layer = |locks: &LockManager| order(locks).with_shared_methods([Method::GET]);
    readers_and_writers(on, layer, Method::GET, Method::POST).await;
}

async fn shared_by_closure(on: On) {
    let layer = |locks: &LockManager| {
        order(locks).with_mode_fn(|parts: &Parts| match parts.method {
            Method::PATCH => Mode::Shared,
            _ => Mode::Exclusive,
        })
    };
    readers_and_writers(on, layer, Method::PATCH, Method::PUT).await;
}

/// A closure over the head names several keys: the handler sees all of them in canonical order,
/// with a token each, and *the* token is no longer one.
async fn several_keys_in_one_layer(on: On) {
    let (backend, locks) = on.rig().await;
    let layer = || {
        LockLayer::new(
            &locks,
            key::from_fn(|_: &Parts| {
                let ids = ["9", "4", "9"];
                ids.map(|id| LockKey::new("account", id))
                    .into_iter()
                    .collect::<LockKeys>()
            }),
        )
    };
    let app = Router::new()
        .route(
            "/transfer",
            post(|all: HeldLocks, first: HeldLock| async move {
                let keys: Vec<_> = all.iter().map(|held| held.key().clone()).collect();
                assert_eq!(keys, ["4", "9"].map(|id| LockKey::new("account", id)));
                assert_eq!(first.key(), &keys[0]);
                let tokens: Vec<_> = all.iter().map(HeldLock::fencing_token).collect();
                assert_ne!(tokens[0], tokens[1]);
            })
            .route_layer(layer()),
        )
        .route(
            "/ambiguous",
            post(|token: FencingToken| async move { token.to_string() }).route_layer(layer()),
        );
    assert_eq!(call(&app, post_to("/transfer")).await.status(), 200);
    assert_eq!(call(&app, post_to("/ambiguous")).await.status(), 500);
    backend.freed().await;
}

/// `HeadConfirmed`: the answer waits for the backend to confirm the release; `Head` does not.
#[tokio::test(start_paused = true)]
async fn a_confirmed_release() {
    let slow = Duration::from_secs(1);
    for (release_on, confirmed) in [(ReleaseOn::HeadConfirmed, true), (ReleaseOn::Head, false)] {
        let (backend, locks) = flaky();
        *backend.wire.release.lock().unwrap() = Fault::Slow(slow);
        let app = Router::new().route(
            "/orders/{id}/pay",
            post("paid").route_layer(order(&locks).with_release_on(release_on)),
        );
        let began = tokio::time::Instant::now();
        let response = call(&app, post_to("/orders/7/pay")).await;
        assert_eq!(response.status(), 200);
        assert_eq!(backend.below.is_empty(), confirmed, "{release_on:?}");
        assert_eq!(began.elapsed() >= slow, confirmed, "{release_on:?}");
        tokio::time::sleep(slow * 2).await;
        assert!(backend.below.is_empty());
        assert_eq!(Wire::count(&backend.wire.releases), 1, "{release_on:?}");
    }
}

/// A release that cannot be confirmed does not take the handler's answer away.
#[tokio::test(start_paused = true)]
async fn a_release_that_cannot_be_confirmed() {
    let (backend, locks) = flaky();
    let app = Router::new().route(
        "/orders/{id}/pay",
        post("paid").route_layer(order(&locks).with_release_on(ReleaseOn::HeadConfirmed)),
    );
    *backend.wire.release.lock().unwrap() = Fault::Error(BackendErrorKind::Unavailable);
    assert_eq!(
        text(call(&app, post_to("/orders/7/pay")).await).await,
        "paid"
    );
    backend.wire.up();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(backend.below.is_empty(), "the reaper released it");
}

/// `on_refuse` writes the whole answer, knows what happened, and cannot lose the refusal; a lost
/// lock is a refusal too.
async fn refusals_in_the_applications_words(on: On) {
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let layer = order(&locks)
        .with_wait(Wait::Fail)
        .on_refuse(|refusal, parts| {
            assert_eq!(refusal.namespace(), "order");
            let body = format!("{} {} {}", parts.method, parts.uri.path(), refusal.kind());
            Response::builder()
                .status(420)
                .body(Bytes::from(body))
                .unwrap()
        });
    let app = gate.orders(layer);
    let first = start(&app, post_to("/orders/7/pay"));
    gate.until_inside(1).await;
    let busy = call(&app, post_to("/orders/7/pay")).await;
    let refusal = busy.extensions().get::<Refusal>().unwrap();
    assert_eq!(refusal.kind(), RefusalKind::LockBusy);
    assert_eq!(refusal.status(), 409);
    assert_eq!(busy.status(), 420);
    assert_eq!(text(busy).await, "POST /orders/7/pay lock-busy");

    locks
        .force_release(&LockKey::new("order", 7))
        .await
        .unwrap();
    let lost = first.await.unwrap();
    assert_eq!(outcome(&lost), (420, "lock-lost"));
    assert_eq!(text(lost).await, "POST /orders/7/pay lock-lost");
    backend.freed().await;
}

/// The status of contention is the route's to choose; that of everything else is not.
async fn the_status_of_a_contended_key(on: On) {
    let wait = Duration::from_millis(300);
    for status in [409, 423, 429, 503] {
        let (_, locks) = on.rig().await;
        let gate = Gate::shut();
        let status_code = StatusCode::from_u16(status).unwrap();
        let layer = order(&locks)
            .with_wait(wait)
            .with_max_waiters(1)
            .with_contended_status(status_code);
        let app = gate.orders(layer);
        // Those that are to hold or wait for longer come by a route of their own.
        let patient = gate.orders(order(&locks).with_wait(Wait::Forever));
        let first = start(&patient, post_to("/orders/7/pay"));
        gate.until_inside(1).await;
        let waits = start(&patient, post_to("/orders/7/pay"));
        until_waiting(&locks, 1).await;
        let full = call(&app, post_to("/orders/7/pay")).await;
        assert_eq!(outcome(&full), (429, "too-many-waiters"));
        waits.abort();
        until_waiting(&locks, 0).await;
        let waited = call(&app, post_to("/orders/7/pay")).await;
        assert_eq!(outcome(&waited), (status, "lock-timeout"));
        let mut now = post_to("/orders/7/pay");
        now.headers_mut()
            .insert("prefer", "wait=0".parse().unwrap());
        let busy = call(&app, now).await;
        assert_eq!(outcome(&busy), (status, "lock-busy"));
        assert!(text(busy).await.contains(&format!("\"status\":{status}")));
        gate.let_out(1);
        assert_eq!(first.await.unwrap().status(), 200);
    }
}

/// Detached and told by `Signal`: the handler finishes its own way after its caller has gone and
/// the lock as well.
async fn detached_and_told(on: On) {
    let (backend, locks) = on.rig().await;
    let (done, mut undone) = tokio::sync::mpsc::unbounded_channel();
    let app = Router::new().route(
        "/orders/{id}/pay",
        post(move |held: HeldLock| async move {
            let loss = held.lost().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            done.send(loss).unwrap();
        })
        .route_layer(
            order(&locks)
                .with_on_disconnect(OnDisconnect::Detach)
                .with_on_lost(OnLost::Signal),
        ),
    );
    let request = start(&app, post_to("/orders/7/pay"));
    until("it is held", || locks.inspect().held.len() == 1).await;
    tokio::task::yield_now().await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    assert_eq!(locks.inspect().held.len(), 1);
    locks
        .force_release(&LockKey::new("order", 7))
        .await
        .unwrap();
    assert_eq!(
        undone.recv().await.unwrap(),
        tower_lock::Loss::ForceReleased
    );
    until("its end was noticed", || locks.inspect().held.is_empty()).await;
    backend.freed().await;
}
