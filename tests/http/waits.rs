//! A wait ends when the route says so: neither early nor late, with one answer, and the place in
//! the queue is given up. On a paused clock exactly, on the real one never early.

use std::time::Duration;

use axum::{Router, routing::post};
use tokio::time::Instant;
use tower_lock::{LockKey, LockLayer, LockManager, LockPolicy, MemoryBackend, key::PathKey};

use crate::support::{HOUR, Stage, send, text, until};

const WAIT: Duration = Duration::from_secs(2);

struct World {
    backend: MemoryBackend,
    locks: LockManager,
    stage: Stage,
    app: Router,
}

fn world(wait: Duration) -> World {
    let backend = MemoryBackend::new();
    // The paused clock is that of the test's own runtime.
    let locks = LockManager::builder(backend.clone())
        .renew_on_current_runtime()
        .build();
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
    let key = world.locks.inspect_key(holder.key()).await.expect("memory");
    assert_eq!((key.holders.len(), key.waiters), (1, 0));
    holder.release().await.expect("memory");
    assert!(world.backend.is_empty());
    waited
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_on_time_by_a_paused_clock() {
    let world = world(WAIT);
    let waited = in_vain(&world).await;
    assert!(
        waited >= WAIT && waited <= WAIT + Duration::from_millis(50),
        "{waited:?}"
    );
}

#[tokio::test]
async fn a_wait_ends_on_time_by_the_real_clock() {
    let world = world(WAIT);
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

#[tokio::test(start_paused = true)]
async fn waiting_requests_each_end_on_their_own_time() {
    let world = world(WAIT);
    let policy = LockPolicy::new().with_ttl(HOUR);
    let holder = world.locks.acquire(LockKey::new("order", 7), &policy);
    let _holder = holder.await.expect("free");
    let begun = Instant::now();
    let mut requests = Vec::new();
    for n in 0..10 {
        let app = world.app.clone();
        requests.push(tokio::spawn(async move {
            send(&app, "POST", "/orders/7").await.status()
        }));
        until("it waits", || {
            world.locks.inspect().waiting.first().map(|w| w.waiters) == Some(n + 1)
        })
        .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for (n, request) in (0..).zip(requests) {
        assert_eq!(request.await.expect("no panic"), 409);
        // Each began up to two ticks after its turn: one to be seen waiting, one of the timer.
        let due = WAIT + Duration::from_millis(100) * n;
        let late = begun.elapsed().checked_sub(due).expect("never early");
        assert!(late <= Duration::from_millis(50), "{n}: {late:?}");
    }
    assert!(world.locks.inspect().waiting.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_comes_free_in_time_is_taken_in_time() {
    let world = world(WAIT);
    let policy = LockPolicy::new().with_ttl(HOUR);
    let holder = world.locks.acquire(LockKey::new("order", 7), &policy);
    let holder = holder.await.expect("free");
    let app = world.app.clone();
    let request = tokio::spawn(async move { send(&app, "POST", "/orders/7").await.status() });
    tokio::time::sleep(WAIT - Duration::from_millis(10)).await;
    assert_eq!(world.stage.begun(), 0);
    let freed = Instant::now();
    holder.release().await.expect("memory");
    world.stage.entered().await;
    assert!(freed.elapsed() <= Duration::from_millis(5));
    // The wait's end has no meaning any more.
    tokio::time::sleep(WAIT).await;
    world.stage.let_go();
    assert_eq!(request.await.expect("no panic"), 200);
    assert!(world.backend.is_empty());
}
