//! What stays at the server: nothing, or a mark for a while.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _, backend::AcquireRequest};

use crate::{
    servers::{Etcd, TcpProxy},
    support::{
        LONG, SLACK, connect, connect_with, hold, key, patient, try_it, until,
        until_nothing_is_left, url_of,
    },
};

const MARKS: &str = "tower-lock/undo/";

fn marks(server: &Etcd) -> usize {
    let keys = server.etcdctl(&["get", MARKS, "--prefix", "--keys-only"]);
    keys.lines().filter(|key| !key.is_empty()).count()
}

/// A put that is still on its way when its owner is undone over another connection: the mark keeps
/// it from taking effect when it comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_comes_after_its_undo_has_no_effect() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let backend = connect_with(&url_of(&proxy), Duration::from_millis(900)).await;
    hold(&backend, &key(0)).await.release().await.unwrap();
    for n in 1..=3 {
        let before = marks(&server);
        // What is sent now waits in the network; new connections are well.
        proxy.strand();
        let wish = patient(&key(n), LONG);
        let gone = timeout(Duration::from_millis(50), backend.acquire(&wish)).await;
        assert!(gone.is_err(), "it was not held up");
        until("its owner is marked", async || marks(&server) > before).await;
        proxy.heal();
        // Whatever arrives of it, arrives within this time.
        sleep(Duration::from_millis(300)).await;
        let left = server.keys_left("tower-lock/order");
        assert!(left.is_empty(), "{left:?}");
        hold(&backend, &key(n)).await.release().await.unwrap();
    }
}

/// The put was tried twice and the second one held: the first one, which comes after the release,
/// has no effect.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_comes_after_the_release_has_no_effect() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let backend = connect_with(&url_of(&proxy), Duration::from_millis(900)).await;
    hold(&backend, &key(0)).await.release().await.unwrap();
    proxy.strand();
    let lease = backend.acquire(&patient(&key(1), LONG)).await.unwrap();
    assert_eq!(marks(&server), 0);
    lease.release().await.unwrap();
    assert_eq!(marks(&server), 1);
    proxy.heal();
    sleep(Duration::from_millis(300)).await;
    until_nothing_is_left(&server, SLACK).await;
    hold(&backend, &key(1)).await.release().await.unwrap();
}

/// Dropped at any moment, with answers that take their time: no key, and no mark, since every put
/// is answered.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_acquires_leave_nothing() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    proxy.set_latency(Duration::from_millis(1), Duration::from_millis(1));
    let backend = connect_with(&url_of(&proxy), Duration::from_secs(3)).await;
    let held = hold(&backend, &key("held")).await;
    for n in 0..200 {
        let key = if n % 2 == 0 { key(n) } else { key("held") };
        let wish = patient(&key, LONG);
        let after = Duration::from_micros(n * 40);
        let _ = timeout(after, backend.acquire(&wish)).await;
    }
    held.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
    assert_eq!(marks(&server), 0);
}

/// With the last handle the leases are given back, and with them whatever might still come.
#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_dropped_gives_its_leases_back() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let one = hold(&backend, &key(1)).await;
    let wish = AcquireRequest::new(key(2), Duration::from_secs(77));
    let two = backend.acquire(&wish).await.unwrap();
    assert_eq!(server.leases().len(), 2, "one for each ttl");
    drop((backend, one));
    assert_eq!(server.leases().len(), 2, "a lock is held");
    drop(two);
    until("no lease is left", async || server.leases().is_empty()).await;
    until_nothing_is_left(&server, SLACK).await;
}

/// The same owner, asked for again while it is being undone, is served when that is done.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_dropped_may_ask_again() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    for n in 0..50 {
        let wish = patient(&key(1), LONG);
        let _ = timeout(Duration::from_micros(n * 20), backend.acquire(&wish)).await;
        let lease = backend.acquire(&wish).await.unwrap();
        lease.release().await.unwrap();
    }
    until_nothing_is_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_leaves_no_node() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let held = hold(&backend, &key(1)).await;
    for _ in 0..10 {
        let refused = try_it(&backend, &key(1)).await.unwrap_err();
        assert_eq!(refused.kind(), BackendErrorKind::Contended);
    }
    assert_eq!(server.keys_left("tower-lock/").len(), 1);
    held.release().await.unwrap();
}
