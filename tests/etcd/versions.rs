//! What the backend says of itself, by what the server says of itself.

use std::time::Duration;

use tower_lock::{
    Fairness, Guarantee, LockBackend as _, LockManager, LockPolicy,
    backend::{AcquireRequest, Scope},
};

use crate::{
    servers::Etcd,
    support::{connect, key},
};

/// 3.4.38, 3.5.23, 3.6.5 and 3.7.0 are the first ones without known bugs in their leases.
fn is_sound(version: &str) -> bool {
    let numbers: Vec<u64> = version.split('.').map(|n| n.parse().unwrap()).collect();
    match numbers[..2] {
        [3, 4] => numbers[2] >= 38,
        [3, 5] => numbers[2] >= 23,
        [3, 6] => numbers[2] >= 5,
        _ => true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_with_bugs_in_their_leases_are_for_fenced_routes_only() {
    let server = Etcd::start();
    let status = server.etcdctl(&["endpoint", "status", "-w", "fields"]);
    let version = status
        .lines()
        .find_map(|line| line.strip_prefix("\"Version\" : \""))
        .unwrap()
        .trim_end_matches('"');
    println!("etcd {version}");
    let backend = connect(&server).await;
    let can = backend.capabilities();
    assert_eq!(can.consensus, is_sound(version));
    assert_eq!((can.name, can.scope), ("etcd", Scope::Fleet));
    assert!(can.fifo && can.shared && can.fencing && !can.reserves_tokens);
    let correct = LockPolicy::new().with_guarantee(Guarantee::Correctness);
    assert_eq!(correct.check(&can, false).is_ok(), is_sound(version));
    let fenced = LockPolicy::new().with_guarantee(Guarantee::CorrectnessFencedByStorage);
    fenced.check(&can, false).unwrap();
    let batched = LockPolicy::new().with_fairness(Fairness::Batched(8.try_into().unwrap()));
    let error = batched.check(&can, false).unwrap_err().to_string();
    assert!(error.contains("etcd"), "{error}");
}

/// The election's time makes it: 1.5 of it, rounded up.
#[tokio::test(flavor = "multi_thread")]
async fn the_shortest_ttl_is_the_servers() {
    let short = connect(&Etcd::start()).await;
    assert_eq!(short.capabilities().min_ttl, Some(Duration::from_secs(1)));
    let options = ["--heartbeat-interval", "200", "--election-timeout", "2000"];
    let server = Etcd::start_with(&options);
    let long = connect(&server).await;
    assert_eq!(long.capabilities().min_ttl, Some(Duration::from_secs(3)));
    let locks = LockManager::new(long.clone());
    let policy = |seconds| LockPolicy::new().with_ttl(Duration::from_secs(seconds));
    let error = locks.acquire(key(1), &policy(2)).await.unwrap_err();
    println!("{error}");
    let guard = locks.acquire(key(1), &policy(3)).await.unwrap();
    guard.release().await.unwrap();
    let wish = AcquireRequest::new(key(1), Duration::from_secs(3)).with_tokens(2);
    long.acquire(&wish).await.unwrap_err();
}
