//! Locks that are lost while the handler runs: the handler is stopped or told before the lease
//! can end, and nothing that belongs to a successor is touched.
//!
//! Outages are those of a wire that fails on demand, by a paused clock, because they are about
//! when exactly a lock is given up; a server that is really away is in `fleet::away`.

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use axum::{Router, routing::post};
use tokio::time::{Instant, sleep};
use tower_lock::{
    BackendErrorKind, FencingToken, HeldLock, LockBackend, LockKey, LockLayer, LockManager,
    LockPolicy, Loss, OnDisconnect, OnLost, Wait,
};

use crate::{
    backends::{On, on_each_backend},
    flaky::{
        Fault, Flaky, Gate, Wire, call, flaky, flaky_on, order, outcome, post_to, start, until,
    },
    support::SOON,
};

on_each_backend!(
    a_stolen_lock_aborts_the_handler(paused),
    a_stolen_lock_signals_the_handler(paused),
    a_stale_holder_touches_nothing(paused),
    a_hung_handler_is_stopped_at_max_hold(paused),
    a_detached_handler_is_stopped_too(paused),
    an_operator_takes_the_lock(paused),
);

const TTL: Duration = Duration::from_secs(30);

/// The same, where it takes real time; a machine may stall for most of it.
fn ttl(on: On) -> Duration {
    if on.is_here() {
        TTL
    } else {
        on.ttl(Duration::from_secs(3))
    }
}

/// How late what comes may be: little by a paused clock, and by the real one only not never.
fn late(on: On) -> Duration {
    if on.is_here() {
        Duration::from_secs(1)
    } else {
        SOON
    }
}

fn seven() -> LockKey {
    LockKey::new("order", 7)
}

/// Notes when it is dropped.
struct Dropped(Arc<Mutex<Option<Instant>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = Some(Instant::now());
    }
}

/// A handler that never ends, and when it was dropped.
fn endless(layer: LockLayer) -> (Router, Arc<Mutex<Option<Instant>>>) {
    let dropped = Arc::<Mutex<Option<Instant>>>::default();
    let note = Arc::clone(&dropped);
    let handler = move || {
        let _note = Dropped(note.clone());
        async move {
            let _note = _note;
            std::future::pending::<()>().await;
        }
    };
    let app = Router::new().route("/orders/{id}/pay", post(handler).route_layer(layer));
    (app, dropped)
}

async fn holds(backend: &Flaky) -> bool {
    !backend.inspect(&seven()).await.unwrap().holders.is_empty()
}

/// Somebody takes the key away and says nothing: the next renewal shows it, the handler is dropped
/// and the client gets a 500 before the lease could have ended; the thief keeps its lock.
async fn a_stolen_lock_aborts_the_handler(on: On) {
    let ttl = ttl(on);
    let (backend, locks) = flaky_on(on).await;
    let (app, dropped) = endless(order(&locks).with_ttl(ttl));
    let began = Instant::now();
    let request = start(&app, post_to("/orders/7/pay"));
    until("it is held", || locks.inspect().held.len() == 1).await;
    let thief = backend.steal(&seven(), Duration::from_secs(3600)).await;

    let response = request.await.unwrap();
    assert_eq!(outcome(&response), (500, "lock-lost"));
    assert!(began.elapsed() < ttl, "{:?}", began.elapsed());
    assert!(dropped.lock().unwrap().is_some());
    assert!(locks.inspect().held.is_empty());
    // Time for whatever release might be on its way.
    sleep(ttl * 4 / 3).await;
    assert!(holds(&backend).await, "a foreign lock was released");
    drop(thief);
}

/// The same with `Signal`: the handler is told and decides; its answer is what the client gets.
async fn a_stolen_lock_signals_the_handler(on: On) {
    let ttl = ttl(on);
    let (backend, locks) = flaky_on(on).await;
    let app = Router::new().route(
        "/orders/{id}/pay",
        post(move |held: HeldLock| async move {
            let began = Instant::now();
            assert_eq!(held.lost().await, Loss::Revoked);
            assert!(began.elapsed() < ttl);
            assert!(!held.is_held());
            assert_eq!(held.remaining(), Duration::ZERO);
            "undone"
        })
        .route_layer(order(&locks).with_ttl(ttl).with_on_lost(OnLost::Signal)),
    );
    let request = start(&app, post_to("/orders/7/pay"));
    until("it is held", || locks.inspect().held.len() == 1).await;
    let thief = backend.steal(&seven(), Duration::from_secs(3600)).await;
    let response = request.await.unwrap();
    assert_eq!(crate::support::text(response).await, "undone");
    sleep(ttl * 4 / 3).await;
    assert!(holds(&backend).await, "a foreign lock was released");
    drop(thief);
}

/// A holder that is paused past its lease: the successor has the lock with a greater token, and
/// the old holder's return and release change nothing.
async fn a_stale_holder_touches_nothing(on: On) {
    let ttl = ttl(on);
    let (backend, locks) = flaky_on(on).await;
    let tokens: Arc<Mutex<Vec<FencingToken>>> = Arc::default();
    let gate = Gate::shut();
    let app = Router::new().route(
        "/orders/{id}/pay",
        post({
            let (tokens, gate) = (tokens.clone(), gate.clone());
            move |held: HeldLock| async move {
                tokens.lock().unwrap().push(held.fencing_token());
                // It does not look at the loss: the storage would have to refuse it.
                gate.pass().await;
                held.is_held().to_string()
            }
        })
        .route_layer(
            order(&locks)
                .with_ttl(ttl)
                .with_on_lost(OnLost::Signal)
                .with_wait(Wait::Forever),
        ),
    );
    let began = Instant::now();
    let old = start(&app, post_to("/orders/7/pay"));
    gate.until_inside(1).await;
    // Nothing of the old holder's reaches the backend.
    backend.wire.all(Fault::Hung);
    *backend.wire.acquire.lock().unwrap() = Fault::None;
    let new = start(&app, post_to("/orders/7/pay"));
    while gate.inside.now() < 2 {
        sleep(Duration::from_millis(100)).await;
        assert!(began.elapsed() < ttl + late(on));
    }
    let ended = began.elapsed();
    assert!(ended + on.early(ttl) >= ttl, "early: {ended:?}");
    backend.wire.up();
    let order_of_tokens = tokens.lock().unwrap().clone();
    assert!(order_of_tokens[1] > order_of_tokens[0]);

    gate.let_out(1);
    assert_eq!(crate::support::text(old.await.unwrap()).await, "false");
    sleep(ttl * 4 / 3).await;
    assert!(holds(&backend).await, "the successor's lock was released");
    let state = backend.inspect(&seven()).await.unwrap();
    assert_eq!(state.holders[0].fencing_token, Some(order_of_tokens[1]));
    gate.let_out(1);
    assert_eq!(crate::support::text(new.await.unwrap()).await, "true");
    backend.below.freed().await;
}

/// The backend is away for one renewal: nobody notices.
#[tokio::test(start_paused = true)]
async fn an_outage_of_one_interval_is_survived() {
    let (backend, locks) = flaky();
    let gate = Gate::shut();
    let app = gate.orders(order(&locks).with_ttl(TTL));
    let request = start(&app, post_to("/orders/7/pay"));
    gate.until_inside(1).await;
    for outage in [
        Fault::Error(BackendErrorKind::Unavailable),
        Fault::Slow(TTL / 6),
    ] {
        backend.wire.all(outage);
        sleep(TTL / 2).await;
        assert!(Wire::count(&backend.wire.renews) > 0, "a renewal was tried");
        backend.wire.up();
        sleep(TTL * 2).await;
        assert!(holds(&backend).await);
        assert!(locks.inspect().held[0].remaining > TTL / 3);
    }
    gate.let_out(1);
    assert_eq!(request.await.unwrap().status(), 200);
    assert!(backend.below.is_empty());
}

/// The backend stays away: the lock is lost, and its handler dropped, before the lease ends.
#[tokio::test(start_paused = true)]
async fn a_longer_outage_loses_the_lock_before_the_lease_ends() {
    for outage in [Fault::Error(BackendErrorKind::Unavailable), Fault::Hung] {
        let (backend, locks) = flaky();
        let (app, dropped) = endless(order(&locks).with_ttl(TTL));
        let began = Instant::now();
        let request = start(&app, post_to("/orders/7/pay"));
        until("it is held", || locks.inspect().held.len() == 1).await;
        backend.wire.all(outage);
        let response = request.await.unwrap();
        assert_eq!(outcome(&response), (500, "lock-lost"));
        let end = dropped.lock().unwrap().unwrap() - began;
        assert!(end < TTL, "the lease had ended: {end:?}");
        assert!(end > TTL * 9 / 10, "given up early: {end:?}");
        assert!(holds(&backend).await, "the server's lease is no shorter");
        assert!(Wire::count(&backend.wire.renews) > 0);
    }
}

/// Leases are counted on the monotonic clock: hours of it pass here while the wall clock stands
/// still, as if that had been set back by as much, and a renewed lock stays held.
#[tokio::test(start_paused = true)]
async fn the_wall_clock_does_not_count() {
    let (backend, locks) = flaky();
    let gate = Gate::shut();
    let layer = order(&locks)
        .with_ttl(TTL)
        .with_max_hold(Duration::from_secs(86_400));
    let request = start(&gate.orders(layer), post_to("/orders/7/pay"));
    gate.until_inside(1).await;
    let wall = std::time::SystemTime::now();
    for _ in 0..120 {
        sleep(Duration::from_secs(60)).await;
        assert!(holds(&backend).await);
    }
    assert!(wall.elapsed().unwrap() < Duration::from_secs(600));
    gate.let_out(1);
    assert_eq!(request.await.unwrap().status(), 200);
}

/// A hung handler loses its lock at `max_hold`, however well its renewals go, and the next request
/// gets it.
async fn a_hung_handler_is_stopped_at_max_hold(on: On) {
    let ttl = ttl(on);
    let (backend, locks) = on.rig().await;
    let max = ttl * 2;
    let (app, dropped) = endless(
        order(&locks)
            .with_ttl(ttl)
            .with_max_hold(max)
            .with_wait(Wait::Forever),
    );
    let began = Instant::now();
    let hung = start(&app, post_to("/orders/7/pay"));
    until("it is held", || locks.inspect().held.len() == 1).await;
    let policy = LockPolicy::new().with_wait(Wait::Forever);
    let next = locks.acquire(seven(), &policy).await.unwrap();
    assert_eq!(outcome(&hung.await.unwrap()), (500, "lock-lost"));
    let end = dropped.lock().unwrap().unwrap() - began;
    assert!(end >= max && end < max + late(on), "{end:?}");
    assert!(next.is_held());
    next.release().await.unwrap();
    backend.freed().await;
}

/// A handler that was detached from its caller is stopped by a loss as well.
async fn a_detached_handler_is_stopped_too(on: On) {
    let ttl = ttl(on);
    let (backend, locks) = flaky_on(on).await;
    let layer = order(&locks)
        .with_ttl(ttl)
        .with_on_disconnect(OnDisconnect::Detach);
    let (app, dropped) = endless(layer);
    let began = Instant::now();
    let request = start(&app, post_to("/orders/7/pay"));
    until("it is held", || locks.inspect().held.len() == 1).await;
    tokio::task::yield_now().await;
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    sleep(ttl * 4 / 3).await;
    let stopped = dropped.lock().unwrap().map(|at| at - began);
    assert_eq!(stopped, None, "it runs on without its caller");
    assert!(holds(&backend).await, "and is renewed");

    let thief = backend.steal(&seven(), Duration::from_secs(3600)).await;
    // A renewal is due by then; over a network its answer takes a moment.
    sleep(ttl).await;
    until("it was stopped", || {
        dropped.lock().unwrap().is_some() && locks.inspect().held.is_empty()
    })
    .await;
    assert!(holds(&backend).await, "a foreign lock was released");
    drop(thief);
}

/// An operator's `force_release`: the holder is told at once, and the next one gets the key.
async fn an_operator_takes_the_lock(on: On) {
    let (backend, locks) = on.rig().await;
    let (app, _) = endless(order(&locks).with_ttl(TTL));
    let request = start(&app, post_to("/orders/7/pay"));
    until("it is held", || locks.inspect().held.len() == 1).await;
    let began = Instant::now();
    assert!(locks.force_release(&seven()).await.unwrap());
    assert_eq!(outcome(&request.await.unwrap()), (500, "lock-lost"));
    // Not by its next renewal, which comes after nine seconds or more.
    let at_once = Duration::from_millis(if on.is_here() { 10 } else { 8000 });
    assert!(began.elapsed() < at_once);
    assert!(
        !locks.force_release(&seven()).await.unwrap(),
        "nobody has it"
    );
    backend.freed().await;
}

/// The last renewal of a holder that was answered too late to count.
#[tokio::test(start_paused = true)]
async fn a_renewal_with_a_late_reply_counts_from_its_sending() {
    let (backend, locks): (Flaky, LockManager) = flaky();
    let gate = Gate::shut();
    let request = start(
        &gate.orders(order(&locks).with_ttl(TTL)),
        post_to("/orders/7/pay"),
    );
    gate.until_inside(1).await;
    *backend.wire.renew.lock().unwrap() = Fault::LateReply(TTL / 6);
    sleep(TTL * 4).await;
    let held = &locks.inspect().held[0];
    assert!(held.remaining <= TTL && held.remaining > Duration::ZERO);
    assert!(backend.wire.renews.load(Ordering::SeqCst) >= 4);
    gate.let_out(1);
    assert_eq!(request.await.unwrap().status(), 200);
    gate.let_out(1);
    let again = call(
        &gate.orders(order(&locks).with_wait(Wait::Fail)),
        post_to("/orders/7/pay"),
    )
    .await;
    assert_eq!(again.status(), 200, "it is free");
}
