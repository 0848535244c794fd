//! Nodes that may have forgotten what they granted do not vote.

use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{BackendErrorKind, Lease as _, RedLockBackend};

use crate::{
    servers::RedLockServers,
    support::{
        PREFIX, SLACK, builder, deploy, key, kind, try_for, until, until_nothing_is_left, votes,
    },
};

const MAX: Duration = Duration::from_secs(2);

async fn deploy_with_short_leases(nodes: usize) -> (RedLockServers, RedLockBackend) {
    let servers = RedLockServers::start(nodes);
    let backend = connect(&servers).await;
    assert!(backend.found().await.unwrap());
    (servers, backend)
}

async fn connect(servers: &RedLockServers) -> RedLockBackend {
    builder(servers).with_max_ttl(MAX).connect().await.unwrap()
}

/// Nobody can tell new servers from some that lost everything.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_start_waits_for_the_longest_ttl() {
    let servers = RedLockServers::start(3);
    let begun = Instant::now();
    let backend = connect(&servers).await;
    let error = try_for(&backend, &key(1), MAX).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(error.to_string().contains("forgotten"), "{error}");
    backend.until_voting().await;
    let took = begun.elapsed();
    println!("voting after {took:?}");
    assert!(took >= MAX, "{took:?}");
    let lease = try_for(&backend, &key(1), MAX).await.unwrap();
    // They are not new any more.
    assert!(!backend.found().await.unwrap());
    lease.release().await.unwrap();
    // Another client need not wait.
    let (other, begun) = (connect(&servers).await, Instant::now());
    other.until_voting().await;
    assert!(begun.elapsed() < SLACK);
    until_nothing_is_left(&servers, SLACK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn founding_takes_all_nodes_and_is_for_new_ones() {
    let servers = RedLockServers::start(3);
    servers.node(2).kill();
    let backend = connect(&servers).await;
    let error = backend.found().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("node 3 of the list"), "{error}");
    assert!(!votes(&servers, 0) && !votes(&servers, 1));
    servers.node(2).restart();
    until("it is founded", async || {
        matches!(backend.found().await, Ok(true))
    })
    .await;
    // Before the first lock it may be done again.
    assert!(backend.found().await.unwrap());
    hold_short(&backend).await;
    servers.node(0).restart_empty();
    assert!(!backend.found().await.unwrap_or(false));
    assert!(!votes(&servers, 0));
}

async fn hold_short(backend: &RedLockBackend) {
    let lease = try_for(backend, &key("short"), MAX).await.unwrap();
    lease.release().await.unwrap();
}

/// The fault for which the guard is there: of the three nodes that had the key, two forget it.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_forgot_let_nobody_in_beside_the_holder() {
    for forget in ["restart", "flush"] {
        let (servers, backend) = deploy_with_short_leases(3).await;
        let lease = try_for(&backend, &key(1), MAX).await.unwrap();
        let token = lease.fencing_token();
        let other = connect(&servers).await;
        for node in [0, 1] {
            match forget {
                "restart" => servers.node(node).restart_empty(),
                _ => drop(servers.node(node).command(&["FLUSHALL"])),
            }
        }
        // From any moment on at which a second owner has it, the first one's lease is over.
        let mut tries = 0;
        let next = loop {
            tries += 1;
            match try_for(&other, &key(1), MAX).await {
                Ok(next) => break next,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert!(
            Instant::now() > lease.valid_until(),
            "{forget}: two hold it"
        );
        assert!(tries > 10, "{tries}");
        let (before, after) = (token, next.fencing_token());
        assert!(after > before, "{forget}: {after} after {before}");
        assert_eq!(kind(lease.renew().await), BackendErrorKind::Lost);
    }
}

/// A node joins again with the counters of the others, and votes.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_waits_learns_and_votes() {
    let (servers, backend) = deploy_with_short_leases(3).await;
    for n in 0..20 {
        let lease = try_for(&backend, &key(n), MAX).await.unwrap();
        lease.release().await.unwrap();
    }
    let begun = Instant::now();
    servers.node(1).restart_empty();
    let counters = |at: usize| {
        let node = servers.node(at);
        let mut fields = node.command(&["HGETALL", &format!("{PREFIX}node")]).texts();
        let pairs = fields.chunks_exact_mut(2);
        let numbers = pairs.filter(|pair| pair[0].parse::<u32>().is_ok());
        let mut numbers: Vec<_> = numbers
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect();
        numbers.sort();
        numbers
    };
    until("it votes", async || votes(&servers, 1)).await;
    let took = begun.elapsed();
    println!("voted again after {took:?}");
    assert!(took >= MAX, "{took:?}");
    assert!(counters(1).len() >= 15);
    assert_eq!(counters(1), counters(0));
    // Its vote counts.
    servers.node(2).kill();
    let before = try_for(&backend, &key(1), MAX).await;
    let lease = before.unwrap();
    assert_eq!(crate::support::standing(&servers, &[0, 1], &key(1)), 2);
    lease.release().await.unwrap();
}

/// Its own append-only file says nothing of the last moments before the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_data_waits_too() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let servers = RedLockServers::start_with(3, &options);
    let backend = connect(&servers).await;
    assert!(backend.found().await.unwrap());
    let lease = try_for(&backend, &key(1), MAX).await.unwrap();
    let token = lease.fencing_token();
    for node in servers.iter() {
        node.restart();
    }
    assert_eq!(
        kind(try_for(&backend, &key(2), MAX).await),
        BackendErrorKind::Unavailable
    );
    backend.until_voting().await;
    let mut lease = None;
    until("it is had", async || {
        votes(&servers, 0) && votes(&servers, 1) && votes(&servers, 2)
    })
    .await;
    while lease.is_none() {
        lease = try_for(&backend, &key(1), MAX).await.ok();
    }
    assert!(lease.is_some_and(|lease| lease.fencing_token() > token));
}

/// Two clients do not have to agree on the longest ttl: nodes keep the longest that they granted.
#[tokio::test(flavor = "multi_thread")]
async fn the_longest_ttl_that_was_granted_counts() {
    let (servers, patient) = deploy(3).await;
    let long = Duration::from_secs(4);
    let hasty = builder(&servers)
        .with_max_ttl(Duration::from_millis(200))
        .connect()
        .await
        .unwrap();
    let held = try_for(&patient, &key(1), long).await.unwrap();
    let begun = Instant::now();
    servers.node(0).restart_empty();
    until("it votes", async || votes(&servers, 0)).await;
    let took = begun.elapsed();
    assert!(took >= long, "{took:?}");
    assert!(Instant::now() > held.valid_until());
    drop(hasty);
}
