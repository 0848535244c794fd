//! The one server hangs, dies, comes back.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _, Loss};

use crate::{
    servers::Etcd,
    support::{
        LONG, SLACK, connect, connect_with, hold, hold_for, keep, key, patient, served, timed,
        try_it, until_it_serves, until_nothing_is_left, wait,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_for_a_moment_costs_nobody_anything() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let ttl = Duration::from_secs(6);
    let (held, keeper) = keep(hold_for(&backend, &key(1), ttl).await, ttl);
    let waiting = wait(&backend, &key(1)).await;
    for _ in 0..2 {
        server.pause(0);
        sleep(Duration::from_millis(1500)).await;
        server.resume(0);
        sleep(Duration::from_millis(1500)).await;
    }
    assert!(held.lost().get().is_none());
    assert!(!waiting.is_finished());
    keeper.abort();
    held.release().await.unwrap();
    let (lease, _) = served(waiting, SLACK * 2).await;
    lease.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// Told by its own clock, at the end that it could count on.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_for_longer_than_a_lease_ends_it_and_serves_the_next_when_it_wakes() {
    let server = Etcd::start();
    let backend = connect_with(&server.url(), Duration::from_millis(600)).await;
    let ttl = Duration::from_secs(2);
    let (held, keeper) = keep(hold_for(&backend, &key(1), ttl).await, ttl);
    let stopped = tokio::time::Instant::now();
    server.pause(0);
    let loss = timeout(ttl + SLACK, held.lost().wait()).await.unwrap();
    assert_eq!(loss, Loss::Expired);
    let told = tokio::time::Instant::now();
    // The last renewal was at most a third before the stop.
    assert!(told - stopped > ttl / 2, "told after {:?}", told - stopped);
    assert!(held.valid_until() <= told && told < held.valid_until() + SLACK);
    let (refused, took) = timed(try_it(&backend, &key(2))).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
    assert!(took < Duration::from_millis(1800) + SLACK, "{took:?}");
    server.resume(0);
    until_it_serves(&backend).await;
    keeper.abort();
    let _ = keeper.await;
    drop(held);
    until_nothing_is_left(&server, ttl + SLACK).await;
    hold(&backend, &key(1)).await.release().await.unwrap();
}

/// etcd writes down what it grants: a lock outlives the server that holds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_and_its_waiter_outlive_a_restart_with_the_data() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let ttl = Duration::from_secs(20);
    let (held, keeper) = keep(hold_for(&backend, &key(1), ttl).await, ttl);
    let waiting = wait(&backend, &key(1)).await;
    server.kill_all();
    sleep(Duration::from_millis(500)).await;
    server.restart();
    until_it_serves(&backend).await;
    let refused = patient(&key(1), LONG);
    let barges = timeout(Duration::from_secs(1), backend.acquire(&refused)).await;
    assert!(barges.is_err(), "a second holder");
    assert!(held.lost().get().is_none());
    assert!(!waiting.is_finished());
    keeper.abort();
    held.release().await.unwrap();
    let (lease, _) = served(waiting, SLACK * 2).await;
    assert!(lease.fencing_token() > held.fencing_token());
    lease.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// Whoever asks while nobody is there hears so, soon, and at once after a while.
#[tokio::test(flavor = "multi_thread")]
async fn acquires_of_a_server_that_is_away_fail_in_time() {
    let server = Etcd::start();
    let budget = Duration::from_secs(1);
    let backend = connect_with(&server.url(), budget).await;
    hold(&backend, &key(0)).await.release().await.unwrap();
    server.kill_all();
    let mut quickest = Duration::MAX;
    for n in 0..4 {
        let (refused, took) = timed(try_it(&backend, &key(1))).await;
        assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
        println!("refused after {took:?}");
        assert!(took < budget * 2 + SLACK, "{took:?}");
        if n > 0 {
            quickest = quickest.min(took);
        }
    }
    assert!(quickest < budget / 2, "{quickest:?}");
    server.restart();
    until_it_serves(&backend).await;
    until_nothing_is_left(&server, SLACK).await;
}
