//! Who is woken, and by what.

use std::time::{Duration, Instant};

use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_lock::{
    Lease as _, LockBackend as _, Mode,
    backend::{AcquireRequest, WaitBound},
};

use crate::{
    servers::{Etcd, TcpProxy},
    support::{
        LONG, PATIENCE, SLACK, connect, connect_with, hold, key, patient, served, until,
        until_nothing_is_left, url_of, wait, wait_with, waiters,
    },
};

/// How many transactions the server was asked for.
fn txns(server: &Etcd) -> f64 {
    let started = "grpc_server_started_total{grpc_method=\"Txn\"";
    server.metric(0, started)
}

/// How many events it sent to those who watch.
fn events(server: &Etcd) -> f64 {
    server.metric(0, "etcd_debugging_mvcc_events_total")
}

/// The waiter behind the one that releases looks once, and the others do nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_with_100_waiters_wakes_one() {
    const WAITERS: usize = 100;
    let server = Etcd::start();
    let backends = [connect(&server).await, connect(&server).await];
    let mut held = hold(&backends[0], &key(1)).await;
    let mut waiting = Vec::new();
    for n in 0..WAITERS {
        waiting.push(wait(&backends[n % 2], &key(1)).await);
    }
    let (asked, sent) = (txns(&server), events(&server));
    let begun = Instant::now();
    for waiting in waiting.drain(..20) {
        held.release().await.unwrap();
        held = served(waiting, SLACK).await.0;
    }
    let (asked, sent) = (txns(&server) - asked, events(&server) - sent);
    println!("20 releases: {asked} transactions, {sent} events");
    let took = begun.elapsed().as_secs_f64();
    // A release and a look for each; and everybody may have looked by the timer once. Each deletion
    // is told to who waits behind it, and to the other process if its holder is watched: that is one
    // that has held for 100 ms, as the first one, and others on a busy machine.
    let watched = 1.0 + took / 0.1;
    assert!(asked <= 40.0 + WAITERS as f64, "{asked} transactions");
    assert!(sent <= 20.0 + watched, "{sent} events");
    drop((waiting, held));
}

/// All of them, once each, in the order in which they came.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_waiters_of_three_processes_are_served_in_their_order() {
    let server = Etcd::start();
    let mut backends = Vec::new();
    for _ in 0..3 {
        backends.push(connect(&server).await);
    }
    let held = hold(&backends[0], &key(1)).await;
    let mut last = held.fencing_token();
    let mut waiting = Vec::new();
    for n in 0..100 {
        waiting.push(wait(&backends[n % 3], &key(1)).await);
    }
    held.release().await.unwrap();
    for waiting in waiting {
        let (lease, _) = served(waiting, SLACK).await;
        assert!(lease.fencing_token() > last);
        last = lease.fencing_token();
        lease.release().await.unwrap();
    }
    until_nothing_is_left(&server, SLACK).await;
}

/// A writer waits for the last of several readers, readers for the writer alone.
#[tokio::test(flavor = "multi_thread")]
async fn readers_wait_for_the_writer_before_them_and_go_together() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let shared = |n| patient(&key(n), LONG).with_mode(Mode::Shared);
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(backend.acquire(&shared(1)).await.unwrap());
    }
    let writer = wait(&backend, &key(1)).await;
    let behind = [
        wait_with(&backend, shared(1)).await,
        wait_with(&backend, shared(1)).await,
    ];
    // Not in the order in which they came.
    for n in [1, 1, 0] {
        assert!(!writer.is_finished());
        readers.remove(n).release().await.unwrap();
    }
    let (writer, _) = served(writer, SLACK).await;
    let [one, two] = behind;
    assert!(!one.is_finished() && !two.is_finished());
    writer.release().await.unwrap();
    let (one, _) = served(one, SLACK).await;
    let (two, _) = served(two, SLACK).await;
    assert!(one.fencing_token() != two.fencing_token());
    one.release().await.unwrap();
    two.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// While the stream of watches is away, what it would have told is compacted.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_revision_was_compacted_is_not_missed() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let holder = connect(&server).await;
    let waiter = connect_with(&url_of(&proxy), Duration::from_secs(6)).await;
    let held = hold(&holder, &key(1)).await;
    let waiting = wait_with(&waiter, patient(&key(1), LONG)).await;
    proxy.refuse();
    proxy.reset();
    held.release().await.unwrap();
    for n in 0..10 {
        server.etcdctl(&["put", "other", &n.to_string()]);
    }
    let last = server.etcdctl(&["get", "other", "-w", "fields"]);
    let revision = last
        .lines()
        .find_map(|line| line.strip_prefix("\"Revision\" : "));
    server.etcdctl(&["compact", revision.unwrap(), "--physical"]);
    proxy.heal();
    // Before its own timer would have it look.
    let (lease, took) = served(waiting, Duration::from_secs(3)).await;
    println!("served {took:?} after the network was well again");
    lease.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// Resets while many wait: nobody is forgotten, nobody is served twice.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_outlive_broken_connections() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let backend = connect_with(&url_of(&proxy), Duration::from_secs(3)).await;
    let other = connect(&server).await;
    let mut tasks = JoinSet::new();
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    for n in 0..40 {
        let backend = if n % 2 == 0 { &backend } else { &other }.clone();
        let inside = inside.clone();
        tasks.spawn(async move {
            let lease = backend.acquire(&patient(&key(1), LONG)).await.unwrap();
            assert!(!inside.swap(true, std::sync::atomic::Ordering::SeqCst));
            sleep(Duration::from_millis(10)).await;
            inside.store(false, std::sync::atomic::Ordering::SeqCst);
            // One that broke off is seen through when the lease is dropped.
            let _ = lease.release().await;
            lease.fencing_token()
        });
    }
    for _ in 0..8 {
        sleep(Duration::from_millis(60)).await;
        proxy.reset();
    }
    let mut tokens = std::collections::BTreeSet::new();
    while let Some(token) = timeout(PATIENCE, tasks.join_next()).await.unwrap() {
        assert!(tokens.insert(token.unwrap()));
    }
    assert_eq!(tokens.len(), 40);
    until_nothing_is_left(&server, Duration::from_secs(5)).await;
}

/// The runtime of some waiters stands still: the others pass them after a second, once.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_nobody_polls_cost_a_second_together() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let held = hold(&backend, &key(1)).await;
    let stuck = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for _ in 0..10 {
        let backend = backend.clone();
        stuck.spawn(async move { backend.acquire(&patient(&key(1), LONG)).await });
    }
    // Polled until they stand in the queue, and then no more.
    let stuck = tokio::task::spawn_blocking({
        let backend = backend.clone();
        move || {
            stuck.block_on(async {
                until("they wait", async || waiters(&backend, &key(1)).await == 10).await;
                sleep(Duration::from_millis(300)).await;
            });
            stuck
        }
    })
    .await
    .unwrap();
    let waiting = wait(&backend, &key(1)).await;
    held.release().await.unwrap();
    let (lease, took) = served(waiting, Duration::from_millis(1500) + SLACK).await;
    println!("served {took:?} after the release");
    lease.release().await.unwrap();
    stuck.shutdown_background();
    until_nothing_is_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_key_takes_one_transaction_and_one_to_release() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    // The first one with this ttl brings its lease.
    hold(&backend, &key(0)).await.release().await.unwrap();
    let before = txns(&server);
    for n in 0..50 {
        let wish = patient(&key(n), LONG);
        backend
            .acquire(&wish)
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    assert_eq!(txns(&server) - before, 100.0);
    let before = txns(&server);
    let held = hold(&backend, &key(1)).await;
    for _ in 0..50 {
        let wish = AcquireRequest::new(key(1), LONG);
        backend.acquire(&wish).await.unwrap_err();
    }
    assert_eq!(txns(&server) - before, 51.0);
    held.release().await.unwrap();
}

/// Each write in between may have been the deletion that is waited for, until the watch has begun;
/// after that it is nothing to those who wait.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_do_not_ask_at_each_write_of_others() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let held = hold(&backend, &key("held")).await;
    let before = txns(&server);
    let begun = Instant::now();
    let writing = tokio::spawn({
        let backend = backend.clone();
        async move {
            for n in 0..300 {
                hold(&backend, &key(n)).await.release().await.unwrap();
            }
        }
    });
    let gate = tokio::spawn({
        let backend = backend.clone();
        async move {
            let key = key("held");
            backend.wait_free(&key, WaitBound::Forever).await
        }
    });
    let wish = patient(&key("held"), LONG);
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire(&wish).await }
    });
    writing.await.unwrap();
    let asked = txns(&server) - before;
    println!("{asked} transactions, 600 of which wrote");
    // A put, and a look or two of each; the rest by timers.
    let by_timer = begun.elapsed().as_secs_f64() * 1.5;
    assert!(asked <= 600.0 + 6.0 + by_timer, "{asked}");
    held.release().await.unwrap();
    let (lease, _) = served(waiting, SLACK).await;
    lease.release().await.unwrap();
    timeout(SLACK * 2, gate).await.unwrap().unwrap().unwrap();
    until_nothing_is_left(&server, SLACK).await;
}
