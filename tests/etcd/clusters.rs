//! Three members: leaders die, hang and are cut off; all of them stop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_lock::{Lease as _, LockBackend as _};

use crate::{
    servers::Etcd,
    support::{
        LONG, PATIENCE, SLACK, connect, connect_with, hold, hold_for, keep, key, patient, served,
        until, until_it_serves, until_nothing_is_left, wait, wait_with,
    },
};

/// An election here, and the time that a client takes to find the member that is well.
const ELECTION: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_dies_costs_no_lock_and_no_place_in_the_queue() {
    let server = Etcd::cluster(3);
    let backends = [connect(&server).await, connect(&server).await];
    let ttl = Duration::from_secs(8);
    let (held, keeper) = keep(hold_for(&backends[0], &key(1), ttl).await, ttl);
    let first = wait(&backends[1], &key(1)).await;
    let second = wait(&backends[0], &key(1)).await;
    let leader = server.leader();
    server.kill(leader);
    let begun = Instant::now();
    // The cluster serves again.
    until("it serves again", async || {
        let wish = patient(&key(2), LONG);
        match timeout(ELECTION, backends[0].acquire(&wish)).await {
            Ok(Ok(lease)) => lease.release().await.is_ok(),
            _ => false,
        }
    })
    .await;
    println!("served {:?} after the leader's death", begun.elapsed());
    assert!(!first.is_finished() && !second.is_finished());
    assert!(held.lost().get().is_none());
    keeper.abort();
    held.release().await.unwrap();
    let (first, _) = served(first, ELECTION + SLACK).await;
    assert!(!second.is_finished());
    first.release().await.unwrap();
    let (second, _) = served(second, ELECTION + SLACK).await;
    assert!(held.fencing_token() < first.fencing_token());
    assert!(first.fencing_token() < second.fencing_token());
    second.release().await.unwrap();
    server.restart();
    until_nothing_is_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hangs_costs_no_lock() {
    let server = Etcd::cluster(3);
    let backend = connect(&server).await;
    let ttl = Duration::from_secs(8);
    let (held, keeper) = keep(hold_for(&backend, &key(1), ttl).await, ttl);
    let waiting = wait(&backend, &key(1)).await;
    let leader = server.leader();
    server.pause(leader);
    sleep(ttl).await;
    assert!(held.lost().get().is_none());
    keeper.abort();
    held.release().await.unwrap();
    let (lease, _) = served(waiting, ELECTION + SLACK).await;
    server.resume(leader);
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// Each one in turn, under load: exclusion, tokens that grow, everybody served.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_die_in_turn_grant_nothing_twice() {
    let server = Etcd::cluster(3);
    let mut backends = Vec::new();
    for _ in 0..3 {
        backends.push(connect(&server).await);
    }
    let inside = Arc::new(AtomicBool::new(false));
    let last = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let grants = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for n in 0..12 {
        let backend = backends[n % 3].clone();
        let (inside, last) = (inside.clone(), last.clone());
        let (stop, grants) = (stop.clone(), grants.clone());
        tasks.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let Ok(lease) = backend.acquire(&patient(&key(1), LONG)).await else {
                    // An outage is no fault of exclusion.
                    sleep(Duration::from_millis(50)).await;
                    continue;
                };
                assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                let token = lease.fencing_token().get();
                assert!(last.swap(token, Ordering::SeqCst) < token, "{token}");
                sleep(Duration::from_millis(2)).await;
                grants.fetch_add(1, Ordering::SeqCst);
                inside.store(false, Ordering::SeqCst);
                // Seen through in the background if it broke off.
                let _ = lease.release().await;
            }
        });
    }
    for round in 0..3 {
        let before = grants.load(Ordering::SeqCst);
        server.kill(round);
        sleep(Duration::from_secs(2)).await;
        server.restart();
        until("locks are granted again", async || {
            grants.load(Ordering::SeqCst) > before + 10
        })
        .await;
    }
    stop.store(true, Ordering::SeqCst);
    timeout(PATIENCE, async {
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    })
    .await
    .unwrap();
    println!("{} grants", grants.load(Ordering::SeqCst));
    until_nothing_is_left(&server, Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_stops_as_a_whole_comes_back_with_its_locks_and_its_tokens() {
    let server = Etcd::cluster(3);
    let backend = connect(&server).await;
    let before = hold(&backend, &key(1)).await;
    let held = hold_for(&backend, &key(2), Duration::from_secs(20)).await;
    before.release().await.unwrap();
    server.kill_all();
    server.restart();
    until_it_serves(&backend).await;
    let waiting = wait_with(&backend, patient(&key(2), LONG)).await;
    held.renew().await.unwrap();
    let after = backend.acquire(&patient(&key(1), LONG)).await.unwrap();
    assert!(after.fencing_token() > before.fencing_token());
    after.release().await.unwrap();
    held.release().await.unwrap();
    let (lease, _) = served(waiting, ELECTION).await;
    assert!(lease.fencing_token() > held.fencing_token());
    lease.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// A member without the others has no leader: it grants nothing, and whoever talks to it alone is
/// told that its time is over before the others' members give its lock away.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_a_majority_grants_nothing() {
    let server = Etcd::cluster(3);
    let alone = connect_with(&server.url_of(&[0]), Duration::from_secs(1)).await;
    let ttl = Duration::from_secs(3);
    let (held, keeper) = keep(hold_for(&alone, &key(1), ttl).await, ttl);
    server.kill(1);
    server.kill(2);
    let begun = tokio::time::Instant::now();
    timeout(ttl + SLACK, held.lost().wait()).await.unwrap();
    println!("told after {:?}", begun.elapsed());
    assert!(held.valid_until() <= tokio::time::Instant::now());
    let wish = patient(&key(2), LONG);
    alone.acquire(&wish).await.unwrap_err();
    keeper.abort();
    server.restart();
    until("it serves again", async || {
        match alone.acquire(&wish).await {
            Ok(lease) => lease.release().await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
}
