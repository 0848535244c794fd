//! Sessions end, servers go away, processes die.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, Loss, ZooKeeperBackend, backend::AcquireRequest,
};

use crate::{
    child::Child,
    servers::{TcpProxy, ZooKeeperServer, zookeeper::TICK},
    support::{
        SESSION, SLACK, begin, connect, connect_with, hold, key, path, patient, served, standing,
        timed, try_it, until, until_it_works, until_nothing_is_left, url, wait,
    },
};

/// Shorter than the session's: what is asked fails before that ends.
const TIMEOUT: Duration = Duration::from_millis(500);

async fn hasty(url: &str, session: Duration) -> ZooKeeperBackend {
    ZooKeeperBackend::builder(url)
        .with_session_timeout(session)
        .with_operation_timeout(TIMEOUT)
        .connect()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_loses_its_locks_first_and_the_next_one_serves() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let cut_off = hasty(&url(proxy.address()), SESSION).await;
    let other = connect(&server).await;
    let leases = [hold(&cut_off, &key(1)).await, hold(&cut_off, &key(2)).await];
    let waiting = wait(&server, &other, &key(1)).await;
    let third = hold(&cut_off, &key(3)).await;
    let fourth = hold(&other, &key(4)).await;
    let queued = wait(&server, &cut_off, &key(4)).await;

    // As long as a session is young, it is valid from its creation on.
    tokio::time::sleep(SESSION).await;
    let begun = Instant::now();
    proxy.black_hole();
    for lease in leases.iter().chain([&third]) {
        let loss = timeout(SESSION, lease.lost().wait()).await;
        assert_eq!(loss, Ok(Loss::Expired));
        assert!(lease.valid_until() <= tokio::time::Instant::now());
    }
    let lost = begun.elapsed();
    assert!(!waiting.is_finished(), "the key was given away before that");
    let (next, _) = served(waiting, SESSION).await;
    let taken = begun.elapsed();
    println!("lost {lost:?} after the cut, taken over after {taken:?}");
    assert!(lost < taken && taken < SESSION + 2 * TICK + SLACK);
    assert!(next.fencing_token() > leases[0].fencing_token());
    // Those who wait are told, and so are those who come.
    let refused = timeout(SESSION, queued).await.unwrap().unwrap();
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
    let (refused, took) = timed(try_it(&cut_off, &key(5))).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    let error = leases[0].renew().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Lost);
    leases[0].release().await.unwrap();

    proxy.heal();
    let took = until_it_works(&cut_off, &key(5)).await;
    println!("served again {took:?} after the network was mended");
    // A lost lease stays lost, and cannot harm its successor.
    assert_eq!(leases[0].lost().get(), Some(Loss::Expired));
    leases[1].release().await.unwrap();
    drop(leases);
    next.renew().await.unwrap();
    next.release().await.unwrap();
    hold(&cut_off, &key(2)).await.release().await.unwrap();
    drop((third, fourth));
    until_nothing_is_left(&server, Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_for_a_moment_costs_no_lock() {
    let server = ZooKeeperServer::start();
    // Java takes its time to start.
    let backend = hasty(&server.url(), Duration::from_secs(20)).await;
    let lease = hold(&backend, &key(1)).await;
    let promised = lease.valid_until();
    server.kill();
    for attempt in 0..5 {
        let (refused, took) = timed(try_it(&backend, &key(2))).await;
        assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
        assert!(took < TIMEOUT + SLACK, "attempt {attempt} took {took:?}");
    }
    // Not knowing is not loss.
    let error = lease.renew().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert_eq!(lease.lost().get(), None);
    assert!(lease.valid_until() >= promised);
    for error in [
        backend.inspect(&key(1)).await.unwrap_err(),
        backend.force_release(&key(1)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    }

    server.restart();
    until("it is still held", async || lease.renew().await.is_ok()).await;
    assert_eq!(standing(&server, &key(1)), 1);
    let (refused, _) = timed(try_it(&backend, &key(1))).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Contended);
    let token = lease.fencing_token();
    lease.release().await.unwrap();
    let lease = hold(&backend, &key(1)).await;
    assert!(lease.fencing_token() > token);
    lease.release().await.unwrap();
    until_nothing_is_left(&server, Duration::from_secs(8)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_costs_the_locks_in_time() {
    let server = ZooKeeperServer::start();
    let backend = hasty(&server.url(), SESSION).await;
    let lease = hold(&backend, &key(1)).await;
    server.pause();
    let (refused, took) = timed(try_it(&backend, &key(2))).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    let loss = timeout(SESSION, lease.lost().wait()).await;
    assert_eq!(loss, Ok(Loss::Expired));
    server.resume();
    let took = until_it_works(&backend, &key(1)).await;
    println!("served again {took:?} after it went on");
    until_nothing_is_left(&server, Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_its_data_is_served_by_a_new_session() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let lease = hold(&backend, &key(1)).await;
    server.restart_empty();
    // The server knows nothing of the session: it is over at once.
    let loss = timeout(SESSION, lease.lost().wait()).await;
    assert_eq!(loss, Ok(Loss::Expired));
    until_it_works(&backend, &key(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_successor_of_a_killed_process_comes_when_its_session_has_ended() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let mut child = Child::start(&server.url());
    child.hold("1");
    let waiting = wait(&server, &backend, &key(1)).await;
    let begun = Instant::now();
    child.kill();
    let (lease, _) = served(waiting, SESSION + Duration::from_secs(1) + SLACK).await;
    println!("served {:?} after the kill", begun.elapsed());
    lease.release().await.unwrap();
}

/// A process that hangs, with a lock or in the queue, is gone when its session has ended, and finds
/// that when it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_hung_process_costs_one_session_timeout_and_harms_nobody_when_it_goes_on() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let mut child = Child::start(&server.url());
    child.hold("1");
    let lease = hold(&backend, &key(2)).await;
    child.wait("2", 10);
    until("they are in the queue", async || {
        standing(&server, &key(2)) == 11
    })
    .await;
    let first = wait(&server, &backend, &key(1)).await;
    let second = wait(&server, &backend, &key(2)).await;
    let begun = Instant::now();
    child.pause();
    lease.release().await.unwrap();
    let limit = SESSION + 2 * TICK + SLACK;
    let (first, _) = served(first, limit).await;
    let (second, _) = served(second, limit.saturating_sub(begun.elapsed()) + SLACK).await;
    println!("served {:?} after it hung", begun.elapsed());
    child.resume();
    // In a session of its own making it waits again.
    until("they ask again", async || standing(&server, &key(2)) == 11).await;
    first.renew().await.unwrap();
    second.renew().await.unwrap();
    second.release().await.unwrap();
    for _ in 0..10 {
        child.is_served();
    }
    first.release().await.unwrap();
    until_nothing_is_left(&server, Duration::from_secs(10)).await;
}

/// Whatever keeps an owner from renewing: the session alone does not keep its lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_nobody_renews_ends_by_its_ttl() {
    let server = ZooKeeperServer::start();
    let backend = hasty(&server.url(), Duration::from_secs(3)).await;
    let ttl = Duration::from_secs(4);
    let begun = Instant::now();
    let lease = backend
        .acquire(&AcquireRequest::new(key(1), ttl))
        .await
        .unwrap();
    let (next, _) = served(begin(&backend, patient(&key(1))), ttl + SLACK).await;
    println!("taken over after {:?}", begun.elapsed());
    assert!(lease.valid_until() <= tokio::time::Instant::now());
    assert_eq!(lease.lost().get(), Some(Loss::Expired));
    assert!(next.fencing_token() > lease.fencing_token());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_who_deletes_the_node_takes_the_lock() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let lease = hold(&backend, &key(1)).await;
    let mut operator = server.session();
    let node = operator.children(&path(&key(1))).remove(0);
    assert!(
        operator
            .data(&format!("{}/{node}", path(&key(1))))
            .starts_with(b"tower-lock ")
    );
    assert_eq!(operator.delete(&format!("{}/{node}", path(&key(1)))), 0);
    let loss = timeout(SLACK, lease.lost().wait()).await;
    assert_eq!(loss, Ok(Loss::ForceReleased));
    let error = lease.renew().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Lost);
    hold(&backend, &key(1)).await.release().await.unwrap();
}

/// More than the client library can watch over a reconnect. An operator who takes one of those that
/// are not watched is noticed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_locks_outlive_a_broken_connection() {
    const LOCKS: usize = 2500;
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = connect_with(&url(proxy.address()), Duration::from_secs(15)).await;
    let mut leases = Vec::new();
    for n in 0..LOCKS {
        leases.push(hold(&backend, &key(n)).await);
    }
    for _ in 0..2 {
        proxy.reset();
        until_it_works(&backend, &key("another")).await;
    }
    for lease in &leases {
        lease.renew().await.unwrap();
        assert!(lease.lost().get().is_none());
    }
    for n in [0, LOCKS - 1] {
        assert!(backend.force_release(&key(n)).await.unwrap());
        let lost = timeout(Duration::from_secs(10), leases[n].lost().wait()).await;
        assert_eq!(lost.expect("it is told"), Loss::ForceReleased);
    }
}

/// The heartbeats' own node is nothing that anybody depends on.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_node_that_is_deleted_is_made_anew() {
    let server = ZooKeeperServer::start();
    let backend = connect_with(&server.url(), Duration::from_secs(4)).await;
    let lease = hold(&backend, &key(1)).await;
    let mut operator = server.session();
    let mut own = operator.children("/tower-lock");
    own.retain(|name| name.starts_with('~'));
    assert_eq!(own.len(), 1);
    assert_eq!(operator.delete(&format!("/tower-lock/{}", own[0])), 0);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(lease.lost().get(), None);
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
}
