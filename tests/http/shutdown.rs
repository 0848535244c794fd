//! Shutdown lets go of everything: waiters are refused at once, holders get the grace, and no key
//! is left, whoever holds it and whatever becomes of the application's runtime. One whose backend
//! is away at the end is tested on a wire that can hang at a chosen moment.

use std::time::Duration;

use axum::{Router, routing::post};
use tokio::{sync::mpsc, time::Instant};
use tower_lock::{
    HeldLock, LockBackend, LockGuard, LockKey, LockManager, LockPolicy, Loss, OnDisconnect, OnLost,
    Wait,
};

use crate::{
    backends::{On, on_each_backend},
    flaky::{
        Fault, Flaky, Gate, call, flaky_on, order, outcome, post_to, start, until, until_waiting,
    },
    support::SOON,
};

on_each_backend!(
    waiters_are_refused_and_holders_finish(paused),
    whoever_outstays_the_grace_lets_go(paused),
    a_runtime_that_is_dropped_with_guards_alive(blocking),
);

/// By a paused clock, or one that takes its time.
fn grace(on: On) -> Duration {
    Duration::from_secs(if on.is_here() { 10 } else { 2 })
}

/// Waiters and newcomers get a 503 `draining` at once; a holder that ends within the grace answers
/// as if nothing were.
async fn waiters_are_refused_and_holders_finish(on: On) {
    // Nobody sits it out, so by the real clock as well it may be long.
    let grace = if on.is_here() { grace(on) } else { SOON };
    let (backend, locks) = flaky_on(on).await;
    let gate = Gate::shut();
    let app = gate.orders(order(&locks).with_wait(Wait::Forever));
    let holder = start(&app, post_to("/orders/7/pay"));
    gate.until_inside(1).await;
    let waiters: Vec<_> = (0..5)
        .map(|_| start(&app, post_to("/orders/7/pay")))
        .collect();
    until_waiting(&locks, 5).await;

    let began = Instant::now();
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(grace).await }
    });
    for waiter in waiters {
        let response = waiter.await.unwrap();
        assert_eq!(outcome(&response), (503, "draining"));
        assert!(response.headers().contains_key("retry-after"));
    }
    let now = if on.is_here() {
        Duration::ZERO
    } else {
        grace / 2
    };
    assert!(began.elapsed() <= now, "now, not after the grace");
    let newcomer = call(&app, post_to("/orders/8/pay")).await;
    assert_eq!(outcome(&newcomer), (503, "draining"));
    assert!(!shutdown.is_finished() && !holder.is_finished());

    tokio::time::sleep(Duration::from_millis(500)).await;
    gate.let_out(1);
    assert_eq!(holder.await.unwrap().status(), 200);
    let report = shutdown.await.unwrap();
    assert_eq!(
        (report.finished, report.interrupted, report.forced),
        (1, 0, 0)
    );
    assert!(report.confirmed);
    assert!(began.elapsed() < grace, "it does not sit the grace out");
    let key = backend.inspect(&LockKey::new("order", 7)).await.unwrap();
    assert!(key.holders.is_empty(), "it was confirmed");
    // The places of those who were refused are given up beside it.
    backend.below.freed().await;
    let again = locks.shutdown(grace).await;
    assert_eq!((again.finished, again.interrupted, again.forced), (0, 0, 0));
}

/// A holder that ends in the very moment in which a shutdown looks: whichever is first, its release
/// is confirmed when the shutdown says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_release_that_has_just_begun_is_waited_for() {
    for _ in 0..300 {
        let backend = Flaky::default();
        let locks = LockManager::new(backend.clone());
        *backend.wire.release.lock().unwrap() = Fault::Slow(Duration::from_millis(2));
        let gate = Gate::shut();
        let app = gate.orders(order(&locks));
        let holder = start(&app, post_to("/orders/7/pay"));
        gate.until_inside(1).await;
        let shutdown = tokio::spawn(async move { locks.shutdown(Duration::from_secs(10)).await });
        gate.let_out(1);
        let report = shutdown.await.unwrap();
        assert!(report.confirmed);
        assert!(backend.below.is_empty(), "{report:?}");
        assert_eq!(holder.await.unwrap().status(), 200);
    }
}

/// The same for a lock that is granted in that moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_grant_of_the_last_moment_is_given_back() {
    for round in 0..1000 {
        let backend = Flaky::default();
        let locks = LockManager::new(backend.clone());
        *backend.wire.release.lock().unwrap() = Fault::Slow(Duration::from_millis(1));
        let gate = Gate::shut();
        gate.let_out(2);
        let app = gate.orders(order(&locks));
        let request = start(&app, post_to("/orders/7/pay"));
        for _ in 0..round % 50 {
            std::hint::spin_loop();
        }
        let report = locks.shutdown(Duration::from_secs(10)).await;
        assert!(report.confirmed);
        assert!(backend.below.is_empty(), "{report:?}");
        let response = request.await.unwrap();
        assert!([200, 503].contains(&response.status().as_u16()));
    }
}

/// Holders that outstay the grace: a handler is aborted, a detached one too, the owner of a taken
/// guard is told, and one who ignores it loses the lock all the same. No key is left.
async fn whoever_outstays_the_grace_lets_go(on: On) {
    let grace = grace(on);
    let (backend, locks) = flaky_on(on).await;
    let gate = Gate::shut();
    let (guards, mut taken) = mpsc::unbounded_channel::<LockGuard>();
    let take = move |held: HeldLock| async move {
        guards.send(held.take_guard().unwrap()).unwrap();
    };
    let handler = {
        let gate = gate.clone();
        move || async move { gate.pass().await }
    };
    let app = Router::new()
        .route(
            "/stays/{id}",
            post(handler.clone()).route_layer(order(&locks)),
        )
        .route(
            "/detached/{id}",
            post(handler.clone())
                .route_layer(order(&locks).with_on_disconnect(OnDisconnect::Detach)),
        )
        .route("/takes/{id}", post(take).route_layer(order(&locks)));
    let stays = start(&app, post_to("/stays/1"));
    let detached = start(&app, post_to("/detached/2"));
    gate.until_inside(2).await;
    detached.abort();
    let _ = detached.await;
    for id in [3, 4] {
        assert_eq!(
            call(&app, post_to(&format!("/takes/{id}"))).await.status(),
            200
        );
    }
    let (told, ignores) = (taken.recv().await.unwrap(), taken.recv().await.unwrap());
    let told = tokio::spawn(async move {
        let loss = told.lost().await;
        told.release().await.unwrap();
        loss
    });
    assert_eq!(
        locks.inspect().held.len(),
        4,
        "detached and taken ones are listed"
    );

    let began = Instant::now();
    let report = locks.shutdown(grace).await;
    assert!(began.elapsed() >= grace && began.elapsed() < grace + Duration::from_secs(3));
    assert_eq!(
        (report.finished, report.interrupted, report.forced),
        (0, 3, 1)
    );
    assert!(report.confirmed);
    assert_eq!(outcome(&stays.await.unwrap()), (500, "lock-lost"));
    assert_eq!(told.await.unwrap(), Loss::Shutdown);
    assert!(!ignores.is_held());
    assert_eq!(gate.inside.now(), 0, "both handlers are dropped");
    assert!(backend.below.is_empty());
    drop(ignores);
    assert!(locks.inspect().held.is_empty());
}

/// A handler under `Signal` that lets go when it is told, and a backend that is away at the end:
/// the shutdown itself is bounded, and says that it is not sure.
#[tokio::test(start_paused = true)]
async fn a_shutdown_is_bounded() {
    let backend = Flaky::default();
    let locks = LockManager::builder(backend.clone())
        .renew_on_current_runtime()
        .backend_timeout(Duration::from_secs(1))
        .build();
    let app = Router::new().route(
        "/orders/{id}/pay",
        post(|held: HeldLock| async move { held.lost().await.as_str() })
            .route_layer(order(&locks).with_on_lost(OnLost::Signal)),
    );
    let request = start(&app, post_to("/orders/7/pay"));
    until("it is held", || locks.inspect().held.len() == 1).await;
    backend.wire.all(Fault::Hung);
    let began = Instant::now();
    let report = locks.shutdown(Duration::from_secs(2)).await;
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert_eq!((report.interrupted, report.confirmed), (1, false));
    assert_eq!(
        crate::support::text(request.await.unwrap()).await,
        "shutdown"
    );
}

/// The application's runtime is dropped with everything alive: handlers, a detached one, guards in
/// tasks. Their releases run on the lock runtime, so the keys are free soon all the same.
fn a_runtime_that_is_dropped_with_guards_alive(on: On) {
    let other = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let backend = Flaky::over(other.block_on(on.backend()));
    // Not `flaky_on()`: this manager lives on the lock runtime.
    let locks = LockManager::new(backend.clone());
    *backend.wire.release.lock().unwrap() = Fault::Slow(Duration::from_millis(20));
    let gate = Gate::shut();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let app = gate.orders(order(&locks).with_on_disconnect(OnDisconnect::Detach));
        let detached = start(&app, post_to("/orders/0/pay"));
        for id in 1..10 {
            drop(start(&app, post_to(&format!("/orders/{id}/pay"))));
        }
        gate.until_inside(10).await;
        detached.abort();
        for id in 0..10 {
            let guard = locks
                .acquire(LockKey::new("job", id), &LockPolicy::new())
                .await
                .unwrap();
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(guard);
            });
        }
        assert_eq!(locks.inspect().held.len(), 20);
    });
    assert_eq!(backend.below.len(), 20);
    drop(runtime);

    let report = other.block_on(locks.shutdown(Duration::from_secs(20)));
    assert!(report.confirmed);
    assert_eq!((report.interrupted, report.forced), (0, 0));
    assert!(
        backend.below.is_empty(),
        "{} keys are left",
        backend.below.len()
    );
}
