//! Grants and renewals that count when replicas have them.

use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, RedisBackend, ReplicaAck,
    backend::AcquireRequest,
};

use crate::{
    servers::{RedisServer, SentinelServers},
    support::{
        LONG, SLACK, UNDONE, hold, key, name, served, timed, try_it, until, until_nothing_is_left,
        wait,
    },
};

const WITHIN: Duration = Duration::from_millis(400);

async fn connect(servers: &SentinelServers, ack: ReplicaAck) -> RedisBackend {
    connect_within(servers, ack, WITHIN).await
}

async fn connect_within(
    servers: &SentinelServers,
    ack: ReplicaAck,
    within: Duration,
) -> RedisBackend {
    RedisBackend::builder(&servers.url())
        .with_replica_ack(ack, within)
        .connect()
        .await
        .unwrap()
}

/// The lock's value and what is left of its life, as a server has it.
fn at(server: &RedisServer, value: &str) -> (i64, i64) {
    let name = name(&key(value));
    let exists = server.command(&["EXISTS", &name]).int();
    (exists, server.command(&["PTTL", &name]).int())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_required_is_on_the_replica_when_the_caller_has_it() {
    let servers = SentinelServers::start(1);
    // The replica is there, however busy the machine is.
    let within = Duration::from_secs(5);
    let backend = connect_within(&servers, ReplicaAck::Require(1), within).await;
    let replica = servers.replicas().next().unwrap();
    for n in 0..50 {
        let lease = hold(&backend, &key(n)).await;
        assert_eq!(at(replica, &n.to_string()).0, 1, "{n}");
        lease.release().await.unwrap();
    }
    // By a hand-off too, and a renewal.
    let held = hold(&backend, &key("a")).await;
    let waiting = wait(servers.master(), &backend, &key("a")).await;
    held.release().await.unwrap();
    let (next, _) = served(waiting, SLACK).await;
    let left = at(replica, "a").1;
    assert!(left > LONG.as_millis() as i64 / 2, "{left} ms");
    servers
        .master()
        .command(&["PEXPIRE", &name(&key("a")), "5000"]);
    next.renew().await.unwrap();
    let left = at(replica, "a").1;
    assert!(left > LONG.as_millis() as i64 / 2, "{left} ms");
}

#[tokio::test(flavor = "multi_thread")]
async fn off_sends_nothing() {
    let servers = SentinelServers::start(1);
    let waits = || servers.master().info("cmdstat_wait");
    let backend = RedisBackend::connect(&servers.url()).await.unwrap();
    let before = waits();
    let lease = hold(&backend, &key(1)).await;
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    assert_eq!(waits(), before);
    // As it would be seen.
    let backend = connect(&servers, ReplicaAck::BestEffort(1)).await;
    hold(&backend, &key(1)).await;
    assert_ne!(waits(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_replicas_a_required_lock_is_given_back_with_an_error_of_its_own() {
    let servers = SentinelServers::start(1);
    let required = connect(&servers, ReplicaAck::Require(1)).await;
    let effort = connect(&servers, ReplicaAck::BestEffort(1)).await;
    let held = hold(&required, &key("held")).await;
    let promised = held.valid_until();
    servers.cut_off_replicas();

    let (refused, took) = timed(try_it(&required, &key(1))).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::NotReplicated, "{error}");
    assert!(error.is_retryable());
    assert!(took >= WITHIN && took < WITHIN + SLACK, "{took:?}");
    assert_eq!(
        at(servers.master(), "1").0,
        0,
        "given back when the error is there"
    );

    // A renewal that no replica has says nothing: the lease is as it was.
    let error = held.renew().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::NotReplicated, "{error}");
    assert_eq!(held.lost().get(), None);
    assert_eq!(held.valid_until(), promised);
    held.release().await.unwrap();

    // Best effort goes on, after as long.
    let (lease, took) = timed(try_it(&effort, &key(1))).await;
    assert!(took >= WITHIN, "{took:?}");
    let lease = lease.unwrap();
    lease.renew().await.unwrap();
    lease.release().await.unwrap();

    // Many that come together wait together.
    let begun = Instant::now();
    let many: Vec<_> = (0..50)
        .map(|n| {
            let effort = effort.clone();
            tokio::spawn(async move { hold(&effort, &key(n)).await })
        })
        .collect();
    for one in many {
        one.await.unwrap().release().await.unwrap();
    }
    let took = begun.elapsed();
    assert!(took < WITHIN * 2 + SLACK * 2, "{took:?}");
    until_nothing_is_left(servers.master(), UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_replica_has_outlives_the_master() {
    let servers = SentinelServers::start(1);
    let backend = connect(&servers, ReplicaAck::BestEffort(1)).await;
    let lease = hold(&backend, &key(1)).await;
    // Most likely it is there already; the effort ends.
    let replica = servers.replicas().next().unwrap();
    until("the replica has it", async || at(replica, "1").0 == 1).await;
    let old = servers.kill_master();
    servers.switched_from(old).await;
    let begun = Instant::now();
    while let Err(error) = lease.renew().await {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Another connection than that of renewals, which may come back later.
    let refused = loop {
        let error = try_it(&backend, &key(1)).await.unwrap_err();
        if error.kind() != BackendErrorKind::Unavailable {
            break error;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(refused.kind(), BackendErrorKind::Contended, "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_wait_and_settings_that_say_nothing_are_refused() {
    let server = RedisServer::start_with(&["--rename-command", "WAIT", ""]);
    let builder = || RedisBackend::builder(&server.url().to_owned()).clone();
    let refused = async |builder: tower_lock::backend::redis::RedisBuilder, part: &str| {
        let error = builder.connect().await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    builder().connect().await.unwrap();
    refused(
        builder().with_replica_ack(ReplicaAck::Require(1), WITHIN),
        "WAIT",
    )
    .await;
    refused(
        builder().with_replica_ack(ReplicaAck::Require(0), WITHIN),
        "no replica",
    )
    .await;
    let instantly = Duration::ZERO;
    refused(
        builder().with_replica_ack(ReplicaAck::Require(1), instantly),
        "1 ms",
    )
    .await;
    refused(builder().with_fsynced_acks(), "ReplicaAck").await;

    let server = RedisServer::start();
    let may_not = [
        "ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all", "-wait",
    ];
    server.command(&may_not);
    let url = format!("redis://shop:pw@{}", server.address());
    let builder = RedisBackend::builder(&url).with_replica_ack(ReplicaAck::Require(1), WITHIN);
    refused(builder, "WAIT").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_replicas_count_only_where_the_server_knows_of_them() {
    let servers = SentinelServers::start(1);
    let builder = RedisBackend::builder(&servers.url())
        .with_replica_ack(ReplicaAck::Require(1), WITHIN)
        .with_fsynced_acks();
    let version = servers.master().info("redis_version");
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap());
    let knows = (numbers.next(), numbers.next()) >= (Some(7), Some(2));
    match builder.connect().await {
        Err(error) => {
            assert!(!knows, "{error}");
            assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
            assert!(error.to_string().contains("7.2"), "{error}");
        }
        // These replicas write no such file.
        Ok(backend) => {
            assert!(knows);
            let request = AcquireRequest::new(key(1), LONG);
            let error = backend.acquire(&request).await.unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::NotReplicated, "{error}");
        }
    }
}
