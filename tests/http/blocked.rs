//! A handler that blocks its thread, and even all threads of the application, keeps its lock:
//! renewals run elsewhere. By the real clock, because blocking is about nothing else.

use std::{
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use axum::{Router, body::Body, routing::post};
use tokio::runtime::Runtime;
use tower_lock::{AcquireErrorKind, HeldLock, LockKey, LockManager, LockPolicy, OnLost, Wait};

use crate::{
    backends::{On, on_each_backend},
    flaky::{Flaky, call, order, post_to},
};

on_each_backend!(
    blocked_threads_keep_their_locks_under_abort(blocking),
    blocked_threads_keep_their_locks_under_signal(blocking),
);

const TTL: Duration = Duration::from_secs(2);
const THREADS: usize = 2;

/// Blocks all threads of a runtime for longer than a ttl, each in a handler with a lock of its own, and
/// looks at them from another instance.
fn block_everything(locks: LockManager, elsewhere: LockManager, ttl: Duration, on_lost: OnLost) {
    // The handlers, and this thread: all are inside, so no thread of the runtime is left.
    let all_inside = Arc::new(Barrier::new(THREADS + 1));
    let app = Router::new().route(
        "/orders/{id}/pay",
        post({
            let all_inside = all_inside.clone();
            move |held: HeldLock| async move {
                all_inside.wait();
                thread::sleep(ttl * 3 / 2);
                held.is_held().to_string()
            }
        })
        .route_layer(order(&locks).with_ttl(ttl).with_on_lost(on_lost)),
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .unwrap();
    let answers: Vec<_> = (0..THREADS)
        .map(|id| {
            let app = app.clone();
            runtime.spawn(async move {
                let response = call(&app, post_to(&format!("/orders/{id}/pay"))).await;
                let status = response.status().as_u16();
                (status, text(response.into_body()).await)
            })
        })
        .collect();
    all_inside.wait();
    let began = Instant::now();

    // An outsider, on a runtime of its own, finds both keys held for as long as they are blocked.
    let outside = outside();
    let try_it = LockPolicy::new().with_wait(Wait::Fail);
    let mut looks = 0;
    while began.elapsed() < ttl * 5 / 4 {
        for id in 0..THREADS {
            let got = outside.block_on(elsewhere.acquire(LockKey::new("order", id), &try_it));
            // A look that was itself delayed until after the end says nothing.
            if began.elapsed() < ttl * 5 / 4 {
                assert_eq!(got.unwrap_err().kind(), AcquireErrorKind::Contended);
                looks += 1;
            }
        }
        thread::sleep(ttl / 20);
    }
    assert!(looks > THREADS, "it was looked at");
    for answer in answers {
        assert_eq!(
            outside.block_on(answer).unwrap(),
            (200, "true".to_owned()),
            "the handler's lock was lost"
        );
    }
}

async fn text(body: Body) -> String {
    let bytes = axum::body::to_bytes(body, 1024).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn outside() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

fn blocked_threads_keep_their_locks(on: On, on_lost: OnLost) {
    let outside = outside();
    let backend = outside.block_on(on.backend());
    let elsewhere = outside.block_on(backend.elsewhere());
    block_everything(backend.manager(), elsewhere.manager(), on.ttl(TTL), on_lost);
    outside.block_on(backend.freed());
}

fn blocked_threads_keep_their_locks_under_abort(on: On) {
    blocked_threads_keep_their_locks(on, OnLost::Abort);
}

fn blocked_threads_keep_their_locks_under_signal(on: On) {
    blocked_threads_keep_their_locks(on, OnLost::Signal);
}

/// The same with a backend whose renewals are futures of some length.
#[test]
fn blocked_threads_keep_their_locks_over_a_slow_wire() {
    let backend = Flaky::default();
    *backend.wire.renew.lock().unwrap() = crate::flaky::Fault::LateReply(TTL / 10);
    let locks = LockManager::new(backend.clone());
    block_everything(locks.clone(), locks, TTL, OnLost::Abort);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !backend.below.is_empty() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(5));
    }
}
