//! The network between us and the server loses, delays and reorders.

use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _, RedisBackend};

use crate::{
    servers::{RedisServer, TcpProxy},
    support::{
        LONG, SLACK, UNDONE, all_served, connect, connect_with, hold, key, patient, served, timed,
        try_it, until, until_nothing_is_left, wait,
    },
};

const TIMEOUT: Duration = Duration::from_millis(500);

/// A client behind a proxy, with every connection that it ever has.
async fn behind_a_proxy() -> (RedisServer, TcpProxy, RedisBackend) {
    behind_a_proxy_with(TIMEOUT).await
}

async fn behind_a_proxy_with(timeout: Duration) -> (RedisServer, TcpProxy, RedisBackend) {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = connect_with(&proxy.redis_url(), timeout).await;
    settle(&proxy, &backend).await;
    (server, proxy, backend)
}

/// Waits until this runtime has a connection of its own, beside the lock runtime's two, and the
/// server knows every script.
async fn settle(proxy: &TcpProxy, backend: &RedisBackend) {
    hold(backend, &key(0)).await.release().await.unwrap();
    until("three connections are up", async || {
        proxy.connections() == 3
    })
    .await;
    let lease = hold(backend, &key(0)).await;
    lease.renew().await.unwrap();
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire(&patient(&key(0), LONG)).await }
    });
    until("it waits", async || {
        backend.inspect(&key(0)).await.unwrap().waiters == 1
    })
    .await;
    lease.release().await.unwrap();
    // Left without a release: it is undone.
    drop(served(waiting, LONG).await);
    until("it is free", async || {
        backend.inspect(&key(0)).await.unwrap().holders.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_unavailable_in_time_and_passes() {
    let (server, proxy, backend) = behind_a_proxy().await;
    let lease = hold(&backend, &key(1)).await;
    let promised = lease.valid_until();
    proxy.black_hole();
    for attempt in 0..6 {
        let (refused, took) = timed(try_it(&backend, &key(2))).await;
        assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
        assert!(took < TIMEOUT + SLACK, "attempt {attempt} took {took:?}");
    }
    let (renewed, took) = timed(lease.renew()).await;
    assert_eq!(renewed.unwrap_err().kind(), BackendErrorKind::Unavailable);
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    assert_eq!(lease.valid_until(), promised);
    assert_eq!(lease.lost().get(), None);

    proxy.heal();
    let ((), took) = timed(until("it works again", async || {
        try_it(&backend, &key(2)).await.is_ok()
    }))
    .await;
    println!("worked again {took:?} after the heal");
    assert!(
        took < Duration::from_millis(1100) + TIMEOUT + SLACK,
        "{took:?}"
    );
    // Each connection finds out for itself.
    until("it is renewed", async || lease.renew().await.is_ok()).await;
    assert!(lease.valid_until() > promised);
    lease.release().await.unwrap();
    until_nothing_is_left(&server, Duration::from_secs(2)).await;
}

/// A process that cannot hear is not served, and is no obstacle: its connection looks alive to the
/// server, so the offer lapses once.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_in_a_black_hole_costs_its_successor_one_offer() {
    let (server, proxy, silent) = behind_a_proxy().await;
    let backend = connect(&server).await;
    let lease = hold(&backend, &key(1)).await;
    let mut lost = Vec::new();
    for _ in 0..5 {
        lost.push(wait(&server, &silent, &key(1)).await);
    }
    let waiting = wait(&server, &backend, &key(1)).await;
    proxy.black_hole();
    lease.release().await.unwrap();
    let (next, took) = served(waiting, Duration::from_millis(1200) + SLACK).await;
    println!("served {took:?} after the release");
    // They keep their places: once they hear again, they are next.
    proxy.heal();
    next.release().await.unwrap();
    all_served(lost, Duration::from_secs(8)).await;
    until_nothing_is_left(&server, UNDONE).await;
}

/// What was asked is done, and nobody hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_whose_reply_was_lost_is_undone() {
    let (server, proxy, backend) = behind_a_proxy().await;
    proxy.drop_down();
    let (refused, took) = timed(try_it(&backend, &key(1))).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    // Its undo gets through, also without replies.
    let took = until_nothing_is_left(&server, UNDONE).await;
    println!("undone after {took:?}");
    proxy.heal();
    until("it works again", async || {
        try_it(&backend, &key(1)).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_reply_was_lost_is_had_by_asking_again() {
    // It is not given up before its connection ends, and not asked again for any other reason.
    let (server, proxy, backend) = behind_a_proxy_with(TIMEOUT * 10).await;
    proxy.drop_down();
    let mut asking = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire(&patient(&key(1), LONG)).await }
    });
    let held = async || server.command(&["EXISTS", "tower-lock:order:1.1;"]).int() == 1;
    until("the request was executed", held).await;
    proxy.heal();
    proxy.reset();
    let ended = tokio::time::timeout(TIMEOUT + SLACK, &mut asking).await;
    let lease = ended
        .expect("it ends in time")
        .unwrap()
        .expect("by its owner token");
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    until_nothing_is_left(&server, UNDONE).await;
}

/// The bytes of an attempt are somewhere on the way when its caller gives up and everything else
/// goes on over another connection. They arrive after the undo.
#[tokio::test(flavor = "multi_thread")]
async fn an_undo_is_not_overtaken_by_its_attempt() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    let restricted = "redis://restricted:secret@".to_owned() + &proxy.address().to_string();
    // Without the right to kill: a tombstone does it.
    server.command(&[
        "ACL",
        "SETUSER",
        "restricted",
        "on",
        ">secret",
        "~tower-lock:*",
        "~{tower-lock:*",
        "&tower-lock:inbox:*",
        "+@all",
        "-client|kill",
    ]);
    for url in [proxy.redis_url(), restricted] {
        let backend = connect_with(&url, TIMEOUT).await;
        settle(&proxy, &backend).await;
        for round in 0..3 {
            until("all is well", async || {
                let released = match try_it(&backend, &key("before")).await {
                    Ok(lease) => lease.release().await.is_ok(),
                    Err(_) => false,
                };
                released && proxy.connections() == 3
            })
            .await;
            proxy.strand();
            let refused = match round {
                // One that gives up by itself, one whose caller leaves, one that would have waited.
                0 => try_it(&backend, &key(1))
                    .await
                    .map_err(|error| error.kind()),
                1 => match tokio::time::timeout(TIMEOUT / 2, try_it(&backend, &key(1))).await {
                    Err(_) => Err(BackendErrorKind::Unavailable),
                    Ok(result) => result.map_err(|error| error.kind()),
                },
                _ => {
                    let waits = patient(&key(1), LONG);
                    backend.acquire(&waits).await.map_err(|error| error.kind())
                }
            };
            assert_eq!(refused.unwrap_err(), BackendErrorKind::Unavailable);
            // The undo has run by another way when a new attempt over that gets an answer...
            until("it works again", async || {
                match try_it(&backend, &key("after")).await {
                    Ok(lease) => lease.release().await.is_ok(),
                    Err(_) => false,
                }
            })
            .await;
            tokio::time::sleep(TIMEOUT * 2).await;
            // ... and then the attempt arrives.
            proxy.heal();
            tokio::time::sleep(Duration::from_millis(100)).await;
            until_nothing_is_left(&server, UNDONE).await;
        }
        drop(backend);
        until("its connections are closed", async || {
            proxy.connections() == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_resets() {
    let (server, proxy, backend) = behind_a_proxy().await;
    let lease = hold(&backend, &key(1)).await;
    let waiting = wait(&server, &backend, &key(1)).await;
    proxy.reset();
    until("it is released", async || lease.release().await.is_ok()).await;
    let (next, _) = served(waiting, SLACK).await;
    proxy.close();
    until("it is released", async || next.release().await.is_ok()).await;
    until_nothing_is_left(&server, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_for_a_while_is_found_again() {
    let (server, proxy, backend) = behind_a_proxy().await;
    proxy.refuse();
    proxy.reset();
    let (refused, took) = timed(try_it(&backend, &key(1))).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    // Now that it has been down for that long, nobody waits any more.
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let (refused, took) = timed(try_it(&backend, &key(1))).await;
        assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
        quickest = quickest.min(took);
    }
    assert!(quickest < TIMEOUT / 5, "{quickest:?}");
    proxy.heal();
    until("it works again", async || {
        try_it(&backend, &key(1)).await.is_ok()
    })
    .await;
    until_nothing_is_left(&server, UNDONE).await;
}

/// Acquire, renew and release are one round trip each, also while another is on its way; a
/// hand-off is two: to the server and on to the waiter, and its confirmation.
#[tokio::test(flavor = "multi_thread")]
async fn everything_is_one_round_trip() {
    let (server, proxy, backend) = behind_a_proxy().await;
    let half = Duration::from_millis(20);
    proxy.set_latency(half, half);
    let expected = [
        ("acquire", 2),
        ("acquire behind another", 2),
        ("renew", 2),
        ("release", 2),
        ("hand-off", 4),
    ];
    let mut took: [Vec<Duration>; 5] = Default::default();
    for _ in 0..9 {
        let (first, second) = (key(1), key(2));
        let behind = async {
            tokio::time::sleep(half / 4).await;
            timed(hold(&backend, &second)).await
        };
        let ((lease, acquire), (other, behind)) =
            tokio::join!(timed(hold(&backend, &first)), behind);
        let (renewed, renew) = timed(lease.renew()).await;
        renewed.unwrap();
        other.release().await.unwrap();
        let waiting = wait(&server, &backend, &key(1)).await;
        let begun = Instant::now();
        let (released, release) = timed(lease.release()).await;
        released.unwrap();
        let (next, _) = served(waiting, SLACK).await;
        let measured = [acquire, behind, renew, release, begun.elapsed()];
        for (all, one) in took.iter_mut().zip(measured) {
            all.push(one);
        }
        next.release().await.unwrap();
    }
    // A busy machine is late at times, and what takes one more round trip is so always.
    for ((what, halves), took) in expected.into_iter().zip(took) {
        let quickest = took.into_iter().min().unwrap();
        println!("{what}: {quickest:?}");
        assert!(quickest >= half * halves, "{what} took {quickest:?}");
        assert!(quickest < half * (halves + 1), "{what} took {quickest:?}");
    }
}
