//! Other processes die or hang, with the lock or in the queue for it.

use std::time::{Duration, Instant};

use tower_lock::{Lease as _, Loss};

use crate::{
    child::Child,
    servers::Etcd,
    support::{
        LONG, SLACK, connect, hold, key, patient, served, until, until_nothing_is_left, wait,
        wait_with, waiters,
    },
};

/// The server ends a lease within a second of its time.
const EXPIRY: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn the_successor_of_a_dead_holder_comes_within_its_ttl_and_a_second() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let mut child = Child::start(&server.url());
    let ttl = Duration::from_secs(2);
    child.hold("1", ttl);
    let waiting = wait_with(&backend, patient(&key(1), LONG)).await;
    let killed = Instant::now();
    child.kill();
    let (lease, _) = served(waiting, ttl + EXPIRY + SLACK).await;
    println!("{:?} after the death, ttl {ttl:?}", killed.elapsed());
    lease.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// Nobody deletes the nodes of a dead process but the end of its leases, which are all of one ttl:
/// so they go together.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_process_in_the_queue_costs_one_ttl_however_many_wait_there() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let lease = hold(&backend, &key(1)).await;
    let mut child = Child::start(&server.url());
    child.wait_for("1", 10, Duration::from_secs(2));
    until("they are in the queue", async || {
        waiters(&backend, &key(1)).await == 10
    })
    .await;
    let waiting = wait(&backend, &key(1)).await;
    child.kill();
    lease.release().await.unwrap();
    let (next, took) = served(waiting, Duration::from_secs(2) + EXPIRY + SLACK).await;
    println!("served {took:?} after the release");
    next.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// It is not told while it sleeps; when it wakes up it has lost, and says so itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_stopped_for_longer_than_its_ttl_learns_of_it_when_it_wakes() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let mut child = Child::start(&server.url());
    let ttl = Duration::from_secs(2);
    child.hold_and_tell("1", ttl);
    let waiting = wait_with(&backend, patient(&key(1), LONG)).await;
    child.pause();
    let (lease, took) = served(waiting, ttl + EXPIRY + SLACK).await;
    println!("served {took:?} after the stop");
    child.resume();
    assert_eq!(child.is_told(), Loss::Expired.as_str());
    assert!(lease.lost().get().is_none());
    lease.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}
