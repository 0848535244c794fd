//! Requests with an idempotency key, on each backend that keeps records.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, request::Parts},
    response::{AppendHeaders, IntoResponse},
    routing::post,
};
use bytes::Bytes;
use http_body_util::{BodyExt, channel::Channel};
use proptest::prelude::*;
use tower::ServiceExt;
use tower_lock::{
    Fairness, HeldLocks, IdempotencyKey, IdempotencyLayer, LockKey, LockLayer, LockManager,
    OnDisconnect,
    idempotency::{FirstRun, Keep, OnCrash, Store, Unreplayable},
    key::HeaderKey,
};

use crate::{
    backends::{Backend, On, on_each_store},
    flaky::Flaky,
    support::{Stage, soon, until},
};

on_each_store! {
    the_response_is_replayed_from_any_instance,
    another_payload_is_refused,
    a_request_at_work_is_not_run_twice,
    who_waits_gets_the_response,
    keys_are_read_by_the_rules,
    tenants_never_meet,
    failures_run_again,
    the_handler_decides_what_is_kept,
    a_client_that_leaves_changes_nothing,
    a_holder_that_is_gone_is_run_again_or_not,
    what_cannot_be_replayed_never_runs_again,
    a_stale_run_changes_nothing,
    an_inner_lock_is_shown_beside,
    a_body_that_breaks_off_is_not_replayed,
    events_are_passed_on,
    a_body_without_an_end_is_passed_on_when_the_lock_is_lost,
    trailers_are_replayed,
    an_error_or_a_panic_is_an_unknown_outcome,
    a_rerun_that_fails_stays_one,
    who_was_never_called_leaves_nothing,
}

/// A service that counts what its handler did.
#[derive(Clone)]
struct Shop {
    charges: Arc<AtomicUsize>,
    stage: Option<Stage>,
}

impl Shop {
    fn new() -> Self {
        let charges = Arc::default();
        let stage = None;
        Self { charges, stage }
    }

    /// Its handler waits to be let go.
    fn staged() -> (Self, Stage) {
        let stage = Stage::new();
        let shop = Self {
            stage: Some(stage.clone()),
            ..Self::new()
        };
        (shop, stage)
    }

    fn charges(&self) -> usize {
        self.charges.load(Ordering::SeqCst)
    }

    fn router(&self, layer: IdempotencyLayer) -> Router {
        Router::new()
            .route("/checkout", post(checkout).get(checkout).route_layer(layer))
            .with_state(self.clone())
    }
}

async fn checkout(
    State(shop): State<Shop>,
    run: Option<FirstRun>,
    body: Bytes,
) -> impl IntoResponse {
    if let Some(stage) = &shop.stage {
        stage.act().await;
    }
    let charge = shop.charges.fetch_add(1, Ordering::SeqCst) + 1;
    let rerun = run.is_some_and(|run| run.is_rerun());
    let headers = AppendHeaders([
        ("x-tag", "one"),
        ("x-tag", "two"),
        ("location", "/orders/7"),
        ("set-cookie", "session=1"),
        ("x-request-id", "1"),
    ]);
    let text = format!("charge {charge}{} for ", if rerun { " again" } else { "" });
    let body = [text.as_bytes(), b"\x00\xff", &body].concat();
    (StatusCode::CREATED, headers, body)
}

fn header() -> IdempotencyKey<tower_lock::idempotency::FromHeader, tower_lock::idempotency::Scoped>
{
    IdempotencyKey::header().global_keys()
}

fn layer(backend: &Backend) -> IdempotencyLayer {
    IdempotencyLayer::new(&backend.manager(), header())
}

fn request(key: Option<&str>, body: &'static str) -> Request<Body> {
    let mut request = Request::post("/checkout");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Body::from(body)).unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    app.clone().oneshot(request).await.unwrap()
}

/// What a client keeps of a response.
#[derive(Debug, PartialEq)]
struct Got {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Got {
    async fn of(response: Response<Body>) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    fn is_replay(&self) -> bool {
        self.headers.get("idempotent-replayed") == Some(&HeaderValue::from_static("true"))
    }

    /// The slug of a problem.
    fn problem(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        let kind = problem["type"].as_str().unwrap();
        kind.rsplit(['/', '#']).next().unwrap().to_owned()
    }
}

async fn pay(app: &Router, key: &str, body: &'static str) -> Got {
    Got::of(send(app, request(Some(key), body)).await).await
}

async fn the_response_is_replayed_from_any_instance(on: On) {
    let backend = on.backend().await;
    let shop = Shop::new();
    let first = shop.router(layer(&backend));
    let second = shop.router(layer(&backend.elsewhere().await));
    let live = pay(&first, "key-1", "cart").await;
    assert_eq!(live.status, 201);
    assert!(!live.is_replay());
    assert_eq!(&*live.body, b"charge 1 for \x00\xffcart");
    assert!(live.headers.contains_key("set-cookie"));
    for app in [&first, &second] {
        let mut replay = pay(app, "key-1", "cart").await;
        assert!(replay.is_replay());
        replay.headers.remove("idempotent-replayed");
        let mut expected = live.headers.clone();
        expected.remove("set-cookie");
        expected.remove("x-request-id");
        // The server's own, made anew.
        expected.remove("content-length");
        replay.headers.remove("content-length");
        assert_eq!(replay.headers, expected);
        assert_eq!((replay.status, &replay.body), (201, &live.body));
    }
    assert_eq!(shop.charges(), 1);
    // Another key, and a method that needs none.
    assert!(!pay(&second, "key-2", "cart").await.is_replay());
    let get = Request::get("/checkout").body(Body::empty()).unwrap();
    assert_eq!(send(&first, get).await.status(), 201);
    assert_eq!(shop.charges(), 3);
}

async fn another_payload_is_refused(on: On) {
    let backend = on.backend().await;
    let (shop, stage) = Shop::staged();
    let app = shop.router(layer(&backend));
    let first = tokio::spawn({
        let app = app.clone();
        async move { pay(&app, "key", "one book").await }
    });
    stage.entered().await;
    for _ in 0..2 {
        let other = pay(&app, "key", "two books").await;
        assert_eq!((other.status, &*other.problem()), (422, "key-reused"));
        stage.let_go();
    }
    assert_eq!(first.await.unwrap().status, 201);
    let other = pay(&app, "key", "two books").await;
    assert_eq!((other.status, &*other.problem()), (422, "key-reused"));
    assert_eq!(shop.charges(), 1);
}

async fn a_request_at_work_is_not_run_twice(on: On) {
    let backend = on.backend().await;
    let (shop, stage) = Shop::staged();
    let app = shop.router(layer(&backend));
    let other = shop.router(layer(&backend.elsewhere().await));
    let first = tokio::spawn({
        let app = app.clone();
        async move { pay(&app, "key", "cart").await }
    });
    stage.entered().await;
    for app in [&app, &other] {
        let busy = pay(app, "key", "cart").await;
        assert_eq!((busy.status, &*busy.problem()), (409, "in-progress"));
        assert!(busy.headers.contains_key("retry-after"));
    }
    stage.let_go();
    let live = first.await.unwrap();
    let replay = pay(&other, "key", "cart").await;
    assert!(replay.is_replay());
    assert_eq!(replay.body, live.body);
    assert_eq!(stage.begun(), 1);
}

async fn who_waits_gets_the_response(on: On) {
    let backend = on.backend().await;
    let (shop, stage) = Shop::staged();
    let apps = [
        shop.router(layer(&backend).with_wait(Duration::from_secs(20))),
        shop.router(layer(&backend.elsewhere().await).with_wait(Duration::from_secs(20))),
    ];
    let requests: Vec<_> = (0..20)
        .map(|n| {
            let app = apps[n % 2].clone();
            tokio::spawn(async move { pay(&app, "key", "cart").await })
        })
        .collect();
    stage.entered().await;
    stage.let_go();
    let mut live = 0;
    for request in requests {
        let got = soon("an answer", request).await.unwrap();
        assert_eq!(got.status, 201);
        assert_eq!(&*got.body, b"charge 1 for \x00\xffcart");
        live += usize::from(!got.is_replay());
    }
    assert_eq!((live, stage.begun()), (1, 1));
}

async fn keys_are_read_by_the_rules(on: On) {
    let backend = on.backend().await;
    let shop = Shop::new();
    let app = shop.router(layer(&backend));
    let none = Got::of(send(&app, request(None, "cart")).await).await;
    assert_eq!((none.status, &*none.problem()), (400, "key-missing"));
    let long = "k".repeat(256);
    for bad in ["", "a b", "\"a", "\"a\";b=1", &long] {
        let bad = pay(&app, bad, "cart").await;
        assert_eq!((bad.status, &*bad.problem()), (400, "key-invalid"));
    }
    let mut twice = request(Some("a"), "cart");
    twice
        .headers_mut()
        .append("idempotency-key", HeaderValue::from_static("b"));
    let twice = Got::of(send(&app, twice).await).await;
    assert_eq!((twice.status, &*twice.problem()), (400, "key-invalid"));
    assert_eq!(shop.charges(), 0);
    // A string of RFC 9651 and a bare one are the same key.
    assert!(!pay(&app, "\"8e03978e\"", "cart").await.is_replay());
    assert!(pay(&app, "8e03978e", "cart").await.is_replay());
    // Where it is optional a request without one is as any other.
    let optional = IdempotencyLayer::new(&backend.manager(), header().optional());
    let app = shop.router(optional);
    for charge in 2..4 {
        let got = Got::of(send(&app, request(None, "cart")).await).await;
        assert_eq!((got.status, shop.charges()), (201, charge));
    }
}

async fn tenants_never_meet(on: On) {
    let backend = on.backend().await;
    let shop = Shop::new();
    let tenant = |parts: &Parts| {
        let tenant = parts
            .headers
            .get("x-tenant")
            .ok_or(StatusCode::UNAUTHORIZED)?;
        let tenant = tenant.to_str().map_err(|_| StatusCode::BAD_REQUEST)?;
        Ok::<_, StatusCode>(LockKey::new("tenant", tenant))
    };
    let key = IdempotencyKey::header().scoped_by(tenant);
    let app = shop.router(IdempotencyLayer::new(&backend.manager(), key));
    let mut seen = Vec::new();
    for tenant in ["a", "b", "a"] {
        let mut request = request(Some("key"), "cart");
        request
            .headers_mut()
            .insert("x-tenant", tenant.parse().unwrap());
        let got = Got::of(send(&app, request).await).await;
        seen.push((got.is_replay(), got.body));
    }
    assert_eq!(
        seen.iter().map(|seen| seen.0).collect::<Vec<_>>(),
        [false, false, true]
    );
    assert_ne!(seen[0].1, seen[1].1);
    assert_eq!(seen[0].1, seen[2].1);
    let nobody = pay(&app, "key", "cart").await;
    assert_eq!((nobody.status, shop.charges()), (401, 2));
}

/// Answers with the status that the body names.
fn answering(layer: IdempotencyLayer, calls: Arc<AtomicUsize>) -> Router {
    let handler = move |body: String| {
        let calls = calls.clone();
        async move {
            let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
            let status: u16 = body.parse().unwrap();
            (StatusCode::from_u16(status).unwrap(), call.to_string())
        }
    };
    Router::new().route("/checkout", post(handler).route_layer(layer))
}

async fn failures_run_again(on: On) {
    let backend = on.backend().await;
    for (store, again) in [
        (
            Store::Definitive,
            ["500", "503", "409", "429", "401"].as_slice(),
        ),
        (
            Store::SuccessOnly,
            &["404", "303", "500", "503", "409", "429", "401"],
        ),
        (Store::Everything, &[]),
    ] {
        let calls = Arc::new(AtomicUsize::new(0));
        let app = answering(layer(&backend).with_store(store), calls.clone());
        for status in ["200", "404", "303", "500", "503", "409", "429", "401"] {
            let key = format!("{store:?}-{status}");
            let before = calls.load(Ordering::SeqCst);
            let first = pay(&app, &key, status).await;
            let second = pay(&app, &key, status).await;
            assert_eq!(
                (first.status, first.is_replay()),
                (status.parse().unwrap(), false)
            );
            let runs = calls.load(Ordering::SeqCst) - before;
            let expected = if again.contains(&status) { 2 } else { 1 };
            assert_eq!(runs, expected, "{key}");
            assert_eq!(second.is_replay(), expected == 1, "{key}");
        }
    }
}

async fn the_handler_decides_what_is_kept(on: On) {
    let backend = on.backend().await;
    let calls = Arc::new(AtomicUsize::new(0));
    let handler = {
        let calls = calls.clone();
        move |body: String| async move {
            calls.fetch_add(1, Ordering::SeqCst);
            let keep = match &*body {
                "no" => Keep::No,
                _ => Keep::For(Duration::from_secs(60)),
            };
            (StatusCode::BAD_GATEWAY, Extension(keep), "it")
        }
    };
    let app = Router::new().route("/checkout", post(handler).route_layer(layer(&backend)));
    for (body, runs) in [("no", 2), ("yes", 1)] {
        let before = calls.load(Ordering::SeqCst);
        for _ in 0..2 {
            assert_eq!(pay(&app, body, body).await.status, 502);
        }
        assert_eq!(calls.load(Ordering::SeqCst) - before, runs, "{body}");
    }
}

async fn a_client_that_leaves_changes_nothing(on: On) {
    let backend = on.backend().await;
    let (shop, stage) = Shop::staged();
    let app = shop.router(layer(&backend));
    let left = tokio::spawn({
        let app = app.clone();
        async move { pay(&app, "key", "cart").await }
    });
    stage.entered().await;
    left.abort();
    assert!(left.await.unwrap_err().is_cancelled());
    let busy = pay(&app, "key", "cart").await;
    assert_eq!((busy.status, &*busy.problem()), (409, "in-progress"));
    stage.let_go();
    let mut replay = pay(&app, "key", "cart").await;
    while replay.status == 409 {
        // Nothing else would let the handler go on where the backend answers at once.
        tokio::task::yield_now().await;
        replay = pay(&app, "key", "cart").await;
    }
    assert!(replay.is_replay());
    assert_eq!(&*replay.body, b"charge 1 for \x00\xffcart");
    assert_eq!((stage.begun(), shop.charges()), (1, 1));
}

async fn a_holder_that_is_gone_is_run_again_or_not(on: On) {
    let backend = on.backend().await;
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
        let (shop, stage) = Shop::staged();
        let layer = layer(&backend)
            .with_on_crash(on_crash)
            .with_on_disconnect(OnDisconnect::Cancel);
        let app = shop.router(layer);
        let key = format!("{on_crash:?}");
        // Cut off in the middle, as a process that dies.
        let cut = tokio::spawn({
            let (app, key) = (app.clone(), key.clone());
            async move { pay(&app, &key, "cart").await }
        });
        stage.entered().await;
        cut.abort();
        let _ = cut.await;
        stage.let_go();
        let mut next = pay(&app, &key, "cart").await;
        while next.status == 409 && next.problem() == "in-progress" {
            tokio::task::yield_now().await;
            next = pay(&app, &key, "cart").await;
        }
        // Another request never takes its place.
        let other = pay(&app, &key, "another cart").await;
        assert_eq!((other.status, &*other.problem()), (422, "key-reused"));
        if on_crash == OnCrash::Rerun {
            assert_eq!(&*next.body, b"charge 1 again for \x00\xffcart");
            assert!(pay(&app, &key, "cart").await.is_replay());
        } else {
            for got in [next, pay(&app, &key, "cart").await] {
                assert_eq!((got.status, &*got.problem()), (409, "outcome-unknown"));
            }
            assert_eq!(shop.charges(), 0);
        }
    }
}

async fn what_cannot_be_replayed_never_runs_again(on: On) {
    let backend = on.backend().await;
    for (unreplayable, runs) in [(Unreplayable::Tombstone, 1), (Unreplayable::Release, 2)] {
        let shop = Shop::new();
        let layer = layer(&backend)
            .with_unreplayable(unreplayable)
            .with_max_response(10);
        let app = shop.router(layer);
        let key = format!("{unreplayable:?}");
        let live = pay(&app, &key, "a cart").await;
        // The client gets all of it.
        assert_eq!(&*live.body, b"charge 1 for \x00\xffa cart");
        let again = pay(&app, &key, "a cart").await;
        assert_eq!(shop.charges(), runs);
        if unreplayable == Unreplayable::Tombstone {
            assert_eq!(
                (again.status, &*again.problem()),
                (409, "already-completed")
            );
            let problem: serde_json::Value = serde_json::from_slice(&again.body).unwrap();
            assert_eq!(problem["original_status"], 201);
        } else {
            assert_eq!(again.status, 201);
        }
    }
}

/// One whose lock was taken away goes on, and is answered; what its successor stored stays.
async fn a_stale_run_changes_nothing(on: On) {
    let backend = on.backend().await;
    let (shop, stage) = Shop::staged();
    let app = shop.router(layer(&backend));
    let locks = backend.manager();
    let keys = Arc::new(std::sync::Mutex::new(None));
    let seen = keys.clone();
    let stale = Router::new().route(
        "/checkout",
        post(async move |locks: HeldLocks, State(shop): State<Shop>| {
            let key = locks.get("idempotency").unwrap().key().clone();
            *seen.lock().unwrap() = Some(key);
            shop.stage.as_ref().unwrap().act().await;
            "stale"
        })
        .route_layer(IdempotencyLayer::new(&locks, header()))
        .with_state(shop.clone()),
    );
    let first = tokio::spawn(async move { pay(&stale, "key", "cart").await });
    stage.entered().await;
    let key = keys.lock().unwrap().take().unwrap();
    assert!(backend.take_away(&key).await);
    let second = tokio::spawn({
        let app = app.clone();
        async move { pay(&app, "key", "cart").await }
    });
    stage.entered().await;
    // The stale one ends first, or last: both are let go.
    stage.let_go();
    stage.let_go();
    let first = soon("the stale one", first).await.unwrap();
    assert_eq!((first.status, &*first.body), (200, &b"stale"[..]));
    let second = soon("its successor", second).await.unwrap();
    assert_eq!(&*second.body, b"charge 1 again for \x00\xffcart");
    let replay = pay(&app, "key", "cart").await;
    assert!(replay.is_replay());
    assert_eq!(replay.body, second.body);
}

async fn an_inner_lock_is_shown_beside(on: On) {
    let backend = on.backend().await;
    let locks = backend.manager();
    let handler = async |locks: HeldLocks| {
        let names: Vec<_> = locks
            .iter()
            .map(|held| held.key().namespace().to_owned())
            .collect();
        names.join(" ")
    };
    let order = LockLayer::new(&locks, HeaderKey::new("order", "x-order"));
    let idempotent = IdempotencyLayer::new(&locks, header());
    let route = post(handler).route_layer(order).route_layer(idempotent);
    let app = Router::new().route("/checkout", route);
    let request = || {
        let mut request = request(Some("key"), "cart");
        request
            .headers_mut()
            .insert("x-order", HeaderValue::from_static("7"));
        request
    };
    let live = Got::of(send(&app, request()).await).await;
    assert_eq!(&*live.body, b"order idempotency");
    let replay = Got::of(send(&app, request()).await).await;
    assert!(replay.is_replay());
    until("all is released", || locks.inspect().held.is_empty()).await;
}

async fn a_body_that_breaks_off_is_not_replayed(on: On) {
    let backend = on.backend().await;
    let handler = async || {
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(4);
        sender.send_data(Bytes::from("half")).await.unwrap();
        sender.abort(std::io::Error::other("it broke"));
        Body::new(body)
    };
    let app = Router::new().route("/checkout", post(handler).route_layer(layer(&backend)));
    let response = send(&app, request(Some("key"), "cart")).await;
    assert_eq!(response.status(), 200);
    assert!(
        response.into_body().collect().await.is_err(),
        "the client sees that it broke"
    );
    let again = pay(&app, "key", "cart").await;
    assert_eq!(
        (again.status, &*again.problem()),
        (409, "already-completed")
    );
}

/// Each event reaches the client when it happens, and not when the last one has.
async fn events_are_passed_on(on: On) {
    let backend = on.backend().await;
    let handler = async || {
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(4);
        sender.send_data(Bytes::from("data: 1\n\n")).await.unwrap();
        tokio::spawn(async move {
            let _sender = sender;
            std::future::pending::<()>().await;
        });
        (
            [("content-type", "text/event-stream; charset=utf-8")],
            Body::new(body),
        )
    };
    let app = Router::new().route("/checkout", post(handler).route_layer(layer(&backend)));
    let response = soon("the head", send(&app, request(Some("key"), "cart"))).await;
    let mut body = response.into_body();
    let event = soon("the event", body.frame()).await.unwrap().unwrap();
    assert_eq!(event.into_data().unwrap(), "data: 1\n\n");
    let again = pay(&app, "key", "cart").await;
    assert_eq!(
        (again.status, &*again.problem()),
        (409, "already-completed")
    );
}

/// A body that goes on and on: its client gets it once the lock is lost, and it is not run again.
async fn a_body_without_an_end_is_passed_on_when_the_lock_is_lost(on: On) {
    let backend = on.backend().await;
    let handler = async || {
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(4);
        sender.send_data(Bytes::from("a line")).await.unwrap();
        tokio::spawn(async move {
            let _sender = sender;
            std::future::pending::<()>().await;
        });
        Body::new(body)
    };
    let layer = layer(&backend).with_max_hold(Duration::from_millis(300));
    let app = Router::new().route("/checkout", post(handler).route_layer(layer));
    let response = soon("the head", send(&app, request(Some("key"), "cart"))).await;
    let mut body = response.into_body();
    let line = soon("the line", body.frame()).await.unwrap().unwrap();
    assert_eq!(line.into_data().unwrap(), "a line");
    let again = pay(&app, "key", "cart").await;
    assert_eq!(
        (again.status, &*again.problem()),
        (409, "already-completed")
    );
}

async fn trailers_are_replayed(on: On) {
    let backend = on.backend().await;
    let handler = async || {
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(4);
        sender.send_data(Bytes::from("data")).await.unwrap();
        let trailers = HeaderMap::from_iter([(
            HeaderName::from_static("x-checksum"),
            HeaderValue::from_static("42"),
        )]);
        sender.send_trailers(trailers).await.unwrap();
        Body::new(body)
    };
    let app = Router::new().route("/checkout", post(handler).route_layer(layer(&backend)));
    for replayed in [false, true] {
        let response = send(&app, request(Some("key"), "cart")).await;
        assert_eq!(
            response.headers().contains_key("idempotent-replayed"),
            replayed
        );
        // With a length servers of HTTP/1 would leave them out.
        assert!(!response.headers().contains_key("content-length"));
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-checksum"], "42");
        assert_eq!(collected.to_bytes(), "data");
    }
}

/// A service of which an error or a panic says nothing of what it did.
async fn an_error_or_a_panic_is_an_unknown_outcome(on: On) {
    let backend = on.backend().await;
    let locks = backend.manager();
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
        let runs = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = runs.clone();
        let service = tower::service_fn(move |request: Request<tower_lock::RequestBody<Body>>| {
            let run = request.extensions().get::<FirstRun>().unwrap().is_rerun();
            let mut seen = seen.lock().unwrap();
            seen.push(run);
            let count = seen.len();
            drop(seen);
            async move {
                match count {
                    1 => Err("it broke"),
                    2 => panic!("on purpose"),
                    _ => Ok(Response::new(Body::from("done"))),
                }
            }
        });
        let layer = IdempotencyLayer::new(&locks, header()).with_on_crash(on_crash);
        let service = tower::Layer::layer(&layer, service);
        let key = format!("{on_crash:?}-{on:?}");
        let call = || tokio::spawn(service.clone().oneshot(request(Some(&key), "cart")));
        assert_eq!(
            soon("an error", call()).await.unwrap().unwrap_err(),
            "it broke"
        );
        if on_crash == OnCrash::Rerun {
            let mut panicked = soon("a panic", call()).await;
            // The lock of the first is given back in the background.
            while panicked.is_ok() {
                panicked = soon("a panic", call()).await;
            }
        }
        let last = loop {
            let last = soon("an answer", call()).await.unwrap().unwrap();
            let last = Got::of(last.map(Body::new)).await;
            if last.status != 409 || last.problem() != "in-progress" {
                break last;
            }
        };
        let runs = runs.lock().unwrap().clone();
        if on_crash == OnCrash::Rerun {
            assert_eq!((last.status, &*last.body), (200, &b"done"[..]));
            assert_eq!(runs, [false, true, true]);
        } else {
            assert_eq!((last.status, &*last.problem()), (409, "outcome-unknown"));
            assert_eq!(runs, [false]);
        }
    }
}

/// What the first run did is not known any better because the second was told to come again.
async fn a_rerun_that_fails_stays_one(on: On) {
    let backend = on.backend().await;
    let runs = Arc::new(std::sync::Mutex::new(Vec::new()));
    let handler = {
        let runs = runs.clone();
        move |run: FirstRun| async move {
            let count = {
                let mut runs = runs.lock().unwrap();
                runs.push(run.is_rerun());
                runs.len()
            };
            match count {
                1 => std::future::pending().await,
                2 => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::CREATED,
            }
        }
    };
    let layer = layer(&backend).with_on_disconnect(OnDisconnect::Cancel);
    let app = Router::new().route("/checkout", post(handler).route_layer(layer));
    let cut = tokio::spawn({
        let app = app.clone();
        async move { pay(&app, "key", "cart").await }
    });
    until("it runs", || !runs.lock().unwrap().is_empty()).await;
    cut.abort();
    let _ = cut.await;
    let mut statuses = Vec::new();
    while statuses.last() != Some(&201) {
        let got = soon("an answer", pay(&app, "key", "cart")).await;
        if got.status != 409 {
            statuses.push(got.status);
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(statuses, [503, 201]);
    assert_eq!(*runs.lock().unwrap(), [false, true, true]);
}

/// A client that leaves before the handler is called leaves a key that is unused.
async fn who_was_never_called_leaves_nothing(on: On) {
    let backend = on.backend().await;
    let shop = Shop::new();
    let layer = layer(&backend).with_on_crash(OnCrash::Refuse);
    let busy = Arc::new(tokio::sync::Semaphore::new(0));
    let service = tower::ServiceBuilder::new()
        .layer(layer.clone())
        .layer(tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(
            busy.clone(),
        ))
        .service(tower::service_fn(
            async |_: Request<tower_lock::RequestBody<Body>>| {
                Ok::<_, std::convert::Infallible>(Response::new(Body::empty()))
            },
        ));
    let locks = backend.manager();
    let waiting = tokio::spawn(service.oneshot(request(Some("key"), "cart")));
    until("it is begun", || backend.len() == 1).await;
    waiting.abort();
    let _ = waiting.await;
    drop(locks);
    let app = shop.router(layer);
    let mut got = pay(&app, "key", "cart").await;
    while got.status == 409 && got.problem() == "in-progress" {
        tokio::task::yield_now().await;
        got = pay(&app, "key", "cart").await;
    }
    assert_eq!((got.status, shop.charges()), (201, 1));
}

/// What cannot be is refused where it is said, in any order of the setters.
#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let backend = On::Memory.backend().await;
    let refusal = |make: fn(IdempotencyLayer) -> IdempotencyLayer| {
        let built =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| make(layer(&backend))));
        built.unwrap_err().downcast_ref::<String>().unwrap().clone()
    };
    for (text, refused) in [
        (
            "record_ttl is 0ns",
            refusal(|layer| layer.with_record_ttl(Duration::ZERO)),
        ),
        (
            "max_response is",
            refusal(|layer| layer.with_max_response(usize::MAX)),
        ),
        (
            "Batched",
            refusal(|layer| layer.with_fairness(Fairness::Batched(std::num::NonZeroU32::MIN))),
        ),
    ] {
        assert!(refused.contains(text), "{refused}");
    }
    let short = Duration::from_millis(100);
    let _ = layer(&backend).with_record_ttl(short).with_ttl(short);
    let _ = layer(&backend).with_ttl(short).with_record_ttl(short);
}

/// Names that are stored, and any value that a header may have.
fn headers() -> impl Strategy<Value = Vec<(HeaderName, HeaderValue)>> {
    let name = proptest::sample::select(vec!["etag", "location", "vary", "link", "x-a", "x-b"]);
    let value =
        proptest::collection::vec(prop_oneof![Just(b'\t'), 0x20u8..0x7f, 0x80u8..=0xff], 0..20);
    let header = (name, value).prop_map(|(name, value)| {
        let value = HeaderValue::from_bytes(&value).unwrap();
        (HeaderName::from_static(name), value)
    });
    proptest::collection::vec(header, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the handler answers within the rules, a replay is the same.
    #[test]
    fn a_replay_is_the_response(
        code in proptest::sample::select(vec![200u16, 201, 202, 204, 206, 301, 304, 400, 404, 410, 422]),
        headers in headers(),
        body in proptest::collection::vec(any::<u8>(), 0..2000),
        frames in 1usize..5,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let backend = On::Memory.backend().await;
            let body = Bytes::from(body);
            let handler = {
                let (headers, body) = (headers.clone(), body.clone());
                move || async move {
                    let (mut sender, channel) = Channel::<Bytes, std::io::Error>::new(16);
                    for part in body.chunks(body.len().div_ceil(frames).max(1)) {
                        sender.send_data(Bytes::copy_from_slice(part)).await.unwrap();
                    }
                    let mut response = Response::new(Body::new(channel));
                    *response.status_mut() = StatusCode::from_u16(code).unwrap();
                    for (name, value) in headers {
                        response.headers_mut().append(name, value);
                    }
                    response
                }
            };
            let app = Router::new().route("/checkout", post(handler).route_layer(layer(&backend)));
            let mut live = pay(&app, "key", "cart").await;
            let mut replay = pay(&app, "key", "cart").await;
            assert!(replay.is_replay());
            replay.headers.remove("idempotent-replayed");
            // What axum says of a body of known length.
            live.headers.remove("content-length");
            replay.headers.remove("content-length");
            assert_eq!(live.body, body);
            assert_eq!((live.status, live.headers, live.body), (replay.status, replay.headers, replay.body));
        });
    }
}

/// A backend without records is refused when the layer is built, by name.
#[tokio::test]
async fn a_backend_without_records_is_refused() {
    let locks = LockManager::new(Flaky::default());
    let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        IdempotencyLayer::new(&locks, header())
    }));
    let panic = built.unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("keeps no records"), "{text}");
}
