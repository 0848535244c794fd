//! Clients that leave, over real connections of HTTP/1 and HTTP/2.
//!
//! - Who leaves the queue leaves no place in it: the next in line gets the lock.
//! - Who leaves while the handler runs has the handler dropped and the lock freed at once, or,
//!   where the route detaches, the handler finishes under the lock.
//! - A client that a server cannot see leaving (it has sent a body that nobody reads) waits for no
//!   longer than the route's wait; where the body is read to find the key, it is seen at once.
//! - A client that closes its sending half has left, unless the server was told otherwise.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Router, routing::post};
use bytes::Bytes;
use tokio::{io::AsyncWriteExt, sync::Semaphore};
use tower::ServiceBuilder;
use tower_lock::{
    LockKey, LockLayer, LockManager, OnDisconnect,
    key::{PathKey, body_from_fn},
};

use crate::{
    backends::{Backend, On, on_each_backend},
    support::{
        Caller, HOUR, LEAVES, Leave, SOON, Stage, h1, h1_answer, h1_head, serve, serve_half_close,
        soon, until,
    },
};

on_each_backend!(
    leaving_the_queue_leaves_no_place_in_it,
    leaving_a_running_handler_frees_the_lock_at_once,
    a_detached_handler_finishes_under_its_lock,
    detaching_does_not_keep_a_place_in_the_queue,
    a_client_that_leaves_unseen_waits_no_longer_than_the_route,
    a_client_whose_body_was_read_is_seen_leaving,
    a_half_closed_client_has_left,
    a_half_closed_client_waits_on_where_the_server_allows_it,
);

struct World {
    backend: Backend,
    locks: LockManager,
    stage: Stage,
    app: Router,
}

/// `POST /orders/{id}` runs the stage under the lock of the order; leases outlast the test.
async fn world(on: On, set: impl FnOnce(LockLayer) -> LockLayer) -> World {
    let backend = on.backend().await;
    let locks = backend.manager();
    let stage = Stage::new();
    let app = app(&locks, &stage, set);
    World {
        backend,
        locks,
        stage,
        app,
    }
}

fn app(locks: &LockManager, stage: &Stage, set: impl FnOnce(LockLayer) -> LockLayer) -> Router {
    let layer = LockLayer::new(locks, PathKey::new("order", "id"))
        .with_ttl(HOUR)
        .with_wait(HOUR);
    let handler = {
        let stage = stage.clone();
        move || async move { stage.act().await }
    };
    Router::new().route("/orders/{id}", post(handler).route_layer(set(layer)))
}

impl World {
    fn waiting(&self) -> usize {
        self.locks.inspect().waiting.iter().map(|w| w.waiters).sum()
    }

    async fn waiters(&self, count: usize) {
        until("this many wait", || self.waiting() == count).await;
    }

    /// So many wait at the backend, as the backend sees it: at once in this process, soon over a
    /// network, and long before any lease or place in the queue ends by itself.
    async fn backend_waiters(&self, count: u64) {
        let begun = Instant::now();
        loop {
            let state = self.locks.inspect_key(&LockKey::new("order", 7)).await;
            let waiters = state.expect("the backend is there").waiters;
            if waiters == count {
                break;
            }
            let here = matches!(self.backend, Backend::Memory(_));
            assert!(!here && begun.elapsed() < SOON, "{waiters}, not {count}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn all_free(&self) {
        until("nothing is left", || {
            let state = self.locks.inspect();
            state.held.is_empty() && state.waiting.is_empty() && self.backend.is_empty()
        })
        .await;
    }
}

async fn caller(address: SocketAddr, leave: Leave) -> Caller {
    Caller::post(address, leave, "/orders/7").await
}

async fn leaving_the_queue_leaves_no_place_in_it(on: On) {
    for leave in LEAVES {
        let world = world(on, |layer| layer).await;
        let address = serve(world.app.clone()).await;
        let mut first = caller(address, leave).await;
        world.stage.entered().await;
        let mut second = caller(address, leave).await;
        world.waiters(1).await;
        let mut third = caller(address, leave).await;
        world.waiters(2).await;

        second.leave();
        world.waiters(1).await;
        world.backend_waiters(1).await;

        world.stage.let_go();
        assert_eq!(first.status().await, 200, "{leave:?}");
        world.stage.entered().await;
        world.stage.let_go();
        assert_eq!(third.status().await, 200, "{leave:?}");
        assert_eq!(world.stage.begun(), 2, "{leave:?}: the second never ran");
        world.all_free().await;
    }
}

async fn leaving_a_running_handler_frees_the_lock_at_once(on: On) {
    for leave in LEAVES {
        let world = world(on, |layer| layer).await;
        let address = serve(world.app.clone()).await;
        let mut first = caller(address, leave).await;
        world.stage.entered().await;
        let mut second = caller(address, leave).await;
        world.waiters(1).await;

        first.leave();
        // Its lease would last an hour.
        world.stage.entered().await;
        assert_eq!(world.stage.finished(), 0, "the first was dropped");
        world.stage.left().await;

        world.stage.let_go();
        assert_eq!(second.status().await, 200, "{leave:?}");
        world.all_free().await;
    }
}

/// Tells when a request's future is gone.
struct Gone(Arc<Semaphore>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

async fn a_detached_handler_finishes_under_its_lock(on: On) {
    for leave in LEAVES {
        let world = world(on, |layer| layer.with_on_disconnect(OnDisconnect::Detach)).await;
        let gone = Arc::new(Semaphore::new(0));
        let noted = gone.clone();
        let service = ServiceBuilder::new()
            .map_future(move |answer| {
                let gone = Gone(noted.clone());
                async move {
                    let answer = answer.await;
                    drop(gone);
                    answer
                }
            })
            .service(world.app.clone());
        let address = serve(Router::new().fallback_service(service)).await;

        let mut first = caller(address, leave).await;
        world.stage.entered().await;
        first.leave();
        soon("the server drops the request", gone.acquire())
            .await
            .expect("open")
            .forget();
        // The request is gone; its handler and its lock are not.
        assert_eq!(world.locks.inspect().held.len(), 1, "{leave:?}");
        let mut second = caller(address, leave).await;
        world.waiters(1).await;
        assert_eq!(world.stage.begun(), 1, "{leave:?}");

        world.stage.let_go();
        world.stage.left().await;
        assert_eq!(world.stage.finished(), 1, "{leave:?}: it reached its end");
        world.stage.entered().await;
        world.stage.let_go();
        assert_eq!(second.status().await, 200, "{leave:?}");
        assert_eq!(world.stage.finished(), 2, "{leave:?}");
        world.all_free().await;
    }
}

async fn detaching_does_not_keep_a_place_in_the_queue(on: On) {
    let world = world(on, |layer| layer.with_on_disconnect(OnDisconnect::Detach)).await;
    let address = serve(world.app.clone()).await;
    let mut first = caller(address, Leave::H1Close).await;
    world.stage.entered().await;
    let mut second = caller(address, Leave::H1Close).await;
    world.waiters(1).await;
    second.leave();
    world.waiters(0).await;
    world.stage.let_go();
    assert_eq!(first.status().await, 200);
    world.all_free().await;
    assert_eq!(world.stage.begun(), 1);
}

/// A post whose body the server need not read.
fn upload(length: usize) -> Vec<u8> {
    let mut request =
        format!("POST /orders/7 HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n")
            .into_bytes();
    request.resize(request.len() + length, b'x');
    request
}

async fn a_client_that_leaves_unseen_waits_no_longer_than_the_route(on: On) {
    let world = world(on, |layer| layer).await;
    let mut first = caller(serve(world.app.clone()).await, Leave::H1Close).await;
    world.stage.entered().await;

    // The same key by a route that does not wait for an hour.
    let wait = Duration::from_millis(1500);
    let brief = app(&world.locks, &world.stage, |layer| layer.with_wait(wait));
    let address = serve(brief).await;
    let begun = Instant::now();
    // Large enough that it does not end in the server's first read.
    let (mut second, rest) = {
        let request = upload(200_000);
        let (sent, rest) = request.split_at(100_000);
        (h1(address, sent).await, rest.to_vec())
    };
    world.waiters(1).await;
    // The rest may not fit into the buffers of a connection that nobody reads.
    let _ = tokio::time::timeout(Duration::from_millis(50), second.write_all(&rest)).await;
    drop(second);

    world.waiters(0).await;
    let waited = begun.elapsed();
    assert!(waited < wait + Duration::from_secs(5), "{waited:?}");
    world.backend_waiters(0).await;
    world.stage.let_go();
    assert_eq!(first.status().await, 200);
    assert_eq!(world.stage.begun(), 1);
    world.all_free().await;
}

async fn a_client_whose_body_was_read_is_seen_leaving(on: On) {
    let backend = on.backend().await;
    let locks = backend.manager();
    let stage = Stage::new();
    let by_size = body_from_fn(1 << 20, |_: &http::request::Parts, _: &Bytes| {
        Some(LockKey::new("upload", "all"))
    });
    let app = Router::new().route(
        "/orders/{id}",
        post({
            let stage = stage.clone();
            move || async move { stage.act().await }
        })
        .route_layer(
            LockLayer::buffered(&locks, by_size)
                .with_ttl(HOUR)
                .with_wait(HOUR),
        ),
    );
    let address = serve(app).await;
    let mut first = Caller::post(address, Leave::H1Close, "/orders/7").await;
    stage.entered().await;
    let second = h1(address, upload(200_000)).await;
    until("it waits", || !locks.inspect().waiting.is_empty()).await;
    drop(second);
    until("it is gone", || locks.inspect().waiting.is_empty()).await;
    stage.let_go();
    assert_eq!(first.status().await, 200);
    assert_eq!(stage.begun(), 1);
    until("all is free", || backend.is_empty()).await;
}

async fn a_half_closed_client_has_left(on: On) {
    let world = world(on, |layer| layer).await;
    let address = serve(world.app.clone()).await;
    let mut first = caller(address, Leave::H1Close).await;
    world.stage.entered().await;
    let mut second = h1(address, h1_head("POST", "/orders/7")).await;
    world.waiters(1).await;
    second.shutdown().await.expect("half a close");
    world.waiters(0).await;
    world.stage.let_go();
    assert_eq!(first.status().await, 200);
    world.all_free().await;
    assert_eq!(world.stage.begun(), 1);
}

async fn a_half_closed_client_waits_on_where_the_server_allows_it(on: On) {
    let world = world(on, |layer| layer).await;
    let address = serve_half_close(world.app.clone()).await;
    let mut first = caller(address, Leave::H1Close).await;
    world.stage.entered().await;
    let mut second = h1(address, h1_head("POST", "/orders/7")).await;
    world.waiters(1).await;
    second.shutdown().await.expect("half a close");
    world.stage.let_go();
    assert_eq!(first.status().await, 200);
    world.stage.entered().await;
    world.stage.let_go();
    assert!(h1_answer(&mut second).await.starts_with("HTTP/1.1 200"));
    world.all_free().await;
}
