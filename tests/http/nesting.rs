//! Several locks in one request: nested layers, several keys of one layer, and services that call
//! themselves. Nothing waits for itself for ever, and what cannot work is named in the log.
//!
//! That a failed pair is released before its answer needs a release that takes its time, so it is
//! tested on a memory backend behind a slow wire.

use std::time::Duration;

use axum::{
    Router,
    extract::Path,
    routing::{get, post},
};
use http::request::Parts;
use tokio::time::Instant;
use tower_lock::{
    HeldLock, HeldLocks, LockKey, LockLayer, LockManager, LockPolicy, Mode, Wait,
    key::{self, LockKeys, PathKey},
};

use crate::{
    backends::{On, on_each_backend},
    flaky::{Fault, Gate, Inside, call, flaky, outcome, post_to, start, until_waiting},
    logs::Logs,
    support::text,
};

on_each_backend!(
    the_same_key_in_two_layers,
    shared_outside_and_exclusive_inside,
    a_service_that_calls_itself(paused),
    two_named_locks_are_both_visible,
    layers_nested_in_opposite_order(paused),
    several_keys_never_deadlock,
);

const WAIT: Duration = Duration::from_secs(2);

fn named(locks: &LockManager, namespace: &str) -> LockLayer {
    LockLayer::new(locks, PathKey::new(namespace, "id")).with_wait(WAIT)
}

/// An outer and an inner layer with the same key: the inner one uses the outer lock, with the same
/// token, and it is released once, by the outer one.
async fn the_same_key_in_two_layers(on: On) {
    let (backend, locks) = on.rig().await;
    let app = Router::new().route(
        "/orders/{id}/pay",
        post(|held: HeldLock, all: HeldLocks| async move {
            assert!(held.is_held());
            let tokens: Vec<_> = all.iter().map(HeldLock::fencing_token).collect();
            assert!(tokens.iter().all(|token| *token == held.fencing_token()));
            "paid"
        })
        .route_layer(named(&locks, "order").with_wait(Wait::Fail))
        .route_layer(named(&locks, "order").with_wait(Wait::Fail)),
    );
    for _ in 0..2 {
        assert_eq!(
            text(call(&app, post_to("/orders/7/pay")).await).await,
            "paid"
        );
        backend.freed().await;
    }
}

/// Shared outside and exclusive inside cannot work: it is refused at once and named in the log.
async fn shared_outside_and_exclusive_inside(on: On) {
    let logs = Logs::capture();
    let (backend, locks) = on.rig().await;
    let app = Router::new().route(
        "/orders/{id}/pay",
        post("paid")
            .route_layer(named(&locks, "upgrade"))
            .route_layer(named(&locks, "upgrade").with_mode(Mode::Shared)),
    );
    let response = call(&app, post_to("/orders/7/pay")).await;
    assert_eq!(outcome(&response), (500, "lock-misconfigured"));
    assert!(
        logs.find(&["upgrade", "make the outer layer exclusive"]),
        "{logs:?}"
    );
    backend.freed().await;
}

/// A handler that calls its own service for the key that it holds: the inner call ends at its wait
/// timeout, not never, and the log says what to look for.
async fn a_service_that_calls_itself(on: On) {
    let logs = Logs::capture();
    let (backend, locks) = on.rig().await;
    let app = Router::new().route(
        "/orders/{id}/pay",
        post(
            |Path(id): Path<u64>, router: axum::Extension<Cell>| async move {
                let router = router.0.0.get().unwrap().clone();
                let inner = call(&router, post_to(&format!("/orders/{id}/pay"))).await;
                format!("{:?}", outcome(&inner))
            },
        )
        .route_layer(named(&locks, "selfcall")),
    );
    let cell = Cell::default();
    let app = app.layer(axum::Extension(cell.clone()));
    cell.0.set(app.clone()).unwrap();
    let began = Instant::now();
    let answer = text(call(&app, post_to("/orders/7/pay")).await).await;
    assert_eq!(answer, r#"(409, "lock-timeout")"#);
    assert!(began.elapsed() >= WAIT && began.elapsed() < WAIT * 2);
    let hint = "does the holder call this service again?";
    assert!(logs.find(&["selfcall", hint]), "{logs:?}");
    // The router holds itself through the cell.
    drop((app, cell));
    backend.freed().await;
}

/// A place for the router that its own handler calls.
#[derive(Clone, Default)]
struct Cell(std::sync::Arc<std::sync::OnceLock<Router>>);

/// Two named locks in one request: both are there, the innermost first, by namespace and with
/// tokens of their own; both are free afterwards.
async fn two_named_locks_are_both_visible(on: On) {
    let (backend, locks) = on.rig().await;
    let app = Router::new().route(
        "/orders/{id}/pay",
        post(|innermost: HeldLock, all: HeldLocks| async move {
            assert_eq!(all.len(), 2);
            let names: Vec<_> = all.iter().map(|held| held.key().namespace()).collect();
            assert_eq!(names, ["order", "account"]);
            assert_eq!(innermost.key(), &LockKey::new("order", 7));
            let account = all.get("account").unwrap();
            assert!(account.is_held() && innermost.is_held());
            assert_ne!(account.key(), innermost.key());
            assert!(all.get("nothing").is_none());
        })
        .route_layer(named(&locks, "order"))
        .route_layer(named(&locks, "account")),
    );
    assert_eq!(call(&app, post_to("/orders/7/pay")).await.status(), 200);
    backend.freed().await;
}

/// Two routes nest the same two layers in opposite order, and two requests wait for each other: one
/// ends at its wait timeout, the other then runs, and the log names both locks.
async fn layers_nested_in_opposite_order(on: On) {
    let logs = Logs::capture();
    let (backend, locks) = on.rig().await;
    // The inner layers wait until both outer locks are held.
    let (ab, ba) = (Gate::shut(), Gate::shut());
    let between = |gate: &Gate| {
        let gate = gate.clone();
        axum::middleware::from_fn(
            move |request: axum::extract::Request, next: axum::middleware::Next| {
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    next.run(request).await
                }
            },
        )
    };
    let app = Router::new()
        .route(
            "/ab/{id}",
            post("ran")
                .route_layer(named(&locks, "bbb"))
                .route_layer(between(&ab))
                .route_layer(named(&locks, "aaa")),
        )
        .route(
            "/ba/{id}",
            post("ran")
                .route_layer(named(&locks, "aaa").with_wait(WAIT * 5))
                .route_layer(between(&ba))
                .route_layer(named(&locks, "bbb")),
        );
    let first = start(&app, post_to("/ab/7"));
    let second = start(&app, post_to("/ba/7"));
    ab.until_inside(1).await;
    ba.until_inside(1).await;
    let began = Instant::now();
    ab.let_out(1);
    ba.let_out(1);
    assert_eq!(outcome(&first.await.unwrap()), (409, "lock-timeout"));
    assert_eq!(text(second.await.unwrap()).await, "ran");
    assert!(began.elapsed() >= WAIT && began.elapsed() < WAIT * 2);
    let hint = "do two routes nest these layers in opposite order?";
    assert!(logs.find(&["aaa", "bbb", hint]), "{logs:?}");
    backend.freed().await;
}

/// Several keys of each request, in any order and overlapping: they are acquired in one order, so
/// hundreds of requests at once all get through, one at a time per key.
async fn several_keys_never_deadlock(on: On) {
    const KEYS: usize = 5;
    let (backend, locks) = on.rig().await;
    let inside: [Inside; KEYS] = Default::default();
    let layer = LockLayer::new(
        &locks,
        key::from_fn(|parts: &Parts| {
            let ids = parts.uri.path().rsplit('/').next().unwrap();
            ids.split(',')
                .map(|id| LockKey::new("account", id))
                .collect::<LockKeys>()
        }),
    )
    .with_wait(Wait::Forever)
    .with_max_waiters(1000);
    let app = Router::new().route(
        "/transfer/{ids}",
        post({
            let inside = inside.clone();
            move |Path(ids): Path<String>, held: HeldLocks| async move {
                let ids: Vec<usize> = ids.split(',').map(|id| id.parse().unwrap()).collect();
                let _visits: Vec<_> = ids.iter().map(|id| inside[*id].enter()).collect();
                assert_eq!(held.len(), ids.len());
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
            }
        })
        .route_layer(layer),
    );
    let requests: Vec<_> = (0..400)
        .map(|_| {
            let mut ids: Vec<usize> = (0..KEYS).collect();
            for i in (1..KEYS).rev() {
                ids.swap(i, fastrand::usize(..=i));
            }
            ids.truncate(fastrand::usize(1..=4));
            let ids: Vec<_> = ids.iter().map(usize::to_string).collect();
            start(&app, post_to(&format!("/transfer/{}", ids.join(","))))
        })
        .collect();
    for request in requests {
        let response = tokio::time::timeout(Duration::from_secs(30), request).await;
        assert_eq!(response.expect("no deadlock").unwrap().status(), 200);
    }
    for account in inside {
        assert_eq!(account.most(), 1);
    }
    backend.freed().await;
}

/// The second of two keys cannot be had: the first is released, confirmed by the backend, before
/// the client gets its answer.
#[tokio::test(start_paused = true)]
async fn all_or_nothing() {
    let (backend, locks) = flaky();
    let layer = LockLayer::new(
        &locks,
        key::from_fn(|_: &Parts| ["a", "b"].map(|id| LockKey::new("account", id))),
    );
    let app = Router::new().route(
        "/transfer",
        get("done").post("done").route_layer(layer.with_wait(WAIT)),
    );
    let held = locks
        .acquire(LockKey::new("account", "b"), &LockPolicy::new())
        .await
        .unwrap();
    *backend.wire.release.lock().unwrap() = Fault::Slow(Duration::from_millis(700));
    let request = start(&app, post_to("/transfer"));
    tokio::time::sleep(WAIT / 2).await;
    assert_eq!(
        backend.below.len(),
        2,
        "it holds one and waits for the other"
    );
    let response = request.await.unwrap();
    assert_eq!(outcome(&response), (409, "lock-timeout"));
    assert_eq!(backend.below.len(), 1, "only what was held before");
    assert_eq!(locks.inspect().held.len(), 1);
    backend.wire.up();

    // Left by its client while it waits for the second key, it leaves nothing either.
    let request = start(&app, post_to("/transfer"));
    until_waiting(&locks, 1).await;
    request.abort();
    let _ = request.await;
    held.release().await.unwrap();
    crate::flaky::until("nothing is left", || backend.below.is_empty()).await;
    assert_eq!(call(&app, post_to("/transfer")).await.status(), 200);
}
