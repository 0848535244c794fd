//! Requests that ask for the same, on each backend that keeps records.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, HeaderName, Request, Response, StatusCode, header},
    response::{AppendHeaders, IntoResponse},
    routing::get,
};
use bytes::Bytes;
use http_body_util::{BodyExt, channel::Channel};
use tokio::{sync::Barrier, task::JoinHandle};
use tower::ServiceExt;
use tower_lock::{
    HeldLock, LockKey, LockManager, LockPolicy, OnDisconnect, SingleFlightLayer,
    key::PathKey,
    single_flight::{Flight, GiveUp},
};

use crate::{
    backends::{Backend, On, on_each_store},
    flaky::Flaky,
    support::{HOUR, SOON, Stage, soon, text, until},
};

on_each_store! {
    one_leads_and_the_others_follow_together,
    each_flight_has_a_leader_of_its_own,
    a_leader_that_fails_has_one_successor,
    a_leader_that_leaves_has_one_successor,
    a_leader_whose_client_leaves_goes_on,
    who_gives_up_frees_all,
    a_slow_leader_is_joined_by_one,
    who_waited_long_enough_runs_alone,
    a_leader_that_lost_its_lock_goes_on,
    too_many_are_refused,
    a_shutdown_refuses_those_who_wait,
    followers_get_the_response,
    a_leader_that_wants_nothing_kept_has_one_successor,
    a_shared_response_lasts_as_long_as_it_says,
    what_is_for_one_client_is_not_shared,
    newcomers_do_not_keep_those_who_waited,
    a_plain_lock_is_waited_for,
    requests_that_vary_fly_apart,
    the_leader_is_asked_for_all_of_it,
    what_cannot_be_stored_frees_all,
    a_body_that_breaks_off_is_shared_with_nobody,
    a_stale_response_is_served_while_one_rebuilds,
    trailers_are_shared,
}

/// What a leader does, once it is let go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turn {
    Succeeds,
    Fails,
    Panics,
    GivesUp,
}

/// A service with a cache, whose handlers say what they were.
#[derive(Clone)]
struct Reports(Arc<Inner>);

struct Inner {
    stage: Stage,
    turns: Mutex<VecDeque<Turn>>,
    leads: AtomicUsize,
    follows: AtomicUsize,
    alone: AtomicUsize,
    /// Followers go on once so many are there.
    together: Mutex<Option<Arc<Barrier>>>,
}

impl Reports {
    fn new() -> Self {
        Self(Arc::new(Inner {
            stage: Stage::new(),
            turns: Mutex::default(),
            leads: AtomicUsize::new(0),
            follows: AtomicUsize::new(0),
            alone: AtomicUsize::new(0),
            together: Mutex::default(),
        }))
    }

    /// The next leaders do this; after them all succeed.
    fn turns(&self, turns: impl IntoIterator<Item = Turn>) {
        self.0.turns.lock().unwrap().extend(turns);
    }

    fn meet(&self, count: usize) {
        *self.0.together.lock().unwrap() = Some(Arc::new(Barrier::new(count)));
    }

    fn stage(&self) -> &Stage {
        &self.0.stage
    }

    /// How many led, followed, and ran alone.
    fn ran(&self) -> (usize, usize, usize) {
        let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        let Inner {
            leads,
            follows,
            alone,
            ..
        } = &*self.0;
        (count(leads), count(follows), count(alone))
    }

    fn router(&self, layer: SingleFlightLayer) -> Router {
        Router::new()
            .route("/reports/{id}", get(report).post(report).route_layer(layer))
            .with_state(self.clone())
    }
}

async fn report(
    State(Reports(inner)): State<Reports>,
    Path(id): Path<String>,
    flight: Option<Flight>,
    held: Option<HeldLock>,
    headers: HeaderMap,
) -> Response<Body> {
    assert_eq!(held.is_some(), flight == Some(Flight::Leads));
    match flight {
        Some(Flight::Follows) => {
            inner.follows.fetch_add(1, Ordering::SeqCst);
            let together = inner.together.lock().unwrap().clone();
            if let Some(together) = together {
                soon("all who waited are here", together.wait()).await;
            }
            return "followed".into_response();
        }
        Some(Flight::Alone) => {
            inner.alone.fetch_add(1, Ordering::SeqCst);
            return "alone".into_response();
        }
        Some(Flight::Leads) => {}
        _ => return "in no flight".into_response(),
    }
    let lead = inner.leads.fetch_add(1, Ordering::SeqCst) + 1;
    inner.stage.act().await;
    let turn = inner.turns.lock().unwrap().pop_front();
    let language = headers.get("accept-language");
    let language = language.map_or("", |language| language.to_str().unwrap());
    let body = format!("lead {lead} of {id}{language}");
    let tags = AppendHeaders([("etag", "\"1\""), ("x-tag", "one"), ("x-tag", "two")]);
    match turn.unwrap_or(Turn::Succeeds) {
        Turn::Succeeds => (tags, body).into_response(),
        Turn::Fails => (StatusCode::INTERNAL_SERVER_ERROR, body).into_response(),
        Turn::Panics => panic!("as the test wants it"),
        Turn::GivesUp => (Extension(GiveUp), body).into_response(),
    }
}

fn layer(manager: &LockManager) -> SingleFlightLayer {
    SingleFlightLayer::new(manager, PathKey::new("report", "id"))
        .with_ttl(HOUR)
        .with_wait(SOON)
}

/// The same service in two instances, and what they wait in.
struct Fleet {
    backend: Backend,
    apps: [Router; 2],
    managers: [LockManager; 2],
}

impl Fleet {
    async fn new(
        on: On,
        reports: &Reports,
        change: impl Fn(SingleFlightLayer) -> SingleFlightLayer,
    ) -> Self {
        let backend = on.backend().await;
        let managers = [backend.manager(), backend.elsewhere().await.manager()];
        let apps = [&managers[0], &managers[1]].map(|manager| {
            let layer = change(layer(manager));
            reports.router(layer)
        });
        Self {
            backend,
            apps,
            managers,
        }
    }

    /// So many wait, over both: in the backend's queue, and not on their way to it.
    async fn waiting(&self, count: usize) {
        until("this many wait", || {
            let waiting = self
                .managers
                .iter()
                .flat_map(|manager| manager.inspect().waiting);
            waiting.map(|key| key.waiters).sum::<usize>() == count
        })
        .await;
        soon("they are in the queue", async {
            while self.queued().await != count as u64 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// How many stand in the backend's queue for what is waited for.
    async fn queued(&self) -> u64 {
        let keys: BTreeSet<_> = self
            .managers
            .iter()
            .flat_map(|manager| manager.inspect().waiting)
            .map(|waiting| waiting.key)
            .collect();
        let mut waiters = 0;
        for key in keys {
            waiters += self.managers[0].inspect_key(&key).await.unwrap().waiters;
        }
        waiters
    }

    /// So many requests, to both in turn.
    fn send(&self, count: usize) -> Vec<JoinHandle<Got>> {
        (0..count)
            .map(|n| tokio::spawn(ask(self.apps[n % 2].clone(), "7", &[])))
            .collect()
    }

    /// A leader on stage, and so many who wait for it.
    async fn crowd(
        &self,
        reports: &Reports,
        count: usize,
    ) -> (JoinHandle<Got>, Vec<JoinHandle<Got>>) {
        let leader = self.send(1).remove(0);
        reports.stage().entered().await;
        let crowd = self.send(count);
        self.waiting(count).await;
        (leader, crowd)
    }

    /// Nobody holds or waits any more; what was left for others may be there still.
    async fn all_released(&self) {
        until("nobody holds", || {
            self.managers.iter().all(|manager| {
                let state = manager.inspect();
                state.held.is_empty() && state.waiting.is_empty()
            })
        })
        .await;
        let key = LockKey::new("report", 7);
        soon("nothing is left", async {
            loop {
                let state = self.managers[0].inspect_key(&key).await.unwrap();
                if state.holders.is_empty() && state.waiters == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

/// What a client keeps of a response.
#[derive(Debug)]
struct Got {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Got {
    fn cache_status(&self) -> &str {
        let status = self.headers.get("cache-status");
        status.map_or("", |status| status.to_str().unwrap())
    }
}

fn ask(
    app: Router,
    id: &str,
    headers: &[(HeaderName, &'static str)],
) -> impl Future<Output = Got> + Send + 'static {
    let mut request = Request::get(format!("/reports/{id}"));
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    async move {
        let response = app.oneshot(request).await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = text(response).await;
        Got {
            status,
            headers,
            body,
        }
    }
}

async fn answer(waiting: JoinHandle<Got>) -> Got {
    soon("an answer", waiting).await.expect("no panic")
}

async fn all_bodies(crowd: Vec<JoinHandle<Got>>, body: &str) {
    for waiting in crowd {
        let got = answer(waiting).await;
        assert_eq!((got.status, &*got.body), (200, body));
    }
}

async fn one_leads_and_the_others_follow_together(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| layer).await;
    let (leader, crowd) = fleet.crowd(&reports, 49).await;
    // Each of them stays in its handler until all are in theirs.
    reports.meet(49);
    reports.stage().let_go();
    all_bodies(crowd, "followed").await;
    assert_eq!(answer(leader).await.body, "lead 1 of 7");
    assert_eq!(reports.ran(), (1, 49, 0));
    fleet.all_released().await;
}

/// What a leader left is for those who waited for it, and for nobody after them.
async fn each_flight_has_a_leader_of_its_own(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| layer).await;
    for flight in 1..4 {
        let (leader, crowd) = fleet.crowd(&reports, 5).await;
        reports.stage().let_go();
        all_bodies(crowd, "followed").await;
        assert_eq!(answer(leader).await.body, format!("lead {flight} of 7"));
    }
    // Another key, another method.
    reports.stage().let_go();
    let other = ask(fleet.apps[0].clone(), "8", &[]).await;
    assert_eq!(other.body, "lead 4 of 8");
    let post = Request::post("/reports/7").body(Body::empty()).unwrap();
    let post = fleet.apps[0].clone().oneshot(post).await.unwrap();
    assert_eq!(text(post).await, "in no flight");
    let head = Request::head("/reports/7").body(Body::empty()).unwrap();
    fleet.apps[0].clone().oneshot(head).await.unwrap();
    assert_eq!(reports.ran(), (4, 15, 0));
    fleet.all_released().await;
}

/// Fifty wait; three leaders in a row fail, each in its own way. Nobody but themselves sees it.
async fn a_leader_that_fails_has_one_successor(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| layer).await;
    let failures = [Turn::Fails, Turn::Panics, Turn::Fails];
    reports.turns(failures);
    let (leader, mut crowd) = fleet.crowd(&reports, 50).await;
    crowd.push(leader);
    for (failed, _) in failures.iter().enumerate() {
        reports.stage().let_go();
        reports.stage().entered().await;
        // One took its place, the others wait on.
        fleet.waiting(50 - failed - 1).await;
        assert_eq!(reports.stage().begun(), failed + 2);
        assert_eq!(reports.ran().1, 0);
    }
    reports.stage().let_go();
    let (mut failed, mut panicked, mut followed, mut led) = (0, 0, 0, 0);
    for waiting in crowd {
        match soon("an answer", waiting).await {
            Err(_) => panicked += 1,
            Ok(got) if got.status == 500 => failed += 1,
            Ok(got) if got.body == "followed" => followed += 1,
            Ok(got) => {
                assert_eq!(got.body, "lead 4 of 7");
                led += 1;
            }
        }
    }
    assert_eq!((failed, panicked, led, followed), (2, 1, 1, 47));
    fleet.all_released().await;
}

async fn a_leader_that_leaves_has_one_successor(on: On) {
    let reports = Reports::new();
    let cancels = |layer: SingleFlightLayer| layer.with_on_disconnect(OnDisconnect::Cancel);
    let fleet = Fleet::new(on, &reports, cancels).await;
    let (leader, crowd) = fleet.crowd(&reports, 50).await;
    leader.abort();
    reports.stage().left().await;
    reports.stage().entered().await;
    fleet.waiting(49).await;
    assert_eq!(reports.ran(), (2, 0, 0));
    reports.stage().let_go();
    for waiting in crowd {
        let got = answer(waiting).await;
        assert!(["lead 2 of 7", "followed"].contains(&&*got.body), "{got:?}");
    }
    assert_eq!(reports.ran(), (2, 49, 0));
    fleet.all_released().await;
}

async fn a_leader_whose_client_leaves_goes_on(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| layer).await;
    let (leader, crowd) = fleet.crowd(&reports, 10).await;
    leader.abort();
    assert!(leader.await.unwrap_err().is_cancelled());
    fleet.waiting(10).await;
    reports.stage().let_go();
    all_bodies(crowd, "followed").await;
    assert_eq!((reports.ran(), reports.stage().finished()), ((1, 10, 0), 1));
    fleet.all_released().await;
}

async fn who_gives_up_frees_all(on: On) {
    for by_predicate in [false, true] {
        let reports = Reports::new();
        let fleet = Fleet::new(on, &reports, |layer| {
            if by_predicate {
                layer.give_up_if(|head| head.headers.contains_key("etag"))
            } else {
                layer
            }
        })
        .await;
        if !by_predicate {
            reports.turns([Turn::GivesUp]);
        }
        let (leader, crowd) = fleet.crowd(&reports, 50).await;
        reports.meet(50);
        reports.stage().let_go();
        all_bodies(crowd, "followed").await;
        assert_eq!(answer(leader).await.body, "lead 1 of 7");
        fleet.all_released().await;
    }
}

async fn a_slow_leader_is_joined_by_one(on: On) {
    let reports = Reports::new();
    // The second grows as old, and is to be let go before.
    let age = Duration::from_secs(3);
    let fleet = Fleet::new(on, &reports, |layer| layer.with_max_leader_age(age)).await;
    let begun = std::time::Instant::now();
    let slow = fleet.send(1).remove(0);
    reports.stage().entered().await;
    let crowd = fleet.send(20);
    // It is not done; after a while one more leads, and only one.
    reports.stage().entered().await;
    assert!(begun.elapsed() >= age, "{:?}", begun.elapsed());
    fleet.waiting(19).await;
    assert_eq!(reports.ran(), (2, 0, 0));
    // Both are let go: whichever comes first frees nobody but by its right.
    reports.stage().let_go();
    reports.stage().let_go();
    let mut led = 0;
    for waiting in crowd {
        let got = answer(waiting).await;
        led += usize::from(got.body.starts_with("lead "));
        assert_eq!(got.status, 200);
    }
    assert!(led >= 1, "{led} of those who waited led");
    assert_eq!(answer(slow).await.body, "lead 1 of 7");
    fleet.all_released().await;
}

async fn who_waited_long_enough_runs_alone(on: On) {
    let reports = Reports::new();
    let wait = Duration::from_millis(200);
    let fleet = Fleet::new(on, &reports, |layer| layer.with_wait(wait)).await;
    // The leader's own wait counts while it asks, and is longer.
    let patient = reports.router(layer(&fleet.managers[0]));
    let leader = tokio::spawn(ask(patient, "7", &[]));
    reports.stage().entered().await;
    all_bodies(fleet.send(10), "alone").await;
    // A client does not choose: it would run at once.
    let prefers = [(HeaderName::from_static("prefer"), "wait=0")];
    let begun = std::time::Instant::now();
    let got = ask(fleet.apps[1].clone(), "7", &prefers).await;
    assert_eq!(got.body, "alone");
    assert!(begun.elapsed() >= wait, "{:?}", begun.elapsed());
    assert!(!got.headers.contains_key("preference-applied"));
    reports.stage().let_go();
    assert_eq!(answer(leader).await.body, "lead 1 of 7");
    assert_eq!(reports.ran(), (1, 0, 11));
    fleet.all_released().await;
}

async fn a_leader_that_lost_its_lock_goes_on(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| layer).await;
    let (first, crowd) = fleet.crowd(&reports, 10).await;
    assert!(fleet.backend.take_away(&LockKey::new("report", 7)).await);
    // The next one leads beside it.
    reports.stage().entered().await;
    fleet.waiting(9).await;
    reports.stage().let_go();
    reports.stage().let_go();
    assert_eq!(answer(first).await.body, "lead 1 of 7");
    for waiting in crowd {
        assert_eq!(answer(waiting).await.status, 200);
    }
    assert_eq!(reports.ran().2, 0);
    fleet.all_released().await;
}

async fn too_many_are_refused(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| layer.with_max_waiters(3)).await;
    let leader = fleet.send(1).remove(0);
    reports.stage().entered().await;
    let crowd: Vec<_> = (0..3)
        .map(|_| tokio::spawn(ask(fleet.apps[1].clone(), "7", &[])))
        .collect();
    fleet.waiting(3).await;
    let refused = ask(fleet.apps[1].clone(), "7", &[]).await;
    assert_eq!(refused.status, 429);
    assert!(refused.body.contains("too-many-waiters"), "{refused:?}");
    assert!(refused.headers.contains_key("retry-after"));
    reports.stage().let_go();
    all_bodies(crowd, "followed").await;
    assert_eq!(answer(leader).await.status, 200);
}

async fn a_shutdown_refuses_those_who_wait(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| layer).await;
    let (leader, crowd) = fleet.crowd(&reports, 10).await;
    let manager = fleet.managers[1].clone();
    soon("it is shut down", manager.shutdown(SOON)).await;
    let (mut refused, mut followed) = (0, 0);
    reports.stage().let_go();
    for waiting in crowd {
        let got = answer(waiting).await;
        if got.status == 503 {
            assert!(got.body.contains("draining"), "{got:?}");
            refused += 1;
        } else {
            assert_eq!(got.body, "followed");
            followed += 1;
        }
    }
    assert_eq!((refused, followed), (5, 5));
    assert_eq!(answer(leader).await.body, "lead 1 of 7");
    fleet.all_released().await;
}

fn shares(layer: SingleFlightLayer) -> SingleFlightLayer {
    layer.share_response(Duration::from_secs(60))
}

async fn followers_get_the_response(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, shares).await;
    let (leader, crowd) = fleet.crowd(&reports, 20).await;
    reports.stage().let_go();
    let live = answer(leader).await;
    assert_eq!(live.cache_status(), "tower-lock; fwd=miss; stored");
    assert!(!live.headers.contains_key("age"));
    let mut others = Vec::new();
    for waiting in crowd {
        let got = answer(waiting).await;
        let status = got.cache_status();
        assert!(
            status.starts_with("tower-lock; fwd=miss; collapsed; ttl="),
            "{status}"
        );
        others.push(got);
    }
    for app in &fleet.apps {
        let got = ask(app.clone(), "7", &[]).await;
        assert!(
            got.cache_status().starts_with("tower-lock; hit; ttl="),
            "{got:?}"
        );
        others.push(got);
    }
    for mut got in others {
        assert_eq!((got.status, &*got.body), (200, "lead 1 of 7"));
        let age: u64 = got.headers["age"].to_str().unwrap().parse().unwrap();
        assert!(age <= SOON.as_secs(), "{age}");
        for name in ["age", "cache-status", "content-length"] {
            got.headers.remove(name);
        }
        let mut expected = live.headers.clone();
        expected.remove("cache-status");
        expected.remove("content-length");
        assert_eq!(got.headers, expected);
    }
    assert_eq!(reports.ran(), (1, 0, 0));
    fleet.all_released().await;
}

/// What it got is not given to the others, and does not send all of them to the handler.
async fn a_leader_that_wants_nothing_kept_has_one_successor(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, shares).await;
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    let leader = tokio::spawn(ask(fleet.apps[0].clone(), "7", &no_store));
    reports.stage().entered().await;
    let crowd = fleet.send(20);
    fleet.waiting(20).await;
    reports.stage().let_go();
    let live = answer(leader).await;
    assert_eq!(live.body, "lead 1 of 7");
    assert_eq!(live.cache_status(), "tower-lock; fwd=miss");
    reports.stage().entered().await;
    fleet.waiting(19).await;
    reports.stage().let_go();
    all_bodies(crowd, "lead 2 of 7").await;
    // What is there it may have itself.
    let hit = ask(fleet.apps[0].clone(), "7", &no_store).await;
    assert_eq!(hit.body, "lead 2 of 7");
    assert_eq!(reports.ran(), (2, 0, 0));
    fleet.all_released().await;
}

async fn a_shared_response_lasts_as_long_as_it_says(on: On) {
    let backend = on.backend().await;
    let manager = backend.manager();
    let runs = Arc::new(AtomicUsize::new(0));
    let ran = runs.clone();
    let handler = move || async move {
        let run = ran.fetch_add(1, Ordering::SeqCst) + 1;
        ([("cache-control", "max-age=1, public")], run.to_string())
    };
    let app = Router::new().route(
        "/reports/{id}",
        get(handler).route_layer(shares(layer(&manager))),
    );
    let begun = std::time::Instant::now();
    assert_eq!(ask(app.clone(), "7", &[]).await.body, "1");
    let hit = ask(app.clone(), "7", &[]).await;
    if begun.elapsed() < Duration::from_secs(1) {
        assert_eq!(hit.body, "1");
    }
    let again = soon("it is made anew", async {
        loop {
            let got = ask(app.clone(), "7", &[]).await;
            if got.body != "1" {
                return got;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(again.await.body, "2");
    // Freshness is counted on another clock, in whole milliseconds.
    assert!(begun.elapsed() >= Duration::from_millis(990));
}

async fn what_is_for_one_client_is_not_shared(on: On) {
    let backend = on.backend().await;
    let manager = backend.manager();
    let runs = Arc::new(AtomicUsize::new(0));
    let ran = runs.clone();
    let handler = move |headers: HeaderMap| async move {
        let run = ran.fetch_add(1, Ordering::SeqCst) + 1;
        let mut response = run.to_string().into_response();
        // What it is to answer with.
        if let Some(asked) = headers.get("x-answer") {
            let asked = asked.to_str().unwrap();
            let (name, value) = asked.split_once(": ").unwrap();
            let name: HeaderName = name.parse().unwrap();
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    };
    let layer = shares(layer(&manager)).with_vary([header::ORIGIN]);
    let app = Router::new().route("/reports/{id}", get(handler).route_layer(layer));
    let mut expected = 0;
    let x_answer = HeaderName::from_static("x-answer");
    for (id, header) in [
        (x_answer.clone(), "set-cookie: session=1"),
        (x_answer.clone(), "cache-control: private"),
        (x_answer.clone(), "cache-control: no-store"),
        (x_answer.clone(), "vary: accept"),
        (x_answer.clone(), "content-type: text/event-stream"),
        (header::AUTHORIZATION, "Bearer x"),
        (header::COOKIE, "session=1"),
        (header::CACHE_CONTROL, "no-store"),
    ]
    .into_iter()
    .enumerate()
    {
        for _ in 0..2 {
            expected += 1;
            let got = ask(app.clone(), &id.to_string(), std::slice::from_ref(&header)).await;
            assert_eq!(got.body, expected.to_string(), "{header:?}");
            assert_eq!(got.cache_status(), "tower-lock; fwd=miss");
        }
    }
    // Of which nothing is to be kept, even if it is for all.
    let headers = [
        (header::CACHE_CONTROL, "no-store"),
        (x_answer.clone(), "cache-control: public"),
    ];
    for _ in 0..2 {
        expected += 1;
        let got = ask(app.clone(), "nothing", &headers).await;
        assert_eq!(got.body, expected.to_string());
        assert_eq!(got.cache_status(), "tower-lock; fwd=miss");
    }
    // With a name, but for all; and what varies by what the key tells apart.
    for (id, headers) in [
        vec![
            (header::AUTHORIZATION, "Bearer x"),
            (x_answer.clone(), "cache-control: public"),
        ],
        vec![(x_answer, "vary: Origin")],
    ]
    .into_iter()
    .enumerate()
    {
        expected += 1;
        for _ in 0..2 {
            let got = ask(app.clone(), &format!("shared-{id}"), &headers).await;
            assert_eq!(got.body, expected.to_string(), "{headers:?}");
        }
    }
}

/// A newcomer leads between the end of a leader and the moment in which those who waited look: they
/// have what they waited for all the same, flight after flight.
async fn newcomers_do_not_keep_those_who_waited(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| layer).await;
    for flight in 1..6 {
        let (leader, crowd) = fleet.crowd(&reports, 20).await;
        reports.stage().let_go();
        let lead = answer(leader).await;
        assert!(lead.body.starts_with("lead "), "{lead:?}");
        // It stays at work: whoever waited for it would stay as well.
        let newcomer = fleet.send(1).remove(0);
        all_bodies(crowd, "followed").await;
        reports.stage().entered().await;
        reports.stage().let_go();
        assert_eq!(
            answer(newcomer).await.body,
            format!("lead {} of 7", flight * 2)
        );
    }
    fleet.all_released().await;
}

/// A plain lock of the same key is waited for, whatever the last leader left.
async fn a_plain_lock_is_waited_for(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| layer).await;
    let (leader, crowd) = fleet.crowd(&reports, 3).await;
    reports.stage().let_go();
    all_bodies(crowd, "followed").await;
    answer(leader).await;
    let policy = LockPolicy::new();
    let lock = fleet.managers[0].acquire(LockKey::new("report", 7), &policy);
    let lock = lock.await.unwrap();
    let waits = fleet.send(1).remove(0);
    fleet.waiting(1).await;
    lock.release().await.unwrap();
    reports.stage().entered().await;
    reports.stage().let_go();
    assert_eq!(answer(waits).await.body, "lead 2 of 7");
}

async fn requests_that_vary_fly_apart(on: On) {
    for shared in [false, true] {
        let reports = Reports::new();
        let fleet = Fleet::new(on, &reports, |layer| {
            let layer = layer.with_vary([header::ACCEPT_LANGUAGE]);
            if shared { shares(layer) } else { layer }
        })
        .await;
        let mut leaders = Vec::new();
        for language in ["de", "fr"] {
            let headers = [(header::ACCEPT_LANGUAGE, language)];
            leaders.push(tokio::spawn(ask(fleet.apps[0].clone(), "7", &headers)));
            // Neither waits for the other.
            reports.stage().entered().await;
        }
        reports.stage().let_go();
        reports.stage().let_go();
        for (at, leader) in leaders.into_iter().enumerate() {
            let language = ["de", "fr"][at];
            let body = answer(leader).await.body;
            assert!(body.ends_with(&format!("of 7{language}")), "{body}");
        }
        assert_eq!(reports.ran(), (2, 0, 0));
    }
}

/// What a client has already is not known to the others.
async fn the_leader_is_asked_for_all_of_it(on: On) {
    let backend = on.backend().await;
    let manager = backend.manager();
    let handler = async |headers: HeaderMap| {
        let names: Vec<_> = headers.keys().map(|name| name.to_string()).collect();
        names.join(" ")
    };
    let router = |layer| Router::new().route("/reports/{id}", get(handler).route_layer(layer));
    let headers = [
        (header::IF_NONE_MATCH, "\"1\""),
        (header::IF_MODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:37 GMT"),
        (header::RANGE, "bytes=0-1"),
        (header::ACCEPT, "text/plain"),
    ];
    let shared = ask(router(shares(layer(&manager))), "7", &headers).await;
    assert_eq!(shared.body, "accept");
    let own = ask(router(layer(&manager)), "8", &headers).await;
    assert_eq!(own.body, "if-none-match if-modified-since range accept");
}

async fn what_cannot_be_stored_frees_all(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| shares(layer).with_max_response(5)).await;
    let (leader, crowd) = fleet.crowd(&reports, 20).await;
    reports.meet(20);
    reports.stage().let_go();
    all_bodies(crowd, "followed").await;
    let live = answer(leader).await;
    assert_eq!(live.body, "lead 1 of 7");
    assert_eq!(live.cache_status(), "tower-lock; fwd=miss");
    // Whoever comes later was not waiting: it leads.
    reports.stage().let_go();
    let next = ask(fleet.apps[1].clone(), "7", &[]).await;
    assert_eq!(next.body, "lead 2 of 7");
    fleet.all_released().await;
}

async fn a_body_that_breaks_off_is_shared_with_nobody(on: On) {
    let backend = on.backend().await;
    let manager = backend.manager();
    let runs = Arc::new(AtomicUsize::new(0));
    let stage = Stage::new();
    let (ran, acts) = (runs.clone(), stage.clone());
    let handler = move || async move {
        let run = ran.fetch_add(1, Ordering::SeqCst) + 1;
        acts.act().await;
        if run > 1 {
            return "whole".into_response();
        }
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(4);
        sender.send_data(Bytes::from("half")).await.unwrap();
        sender.abort(std::io::Error::other("it broke"));
        Body::new(body).into_response()
    };
    let layer = shares(layer(&manager));
    let app = Router::new().route("/reports/{id}", get(handler).route_layer(layer));
    let request = || Request::get("/reports/7").body(Body::empty()).unwrap();
    let broken = tokio::spawn(app.clone().oneshot(request()));
    stage.entered().await;
    let next = tokio::spawn(ask(app.clone(), "7", &[]));
    until("it waits", || manager.inspect().waiting.len() == 1).await;
    stage.let_go();
    let broken = soon("a head", broken).await.unwrap().unwrap();
    assert!(broken.into_body().collect().await.is_err());
    stage.let_go();
    assert_eq!(answer(next).await.body, "whole");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

async fn a_stale_response_is_served_while_one_rebuilds(on: On) {
    let reports = Reports::new();
    let fleet = Fleet::new(on, &reports, |layer| {
        layer
            .share_response(Duration::from_millis(100))
            .stale_while_rebuild(Duration::from_secs(600))
    })
    .await;
    reports.stage().let_go();
    let first = ask(fleet.apps[0].clone(), "7", &[]).await;
    assert_eq!(first.body, "lead 1 of 7");
    reports.stage().entered().await;
    // What would be made for one by name is not made for all.
    let by_name = [(header::COOKIE, "session=1")];
    let stale = soon("it is stale", async {
        loop {
            let got = ask(fleet.apps[0].clone(), "7", &by_name).await;
            if got.headers["cache-status"]
                .to_str()
                .unwrap()
                .contains("; ttl=-")
            {
                return got;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(stale.await.body, "lead 1 of 7");
    fleet.all_released().await;
    assert_eq!(reports.stage().begun(), 1);
    let mut led = 1;
    // One that fails changes nothing: a later one tries again.
    for turn in [Turn::Fails, Turn::Panics, Turn::Succeeds] {
        reports.turns([turn]);
        soon("one rebuilds", async {
            while reports.stage().begun() == led {
                let got = ask(fleet.apps[led % 2].clone(), "7", &[]).await;
                assert_eq!((got.status, &*got.body), (200, "lead 1 of 7"));
                tokio::task::yield_now().await;
            }
        })
        .await;
        reports.stage().entered().await;
        led += 1;
        // It is at work, and nobody waits for it; nor does another begin.
        all_bodies(fleet.send(20), "lead 1 of 7").await;
        reports.stage().let_go();
        reports.stage().left().await;
        fleet.all_released().await;
        assert_eq!(reports.stage().begun(), led);
    }
    let got = soon("the new one is served", async {
        loop {
            let got = ask(fleet.apps[0].clone(), "7", &[]).await;
            if got.body != "lead 1 of 7" {
                return got;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(got.await.body, "lead 4 of 7");
    // Let go whoever began since.
    (0..20).for_each(|_| reports.stage().let_go());
    fleet.all_released().await;
}

async fn trailers_are_shared(on: On) {
    let backend = on.backend().await;
    let manager = backend.manager();
    let handler = async || {
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(4);
        sender.send_data(Bytes::from("data")).await.unwrap();
        let trailers =
            HeaderMap::from_iter([(HeaderName::from_static("x-checksum"), "42".parse().unwrap())]);
        sender.send_trailers(trailers).await.unwrap();
        Body::new(body)
    };
    let layer = shares(layer(&manager));
    let app = Router::new().route("/reports/{id}", get(handler).route_layer(layer));
    for _ in 0..2 {
        let request = Request::get("/reports/7").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["x-checksum"], "42");
        assert_eq!(collected.to_bytes(), "data");
    }
}

#[tokio::test]
#[should_panic(expected = "keeps no records")]
async fn a_backend_without_records_is_refused() {
    let _ = layer(&LockManager::new(Flaky::default()));
}

#[tokio::test]
#[should_panic(expected = "stale_while_rebuild is set")]
async fn what_is_not_shared_is_not_served_stale() {
    let backend = On::Memory.backend().await;
    let _ = layer(&backend.manager()).stale_while_rebuild(Duration::from_secs(1));
}
