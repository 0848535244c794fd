//! Response bodies and the lock.
//!
//! - Held to the end of the body where the route says so, however it ends: its last frame, an
//!   error, a client that leaves, a body that no server polls. A client that stops reading cannot
//!   keep the lock for longer than `max`.
//! - By default free at the head; a stream that outlives its lock is warned of once.
//! - A lock that is lost under a body cuts it where the route aborts, and only tells where it
//!   signals.
//! - The client sees the same body as without the layer: length, trailers, errors.
//!
//! On memory alone: a `HEAD` that asks no backend at all, and a warning about a route, which is
//! given before any backend is asked.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderValue, Response, StatusCode},
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;
use http_body_util::{
    BodyExt, Full,
    channel::{Channel, Sender},
};
use tokio::{
    io::AsyncReadExt,
    sync::{mpsc, oneshot},
};
use tower_lock::{
    BoxError, HeldLock, LockKey, LockLayer, LockManager, MemoryBackend, OnLost, ReleaseOn,
    key::PathKey,
};

use crate::{
    backends::{Backend, On, on_each_backend},
    counting::CountingBackend,
    logs,
    support::{Caller, HOUR, LEAVES, Leave, h1, h1_answer, h1_head, h2, send, serve, soon, until},
};

on_each_backend!(
    the_lock_is_held_to_the_last_frame,
    a_body_that_says_that_its_last_frame_is_the_last_is_over_with_it,
    a_body_that_fails_frees_the_lock,
    a_body_that_is_dropped_frees_the_lock,
    a_client_that_leaves_a_stream_frees_the_lock,
    answers_without_a_body_free_the_lock,
    a_client_that_stops_reading_keeps_the_lock_no_longer_than_max,
    a_stream_whose_window_is_full_keeps_the_lock_no_longer_than_max,
    a_body_that_is_not_polled_keeps_the_lock_no_longer_than_max,
    a_steady_reader_is_cut_at_max_too,
    where_a_loss_is_only_told_a_client_that_stops_reading_keeps_the_last_lease,
    by_default_the_lock_is_free_at_the_head,
    a_confirmed_release_is_confirmed_before_the_head,
    a_lock_that_is_lost_cuts_the_body,
    a_loss_between_two_polls_ends_the_body,
    a_handler_may_keep_the_lock_beyond_its_body,
    a_client_sees_the_same_body_with_and_without_the_layer,
);

struct World {
    backend: Backend,
    locks: LockManager,
    app: Router,
    /// The senders of the bodies that the handler answered with.
    bodies: mpsc::UnboundedReceiver<Sender<Bytes, BoxError>>,
}

const TO_THE_END: ReleaseOn = ReleaseOn::BodyEnd { max: HOUR };

/// `POST /orders/{id}` answers with a stream that the test feeds.
async fn world(on: On, set: impl FnOnce(LockLayer) -> LockLayer) -> World {
    let backend = on.backend().await;
    let locks = backend.manager();
    let (bodies, taken) = mpsc::unbounded_channel();
    let handler = post(move || async move {
        let (sender, body) = Channel::<Bytes, BoxError>::new(1);
        assert!(bodies.send(sender).is_ok(), "the test listens");
        Body::new(body)
    });
    let layer = LockLayer::new(&locks, PathKey::new("order", "id"))
        .with_ttl(HOUR)
        .with_release_on(TO_THE_END);
    World {
        backend,
        app: Router::new().route("/orders/{id}", handler.route_layer(set(layer))),
        locks,
        bodies: taken,
    }
}

impl World {
    fn is_held(&self) -> bool {
        !self.backend.is_empty()
    }

    async fn sender(&mut self) -> Sender<Bytes, BoxError> {
        soon("a body", self.bodies.recv()).await.expect("a body")
    }

    async fn free(&self) {
        until("the lock is free", || {
            !self.is_held() && self.locks.inspect().held.is_empty()
        })
        .await;
    }
}

async fn feed(sender: &mut Sender<Bytes, BoxError>, data: &'static str) {
    sender.send_data(data.into()).await.expect("read");
}

async fn the_lock_is_held_to_the_last_frame(on: On) {
    let mut world = world(on, |layer| layer).await;
    let response = send(&world.app, "POST", "/orders/7").await;
    let mut sender = world.sender().await;
    let mut body = response.into_body();
    for part in ["a", "b"] {
        feed(&mut sender, part).await;
        let frame = body.frame().await.expect("a frame").expect("no error");
        assert_eq!(frame.into_data().expect("data"), part);
        assert!(world.is_held());
    }
    drop(sender);
    assert!(body.frame().await.is_none());
    // By the poll that saw the end, not by a later one.
    world.backend.freed().await;
    world.free().await;
}

async fn a_body_that_says_that_its_last_frame_is_the_last_is_over_with_it(on: On) {
    let locks = on.backend().await.manager();
    let layer = LockLayer::new(&locks, PathKey::new("order", "id")).with_release_on(TO_THE_END);
    let app = Router::new().route("/orders/{id}", post(|| async { "all" }).route_layer(layer));
    let mut body = send(&app, "POST", "/orders/7").await.into_body();
    assert_eq!(locks.inspect().held.len(), 1);
    // A server with a length polls once and never asks for the end.
    assert!(body.frame().await.is_some());
    assert_eq!(locks.inspect().held.len(), 0);
}

async fn a_body_that_fails_frees_the_lock(on: On) {
    let mut world = world(on, |layer| layer).await;
    let response = send(&world.app, "POST", "/orders/7").await;
    let mut sender = world.sender().await;
    feed(&mut sender, "half").await;
    sender.abort("broken".into());
    let mut body = response.into_body();
    let _half = body.frame().await.expect("a frame");
    assert!(world.is_held());
    let error = body.frame().await.expect("a frame").expect_err("an error");
    assert!(format!("{error:?}").contains("broken"), "{error:?}");
    world.free().await;
}

async fn a_body_that_is_dropped_frees_the_lock(on: On) {
    for polled in [false, true] {
        let mut world = world(on, |layer| layer).await;
        let response = send(&world.app, "POST", "/orders/7").await;
        let mut sender = world.sender().await;
        let mut body = response.into_body();
        if polled {
            feed(&mut sender, "half").await;
            body.frame().await.expect("a frame").expect("no error");
        }
        assert!(world.is_held());
        drop(body);
        world.free().await;
    }
}

async fn a_client_that_leaves_a_stream_frees_the_lock(on: On) {
    for leave in LEAVES {
        let mut world = world(on, |layer| layer).await;
        let address = serve(world.app.clone()).await;
        let mut caller = Caller::post(address, leave, "/orders/7").await;
        let mut sender = world.sender().await;
        feed(&mut sender, "half").await;
        assert!(world.is_held());
        caller.leave();
        world.free().await;
        drop(sender);
    }
}

async fn answers_without_a_body_free_the_lock(on: On) {
    for (status, body) in [
        (StatusCode::NO_CONTENT, "nothing"),
        (StatusCode::NO_CONTENT, "a stream"),
        (StatusCode::OK, "nothing"),
        (StatusCode::NOT_MODIFIED, "a stream"),
    ] {
        let locks = on.backend().await.manager();
        let layer = LockLayer::new(&locks, PathKey::new("order", "id"))
            .with_ttl(HOUR)
            .with_release_on(TO_THE_END);
        // Its sender lives, so that it never ends by itself.
        let (keep, kept) = mpsc::unbounded_channel();
        let handler = post(move || async move {
            let (sender, stream) = Channel::<Bytes, BoxError>::new(1);
            let _ = keep.send(sender);
            let body = match body {
                "nothing" => Body::empty(),
                _ => Body::new(stream),
            };
            (status, body)
        });
        let app = Router::new().route("/orders/{id}", handler.route_layer(layer));
        let address = serve(app).await;
        for _ in 0..2 {
            let mut caller = Caller::post(address, Leave::H1Close, "/orders/7").await;
            assert_eq!(caller.status().await, status.as_u16());
            until("the lock is free", || locks.inspect().held.is_empty()).await;
        }
        drop(kept);
    }
}

/// A `HEAD` for a locked `GET` takes no lock, so its body, which nobody polls, keeps none.
#[tokio::test]
async fn a_head_request_holds_nothing() {
    let backend = CountingBackend::local();
    let locks = LockManager::new(backend.clone());
    let layer = LockLayer::new(&locks, PathKey::new("order", "id"))
        .with_methods([http::Method::GET])
        .with_release_on(TO_THE_END);
    let handler = get(|| async { "body" }).route_layer(layer);
    let address = serve(Router::new().route("/orders/{id}", handler)).await;
    let mut stream = h1(address, h1_head("HEAD", "/orders/7")).await;
    let answer = h1_answer(&mut stream).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    assert!(answer.contains("content-length: 4"), "{answer}");
    assert_eq!(backend.acquires(), 0);
}

/// Endless data, as fast as it is taken.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
        static CHUNK: [u8; 65_536] = [b'x'; 65_536];
        let frame = http_body::Frame::data(Bytes::from_static(&CHUNK));
        std::task::Poll::Ready(Some(Ok(frame)))
    }
}

async fn a_client_that_stops_reading_keeps_the_lock_no_longer_than_max(on: On) {
    let max = Duration::from_millis(500);
    let backend = on.backend().await;
    let locks = backend.manager();
    let layer = LockLayer::new(&locks, PathKey::new("order", "id"))
        .with_ttl(HOUR)
        .with_release_on(ReleaseOn::BodyEnd { max });
    let handler = post(|| async { Body::new(Endless) }).route_layer(layer);
    let address = serve(Router::new().route("/orders/{id}", handler)).await;

    let begun = Instant::now();
    let mut stream = h1(address, h1_head("POST", "/orders/7")).await;
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.expect("a head");
    assert_eq!(&head, b"HTTP/1.1 200");
    // Not read on: the server cannot write, and polls the body no more.
    until("the lock is free", || {
        backend.is_empty() && locks.inspect().held.is_empty()
    })
    .await;
    let held = begun.elapsed();
    assert!(
        held >= max && held < max + Duration::from_secs(5),
        "{held:?}"
    );

    // Another one gets the lock while the first still waits for its reader.
    let _second = h1(address, h1_head("POST", "/orders/7")).await;
    until("the second holds", || locks.inspect().held.len() == 1).await;

    // Read to its end, the first body is cut: no chunk says that it was whole.
    let mut rest = Vec::new();
    let _ = soon("the end", stream.read_to_end(&mut rest)).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"));
}

/// Over HTTP/2 the server does not even poll the body when the lock is lost: the client's window
/// is full.
async fn a_stream_whose_window_is_full_keeps_the_lock_no_longer_than_max(on: On) {
    let max = Duration::from_millis(500);
    let locks = on.backend().await.manager();
    let layer = LockLayer::new(&locks, PathKey::new("order", "id"))
        .with_ttl(HOUR)
        .with_release_on(ReleaseOn::BodyEnd { max });
    let handler = post(|| async { Body::new(Endless) }).route_layer(layer);
    let address = serve(Router::new().route("/orders/{id}", handler)).await;
    let (mut sender, _driver) = h2(address).await;
    let mut ask = || {
        let request = http::Request::post("http://test/orders/7");
        sender.send_request(request.body(http_body_util::Empty::new()).expect("ok"))
    };
    let begun = Instant::now();
    let first = soon("a head", ask()).await.expect("an answer");
    // The second waits for the first and gets its lock on the same connection.
    let second = soon("a head", ask()).await.expect("an answer");
    let held = begun.elapsed();
    assert_eq!(
        (first.status(), second.status()),
        (StatusCode::OK, StatusCode::OK)
    );
    assert!(
        held >= max && held < max + Duration::from_secs(5),
        "{held:?}"
    );
    // What was cut ends with an error once it is read on.
    assert!(soon("the end", first.into_body().collect()).await.is_err());
}

async fn a_body_that_is_not_polled_keeps_the_lock_no_longer_than_max(on: On) {
    // Long enough for what is read before.
    let max = Duration::from_millis(500);
    for polled in [false, true] {
        let mut world = world(on, |layer| {
            layer.with_release_on(ReleaseOn::BodyEnd { max })
        })
        .await;
        let begun = Instant::now();
        let mut body = send(&world.app, "POST", "/orders/7").await.into_body();
        let mut sender = world.sender().await;
        if polled {
            feed(&mut sender, "half").await;
            assert!(body.frame().await.expect("a frame").is_ok());
        }
        world.free().await;
        assert!(begun.elapsed() >= max);
        // It never runs again, although there is more to send.
        feed(&mut sender, "more").await;
        assert!(body.frame().await.expect("no clean end").is_err());
        assert!(body.frame().await.is_none());
    }
}

async fn a_steady_reader_is_cut_at_max_too(on: On) {
    let mut world = world(on, |layer| {
        layer.with_release_on(ReleaseOn::BodyEnd {
            max: Duration::from_millis(500),
        })
    })
    .await;
    let response = send(&world.app, "POST", "/orders/7").await;
    let mut sender = world.sender().await;
    feed(&mut sender, "half").await;
    let mut body = response.into_body();
    assert!(body.frame().await.expect("a frame").is_ok());
    let end = soon("the end", body.frame()).await.expect("no clean end");
    assert!(end.is_err());
    world.free().await;
}

/// Only told of its loss, a body that nobody polls keeps the lock until the lease has run out: it
/// is renewed no more.
async fn where_a_loss_is_only_told_a_client_that_stops_reading_keeps_the_last_lease(on: On) {
    let (max, ttl) = (Duration::from_millis(300), on.ttl(Duration::from_secs(1)));
    let locks = on.backend().await.manager();
    let layer = LockLayer::new(&locks, PathKey::new("order", "id"))
        .with_ttl(ttl)
        .with_wait(HOUR)
        .with_on_lost(OnLost::Signal)
        .with_release_on(ReleaseOn::BodyEnd { max });
    let handler = post(|| async { Body::new(Endless) }).route_layer(layer);
    let address = serve(Router::new().route("/orders/{id}", handler)).await;
    let begun = Instant::now();
    let _first = h1(address, h1_head("POST", "/orders/7")).await;
    until("the first holds", || locks.inspect().held.len() == 1).await;
    let mut second = h1(address, h1_head("POST", "/orders/7")).await;
    let mut head = [0; 12];
    soon("the second's head", second.read_exact(&mut head))
        .await
        .expect("a head");
    let held = begun.elapsed();
    assert!(held > ttl * 3 / 4, "not only until the loss: {held:?}");
    assert!(
        held < max + ttl + Duration::from_secs(5),
        "neither for ever: {held:?}"
    );
}

async fn by_default_the_lock_is_free_at_the_head(on: On) {
    let mut world = world(on, |layer| layer.with_release_on(ReleaseOn::Head)).await;
    let response = send(&world.app, "POST", "/orders/7").await;
    world.backend.freed().await;
    let mut sender = world.sender().await;
    // The stream goes on unhindered.
    let rest = tokio::spawn(response.into_body().collect());
    feed(&mut sender, "a").await;
    feed(&mut sender, "b").await;
    drop(sender);
    let rest = rest.await.expect("no panic").expect("a whole body");
    assert_eq!(rest.to_bytes(), "ab");
}

async fn a_confirmed_release_is_confirmed_before_the_head(on: On) {
    for backend in CountingBackend::each(on, 3).await {
        let locks = backend.manager();
        let layer = LockLayer::new(&locks, PathKey::new("order", "id"))
            .with_ttl(HOUR)
            .with_release_on(ReleaseOn::HeadConfirmed);
        let app = Router::new().route("/orders/{id}", post(|| async {}).route_layer(layer));
        for n in 1..20 {
            assert_eq!(send(&app, "POST", "/orders/7").await.status(), 200);
            assert!(backend.is_empty(), "at once, on a server too");
            assert_eq!(backend.confirmed(), vec![1; n]);
        }
    }
}

/// Counts the warnings about streams that outlive their lock.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(bool);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 |= field.name() == "message" && format!("{value:?}").contains("outlives");
            }
        }
        let mut message = Message(false);
        event.record(&mut message);
        if message.0 && *event.metadata().level() == tracing::Level::WARN {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tokio::test]
async fn a_stream_that_outlives_its_lock_is_warned_of_once() {
    let warnings = Arc::new(AtomicUsize::new(0));
    logs::keep_call_sites_on();
    let _listening = tracing::subscriber::set_default(Warnings(warnings.clone()));
    let world = world(On::Memory, |layer| layer.with_release_on(ReleaseOn::Head)).await;
    for _ in 0..3 {
        send(&world.app, "POST", "/orders/7").await;
    }
    assert_eq!(warnings.load(Ordering::SeqCst), 1);

    // Neither a body with a length nor a lock that is held to the end is such a stream.
    let locks = LockManager::new(MemoryBackend::new());
    let layer = LockLayer::new(&locks, PathKey::new("order", "id"));
    let handler = post(|| async { "a length" }).route_layer(layer);
    let app = Router::new().route("/orders/{id}", handler);
    send(&app, "POST", "/orders/7").await;
    let world = self::world(On::Memory, |layer| layer).await;
    send(&world.app, "POST", "/orders/7").await;
    assert_eq!(warnings.load(Ordering::SeqCst), 1);
}

async fn a_lock_that_is_lost_cuts_the_body(on: On) {
    for on_lost in [OnLost::Abort, OnLost::Signal] {
        let mut world = world(on, |layer| layer.with_on_lost(on_lost)).await;
        let address = serve(world.app.clone()).await;
        let mut stream = h1(address, h1_head("POST", "/orders/7")).await;
        let mut sender = world.sender().await;
        feed(&mut sender, "half").await;
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains("half") {
            soon("data", stream.read_buf(&mut seen))
                .await
                .expect("read");
        }
        let key = LockKey::new("order", 7);
        assert!(world.backend.take_away(&key).await);
        if on_lost == OnLost::Signal {
            feed(&mut sender, "rest").await;
            drop(sender);
            let rest = h1_answer(&mut stream).await;
            assert!(rest.contains("rest"), "{rest}");
            assert!(rest.ends_with("0\r\n\r\n"), "a clean end: {rest}");
        } else {
            // The server ends by itself, without the chunk that says that it was whole.
            let rest = h1_answer(&mut stream).await;
            assert!(!rest.contains("0\r\n\r\n"), "no clean end: {rest}");
            drop(sender);
        }
        world.free().await;
    }
}

async fn a_loss_between_two_polls_ends_the_body(on: On) {
    let mut world = world(on, |layer| layer).await;
    let response = send(&world.app, "POST", "/orders/7").await;
    let _sender = world.sender().await;
    world
        .locks
        .force_release(&LockKey::new("order", 7))
        .await
        .expect("the backend is there");
    until("the loss is known here", || {
        let held = world.locks.inspect().held;
        held.iter().all(|held| held.remaining.is_zero())
    })
    .await;
    // Nobody polled it meanwhile; it ends with an error all the same.
    let mut body = response.into_body();
    assert!(body.frame().await.expect("no clean end").is_err());
    world.free().await;
}

async fn a_handler_may_keep_the_lock_beyond_its_body(on: On) {
    let backend = on.backend().await;
    let locks = backend.manager();
    let (give, take) = oneshot::channel();
    let give = Arc::new(std::sync::Mutex::new(Some(give)));
    let handler = post(move |held: HeldLock| async move {
        let guard = held.take_guard().expect("the layer's");
        assert!(held.take_guard().is_none(), "only once");
        let give = give.lock().unwrap().take().expect("one request");
        give.send(guard).expect("the test listens");
        "done"
    });
    let layer = LockLayer::new(&locks, PathKey::new("order", "id"))
        .with_ttl(HOUR)
        .with_release_on(TO_THE_END);
    let app = Router::new().route("/orders/{id}", handler.route_layer(layer));
    let response = send(&app, "POST", "/orders/7").await;
    response.into_body().collect().await.expect("a body");
    let guard = take.await.expect("a guard");
    assert!(guard.is_held());
    assert_eq!(backend.len(), 1);
    guard.release().await.expect("the backend is there");
    backend.freed().await;
}

/// The same answers from the same handlers with and without the layer, over real servers.
async fn a_client_sees_the_same_body_with_and_without_the_layer(on: On) {
    fn routes(layered: Option<(&LockManager, ReleaseOn)>) -> Router {
        let sized = post(|| async { "twelve bytes" });
        let empty = post(|| async {});
        let streamed = post(|| async {
            let (mut sender, body) = Channel::<Bytes, BoxError>::new(4);
            for part in ["a", "b"] {
                sender.send_data(part.into()).await.expect("room");
            }
            Body::new(body)
        });
        let trailed = post(|| async {
            let trailers = HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                HeaderValue::from_static("0"),
            )]);
            let body = Full::new(Bytes::from("message"))
                .with_trailers(async { Some(Ok::<_, std::convert::Infallible>(trailers)) });
            Response::new(Body::new(body)).into_response()
        });
        let mut app = Router::new();
        for (path, handler) in [
            ("/sized/{id}", sized),
            ("/empty/{id}", empty),
            ("/streamed/{id}", streamed),
            ("/trailed/{id}", trailed),
        ] {
            let handler = match layered {
                None => handler,
                Some((locks, release_on)) => handler.route_layer(
                    LockLayer::new(locks, PathKey::new("order", "id")).with_release_on(release_on),
                ),
            };
            app = app.route(path, handler);
        }
        app
    }

    async fn seen(app: Router) -> Vec<String> {
        let address = serve(app).await;
        let mut seen = Vec::new();
        for path in ["/sized/7", "/empty/7", "/streamed/7", "/trailed/7"] {
            let mut stream = h1(address, h1_head("POST", path)).await;
            let answer = h1_answer(&mut stream).await;
            let lines = answer.lines().filter(|line| !line.starts_with("date:"));
            seen.push(lines.collect::<Vec<_>>().join("\n"));

            let (mut sender, _driver) = h2(address).await;
            let request = http::Request::post(format!("http://test{path}"))
                .body(http_body_util::Empty::new())
                .expect("a request");
            let response = soon("an answer", sender.send_request(request)).await;
            let (mut head, body) = response.expect("an answer").into_parts();
            head.headers.remove("date");
            let body = body.collect().await.expect("a whole body");
            let trailers = body.trailers().cloned();
            seen.push(format!("{head:?} {:?} {trailers:?}", body.to_bytes()));
        }
        seen
    }

    let plain = seen(routes(None)).await;
    assert!(plain[0].contains("content-length: 12"), "{plain:?}");
    assert!(plain[7].contains("grpc-status"), "{plain:?}");
    for release_on in [ReleaseOn::Head, ReleaseOn::HeadConfirmed, TO_THE_END] {
        let backend = on.backend().await;
        let locks = backend.manager();
        let layered = seen(routes(Some((&locks, release_on)))).await;
        assert_eq!(layered, plain, "{release_on:?}");
        until("the lock is free", || backend.is_empty()).await;
    }
}
