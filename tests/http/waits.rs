//! A wait ends when the route says so: neither early nor late, with one answer, and the place in
//! the queue is given up. On a paused clock exactly, on the real one, which is all that a server
//! has, never early.

use std::time::Duration;

use axum::{Router, routing::post};
use tokio::time::Instant;
use tower_lock::{LockKey, LockLayer, LockManager, LockPolicy, key::PathKey};

use crate::{
    backends::{Backend, On, on_each_backend},
    support::{HOUR, SOON, Stage, send, soon, text, until},
};

on_each_backend!(
    a_wait_ends_on_time_by_the_real_clock,
    waiting_requests_each_end_on_their_own_time(paused),
    a_lock_that_comes_free_in_time_is_taken_in_time(paused),
);

const WAIT: Duration = Duration::from_secs(2);

struct World {
    backend: Backend,
    locks: LockManager,
    stage: Stage,
    app: Router,
}

async fn world(on: On, wait: Duration) -> World {
    let (backend, locks) = on.rig().await;
    let stage = Stage::new();
    let handler = {
        let stage = stage.clone();
        move || async move { stage.act().await }
    };
    let app = Router::new().route(
        "/orders/{id}",
        post(handler).route_layer(
            LockLayer::new(&locks, PathKey::new("order", "id"))
                .with_ttl(HOUR)
                .with_wait(wait),
        ),
    );
    World {
        backend,
        locks,
        stage,
        app,
    }
}

/// One request waits in vain behind a holder; returns how long.
async fn in_vain(world: &World) -> Duration {
    let policy = LockPolicy::new().with_ttl(HOUR);
    let holder = world.locks.acquire(LockKey::new("order", 7), &policy);
    let holder = holder.await.expect("free");
    let begun = Instant::now();
    let response = send(&world.app, "POST", "/orders/7").await;
    let waited = begun.elapsed();
    assert_eq!(response.status(), 409);
    assert!(response.headers().contains_key("retry-after"));
    assert!(text(response).await.contains("lock-timeout"));
    assert_eq!(world.stage.begun(), 0, "one answer, and no handler");

    // The place is given up, here and at the backend, while the holder still holds.
    assert!(world.locks.inspect().waiting.is_empty());
    let given_up = Instant::now();
    loop {
        let key = world.locks.inspect_key(holder.key()).await;
        let key = key.expect("the backend is there");
        assert_eq!(key.holders.len(), 1);
        if key.waiters == 0 {
            break;
        }
        // Over a network it is on its way, and long there before it would end by itself.
        assert!(
            !matches!(world.backend, Backend::Memory(_)) && given_up.elapsed() < SOON,
            "{} places are left",
            key.waiters
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    holder.release().await.expect("the backend is there");
    world.backend.freed().await;
    waited
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_on_time_by_a_paused_clock() {
    let world = world(On::Memory, WAIT).await;
    let waited = in_vain(&world).await;
    assert!(
        waited >= WAIT && waited <= WAIT + Duration::from_millis(50),
        "{waited:?}"
    );
}

/// How late an answer may be: not at all by a paused clock, and by the real one as late as a
/// busy machine is.
fn late(on: On) -> Duration {
    if on.is_here() {
        Duration::from_millis(50)
    } else {
        Duration::from_secs(5)
    }
}

async fn a_wait_ends_on_time_by_the_real_clock(on: On) {
    let world = world(on, WAIT).await;
    // The machine can be late, so the best of a few counts; nothing may ever be early.
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let waited = in_vain(&world).await;
        assert!(waited >= WAIT, "{waited:?}");
        best = best.min(waited);
        if best <= WAIT + Duration::from_millis(50) {
            return;
        }
    }
    panic!("always late, at best {best:?}");
}

async fn waiting_requests_each_end_on_their_own_time(on: On) {
    let world = world(on, WAIT).await;
    let policy = LockPolicy::new().with_ttl(HOUR);
    let holder = world.locks.acquire(LockKey::new("order", 7), &policy);
    let _holder = holder.await.expect("free");
    let mut requests = Vec::new();
    for n in 0..10 {
        let app = world.app.clone();
        requests.push(tokio::spawn(async move {
            let begun = Instant::now();
            let response = send(&app, "POST", "/orders/7").await;
            (response.status(), begun.elapsed())
        }));
        until("it waits", || {
            world.locks.inspect().waiting.first().map(|w| w.waiters) == Some(n + 1)
        })
        .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (n, request) in requests.into_iter().enumerate() {
        let (status, waited) = request.await.expect("no panic");
        assert_eq!(status, 409);
        let late = waited.checked_sub(WAIT).expect("never early");
        assert!(late <= self::late(on), "{n}: {late:?}");
    }
    assert!(world.locks.inspect().waiting.is_empty());
}

async fn a_lock_that_comes_free_in_time_is_taken_in_time(on: On) {
    // By a paused clock in the last moment. By the real one with most of the wait left, and the
    // machine can be late, so the best of a few counts.
    let (wait, left, within, times) = if on.is_here() {
        (WAIT, Duration::from_millis(10), Duration::from_millis(5), 1)
    } else {
        let wait = WAIT * 2;
        (wait, wait, Duration::from_millis(250), 5)
    };
    let world = world(on, wait).await;
    let policy = LockPolicy::new().with_ttl(HOUR);
    let mut best = Duration::MAX;
    for time in 0..times {
        let holder = world.locks.acquire(LockKey::new("order", 7), &policy);
        let holder = holder.await.expect("free");
        let app = world.app.clone();
        let request = tokio::spawn(async move { send(&app, "POST", "/orders/7").await.status() });
        queued(&world, holder.key()).await;
        tokio::time::sleep(wait - left).await;
        assert_eq!(world.stage.begun(), time);
        let freed = Instant::now();
        holder.release().await.expect("the backend is there");
        world.stage.entered().await;
        best = best.min(freed.elapsed());
        let last = best <= within || time + 1 == times;
        if last {
            // The wait's end has no meaning any more.
            tokio::time::sleep(wait).await;
        }
        world.stage.let_go();
        assert_eq!(request.await.expect("no panic"), 200);
        world.backend.freed().await;
        if last {
            break;
        }
    }
    // Handed over, not found free by a look now and then: it is free soon after the first look.
    assert!(best <= within, "{best:?}");
}

/// One waits in the backend's queue.
async fn queued(world: &World, key: &LockKey) {
    soon("it is in the queue", async {
        loop {
            let key = world.locks.inspect_key(key).await;
            if key.expect("the backend is there").waiters == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
