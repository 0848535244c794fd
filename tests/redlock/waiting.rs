//! Waiters are told, and nobody hangs.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    time::Duration,
};

use tokio::time::Instant;
use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, Loss,
    backend::{AcquireRequest, WaitBound},
};

use crate::{
    servers::RedisServer,
    support::{
        LONG, SLACK, UNDONE, connect, deploy, hold, key, kind, name, served, until,
        until_nothing_is_left, wait, wait_with,
    },
};

/// Whoever hears this channel and never says anything.
fn subscriber(node: &RedisServer, channel: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(node.address()).unwrap();
    write!(stream, "SUBSCRIBE {channel}\r\n").unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with(":1") {
        line.clear();
        stream.read_line(&mut line).unwrap();
    }
    stream
}

/// Woken by the release, not by a timer, and by one of two processes or both.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_of_another_process_is_woken_by_the_release() {
    let (servers, backend) = deploy(5).await;
    let other = connect(&servers).await;
    // Less than a waiter sleeps at least where nobody wakes it.
    const TIMER: Duration = Duration::from_millis(700);
    let mut late = 0;
    for _ in 0..30 {
        let lease = hold(&backend, &key(1)).await;
        let first = wait(&other, &key(1)).await;
        let second = wait(&other, &key(1)).await;
        lease.release().await.unwrap();
        let (lease, took) = served(first, Duration::from_secs(2) + SLACK).await;
        late += usize::from(took > TIMER);
        lease.release().await.unwrap();
        let (lease, took) = served(second, Duration::from_secs(2) + SLACK).await;
        late += usize::from(took > TIMER);
        lease.release().await.unwrap();
    }
    println!("{late} of 60 were late");
    assert!(late <= 6, "{late} of 60 were late");
    until_nothing_is_left(&servers, UNDONE).await;
}

/// Of three processes that want a key at once, one has it, and then another.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_processes_is_served() {
    let (servers, one) = deploy(5).await;
    let clients = [one, connect(&servers).await, connect(&servers).await];
    let begun = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for client in &clients {
        for _ in 0..5 {
            let client = client.clone();
            tasks.spawn(async move {
                for _ in 0..10 {
                    let wish = AcquireRequest::new(key(1), LONG).with_wait(WaitBound::Forever);
                    let lease = client.acquire(&wish).await.unwrap();
                    lease.release().await.unwrap();
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    println!("150 hand-overs took {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(20));
    until_nothing_is_left(&servers, UNDONE).await;
}

/// A process that hangs, with its connections open, costs one wake-up, however many of its requests
/// stand in line before ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_hangs_costs_one_wake_up() {
    let (servers, backend) = deploy(3).await;
    let other = connect(&servers).await;
    let line = format!("{{{}}}:w", name(&key(1)));
    let mut inboxes = Vec::new();
    for node in servers.iter() {
        let inbox = subscriber(node, "tower-lock:inbox:hung");
        for n in 0..300 {
            let owner = format!("{n:032x} tower-lock:inbox:hung");
            node.command(&["ZADD", &line, &n.to_string(), &owner]);
        }
        inboxes.push(inbox);
    }
    let in_line = |at: usize| {
        servers
            .node(at)
            .command(&["ZCOUNT", &line, "0", "1000"])
            .int()
    };
    let mut lease = hold(&backend, &key(1)).await;
    for turn in 0..6 {
        let clients = [&other, &backend];
        let waiting = wait(clients[turn % 2], &key(1)).await;
        lease.release().await.unwrap();
        (lease, _) = served(waiting, Duration::from_secs(3) + SLACK).await;
    }
    for at in 0..3 {
        assert_eq!(in_line(at), 299, "node {at}");
    }
    // Who waits without wanting to hold is told, though these want to.
    let gate = tokio::spawn({
        let other = other.clone();
        async move { other.wait_free(&key(1), WaitBound::Forever).await }
    });
    let gates = || {
        servers
            .node(0)
            .command(&["ZCOUNT", &line, "9000000000000000", "9000000000000001"])
    };
    until("it is asked for", async || gates().int() == 1).await;
    lease.release().await.unwrap();
    gate.await.unwrap().unwrap();
    // And one that is gone loses its places at once.
    drop(inboxes);
    let lease = hold(&backend, &key(1)).await;
    let waiting = wait(&other, &key(1)).await;
    lease.release().await.unwrap();
    let (lease, _) = served(waiting, Duration::from_secs(3) + SLACK).await;
    lease.release().await.unwrap();
    until_nothing_is_left(&servers, UNDONE).await;
}

/// A wait that is over before any node can say anything has timed out; the nodes did not fail.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_shorter_than_a_round_times_out() {
    let (servers, backend) = deploy(3).await;
    servers.iter().for_each(RedisServer::pause);
    let deadline = Instant::now() + Duration::from_millis(20);
    let short = AcquireRequest::new(key(1), LONG).with_wait(WaitBound::Until(deadline));
    assert_eq!(
        kind(backend.acquire(&short).await),
        BackendErrorKind::WaitTimedOut
    );
    servers.iter().for_each(RedisServer::resume);
    until_nothing_is_left(&servers, Duration::from_secs(5)).await;
}

/// A process that is gone, with waiters in line, is passed over.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_and_waiters_that_are_gone_cost_the_lease_and_a_moment() {
    let (servers, backend) = deploy(3).await;
    let gone = connect(&servers).await;
    // Long enough for both to be in line before it ends.
    let ttl = Duration::from_secs(3);
    let wish = AcquireRequest::new(key(1), ttl);
    let held = gone.acquire(&wish).await.unwrap();
    let before = wait(&gone, &key(1)).await;
    let behind = wait(&backend, &key(1)).await;
    // Without a release: as a process that dies, but for its connections.
    std::mem::drop(before);
    let end = held.valid_until();
    let (lease, _) = served(behind, ttl + Duration::from_secs(5) + SLACK).await;
    assert!(Instant::now() > end);
    lease.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_takes_a_lock_away_from_another_process() {
    let (servers, backend) = deploy(5).await;
    let operator = connect(&servers).await;
    let lease = hold(&backend, &key(1)).await;
    let waiting = wait(&backend, &key(1)).await;
    assert!(operator.force_release(&key(1)).await.unwrap());
    let loss = tokio::time::timeout(SLACK, lease.lost().wait()).await;
    assert_eq!(loss.unwrap(), Loss::ForceReleased);
    let (next, _) = served(waiting, Duration::from_secs(1) + SLACK).await;
    assert!(next.fencing_token() > lease.fencing_token());
    lease.release().await.unwrap();
    next.renew().await.unwrap();
    assert!(operator.force_release(&key(1)).await.unwrap());
    assert!(!operator.force_release(&key(1)).await.unwrap());
    drop(next);
    until_nothing_is_left(&servers, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_free_sees_a_release_and_the_end_of_a_lease() {
    let (servers, backend) = deploy(3).await;
    let other = connect(&servers).await;
    let lease = hold(&backend, &key(1)).await;
    assert_eq!(
        kind(other.wait_free(&key(1), WaitBound::Fail).await),
        BackendErrorKind::Contended
    );
    let gates: Vec<_> = (0..10)
        .map(|_| {
            let other = other.clone();
            tokio::spawn(async move { other.wait_free(&key(1), WaitBound::Forever).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    lease.release().await.unwrap();
    for gate in gates {
        let opened = tokio::time::timeout(Duration::from_secs(1) + SLACK, gate).await;
        opened.unwrap().unwrap().unwrap();
    }
    until_nothing_is_left(&servers, UNDONE).await;
}

/// Dropped at its end, a backend closes its connections, and what it held is undone first.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_backend_closes_its_connections() {
    let (servers, backend) = deploy(3).await;
    let lease = hold(&backend, &key(1)).await;
    let waiting = wait_with(&backend, crate::support::patient(&key(1), LONG)).await;
    drop((backend, lease));
    drop(waiting.await.unwrap().unwrap());
    until_nothing_is_left(&servers, UNDONE).await;
    for node in servers.iter() {
        crate::support::until("only this connection is left", async || {
            node.info("connected_clients") == "1"
        })
        .await;
    }
}
