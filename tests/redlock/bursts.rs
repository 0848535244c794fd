//! Many callers of one process at once. What it asks of the nodes does not grow with them where the
//! nodes are slow: else what is not answered in time is asked again by everybody, and the nodes
//! never come to the end of it.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};
use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, RedLockBackend,
    backend::{AcquireRequest, WaitBound, redlock::RedLockLease},
};

use crate::{
    servers::{RedLockServers, RedisServer, patience::quiet},
    support::{LONG, deploy, hold, key, kind, name, patient, until, until_nothing_is_left},
};

/// More than go on at a time.
const CALLERS: usize = 2000;

fn reset(servers: &RedLockServers) {
    servers.iter().for_each(|node| node.reset_calls());
}

/// More keys at once than there are turns.
async fn until_all_hold(backend: &RedLockBackend) -> Vec<RedLockLease> {
    let mut callers = JoinSet::new();
    for n in 0..200 {
        let backend = backend.clone();
        callers.spawn(async move {
            loop {
                if let Ok(lease) = backend.acquire(&patient(&key(n), LONG)).await {
                    return lease;
                }
            }
        });
    }
    let all = tokio::time::timeout(Duration::from_secs(20), callers.join_all());
    all.await.expect("all keys are free")
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_wait_here_and_not_at_nodes_that_say_nothing() {
    let (servers, backend) = deploy(3).await;
    reset(&servers);
    servers.iter().for_each(|node| node.pause());
    // All have begun by then.
    let deadline = Instant::now() + Duration::from_secs(3);
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let request = AcquireRequest::new(key(1), LONG).with_wait(WaitBound::Until(deadline));
        let backend = backend.clone();
        callers.spawn(async move { backend.acquire(&request).await });
    }
    while let Some(refused) = callers.join_next().await {
        let kind = kind(refused.unwrap());
        let expected = [
            BackendErrorKind::Unavailable,
            BackendErrorKind::WaitTimedOut,
        ];
        assert!(expected.contains(&kind), "{kind:?}");
    }
    // Those who got no turn do not wait for longer than the others: their turns, one after the
    // other, would take many times as long.
    let late = deadline.elapsed();
    assert!(late < Duration::from_secs(2), "{late:?}");
    servers.iter().for_each(|node| node.resume());
    until_nothing_is_left(&servers, Duration::from_secs(20)).await;
    for node in servers.iter() {
        let run = quiet(|| node.calls("evalsha")).await;
        println!("{run} scripts for {CALLERS} callers");
        assert!(run < CALLERS as u64, "{run} scripts");
    }
    // No turn was lost with those whose time ended meanwhile.
    for lease in until_all_hold(&backend).await {
        lease.release().await.unwrap();
    }
    until_nothing_is_left(&servers, Duration::from_secs(20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_may_leave_at_once() {
    let (servers, backend) = deploy(3).await;
    let held = hold(&backend, &key(1)).await;
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let request = patient(&key(1), LONG);
        let backend = backend.clone();
        callers.spawn(async move { backend.acquire(&request).await });
    }
    let line = format!("{{{}}}:w", name(&key(1)));
    until("all wait, everywhere", async || {
        let stand = |node: &RedisServer| node.command(&["ZCARD", &line]).int();
        servers.iter().all(|node| stand(node) == CALLERS as i64)
    })
    .await;
    reset(&servers);
    servers.iter().for_each(|node| node.pause());
    callers.shutdown().await;
    // So long that no answer is waited for any more, and connections count as dead.
    until("the nodes count as away", async || {
        let begun = Instant::now();
        let refused = kind(backend.inspect(&key(1)).await);
        refused == BackendErrorKind::Unavailable && begun.elapsed() < Duration::from_millis(50)
    })
    .await;
    servers.iter().for_each(|node| node.resume());
    // Each undo takes its owner out of the line.
    for node in servers.iter() {
        let undone = quiet(|| node.calls("zrem")).await;
        println!("{undone} undos for {CALLERS} that left");
        assert!(undone >= CALLERS as u64, "{undone} undos");
        assert!(undone < CALLERS as u64 * 3 / 2, "{undone} undos");
    }
    let state = backend.inspect(&key(1)).await.unwrap();
    assert_eq!(state.waiters, 0);
    held.release().await.unwrap();
    until_nothing_is_left(&servers, Duration::from_secs(20)).await;
}
