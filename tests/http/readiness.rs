//! The inner service is called only on an instance that said it is ready, and is asked only once
//! the lock is held: who waits for a lock occupies no slot inside. While it is not ready the
//! request holds its lock, and gives it back if it leaves or the service fails.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, buffer::BufferLayer, limit::ConcurrencyLimitLayer,
    service_fn,
};
use tower_lock::{
    LockKey, LockLayer, LockManager, LockPolicy, OnDisconnect,
    key::{body_from_fn, from_fn},
};
use tower_test::mock;

use crate::{
    backends::{Backend, On, on_each_backend},
    support::{HOUR, Stage, soon, until},
};

on_each_backend!(
    a_service_that_is_not_ready_is_not_called,
    leaving_while_the_service_is_not_ready_frees_the_lock,
    a_service_that_fails_to_become_ready_frees_the_lock,
    requests_without_a_lock_are_not_called_unready_either,
    each_call_follows_one_ready_of_its_own,
    a_request_that_waits_occupies_no_slot_inside,
    a_buffer_inside_is_made_ready_for_each_request,
    a_lock_lost_before_the_service_is_ready_is_not_used,
);

type Body = Full<Bytes>;

fn request(path: &str) -> Request<Body> {
    Request::post(path)
        .body(Body::default())
        .expect("a request")
}

struct World {
    backend: Backend,
    locks: LockManager,
}

impl World {
    async fn new(on: On) -> Self {
        let backend = on.backend().await;
        Self {
            locks: backend.manager(),
            backend,
        }
    }

    fn layer(&self) -> LockLayer {
        let key = from_fn(|parts: &http::request::Parts| LockKey::new("path", parts.uri.path()));
        LockLayer::new(&self.locks, key)
            .with_ttl(HOUR)
            .with_wait(HOUR)
    }

    async fn free(&self) {
        until("the lock is free", || {
            self.backend.is_empty() && self.locks.inspect().held.is_empty()
        })
        .await;
    }
}

async fn a_service_that_is_not_ready_is_not_called(on: On) {
    for on_disconnect in [OnDisconnect::Cancel, OnDisconnect::Detach] {
        let world = World::new(on).await;
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        handle.allow(0);
        let mut service = world
            .layer()
            .with_on_disconnect(on_disconnect)
            .layer(service);
        // Always ready itself, whatever is inside.
        assert!(
            service
                .poll_ready(&mut Context::from_waker(std::task::Waker::noop()))
                .is_ready()
        );
        let answer = tokio::spawn(service.call(request("/a")));
        until("it holds", || world.locks.inspect().held.len() == 1).await;
        // Had it been called, the mock would have panicked.
        assert!(!answer.is_finished());
        handle.allow(1);
        answer_one(&mut handle).await;
        let response = answer.await.expect("no panic").expect("an answer");
        assert_eq!(response.status(), 200);
        world.free().await;
    }
}

async fn leaving_while_the_service_is_not_ready_frees_the_lock(on: On) {
    for on_disconnect in [OnDisconnect::Cancel, OnDisconnect::Detach] {
        let world = World::new(on).await;
        let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
        handle.allow(0);
        let mut service = world
            .layer()
            .with_on_disconnect(on_disconnect)
            .layer(service);
        let answer = tokio::spawn(service.call(request("/a")));
        until("it holds", || world.locks.inspect().held.len() == 1).await;
        answer.abort();
        assert!(answer.await.expect_err("aborted").is_cancelled());
        world.free().await;
        handle.allow(1);
        drop(service);
        assert!(handle.next_request().await.is_none(), "never called");
    }
}

async fn a_service_that_fails_to_become_ready_frees_the_lock(on: On) {
    let world = World::new(on).await;
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    handle.allow(0);
    let mut service = world.layer().layer(service);
    let answer = tokio::spawn(service.call(request("/a")));
    until("it holds", || world.locks.inspect().held.len() == 1).await;
    handle.send_error("broken");
    let error = answer.await.expect("no panic").expect_err("an error");
    assert_eq!(error.to_string(), "broken");
    world.free().await;
}

async fn requests_without_a_lock_are_not_called_unready_either(on: On) {
    let world = World::new(on).await;
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    let mut service = world.layer().layer(service);
    let get = Request::get("/a").body(Body::default()).expect("a request");
    let answer = tokio::spawn(service.call(get));
    answer_one(&mut handle).await;
    answer.await.expect("no panic").expect("an answer");
}

async fn answer_one(handle: &mut mock::Handle<Request<Body>, Response<Body>>) {
    let (seen, respond) = soon("a request", handle.next_request())
        .await
        .expect("a request");
    assert_eq!(seen.uri(), "/a");
    respond.send_response(Response::new(Body::default()));
}

/// A service that says how often it was made ready, and panics when it is called without.
struct Strict {
    ready: bool,
    readied: Arc<AtomicUsize>,
}

impl Clone for Strict {
    /// As in tower: a clone starts unready.
    fn clone(&self) -> Self {
        Self {
            ready: false,
            readied: self.readied.clone(),
        }
    }
}

impl<B> Service<Request<B>> for Strict {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if !std::mem::replace(&mut self.ready, true) {
            self.readied.fetch_add(1, Ordering::SeqCst);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without ready");
        Box::pin(async {
            tokio::task::yield_now().await;
            Ok(Response::new(Body::default()))
        })
    }
}

async fn each_call_follows_one_ready_of_its_own(on: On) {
    let world = World::new(on).await;
    let strict = || Strict {
        ready: false,
        readied: Arc::default(),
    };
    let (head, body) = (strict(), strict());
    let readied = [head.readied.clone(), body.readied.clone()];
    let from_head = world.layer().layer(head);
    let from_body = LockLayer::buffered(
        &world.locks,
        body_from_fn(10, |_: &http::request::Parts, _: &Bytes| {
            LockKey::new("body", 1)
        }),
    )
    .layer(body);

    // A key that is held, so that some of them wait: nothing is readied for these.
    let policy = LockPolicy::new().with_ttl(HOUR);
    let keys = vec![LockKey::new("path", "/a"), LockKey::new("body", 1)];
    let held = world.locks.acquire_all(keys, &policy).await.expect("free");
    let mut answers = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (head, body) = (from_head.clone(), from_body.clone());
        answers.spawn(async move { head.oneshot(request("/a")).await.map(|r| r.status()) });
        answers.spawn(async move { body.oneshot(request("/a")).await.map(|r| r.status()) });
    }
    until("all wait", || {
        world
            .locks
            .inspect()
            .waiting
            .iter()
            .map(|w| w.waiters)
            .sum::<usize>()
            == 20
    })
    .await;
    assert!(readied.iter().all(|n| n.load(Ordering::SeqCst) == 0));

    drop(held);
    while let Some(answer) = soon("an answer", answers.join_next()).await {
        assert_eq!(answer.expect("no panic").expect("infallible"), 200);
    }
    assert!(readied.iter().all(|n| n.load(Ordering::SeqCst) == 10));
    world.free().await;
}

async fn a_request_that_waits_occupies_no_slot_inside(on: On) {
    let world = World::new(on).await;
    let stage = Stage::new();
    let handler = {
        let stage = stage.clone();
        service_fn(move |_: Request<Body>| {
            let stage = stage.clone();
            async move {
                stage.act().await;
                Ok::<_, Infallible>(Response::new(Body::default()))
            }
        })
    };
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .layer(ConcurrencyLimitLayer::new(1))
        .service(handler);

    let policy = LockPolicy::new().with_ttl(HOUR);
    let a = world.locks.acquire(LockKey::new("path", "/a"), &policy);
    let a = a.await.expect("free");
    let waits = tokio::spawn(service.clone().oneshot(request("/a")));
    until("one waits", || world.locks.inspect().waiting.len() == 1).await;

    // Another key goes through the only slot meanwhile.
    let runs = tokio::spawn(service.clone().oneshot(request("/b")));
    stage.entered().await;
    // The next one holds its lock and waits for the slot.
    let third = tokio::spawn(service.oneshot(request("/c")));
    until("it holds", || {
        let held = world.locks.inspect().held;
        held.iter().any(|h| h.key == LockKey::new("path", "/c"))
    })
    .await;
    assert_eq!(stage.begun(), 1);
    stage.let_go();
    runs.await.expect("no panic").expect("infallible");
    stage.entered().await;
    stage.let_go();
    third.await.expect("no panic").expect("infallible");

    a.release().await.expect("memory");
    stage.entered().await;
    stage.let_go();
    waits.await.expect("no panic").expect("infallible");
    world.free().await;
}

async fn a_buffer_inside_is_made_ready_for_each_request(on: On) {
    let world = World::new(on).await;
    let service = ServiceBuilder::new()
        .layer(world.layer())
        .layer(BufferLayer::new(1))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(Strict {
            ready: false,
            readied: Arc::default(),
        });
    let mut answers = tokio::task::JoinSet::new();
    for n in 0..100 {
        let service = service.clone();
        let answer = service.oneshot(request(&format!("/{}", n % 7)));
        answers.spawn(answer);
    }
    while let Some(answer) = soon("an answer", answers.join_next()).await {
        let response = answer.expect("no panic").expect("an answer");
        assert_eq!(response.status(), 200);
    }
    world.free().await;
}

async fn a_lock_lost_before_the_service_is_ready_is_not_used(on: On) {
    let world = World::new(on).await;
    let (service, mut handle) = mock::pair::<Request<Body>, Response<Body>>();
    handle.allow(0);
    let mut service = world
        .layer()
        .with_max_hold(Duration::from_millis(50))
        .layer(service);
    let answer = tokio::spawn(service.call(request("/a")));
    let response = soon("an answer", answer).await.expect("no panic");
    assert_eq!(response.expect("a refusal").status(), 500);
    world.free().await;
    handle.allow(1);
    drop(service);
    assert!(handle.next_request().await.is_none(), "never called");
}
