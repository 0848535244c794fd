//! A store of records that fails, and what the layers on top of it do then.
//!
//! On memory behind a [`Flaky`], in paused time: what a real store does when it is away is in
//! `fleet/away.rs`.

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
    routing::{get, post},
};
use tower_lock::{
    BackendErrorKind, IdempotencyKey, IdempotencyLayer, LockManager, SingleFlightLayer,
    idempotency::OnCrash, key::PathKey, single_flight::Flight,
};

use crate::{
    flaky::{Fault, Flaky, Wire, call, outcome, start, until_waiting},
    support::{Stage, text, until},
};

const AWAY: Fault = Fault::Error(BackendErrorKind::Unavailable);

struct Rig {
    flaky: Flaky,
    locks: LockManager,
    runs: Arc<AtomicUsize>,
}

impl Rig {
    fn new() -> Self {
        let flaky = Flaky::default().with_records();
        let locks = LockManager::builder(flaky.clone())
            .renew_on_current_runtime()
            .build();
        Self {
            flaky,
            locks,
            runs: Arc::default(),
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    fn set(&self, load: Fault, save: Fault) {
        *self.flaky.wire.load.lock().unwrap() = load;
        *self.flaky.wire.save.lock().unwrap() = save;
    }

    fn checkout(&self) -> Router {
        let key = IdempotencyKey::header().global_keys();
        let layer = IdempotencyLayer::new(&self.locks, key).with_on_crash(OnCrash::Refuse);
        let runs = self.runs.clone();
        let handler = move || async move { runs.fetch_add(1, Ordering::SeqCst).to_string() };
        Router::new().route("/checkout", post(handler).route_layer(layer))
    }

    fn report(&self, change: impl FnOnce(SingleFlightLayer) -> SingleFlightLayer) -> Router {
        let layer = SingleFlightLayer::new(&self.locks, PathKey::new("report", "id"));
        let runs = self.runs.clone();
        let handler = move |flight: Flight| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            format!("{flight:?}")
        };
        let route = get(handler).route_layer(change(layer));
        Router::new().route("/reports/{id}", route)
    }

    async fn all_free(&self) {
        until("all is released", || {
            let state = self.locks.inspect();
            state.held.is_empty() && self.flaky.below.is_empty()
        })
        .await;
    }
}

fn pay() -> Request<Body> {
    let request = Request::post("/checkout").header("idempotency-key", "key");
    request.body(Body::empty()).unwrap()
}

fn ask() -> Request<Body> {
    Request::get("/reports/7").body(Body::empty()).unwrap()
}

fn is_replay(response: &Response<Body>) -> bool {
    response.headers().contains_key("idempotent-replayed")
}

/// Nothing runs that could not be told from a second run.
#[tokio::test(start_paused = true)]
async fn a_checkout_that_cannot_look_is_refused() {
    let rig = Rig::new();
    let app = rig.checkout();
    for fault in [AWAY, Fault::Hung] {
        rig.set(fault, Fault::None);
        let refused = call(&app, pay()).await;
        assert_eq!(outcome(&refused), (503, "backend-unavailable"), "{fault:?}");
    }
    assert_eq!(rig.runs(), 0);
    rig.set(Fault::None, Fault::None);
    rig.all_free().await;
    assert_eq!(call(&app, pay()).await.status(), 200);
    assert_eq!(rig.runs(), 1);
}

/// The client gets its response, and it is saved as soon as that works.
#[tokio::test(start_paused = true)]
async fn a_save_that_fails_is_tried_again() {
    let rig = Rig::new();
    let app = rig.checkout();
    rig.set(Fault::None, AWAY);
    let live = call(&app, pay()).await;
    assert_eq!(live.status(), 200);
    assert!(!is_replay(&live));
    let busy = call(&app, pay()).await;
    assert_eq!(outcome(&busy), (409, "in-progress"), "it is not saved yet");
    let saves = Wire::count(&rig.flaky.wire.saves);
    tokio::time::sleep(Duration::from_secs(5)).await;
    // It is not a matter of a moment.
    assert!(Wire::count(&rig.flaky.wire.saves) > saves);
    rig.set(Fault::None, Fault::None);
    rig.all_free().await;
    let replay = call(&app, pay()).await;
    assert!(is_replay(&replay));
    assert_eq!((text(replay).await, rig.runs()), ("0".to_owned(), 1));
}

/// The answer of a save comes late, or never: its client does not wait for ever, and it is saved.
#[tokio::test(start_paused = true)]
async fn a_save_without_an_answer_does_not_keep_the_client() {
    for fault in [Fault::Hung, Fault::LateReply(Duration::from_secs(3600))] {
        let rig = Rig::new();
        let app = rig.checkout();
        rig.set(Fault::None, fault);
        let begun = tokio::time::Instant::now();
        assert_eq!(call(&app, pay()).await.status(), 200);
        assert!(begun.elapsed() < Duration::from_secs(30), "{fault:?}");
        rig.set(Fault::None, Fault::None);
        rig.all_free().await;
        assert!(is_replay(&call(&app, pay()).await), "{fault:?}");
        assert_eq!(rig.runs(), 1);
    }
}

/// A store that never comes back: then nobody knows how it ended, and `OnCrash` says what happens.
#[tokio::test(start_paused = true)]
async fn what_could_not_be_saved_is_an_unknown_outcome() {
    let rig = Rig::new();
    let app = rig.checkout();
    rig.set(Fault::None, AWAY);
    assert_eq!(call(&app, pay()).await.status(), 200);
    tokio::time::sleep(Duration::from_secs(600)).await;
    rig.set(Fault::None, Fault::None);
    rig.all_free().await;
    let refused = call(&app, pay()).await;
    assert_eq!(outcome(&refused), (409, "outcome-unknown"));
    assert_eq!(rig.runs(), 1);
}

/// The lock saves work; without it the work is done.
#[tokio::test(start_paused = true)]
async fn a_flight_whose_store_is_away_goes_on_alone() {
    for shares in [false, true] {
        let rig = Rig::new();
        let app = rig.report(|layer| match shares {
            true => layer.share_response(Duration::from_secs(60)),
            false => layer,
        });
        for fault in [
            AWAY,
            Fault::Error(BackendErrorKind::Misconfigured),
            Fault::Hung,
        ] {
            rig.set(fault, Fault::None);
            let begun = tokio::time::Instant::now();
            let alone = call(&app, ask()).await;
            assert_eq!(alone.status(), 200, "{fault:?}");
            assert_eq!(text(alone).await, "Alone");
            // A wait, and an operation's time.
            assert!(begun.elapsed() < Duration::from_secs(60), "{fault:?}");
        }
        rig.set(Fault::None, Fault::None);
        assert_eq!(text(call(&app, ask()).await).await, "Leads");
        rig.all_free().await;
    }
}

/// A leader that cannot say that it is done has its response all the same, and is not waited for
/// longer than its lease lasts.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_say_that_it_is_done() {
    for fault in [AWAY, Fault::Hung] {
        let rig = Rig::new();
        let stage = Stage::new();
        let acts = stage.clone();
        let handler = move |flight: Flight| async move {
            if flight == Flight::Leads {
                acts.act().await;
            }
            format!("{flight:?}")
        };
        let layer = SingleFlightLayer::new(&rig.locks, PathKey::new("report", "id"))
            .with_wait(Duration::from_secs(3000));
        let app = Router::new().route("/reports/{id}", get(handler).route_layer(layer));
        let leader = start(&app, ask());
        stage.entered().await;
        let next = start(&app, ask());
        until_waiting(&rig.locks, 1).await;
        rig.set(Fault::None, fault);
        stage.let_go();
        assert_eq!(text(leader.await.unwrap()).await, "Leads", "{fault:?}");
        // Its lock went back, or its lease ended.
        stage.let_go();
        assert_eq!(text(next.await.unwrap()).await, "Leads", "{fault:?}");
        rig.set(Fault::None, Fault::None);
        rig.all_free().await;
    }
}

/// In the background nobody hears of it, and what is stale is served on.
#[tokio::test(start_paused = true)]
async fn a_rebuild_that_cannot_begin_is_tried_again() {
    let rig = Rig::new();
    let app = rig.report(|layer| {
        layer
            .share_response(Duration::from_millis(50))
            .stale_while_rebuild(Duration::from_secs(3600))
    });
    assert_eq!(text(call(&app, ask()).await).await, "Leads");
    // Freshness is counted by the system's clock, which is not paused.
    std::thread::sleep(Duration::from_millis(60));
    *rig.flaky.wire.acquire.lock().unwrap() = AWAY;
    for _ in 0..3 {
        assert_eq!(text(call(&app, ask()).await).await, "Leads");
        rig.all_free().await;
    }
    assert_eq!(rig.runs(), 1);
    rig.flaky.wire.up();
    until("one rebuilds", || {
        drop(start(&app, ask()));
        rig.runs() == 2
    })
    .await;
    rig.all_free().await;
}
