//! The network between a process and the server swallows, delays and breaks off.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_lock::{Lease as _, LockBackend as _, Loss};

use crate::{
    servers::{Etcd, TcpProxy},
    support::{
        LONG, SLACK, connect, connect_with, hold, hold_for, keep, key, patient, served, timed,
        until, until_nothing_is_left, url_of, wait, wait_with,
    },
};

/// A second holder comes only when the first one has been told.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_cut_off_is_told_before_the_next_one_holds() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let cut = connect_with(&url_of(&proxy), Duration::from_secs(1)).await;
    let other = connect(&server).await;
    let ttl = Duration::from_secs(2);
    for n in 0..3 {
        let (held, keeper) = keep(hold_for(&cut, &key(n), ttl).await, ttl);
        let waiting = wait(&other, &key(n)).await;
        sleep(Duration::from_millis(fastrand::u64(0..700))).await;
        proxy.black_hole();
        let told = tokio::spawn({
            let held = held.clone();
            async move { (held.lost().wait().await, Instant::now()) }
        });
        let (next, took) = served(waiting, ttl + Duration::from_secs(1) + SLACK).await;
        let now = Instant::now();
        let (loss, at) = timeout(SLACK, told).await.unwrap().unwrap();
        assert_eq!(loss, Loss::Expired);
        println!(
            "told {:?} before the next one held, {took:?} after the cut",
            now - at
        );
        assert!(at < now);
        next.release().await.unwrap();
        keeper.abort();
        drop(held);
        proxy.heal();
        until("it is there again", async || {
            let wish = patient(&key("again"), LONG);
            match timeout(SLACK, cut.acquire(&wish)).await {
                Ok(Ok(lease)) => lease.release().await.is_ok(),
                _ => false,
            }
        })
        .await;
    }
    until_nothing_is_left(&server, SLACK).await;
}

/// Its connection is silent, and nobody says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_on_a_silent_connection_is_served_over_the_next_one() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let cut = connect_with(&url_of(&proxy), Duration::from_secs(1)).await;
    let other = connect(&server).await;
    let held = hold(&other, &key(1)).await;
    let waiting = wait(&cut, &key(1)).await;
    proxy.black_hole();
    held.release().await.unwrap();
    sleep(Duration::from_millis(100)).await;
    // What was on its way is lost; connections from now on are well.
    proxy.heal();
    let (lease, took) = served(waiting, Duration::from_secs(4)).await;
    println!("served {took:?} after the network was well again");
    lease.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// Both kinds of reset, over and over.
#[tokio::test(flavor = "multi_thread")]
async fn holders_outlive_broken_connections() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let backend = connect_with(&url_of(&proxy), Duration::from_secs(2)).await;
    let ttl = Duration::from_secs(3);
    let (held, keeper) = keep(hold_for(&backend, &key(1), ttl).await, ttl);
    for n in 0..10 {
        sleep(Duration::from_millis(300)).await;
        if n % 2 == 0 {
            proxy.reset();
        } else {
            proxy.close();
        }
    }
    assert!(held.lost().get().is_none());
    keeper.abort();
    held.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// An answer that takes its time counts from its request.
#[tokio::test(flavor = "multi_thread")]
async fn slow_answers_make_no_lease_longer() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let delay = Duration::from_millis(300);
    let backend = connect_with(&url_of(&proxy), Duration::from_secs(3)).await;
    let ttl = Duration::from_secs(2);
    hold_for(&backend, &key(0), ttl)
        .await
        .release()
        .await
        .unwrap();
    proxy.set_latency(Duration::ZERO, delay);
    let asked = Instant::now();
    let (held, took) = timed(hold_for(&backend, &key(1), ttl)).await;
    assert!(took >= delay);
    assert!(held.valid_until() <= asked + ttl);
    let other = connect(&server).await;
    let waiting = wait_with(&other, patient(&key(1), LONG)).await;
    let (next, _) = served(waiting, ttl + SLACK).await;
    assert!(held.valid_until() <= Instant::now());
    next.release().await.unwrap();
}
