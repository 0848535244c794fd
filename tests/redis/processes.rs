//! Other processes die or hang, with the lock or in the queue for it.

use std::time::{Duration, Instant};

use tower_lock::{Lease as _, LockBackend as _};

use crate::{
    child::Child,
    servers::RedisServer,
    support::{
        LONG, SLACK, UNDONE, connect, hold, key, name, patient, served, until,
        until_nothing_is_left, wait, waiters,
    },
};

/// The server notices by itself too late or never that a key has expired, the more so the more
/// others there are: waiters go by their own timers.
#[tokio::test(flavor = "multi_thread")]
async fn the_successor_of_a_dead_holder_comes_in_time_beside_100_000_expiring_keys() {
    let server = RedisServer::start();
    let fill = "for i = 1, 100000 do redis.call('SET', 'other:' .. i, i, 'EX', 500 + i % 500) end";
    server.command(&["EVAL", fill, "0"]);
    let backend = connect(&server).await;
    let mut child = Child::start(&server.url());
    // Far from the moments at which a waiter asks anyway, every second or so.
    let ttl = Duration::from_millis(1400);
    let (mut held_since, mut waiting) = (Vec::new(), Vec::new());
    for n in 0..5 {
        held_since.push(Instant::now());
        child.hold(&n.to_string(), ttl);
        // Whether it is in the queue before the ttl is over or not.
        let (backend, request) = (backend.clone(), patient(&key(n), LONG));
        waiting.push(tokio::spawn(async move { backend.acquire(&request).await }));
    }
    child.kill();
    let mut late = Vec::new();
    for (n, waiting) in waiting.into_iter().enumerate() {
        let (lease, _) = served(waiting, ttl * 2).await;
        // From the asking on, which was before the ttl began.
        late.push(held_since[n].elapsed().saturating_sub(ttl));
        lease.release().await.unwrap();
    }
    late.sort();
    println!("{late:?} after the ttl");
    // A busy machine is late at times, a server that does not notice always.
    let limit = Duration::from_millis(350);
    assert!(late[2] < limit, "{late:?}");
    assert!(late[4] < limit + SLACK, "{late:?}");
    assert!(server.command(&["DBSIZE"]).int() >= 100_000);
    until_nothing_is_left(&server, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_process_in_the_queue_costs_nothing() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let lease = hold(&backend, &key(1)).await;
    let mut child = Child::start(&server.url());
    child.wait("1", 10);
    until("they are in the queue", async || {
        waiters(&server, &key(1)) == 10
    })
    .await;
    let waiting = wait(&server, &backend, &key(1)).await;
    child.kill();
    lease.release().await.unwrap();
    let (next, took) = served(waiting, SLACK).await;
    println!("served {took:?} after the release");
    next.release().await.unwrap();
    until_nothing_is_left(&server, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_process_in_the_queue_costs_one_offer_however_many_wait_there() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let lease = hold(&backend, &key(1)).await;
    let mut child = Child::start(&server.url());
    child.wait("1", 10);
    until("they are in the queue", async || {
        waiters(&server, &key(1)) == 10
    })
    .await;
    let first = wait(&server, &backend, &key(1)).await;
    let second = wait(&server, &backend, &key(1)).await;
    child.pause();
    let begun = Instant::now();
    lease.release().await.unwrap();
    let offer = Duration::from_secs(1);
    let (lease, _) = served(first, offer + SLACK).await;
    let took = begun.elapsed();
    println!("served {took:?} after the release");
    assert!(took > offer / 2, "nobody was offered it before");
    lease.release().await.unwrap();
    let (lease, _) = served(second, SLACK).await;

    // Once it goes on, it has its place again, in front of who came later.
    let last = wait(&server, &backend, &key(1)).await;
    child.resume();
    until("they ask again", async || waiters(&server, &key(1)) == 11).await;
    lease.release().await.unwrap();
    for _ in 0..10 {
        child.is_served();
    }
    let (lease, _) = served(last, SLACK).await;
    lease.release().await.unwrap();
    until_nothing_is_left(&server, UNDONE).await;
}

/// A holder that hangs and comes back finds that it has lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_hung_holder_is_succeeded_and_harms_nobody_when_it_goes_on() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut child = Child::start(&server.url());
    let ttl = Duration::from_millis(500);
    child.hold("1", ttl);
    child.pause();
    let lease = backend.acquire(&patient(&key(1), LONG)).await.unwrap();
    child.resume();
    let value = server.command(&["GET", &name(&key(1))]);
    // Its own waiter in the queue behind us does not disturb either.
    child.wait("1", 1);
    until("it is in the queue", async || {
        waiters(&server, &key(1)) == 1
    })
    .await;
    lease.renew().await.unwrap();
    assert_eq!(server.command(&["GET", &name(&key(1))]), value);
    lease.release().await.unwrap();
    child.is_served();
    until_nothing_is_left(&server, UNDONE).await;
}
