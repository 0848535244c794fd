//! How runs under an idempotency key end that do not end by themselves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response},
    routing::post,
};
use bytes::Bytes;
use http_body_util::{BodyExt, channel::Channel};
use tokio::sync::Notify;
use tower::ServiceExt;
use tower_lock::{
    IdempotencyKey, IdempotencyLayer, LockManager, OnLost, RefusalKind, idempotency::OnCrash,
};

use crate::{
    backends::{On, on_each_store},
    flaky::outcome,
    support::{SOON, Stage, soon, text, until},
};

on_each_store! {
    a_shutdown_lets_a_run_end_and_refuses_those_who_wait,
    a_run_that_outlives_the_grace_is_an_unknown_outcome,
    a_client_says_how_long_it_waits,
    a_lost_lock_aborts_a_body_that_is_read,
    a_client_may_leave_while_the_body_is_read,
}

fn layer(manager: &LockManager) -> IdempotencyLayer {
    IdempotencyLayer::new(manager, IdempotencyKey::header().global_keys())
}

fn request() -> Request<Body> {
    let request = Request::post("/checkout").header("idempotency-key", "key");
    request.body(Body::empty()).unwrap()
}

async fn send(app: &Router, request: Request<Body>) -> Response<Body> {
    soon("an answer", app.clone().oneshot(request))
        .await
        .unwrap()
}

fn start(app: &Router) -> tokio::task::JoinHandle<Response<Body>> {
    let app = app.clone();
    tokio::spawn(async move { app.oneshot(request()).await.unwrap() })
}

fn is_replay(response: &Response<Body>) -> bool {
    response.headers().contains_key("idempotent-replayed")
}

/// A handler that waits on its stage, and counts.
fn staged(layer: IdempotencyLayer, stage: &Stage) -> Router {
    let stage = stage.clone();
    let handler = move || async move {
        stage.act().await;
        stage.finished().to_string()
    };
    Router::new().route("/checkout", post(handler).route_layer(layer))
}

async fn a_shutdown_lets_a_run_end_and_refuses_those_who_wait(on: On) {
    let backend = on.backend().await;
    let (here, there) = (backend.manager(), backend.elsewhere().await.manager());
    let stage = Stage::new();
    let app = staged(layer(&here).with_wait(SOON), &stage);
    let first = start(&app);
    stage.entered().await;
    let waits = start(&app);
    until("it waits", || here.inspect().waiting.len() == 1).await;
    let stopping = tokio::spawn({
        let here = here.clone();
        async move { here.shutdown(SOON).await }
    });
    let refused = soon("a refusal", waits).await.unwrap();
    assert_eq!(outcome(&refused), (503, "draining"));
    assert_eq!(outcome(&send(&app, request()).await), (503, "draining"));
    stage.let_go();
    assert_eq!(text(soon("an answer", first).await.unwrap()).await, "1");
    let report = soon("it is shut down", stopping).await.unwrap();
    assert_eq!((report.finished, report.forced), (1, 0), "{report:?}");
    let replay = send(&staged(layer(&there), &stage), request()).await;
    assert!(is_replay(&replay));
    assert_eq!(text(replay).await, "1");
}

async fn a_run_that_outlives_the_grace_is_an_unknown_outcome(on: On) {
    let backend = on.backend().await;
    let (here, there) = (backend.manager(), backend.elsewhere().await.manager());
    let stage = Stage::new();
    let layer = |manager: &LockManager| layer(manager).with_on_crash(OnCrash::Refuse);
    let first = start(&staged(layer(&here), &stage));
    stage.entered().await;
    soon("it is shut down", here.shutdown(Duration::from_millis(10))).await;
    let app = staged(layer(&there), &stage);
    let refused = soon("nobody holds it", async {
        loop {
            let refused = send(&app, request()).await;
            if outcome(&refused).1 != RefusalKind::InProgress.as_str() {
                return refused;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(outcome(&refused.await), (409, "outcome-unknown"));
    // It goes on all the same, for its own client.
    stage.let_go();
    assert_eq!(text(soon("an answer", first).await.unwrap()).await, "1");
}

async fn a_client_says_how_long_it_waits(on: On) {
    let backend = on.backend().await;
    let stage = Stage::new();
    let waits = Duration::from_secs(20);
    let app = staged(
        layer(&backend.manager()).with_max_prefer_wait(waits),
        &stage,
    );
    let first = start(&app);
    stage.entered().await;
    let prefers = |wait: &'static str| {
        let mut request = request();
        let value = http::HeaderValue::from_static(wait);
        request.headers_mut().insert("prefer", value);
        request
    };
    let refused = send(&app, prefers("wait=0")).await;
    assert_eq!(outcome(&refused), (409, "in-progress"));
    assert_eq!(refused.headers()["preference-applied"], "wait=0");
    let waiting = tokio::spawn(app.clone().oneshot(prefers("wait=9999")));
    tokio::task::yield_now().await;
    stage.let_go();
    let replay = soon("an answer", waiting).await.unwrap().unwrap();
    assert_eq!(replay.headers()["preference-applied"], "wait=20");
    assert!(is_replay(&replay));
    assert_eq!(text(soon("an answer", first).await.unwrap()).await, "1");
}

/// A handler whose body ends once it is told to; and what says that it is being read.
fn streaming(layer: IdempotencyLayer) -> (Router, Arc<Notify>, Arc<AtomicUsize>) {
    let (end, sent) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (ends, sends) = (end.clone(), sent.clone());
    let handler = move || async move {
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
        tokio::spawn(async move {
            // Of two that fit in, one was read.
            for _ in 0..3 {
                if sender.send_data(Bytes::from("a line ")).await.is_err() {
                    return;
                }
                sends.fetch_add(1, Ordering::SeqCst);
            }
            ends.notified().await;
            drop(sender);
        });
        Body::new(body)
    };
    let app = Router::new().route("/checkout", post(handler).route_layer(layer));
    (app, end, sent)
}

async fn a_lost_lock_aborts_a_body_that_is_read(on: On) {
    let backend = on.backend().await;
    let layer = layer(&backend.manager())
        .with_on_lost(OnLost::Abort)
        .with_on_crash(OnCrash::Refuse)
        .with_max_hold(Duration::from_secs(1));
    let (app, _end, sent) = streaming(layer);
    let first = start(&app);
    until("it is read", || sent.load(Ordering::SeqCst) == 3).await;
    let lost = soon("an answer", first).await.unwrap();
    assert_eq!(outcome(&lost), (500, "lock-lost"));
    let again = soon("nobody holds it", async {
        loop {
            let again = send(&app, request()).await;
            if outcome(&again).1 != RefusalKind::InProgress.as_str() {
                return again;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(outcome(&again.await), (409, "outcome-unknown"));
}

async fn a_client_may_leave_while_the_body_is_read(on: On) {
    let backend = on.backend().await;
    let (app, end, sent) = streaming(layer(&backend.manager()));
    let first = start(&app);
    until("it is read", || sent.load(Ordering::SeqCst) == 3).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(outcome(&send(&app, request()).await), (409, "in-progress"));
    end.notify_one();
    let replay = soon("it is stored", async {
        loop {
            let replay = send(&app, request()).await;
            if is_replay(&replay) {
                return replay;
            }
            assert_eq!(outcome(&replay), (409, "in-progress"));
            tokio::task::yield_now().await;
        }
    });
    let body = replay.await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "a line a line a line ");
}
