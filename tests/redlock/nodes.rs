//! Nodes die, stop, and come back.

use std::time::Duration;

use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _};

use crate::support::{
    LONG, SLACK, UNDONE, connect, deploy, hold, key, kind, not_renewed, renewed, served, standing,
    timed, try_it, until, until_nothing_is_left, votes, wait,
};

#[tokio::test(flavor = "multi_thread")]
async fn two_of_five_may_die_and_not_three() {
    let (servers, backend) = deploy(5).await;
    let other = connect(&servers).await;
    let lease = hold(&backend, &key(1)).await;
    for dead in 0..2 {
        let waiting = wait(&other, &key(1)).await;
        servers.node(dead).kill();
        // Whoever holds goes on, and nobody comes in beside.
        renewed(&lease).await;
        assert_eq!(
            kind(try_it(&other, &key(1)).await),
            BackendErrorKind::Contended
        );
        assert!(!waiting.is_finished());
        // Nobody else notices anything.
        let fresh = hold(&other, &key(2)).await;
        renewed(&fresh).await;
        fresh.release().await.unwrap();
        waiting.abort();
        until("that waiter is gone", async || {
            other.inspect(&key(1)).await.unwrap().waiters == 0
        })
        .await;
    }
    let waiting = wait(&other, &key(1)).await;
    lease.release().await.unwrap();
    let (lease, took) = served(waiting, Duration::from_secs(1) + SLACK).await;
    println!("handed on after {took:?}");

    servers.node(2).kill();
    let promised = lease.valid_until();
    for _ in 0..5 {
        let (refused, took) = timed(try_it(&other, &key(3))).await;
        assert_eq!(kind(refused), BackendErrorKind::Unavailable);
        assert!(took < Duration::from_secs(1) + SLACK, "{took:?}");
    }
    // Not knowing is not loss.
    assert_eq!(kind(lease.renew().await), BackendErrorKind::Unavailable);
    assert_eq!(lease.lost().get(), None);
    assert_eq!(lease.valid_until(), promised);
    assert_eq!(
        kind(backend.inspect(&key(1)).await),
        BackendErrorKind::Unavailable
    );
}

/// Stopped nodes answer nobody, and do what they were asked when they go on.
#[tokio::test(flavor = "multi_thread")]
async fn two_of_five_may_stop_and_leave_nothing_behind() {
    let (servers, backend) = deploy(5).await;
    let other = connect(&servers).await;
    let held = hold(&backend, &key(0)).await;
    servers.node(1).pause();
    servers.node(3).pause();
    let (mut slowest, begun) = (Duration::ZERO, tokio::time::Instant::now());
    while begun.elapsed() < Duration::from_millis(1500) {
        let (lease, took) = timed(hold(&backend, &key(1))).await;
        slowest = slowest.max(took);
        let waiting = wait(&other, &key(1)).await;
        lease.release().await.unwrap();
        let (next, _) = served(waiting, Duration::from_secs(1) + SLACK).await;
        renewed(&next).await;
        // Left without a word.
        drop(next);
        until("it is undone", async || {
            backend.inspect(&key(1)).await.unwrap().holders.is_empty()
        })
        .await;
    }
    println!("the slowest acquire took {slowest:?}");
    assert!(slowest < SLACK, "{slowest:?}");
    renewed(&held).await;

    servers.node(1).resume();
    servers.node(3).resume();
    renewed(&held).await;
    held.release().await.unwrap();
    until_nothing_is_left(&servers, Duration::from_secs(4)).await;
}

/// A majority that stops for a while: no wrong answers, no lock lost, and nothing left.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_stops_is_unavailable_until_it_goes_on() {
    let (servers, backend) = deploy(3).await;
    let lease = hold(&backend, &key(1)).await;
    servers.node(0).pause();
    servers.node(1).pause();
    for _ in 0..3 {
        let (refused, took) = timed(try_it(&backend, &key(2))).await;
        assert_eq!(kind(refused), BackendErrorKind::Unavailable);
        assert!(took < Duration::from_millis(1500) + SLACK, "{took:?}");
    }
    assert_eq!(kind(lease.renew().await), BackendErrorKind::Unavailable);
    assert_eq!(lease.lost().get(), None);
    servers.node(0).resume();
    servers.node(1).resume();
    renewed(&lease).await;
    until("it works again", async || {
        match try_it(&backend, &key(2)).await {
            Ok(lease) => lease.release().await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
    lease.release().await.unwrap();
    until_nothing_is_left(&servers, Duration::from_secs(4)).await;
}

/// A node that was away for a while has the key again by a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_gives_the_key_to_nodes_that_do_not_have_it() {
    let (servers, backend) = deploy(5).await;
    let lease = hold(&backend, &key(1)).await;
    let all = [0, 1, 2, 3, 4];
    until("all have it", async || {
        standing(&servers, &all, &key(1)) == 5
    })
    .await;
    for gone in [0, 1] {
        servers
            .node(gone)
            .command(&["DEL", &crate::support::name(&key(1))]);
    }
    // Where one is late, the next renewal gives it to that one.
    until("all have it again", async || {
        renewed(&lease).await;
        standing(&servers, &all, &key(1)) == 5
    })
    .await;
    // One that lost its key on a majority is told, and leaves nothing behind.
    for gone in [0, 1, 2] {
        servers
            .node(gone)
            .command(&["DEL", &crate::support::name(&key(1))]);
    }
    assert_eq!(not_renewed(&lease).await, BackendErrorKind::Lost);
    assert!(lease.lost().get().is_some());
    until_nothing_is_left(&servers, UNDONE).await;
}

/// With one node restarted empty, and another killed, the rest is a majority that votes.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_five_after_both_kinds_of_faults_goes_on() {
    let (servers, backend) = deploy(5).await;
    let lease = hold(&backend, &key(1)).await;
    servers.node(0).restart_empty();
    servers.node(4).kill();
    renewed(&lease).await;
    assert!(!votes(&servers, 0));
    assert_eq!(standing(&servers, &[0], &key(1)), 0);
    let other = hold(&backend, &key(2)).await;
    assert!(other.valid_until() > tokio::time::Instant::now() + LONG / 2);
    other.release().await.unwrap();
    // One more is one too many.
    servers.node(3).kill();
    assert_eq!(
        kind(try_it(&backend, &key(2)).await),
        BackendErrorKind::Unavailable
    );
}
