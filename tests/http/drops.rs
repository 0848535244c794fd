//! Requests that are dropped at any moment leave nothing behind: no holder, no waiter, no entry
//! in the manager, and each grant is released exactly once.
//!
//! First at each await point in turn, then at random ones by the ten thousand. Leases last an
//! hour and the backend keeps every grant until it is told to release it, so nothing ends by
//! itself.
//!
//! The await points are counted on memory alone, whose steps go on when they are polled; those of
//! a server go on when it answers, so there a request is dropped at each of its wake-ups.

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use axum::{Router, body::Body, extract::Path, http::Request, routing::post};
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use tower::ServiceExt;
use tower_lock::{
    Fairness, HeldLocks, LockKey, LockLayer, LockManager, LockPolicy, OnDisconnect, ReleaseOn,
    Wait,
    backend::{LockBackend, WaitBound},
    key::{PathKey, body_from_fn, from_fn},
};

use crate::{
    backends::{On, on_each_backend},
    counting::CountingBackend,
    support::{HOUR, soon, until},
};

on_each_backend!(
    a_request_that_is_dropped_at_any_wake_up_leaves_nothing(threads),
    ten_thousand_requests_dropped_at_random_leave_nothing(threads),
);

/// How often each await point of a handler, a backend or a body is pending.
const PAUSES: u32 = 2;

async fn pause() {
    for _ in 0..PAUSES {
        tokio::task::yield_now().await;
    }
}

/// What a route can do differently.
#[derive(Clone, Copy, Debug)]
struct Case {
    fairness: Fairness,
    release_on: ReleaseOn,
    on_disconnect: OnDisconnect,
    keys: Keys,
}

#[derive(Clone, Copy, Debug)]
enum Keys {
    Path,
    Body,
    Several,
}

fn batched() -> Fairness {
    Fairness::Batched(4.try_into().expect("not zero"))
}

fn cases(on: On) -> Vec<Case> {
    let mut cases = Vec::new();
    for fairness in on.fair([Fairness::Fifo, Fairness::Unfair, batched()]) {
        for release_on in [
            ReleaseOn::Head,
            ReleaseOn::HeadConfirmed,
            ReleaseOn::BodyEnd { max: HOUR },
        ] {
            for on_disconnect in [OnDisconnect::Cancel, OnDisconnect::Detach] {
                for keys in [Keys::Path, Keys::Body, Keys::Several] {
                    cases.push(Case {
                        fairness,
                        release_on,
                        on_disconnect,
                        keys,
                    });
                }
            }
        }
    }
    cases
}

/// Each case on this backend, in each way that it has to answer.
async fn labs(on: On) -> Vec<(Case, CountingBackend)> {
    let mut labs = Vec::new();
    for case in cases(on) {
        for backend in CountingBackend::each(on, PAUSES).await {
            labs.push((case, backend));
        }
    }
    labs
}

/// How often two handlers were under one lock at a time.
#[derive(Clone, Default)]
struct Exclusion {
    busy: Arc<[AtomicBool; 4]>,
    broken: Arc<AtomicUsize>,
    finished: Arc<AtomicUsize>,
}

struct Inside<'a>(&'a AtomicBool);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Exclusion {
    async fn handle(&self, key: usize) {
        let busy = &self.busy[key % self.busy.len()];
        if busy.swap(true, Ordering::SeqCst) {
            self.broken.fetch_add(1, Ordering::SeqCst);
        }
        let inside = Inside(busy);
        pause().await;
        drop(inside);
        self.finished.fetch_add(1, Ordering::SeqCst);
    }
}

/// Two frames with pauses between them, of unknown length.
fn streamed() -> Body {
    let (mut sender, body) = http_body_util::channel::Channel::<bytes::Bytes>::new(1);
    tokio::spawn(async move {
        for part in ["a", "b"] {
            pause().await;
            if sender.send_data(part.into()).await.is_err() {
                return;
            }
        }
    });
    Body::new(body)
}

fn app(case: Case, locks: &LockManager, exclusion: Exclusion) -> Router {
    let handler = post(move |Path(key): Path<usize>, held: HeldLocks| async move {
        assert!(!held.is_empty());
        exclusion.handle(key).await;
        streamed()
    });
    fn set<K>(layer: LockLayer<K>, case: Case) -> LockLayer<K> {
        layer
            .with_ttl(HOUR)
            .with_wait(Wait::Forever)
            .with_max_waiters(100_000)
            .with_fairness(case.fairness)
            .with_release_on(case.release_on)
            .with_on_disconnect(case.on_disconnect)
    }
    let handler = match case.keys {
        Keys::Path => handler.route_layer(set(LockLayer::new(locks, PathKey::new("n", "n")), case)),
        Keys::Body => {
            let key = body_from_fn(100, |_: &http::request::Parts, body: &bytes::Bytes| {
                LockKey::from_values("n", [body])
            });
            handler.route_layer(set(LockLayer::buffered(locks, key), case))
        }
        Keys::Several => {
            let key = from_fn(|parts: &http::request::Parts| {
                let n = parts.uri.path().trim_matches('/').to_owned();
                vec![LockKey::new("all", n.len()), LockKey::new("n", n)]
            });
            handler.route_layer(set(LockLayer::new(locks, key), case))
        }
    };
    Router::new().route("/{n}", handler)
}

/// One whole exchange, body included.
async fn exchange(app: Router, key: usize) {
    let request = Request::post(format!("/{key}"))
        .body(Body::from(key.to_string()))
        .expect("a request");
    let response = app.oneshot(request).await.expect("infallible");
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.expect("a body");
}

async fn nothing_left(locks: &LockManager, backend: &CountingBackend, case: impl std::fmt::Debug) {
    until(&format!("nothing is left: {case:?}"), || {
        let state = locks.inspect();
        state.held.is_empty() && state.waiting.is_empty() && backend.is_empty()
    })
    .await;
    until("all releases are seen through", || {
        backend.confirmed().iter().all(|n| *n >= 1)
    })
    .await;
    assert!(
        backend.releases().iter().all(|n| *n == 1),
        "released more than once: {case:?}"
    );
}

/// Polls a future this many times, letting everything else run in between; `true` if it ended.
async fn polled(future: impl Future<Output = ()>, times: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let mut cx = Context::from_waker(Waker::noop());
        if future.as_mut().poll(&mut cx) == Poll::Ready(()) {
            return true;
        }
        for _ in 0..4 {
            tokio::task::yield_now().await;
        }
    }
    false
}

/// Polls a future this many times, whenever it is woken; `true` if it ended.
async fn woken(future: impl Future<Output = ()>, times: usize) -> bool {
    let mut future = pin!(future);
    let mut left = times;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        future.as_mut().poll(cx).map(|()| true)
    })
    .await
}

#[tokio::test]
async fn a_request_that_is_dropped_at_any_await_point_leaves_nothing() {
    for (case, backend) in labs(On::Memory).await {
        let locks = backend.manager();
        let exclusion = Exclusion::default();
        let app = app(case, &locks, exclusion.clone());
        let mut ended = None;
        for times in 0..1000 {
            if polled(exchange(app.clone(), 1), times).await {
                ended = Some(times);
                break;
            }
            // A later request gets every key, so the dropped one has none.
            let key = LockKey::new("n", 1);
            let wait = WaitBound::Until(tokio::time::Instant::now() + Duration::from_secs(20));
            backend.wait_free(&key, wait).await.expect("free");
            nothing_left(&locks, &backend, case).await;
        }
        assert!(ended.expect("it ends") > 3, "{case:?}: it has await points");
        nothing_left(&locks, &backend, case).await;
        assert_eq!(exclusion.broken.load(Ordering::SeqCst), 0, "{case:?}");
    }
}

#[tokio::test]
async fn a_waiting_request_that_is_dropped_at_any_await_point_leaves_nothing() {
    for (case, backend) in labs(On::Memory).await {
        let locks = backend.manager();
        let exclusion = Exclusion::default();
        let app = app(case, &locks, exclusion.clone());
        let mut ended = false;
        for times in 1..1000 {
            // One holds while the other is polled for the first times, then goes.
            let holder = {
                let policy = LockPolicy::new()
                    .with_ttl(HOUR)
                    .with_fairness(case.fairness);
                locks
                    .acquire(LockKey::new("n", 1), &policy)
                    .await
                    .expect("free")
            };
            let mut waiter = Box::pin(exchange(app.clone(), 1));
            assert!(!polled(waiter.as_mut(), times.min(8)).await);
            drop(holder);
            ended = polled(waiter.as_mut(), times).await;
            drop(waiter);
            nothing_left(&locks, &backend, case).await;
            if ended {
                break;
            }
        }
        assert!(ended, "{case:?}: it ends");
        assert_eq!(exclusion.broken.load(Ordering::SeqCst), 0, "{case:?}");
    }
}

/// Alone, and behind a holder that leaves after its first wake-ups.
async fn a_request_that_is_dropped_at_any_wake_up_leaves_nothing(on: On) {
    for (case, backend) in labs(on).await {
        let locks = backend.manager();
        let exclusion = Exclusion::default();
        let app = app(case, &locks, exclusion.clone());
        for behind in [false, true] {
            let mut ended = None;
            for times in 1..1000 {
                let holder = if behind {
                    let policy = LockPolicy::new().with_ttl(HOUR);
                    let key = LockKey::new("n", 1);
                    Some(locks.acquire(key, &policy).await.expect("free"))
                } else {
                    None
                };
                let request = woken(exchange(app.clone(), 1), times);
                let leave = async {
                    tokio::task::yield_now().await;
                    drop(holder);
                };
                if tokio::join!(request, leave).0 {
                    ended = Some(times);
                    break;
                }
                nothing_left(&locks, &backend, case).await;
            }
            assert!(ended.expect("it ends") > 1, "{case:?}: it is woken");
            nothing_left(&locks, &backend, case).await;
        }
        assert_eq!(exclusion.broken.load(Ordering::SeqCst), 0, "{case:?}");
    }
}

async fn ten_thousand_requests_dropped_at_random_leave_nothing(on: On) {
    let labs = labs(on).await;
    let each = 10_000 / labs.len() + 1;
    let (mut grants, mut finished) = (0, 0);
    for (case, backend) in labs {
        let locks = backend.manager();
        let exclusion = Exclusion::default();
        let app = app(case, &locks, exclusion.clone());
        let mut tasks = JoinSet::new();
        let mut aborts = Vec::new();
        for _ in 0..each {
            let app = app.clone();
            let (key, polls) = (fastrand::usize(..4), fastrand::usize(..60));
            aborts.push(tasks.spawn(async move {
                woken(exchange(app, key), polls).await;
            }));
            if fastrand::usize(..3) == 0 {
                aborts[fastrand::usize(..aborts.len())].abort();
            }
            if fastrand::usize(..4) == 0 {
                tokio::task::yield_now().await;
            }
        }
        // Nobody holds for ever, so everybody ends.
        while let Some(ended) = soon("a request ends", tasks.join_next()).await {
            assert!(!ended.is_err_and(|e| e.is_panic()), "{case:?}");
        }
        nothing_left(&locks, &backend, case).await;
        assert_eq!(exclusion.broken.load(Ordering::SeqCst), 0, "{case:?}");
        grants += backend.releases().len();
        finished += exclusion.finished.load(Ordering::SeqCst);
        // Every key can be had again.
        for key in 0..4 {
            exchange(app.clone(), key).await;
        }
        nothing_left(&locks, &backend, case).await;
    }
    assert!(finished > 100, "many reached their end: {finished}");
    assert!(
        grants > finished + 100,
        "many were dropped under their lock: {grants} grants, {finished} finished"
    );
}
