//! Answers that are lost, late or never come, and acquires whose callers have gone meanwhile.

use std::{
    future::Future as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use tokio::time::sleep;
use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _, ZooKeeperBackend};

use crate::{
    servers::{TcpProxy, ZooKeeperServer},
    support::{
        SESSION, SLACK, begin, connect_with, hold, key, path, patient, served, standing, timed,
        try_it, until, until_nothing_is_left, url,
    },
};

/// A session that no test here means to end, and answers that are waited for.
async fn through(proxy: &TcpProxy, timeout: Duration) -> ZooKeeperBackend {
    ZooKeeperBackend::builder(&url(proxy.address()))
        .with_session_timeout(Duration::from_secs(15))
        .with_operation_timeout(timeout)
        .connect()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_whose_answer_is_lost_is_found_by_its_owner() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = through(&proxy, Duration::from_secs(10)).await;
    for key in [key("cold"), key("hot"), key("hot")] {
        if standing(&server, &key) == 0 && key.as_str().contains("hot") {
            // Its parent is there the second time: the node is created alone.
            hold(&backend, &key).await.release().await.unwrap();
        }
        proxy.drop_down();
        let waiting = begin(&backend, patient(&key));
        until("it was created", async || standing(&server, &key) == 1).await;
        let node = server.session().children(&path(&key));
        assert!(!waiting.is_finished());
        proxy.reset();
        proxy.heal();
        let (lease, took) = served(waiting, Duration::from_secs(5)).await;
        println!("found {took:?} after the connection was lost");
        // The same one, and no second.
        assert_eq!(server.session().children(&path(&key)), node);
        lease.renew().await.unwrap();
        lease.release().await.unwrap();
        assert_eq!(standing(&server, &key), 0);
    }
    until_nothing_is_left(&server, Duration::from_secs(8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_whose_caller_left_before_the_answer_is_undone() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = through(&proxy, Duration::from_secs(10)).await;
    proxy.drop_down();
    let waiting = begin(&backend, patient(&key(1)));
    until("it was created", async || standing(&server, &key(1)) == 1).await;
    waiting.abort();
    let _ = waiting.await;
    proxy.reset();
    proxy.heal();
    until("it is undone", async || standing(&server, &key(1)) == 0).await;
    hold(&backend, &key(1)).await.release().await.unwrap();
    until_nothing_is_left(&server, Duration::from_secs(8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_takes_too_long_is_an_error_and_what_it_answered_is_undone() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let timeout = Duration::from_secs(2);
    let backend = through(&proxy, timeout).await;
    proxy.hold_down();
    let (refused, took) = timed(try_it(&backend, &key(1))).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
    assert!(took >= timeout && took < timeout + SLACK, "{took:?}");
    assert_eq!(standing(&server, &key(1)), 1);
    proxy.heal();
    until("it is undone", async || standing(&server, &key(1)) == 0).await;
    hold(&backend, &key(1)).await.release().await.unwrap();
}

/// What was sent over a connection that broke arrives when the next one is in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_comes_late_makes_no_second_node() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = ZooKeeperBackend::builder(&url(proxy.address()))
        .with_session_timeout(Duration::from_secs(6))
        .with_operation_timeout(Duration::from_secs(10))
        .connect()
        .await
        .unwrap();
    proxy.strand();
    // Found dead after a fifth of the session timeout.
    let lease = backend_served(&backend).await;
    let node = server.session().children(&path(&key(1)));
    assert_eq!(node.len(), 1);
    proxy.heal();
    sleep(Duration::from_millis(300)).await;
    assert_eq!(server.session().children(&path(&key(1))), node);
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    until("nothing of it is left", async || {
        standing(&server, &key(1)) == 0
    })
    .await;
    until_nothing_is_left(&server, Duration::from_secs(10)).await;
}

async fn backend_served(
    backend: &ZooKeeperBackend,
) -> tower_lock::backend::zookeeper::ZooKeeperLease {
    let (lease, took) = served(begin(backend, patient(&key(1))), Duration::from_secs(8)).await;
    println!("granted over the next connection after {took:?}");
    lease
}

/// Whether a future is to be polled again.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What nobody took is given up in one step: no later acquire of the owner finds it half undone.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_asks_again_while_its_grant_is_undone_gets_another() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = through(&proxy, Duration::from_secs(10)).await;
    let wish = patient(&key(1));
    let mut first = Box::pin(backend.acquire(&wish));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let polled = first.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    // Granted by then, and not polled again.
    until("it is woken", async || woken.0.load(Ordering::SeqCst)).await;
    let node = server.session().children(&path(&key(1)));
    assert_eq!(node.len(), 1);
    proxy.hold_down();
    drop(first);
    until("it is undone", async || standing(&server, &key(1)) == 0).await;
    let again = begin(&backend, wish);
    sleep(Duration::from_millis(200)).await;
    assert!(!again.is_finished(), "it got what is undone");
    proxy.heal();
    let (lease, _) = served(again, Duration::from_secs(5)).await;
    let now = server.session().children(&path(&key(1)));
    assert!(now.len() == 1 && now != node, "{node:?}, {now:?}");
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
}

/// Releases are repeated until they are done, whoever has stopped to wait for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_is_lost_is_done() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = through(&proxy, Duration::from_millis(500)).await;
    let other = connect_with(&server.url(), SESSION).await;
    let lease = hold(&backend, &key(1)).await;
    let waiting = begin(&other, patient(&key(1)));
    until("it waits", async || standing(&server, &key(1)) == 2).await;
    proxy.hold_up();
    let error = lease.release().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(!waiting.is_finished());
    drop(lease);
    proxy.heal();
    let (next, _) = served(waiting, Duration::from_secs(5)).await;
    next.release().await.unwrap();
}
