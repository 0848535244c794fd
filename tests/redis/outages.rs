//! The server goes away, forgets, or does not answer.

use std::time::{Duration, Instant};

use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, Loss, RedisBackend,
    backend::{AcquireRequest, WaitBound, redis::RedisLease},
    lease::drift_margin,
};

use crate::{
    servers::RedisServer,
    support::{
        LONG, SLACK, UNDONE, connect, connect_with, hold, key, name, patient, served, timed,
        try_it, until, until_nothing_is_left, wait, wait_with, waiters,
    },
};

const TIMEOUT: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_unavailable_and_says_nothing_about_leases() {
    let server = RedisServer::start();
    let backend = connect_with(&server.url(), TIMEOUT).await;
    let lease = hold(&backend, &key(1)).await;
    let promised = lease.valid_until();
    server.kill();

    for attempt in 0..10 {
        let (refused, took) = timed(try_it(&backend, &key(2))).await;
        assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
        assert!(took < TIMEOUT + SLACK, "attempt {attempt} took {took:?}");
    }
    // Not knowing is not loss.
    let error = lease.renew().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert_eq!(lease.lost().get(), None);
    assert_eq!(lease.valid_until(), promised);
    let error = lease.release().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    let error = backend.inspect(&key(1)).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);

    server.restart();
    let token = lease.fencing_token();
    until("it works again", async || {
        match try_it(&backend, &key(1)).await {
            Ok(lease) => lease.fencing_token() > token,
            Err(_) => false,
        }
    })
    .await;
}

/// Two that wait for a server that comes back, however long a busy machine takes to start it.
async fn two_patient_clients(server: &RedisServer) -> (RedisBackend, RedisBackend) {
    let patience = Duration::from_secs(10);
    let one = connect_with(&server.url(), patience).await;
    (one, connect_with(&server.url(), patience).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_empty_restart_tokens_grow_holders_learn_and_waiters_are_served() {
    let server = RedisServer::start();
    let (one, two) = two_patient_clients(&server).await;
    let lease = hold(&one, &key(1)).await;
    let first = wait(&server, &one, &key(1)).await;
    let second = wait(&server, &two, &key(1)).await;
    server.restart_empty();

    let begun = Instant::now();
    // Whose process is connected again first is first.
    let (mut first, mut second) = (first, second);
    let (next, last) = tokio::select! {
        lease = &mut first => (lease, second),
        lease = &mut second => (lease, first),
    };
    let next = next.unwrap().unwrap();
    println!("served {:?} after the restart", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(1) + SLACK);
    assert!(next.fencing_token() > lease.fencing_token());
    let error = lease.renew().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Lost);
    assert_eq!(lease.lost().get(), Some(Loss::Revoked));
    // Too late to do anything to its successor.
    lease.release().await.unwrap();
    next.renew().await.unwrap();

    until("the other is in the queue", async || {
        waiters(&server, &key(1)) == 1
    })
    .await;
    // It may ask before it hears.
    until("both have connected again", async || {
        server.command(&["PUBSUB", "CHANNELS"]).texts().len() == 2
    })
    .await;
    next.release().await.unwrap();
    let (last, _) = served(last, SLACK).await;
    assert!(last.fencing_token() > next.fencing_token());
    last.release().await.unwrap();
    until_nothing_is_left(&server, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_data_loses_no_lock_and_no_place() {
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = RedisServer::start_with(&durable);
    let (one, two) = two_patient_clients(&server).await;
    let lease = hold(&one, &key(1)).await;
    let first = wait(&server, &two, &key(1)).await;
    let second = wait(&server, &one, &key(1)).await;
    server.restart();
    until("it is still held", async || lease.renew().await.is_ok()).await;
    // Places, not just entries: the first is served first.
    until("both have connected again", async || {
        server.command(&["PUBSUB", "CHANNELS"]).texts().len() == 2
    })
    .await;
    assert_eq!(waiters(&server, &key(1)), 2);
    lease.release().await.unwrap();
    let (first, _) = served(first, Duration::from_secs(2)).await;
    assert!(!second.is_finished());
    assert!(first.fencing_token() > lease.fencing_token());
    first.release().await.unwrap();
    let (second, _) = served(second, Duration::from_secs(2)).await;
    second.release().await.unwrap();
    until_nothing_is_left(&server, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_flush_holders_learn_and_waiters_are_served_again() {
    let server = RedisServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    let lease = hold(&one, &key(1)).await;
    let waiting = [
        wait(&server, &two, &key(1)).await,
        wait(&server, &one, &key(1)).await,
    ];
    server.command(&["FLUSHALL"]);
    // Nobody is told: the waiters find out by their own timers, a second at most.
    let mut last = lease.fencing_token();
    let error = lease.renew().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Lost);
    let limit = Duration::from_millis(1200) + SLACK;
    let (mut leases, mut left) = (Vec::new(), Vec::from(waiting));
    while !left.is_empty() {
        until("one is served", async || {
            left.iter().any(|w| w.is_finished())
        })
        .await;
        let at = left.iter().position(|w| w.is_finished()).unwrap();
        let (lease, _) = served(left.remove(at), limit).await;
        assert!(lease.fencing_token() > last);
        last = lease.fencing_token();
        // The other one is not served while this one holds.
        assert_eq!(left.iter().filter(|w| w.is_finished()).count(), 0);
        lease.release().await.unwrap();
        leases.push(lease);
    }
    until_nothing_is_left(&server, UNDONE).await;
}

/// The kernel accepts and keeps what is sent to a stopped server, so it is executed later.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_stopped_server_executes_late_is_undone() {
    let server = RedisServer::start();
    let backend = connect_with(&server.url(), TIMEOUT).await;
    let held = hold(&backend, &key("held")).await;
    let promised = held.valid_until();
    server.pause();
    let (refused, took) = timed(try_it(&backend, &key(1))).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    let waiter = backend.acquire(&patient(&key(2), LONG)).await;
    assert_eq!(waiter.unwrap_err().kind(), BackendErrorKind::Unavailable);
    // One whose caller leaves meanwhile.
    let left = tokio::time::timeout(TIMEOUT / 3, try_it(&backend, &key(3))).await;
    assert!(left.is_err());
    assert_eq!(
        held.renew().await.unwrap_err().kind(),
        BackendErrorKind::Unavailable
    );
    assert_eq!(held.valid_until(), promised);

    server.resume();
    until("it is released", async || held.release().await.is_ok()).await;
    let took = until_nothing_is_left(&server, TIMEOUT * 2 + SLACK).await;
    println!("undone {took:?} after the server went on");
    // Also what may have been on its way.
    tokio::time::sleep(TIMEOUT).await;
    until_nothing_is_left(&server, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stopped_for_longer_than_the_ttl_ends_the_lease() {
    let server = RedisServer::start();
    // Longer than the stop, or the waiter may be refused, as it is by a server that stays away.
    let backend = connect_with(&server.url(), TIMEOUT * 6).await;
    // So long that the waiter is in the queue before its end.
    let ttl = Duration::from_secs(2);
    let lease = backend.acquire(&patient(&key(1), ttl)).await.unwrap();
    let waiting = wait(&server, &backend, &key(1)).await;
    server.pause();
    tokio::time::sleep(ttl + Duration::from_millis(100)).await;
    assert!(lease.valid_until() < tokio::time::Instant::now());
    server.resume();
    let (next, took) = served(waiting, Duration::from_secs(3)).await;
    println!("the waiter was served {took:?} after the server went on");
    assert!(next.fencing_token() > lease.fencing_token());
    assert_eq!(
        lease.renew().await.unwrap_err().kind(),
        BackendErrorKind::Lost
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_a_server_that_stays_away_is_told() {
    let server = RedisServer::start();
    let backend = connect_with(&server.url(), TIMEOUT).await;
    let _lease = hold(&backend, &key(1)).await;
    let waiting = wait(&server, &backend, &key(1)).await;
    server.kill();
    let (result, took) = timed(waiting).await;
    println!("the waiter was told {took:?} after the server was killed");
    assert_eq!(
        result.unwrap().unwrap_err().kind(),
        BackendErrorKind::Unavailable
    );
    assert!(took < TIMEOUT * 3 + SLACK, "{took:?}");
}

/// Writes wait, and are executed at the end of the pause.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_paused_server_executes_late_is_undone() {
    for what in ["ALL", "WRITE"] {
        let server = RedisServer::start();
        let backend = connect_with(&server.url(), TIMEOUT).await;
        let held = hold(&backend, &key("held")).await;
        server.command(&["CLIENT", "PAUSE", "3000", what]);
        let (refused, took) = timed(try_it(&backend, &key(1))).await;
        assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
        assert!(took < TIMEOUT + SLACK, "{what}: {took:?}");
        assert_eq!(
            held.renew().await.unwrap_err().kind(),
            BackendErrorKind::Unavailable
        );
        until("the pause is over", async || held.renew().await.is_ok()).await;
        held.release().await.unwrap();
        until_nothing_is_left(&server, TIMEOUT * 2 + SLACK).await;
        hold(&backend, &key(1)).await.release().await.unwrap();
    }
}

/// Also while its next question has no answer, and what that one asked for is undone.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_at_its_deadline_while_the_server_is_silent() {
    // So long that it is in the queue before that.
    const WAIT: Duration = Duration::from_secs(2);
    const PAUSE: Duration = Duration::from_secs(4);
    let server = RedisServer::start();
    let backend = connect_with(&server.url(), PAUSE * 2).await;
    let held = hold(&backend, &key(1)).await;
    let deadline = tokio::time::Instant::now() + WAIT;
    let request = AcquireRequest::new(key(1), LONG).with_wait(WaitBound::Until(deadline));
    let waiting = tokio::spawn(async move { backend.acquire(&request).await });
    until("it waits", async || waiters(&server, &key(1)) == 1).await;

    let inbox = server.command(&["PUBSUB", "CHANNELS"]).texts().remove(0);
    let mut operator = server.client();
    for command in [
        &["MULTI"][..],
        &["PUBLISH", &inbox, &format!("x {}", name(&key(1)))],
        &["CLIENT", "PAUSE", &PAUSE.as_millis().to_string(), "ALL"],
        &["EXEC"],
    ] {
        operator.call(command).unwrap();
    }
    let (result, late) = timed(waiting).await;
    assert_eq!(
        result.unwrap().unwrap_err().kind(),
        BackendErrorKind::WaitTimedOut
    );
    assert!(late < WAIT + SLACK, "{late:?}");
    held.release().await.unwrap();
    until_nothing_is_left(&server, PAUSE + SLACK).await;
}

/// The lease is counted from before the request, however late the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_server_shortens_what_a_holder_counts_on() {
    let server = RedisServer::start();
    let backend = connect_with(&server.url(), Duration::from_secs(2)).await;
    // So that what follows is one request.
    hold(&backend, &key(0)).await.release().await.unwrap();
    let ttl = Duration::from_secs(10);
    let slow = Duration::from_millis(300);
    // What the lease is counted from, as who holds it sees it.
    let from = |lease: &RedisLease| lease.valid_until() + drift_margin(ttl) - ttl;
    // The server answers nothing before it has slept, so what is counted from an answer is counted
    // from after that, in every round. A request that this machine sent late may be as well.
    let mut rounds = 0..20;
    let mut next_round = || rounds.next().expect("counted from the answer");

    let lease = loop {
        next_round();
        let begun = tokio::time::Instant::now();
        let mut sleeper = server.begin(&["DEBUG", "SLEEP", "0.3"]);
        let sent = tokio::time::Instant::now();
        let lease = backend.acquire(&patient(&key(1), ttl)).await.unwrap();
        let was_slow = begun.elapsed() >= slow;
        sleeper.read().unwrap();
        assert!(from(&lease) >= sent);
        if was_slow && from(&lease) < begun + slow {
            break lease;
        }
        lease.release().await.unwrap();
    };

    loop {
        next_round();
        let begun = tokio::time::Instant::now();
        let mut sleeper = server.begin(&["DEBUG", "SLEEP", "0.3"]);
        lease.renew().await.unwrap();
        let was_slow = begun.elapsed() >= slow;
        sleeper.read().unwrap();
        if was_slow && from(&lease) < begun + slow {
            break;
        }
    }

    // So for a waiter: from its confirmation, never from the offer.
    let waiting = wait_with(&server, &backend, patient(&key(1), ttl)).await;
    lease.release().await.unwrap();
    let (next, _) = served(waiting, SLACK).await;
    assert!(next.valid_until() > tokio::time::Instant::now() + ttl - drift_margin(ttl) - SLACK);
    next.release().await.unwrap();
    until_nothing_is_left(&server, UNDONE).await;
}
