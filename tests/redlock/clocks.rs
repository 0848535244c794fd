//! Nodes whose clock is set: what holds, what does not, and what storage can still do about it.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;
use tower_lock::{BackendErrorKind, FencingToken, Lease as _, RedLockBackend};

use crate::{
    servers::{Clock, RedLockServers, RedisServer},
    support::{
        LONG, builder, connect, hold, key, kind, name, not_renewed, renewed, standing, try_for,
        try_it, until,
    },
};

const HOUR: Duration = Duration::from_secs(3600);

/// Nodes with a clock each.
async fn deploy(nodes: usize) -> (RedLockServers, Vec<Clock>, RedLockBackend) {
    let clocks: Vec<_> = (0..nodes).map(|_| Clock::new()).collect();
    let start = |clock: &Clock| RedisServer::start_in(clock.environment());
    let servers = RedLockServers::of(clocks.iter().map(start).collect());
    let backend = builder(&servers).connect().await.unwrap();
    assert!(backend.found().await.unwrap());
    (servers, clocks, backend)
}

/// A row that is written by whoever shows the highest token so far, and by nobody else.
#[derive(Default)]
struct Storage {
    fence: Mutex<Option<FencingToken>>,
}

impl Storage {
    /// `UPDATE .. SET fence = $1 WHERE fence <= $1`.
    fn write(&self, token: FencingToken) -> bool {
        let mut fence = self.fence.lock().unwrap();
        if fence.is_some_and(|fence| fence > token) {
            return false;
        }
        *fence = Some(token);
        true
    }
}

/// One node of five lives an hour ahead, then an hour behind: nobody is let in, nobody is lost.
#[tokio::test(flavor = "multi_thread")]
async fn one_clock_that_is_set_changes_nothing() {
    let (servers, clocks, backend) = deploy(5).await;
    let other = connect(&servers).await;
    let lease = hold(&backend, &key(1)).await;
    let mut last = lease.fencing_token();
    for back in [false, true] {
        match back {
            false => clocks[2].set_ahead(HOUR),
            true => clocks[2].set_behind(HOUR),
        }
        assert_eq!(
            kind(try_it(&other, &key(1)).await),
            BackendErrorKind::Contended
        );
        renewed(&lease).await;
        for _ in 0..10 {
            let short = Duration::from_secs(1);
            let next = try_for(&other, &key(2), short).await.unwrap();
            assert!(next.fencing_token() > last);
            assert!(next.valid_until() <= Instant::now() + short);
            last = next.fencing_token();
            next.release().await.unwrap();
        }
    }
    // The node whose clock went ahead lost the key and has it again, by a renewal that it answers in
    // time.
    until("all have it", async || {
        renewed(&lease).await;
        standing(&servers, &[0, 1, 2, 3, 4], &key(1)) == 5
    })
    .await;
    lease.release().await.unwrap();
}

/// What the algorithm cannot do: the clocks of a majority are set ahead, and the lease has ended
/// there. A second owner is let in while the first one counts on its lease. Storage that compares
/// tokens refuses the first one as soon as it has seen the second.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_whose_clocks_are_set_lets_two_in_and_storage_refuses_the_first() {
    let (servers, clocks, backend) = deploy(5).await;
    let other = connect(&servers).await;
    let storage = Storage::default();
    let first = hold(&backend, &key(1)).await;
    until("all have it", async || {
        standing(&servers, &[0, 1, 2, 3, 4], &key(1)) == 5
    })
    .await;
    assert!(storage.write(first.fencing_token()));
    for clock in &clocks[..3] {
        clock.set_ahead(HOUR);
    }
    let second = try_it(&other, &key(1)).await.unwrap();
    // Both believe that they hold it, and nobody has told them otherwise.
    let now = Instant::now();
    assert!(first.valid_until() > now && second.valid_until() > now);
    assert_eq!(first.lost().get(), None);

    assert!(second.fencing_token() > first.fencing_token());
    assert!(storage.write(second.fencing_token()));
    assert!(!storage.write(first.fencing_token()), "a stale write");
    assert!(storage.write(second.fencing_token()));
    // At the next renewal it is told.
    assert_eq!(not_renewed(&first).await, BackendErrorKind::Lost);
    renewed(&second).await;
}

/// The same with one clock: a lock that was granted while a node was another's stands on a bare majority
/// until its first renewal, and a clock that is set ahead takes a vote of that.
#[tokio::test(flavor = "multi_thread")]
async fn one_clock_lets_two_in_where_the_lock_stands_on_a_bare_majority() {
    let (servers, clocks, backend) = deploy(3).await;
    let other = connect(&servers).await;
    let storage = Storage::default();
    let third = servers.node(2);
    third.command(&["SET", &name(&key(1)), "another's", "PX", "60000"]);
    let first = hold(&backend, &key(1)).await;
    assert_eq!(standing(&servers, &[0, 1], &key(1)), 2);
    third.command(&["DEL", &name(&key(1))]);
    assert!(storage.write(first.fencing_token()));
    clocks[0].set_ahead(HOUR);
    let second = try_it(&other, &key(1)).await.unwrap();
    let now = Instant::now();
    assert!(first.valid_until() > now && second.valid_until() > now);
    assert!(second.fencing_token() > first.fencing_token());
    assert!(storage.write(second.fencing_token()));
    assert!(!storage.write(first.fencing_token()), "a stale write");
    assert_eq!(not_renewed(&first).await, BackendErrorKind::Lost);
    renewed(&second).await;
}

/// The guard counts time by the clocks of clients: that of a node has no say in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_does_not_vote_sooner_because_its_clock_was_set() {
    let clocks: Vec<_> = (0..3).map(|_| Clock::new()).collect();
    let start = |clock: &Clock| RedisServer::start_in(clock.environment());
    let servers = RedLockServers::of(clocks.iter().map(start).collect());
    let max = Duration::from_secs(2);
    let backend = builder(&servers).with_max_ttl(max).connect().await.unwrap();
    assert!(backend.found().await.unwrap());
    let lease = try_for(&backend, &key(1), max).await.unwrap();
    lease.release().await.unwrap();
    let begun = Instant::now();
    servers.node(0).restart_empty();
    until("it is joining", async || {
        let joining = servers
            .node(0)
            .command(&["HGET", "tower-lock:node", "joining"]);
        !joining.is_nil()
    })
    .await;
    clocks[0].set_ahead(HOUR);
    until("it votes", async || crate::support::votes(&servers, 0)).await;
    let took = begun.elapsed();
    assert!(took >= max && took < LONG, "{took:?}");
}
