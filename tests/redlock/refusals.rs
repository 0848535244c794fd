//! Nodes, settings and requests that will not do say so, clearly, and give no secret away.

use std::{error::Error, num::NonZeroU32, time::Duration};

use tower_lock::{
    BackendError, BackendErrorKind, Fairness, Guarantee, Lease as _, LockBackend as _, LockManager,
    LockPolicy, Mode, RedLockBackend,
    backend::{AcquireRequest, WaitBound},
};

use crate::{
    servers::{self, RedLockServers, RedisServer},
    support::{
        LONG, SLACK, UNDONE, builder, deploy, hold, key, kind, served, timed, try_for, until,
        until_nothing_is_left, votes, wait,
    },
};

const SECRET: &str = "a-very-secret-password";

/// All that an error says, to whoever prints it in any way.
fn everything(error: &BackendError) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    text
}

#[track_caller]
fn says(error: &BackendError, parts: &[&str]) {
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    assert!(!everything(error).contains(SECRET), "{error}");
}

async fn refusal(urls: &[String]) -> BackendError {
    let connect = RedLockBackend::builder_of(urls).connect();
    let (result, took) = timed(connect).await;
    assert!(took < Duration::from_secs(3) + SLACK, "{took:?}");
    result.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_and_even_numbers_of_nodes_are_refused() {
    let urls: Vec<_> = (1..=32)
        .map(|port| format!("redis://127.0.0.1:{port}"))
        .collect();
    says(&refusal(&urls[..1]).await, &["three", "Redis backend"]);
    says(&refusal(&urls[..2]).await, &["three"]);
    says(
        &refusal(&urls[..4]).await,
        &["4 nodes", "3", "allow_even_nodes"],
    );
    says(&refusal(&urls).await, &["31"]);
    for url in [
        "redlock://a,b",
        "redlock://a",
        "redis://a",
        "redlock://a,,b",
        "x",
    ] {
        let error = RedLockBackend::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{url}");
    }
    let servers = RedLockServers::start(4);
    let even = builder(&servers)
        .allow_even_nodes()
        .connect()
        .await
        .unwrap();
    assert!(even.found().await.unwrap());
    hold(&even, &key(1)).await;
    // Three of four are a majority, two are not.
    servers.node(0).kill();
    hold(&even, &key(2)).await;
    servers.node(1).kill();
    assert_eq!(
        kind(try_for(&even, &key(3), LONG).await),
        BackendErrorKind::Unavailable
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_is_one_node() {
    let servers = RedLockServers::start(3);
    let mut urls = servers.urls();
    urls[2] = urls[0].clone();
    says(&refusal(&urls).await, &["nodes 1 and 3", "same address"]);
    // By another name.
    urls[2] = format!("redis://localhost:{}", servers.node(0).port());
    says(&refusal(&urls).await, &["same server"]);
    urls[2] = servers.node(0).unix_url();
    says(&refusal(&urls).await, &["same server"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_no_independent_masters_are_refused_by_name() {
    let servers = RedLockServers::start(3);
    let port = servers.node(0).port().to_string();
    servers.node(1).command(&["REPLICAOF", "127.0.0.1", &port]);
    let error = refusal(&servers.urls()).await;
    says(&error, &["node 2 of the list", "read-only replica"]);
    servers.node(1).command(&["REPLICAOF", "NO", "ONE"]);

    let mut urls = servers.urls();
    let cluster = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    urls[2] = cluster.url();
    says(&refusal(&urls).await, &["node 3 of the list", "Cluster"]);

    servers
        .node(1)
        .command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    servers
        .node(1)
        .command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let error = refusal(&servers.urls()).await;
    says(&error, &["node 2 of the list", "evicts"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_let_in_learns_why_and_no_secret_is_told() {
    let servers = RedLockServers::start_with(3, &["--requirepass", SECRET]);
    says(
        &refusal(&servers.urls()).await,
        &["node", "of the list", "password"],
    );
    let hosts = servers.url();
    let hosts = hosts.strip_prefix("redlock://").unwrap();
    let error = RedLockBackend::connect(&format!("redlock://:{SECRET}x@{hosts}")).await;
    says(&error.unwrap_err(), &["password"]);
    let builder = RedLockBackend::builder(&format!("redlock://:{SECRET}@{hosts}"));
    assert!(!format!("{builder:?}{builder:#?}").contains(SECRET));
    let backend = builder.connect().await.unwrap();
    assert!(!format!("{backend:?}{backend:#?}").contains(SECRET));

    // A right that is lacking is named.
    for node in servers.iter() {
        let user = format!(">{SECRET}");
        node.command(&[
            "ACL", "SETUSER", "worker", "reset", "on", &user, "~*", "&*", "+@all", "-zadd",
        ]);
    }
    let url = format!("redlock://worker:{SECRET}@{hosts}");
    let error = RedLockBackend::connect(&url).await.unwrap_err();
    says(&error, &["ZADD", "`+zadd`"]);
}

/// The rights that the page on RedLock tells operators to set: those that are needed, and the rest.
fn documented_rights() -> (Vec<&'static str>, Vec<&'static str>) {
    servers::documented_rights(include_str!("../../src/docs/redlock.md"))
}

async fn as_user(
    servers: &RedLockServers,
    rights: &[&str],
) -> Result<RedLockBackend, BackendError> {
    let password = format!(">{SECRET}");
    let mut command = vec!["ACL", "SETUSER", "worker", "reset", "on", &password];
    command.extend(rights);
    for node in servers.iter() {
        node.command(&command);
    }
    let urls = servers.iter().map(|node| {
        let at = node.address();
        format!("redis://worker:{SECRET}@{at}")
    });
    let builder = RedLockBackend::builder_of(urls).with_max_ttl(LONG);
    builder.connect().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough_and_needed() {
    let (servers, _backend) = deploy(3).await;
    let (needed, optional) = documented_rights();
    assert!(needed.len() > 20 && !optional.is_empty());
    for rights in [&[&needed[..], &optional[..]].concat()[..], &needed[..]] {
        let backend = as_user(&servers, rights).await.unwrap();
        backend.until_voting().await;
        let lease = hold(&backend, &key(1)).await;
        lease.renew().await.unwrap();
        let first = wait(&backend, &key(1)).await;
        let second = wait(&backend, &key(1)).await;
        second.abort();
        lease.release().await.unwrap();
        let (next, _) = served(first, SLACK * 2).await;
        let now = WaitBound::Until(tokio::time::Instant::now());
        let held = key(1);
        let gate = backend.wait_free(&held, now);
        assert_eq!(kind(gate.await), BackendErrorKind::WaitTimedOut);
        assert!(backend.force_release(&held).await.unwrap());
        drop(next);
        assert!(!backend.found().await.unwrap());
        until_nothing_is_left(&servers, UNDONE).await;
    }
    let mut unnamed = Vec::new();
    for &right in &needed {
        let rest: Vec<_> = needed.iter().copied().filter(|r| *r != right).collect();
        let Err(error) = as_user(&servers, &rest).await else {
            unnamed.push(format!("without {right} it connects"));
            continue;
        };
        assert!(!everything(&error).contains(SECRET), "{error}");
        let text = error.to_string();
        let named = match right.split_at(1) {
            ("+", _) => text.contains(&format!("`{right}`")),
            ("~", _) => text.contains("~<prefix>*") && text.contains("~{<prefix>*"),
            _ => text.contains("&<prefix>inbox:*"),
        };
        if !named || error.kind() != BackendErrorKind::Misconfigured {
            unnamed.push(format!("without {right}: {text}"));
        }
    }
    assert!(unnamed.is_empty(), "{unnamed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_had_is_refused() {
    let (_servers, backend) = deploy(3).await;
    let too_long = AcquireRequest::new(key(1), LONG + Duration::from_millis(1));
    let error = backend.acquire(&too_long).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unsupported);
    assert!(error.to_string().contains("with_max_ttl"), "{error}");
    let shared = AcquireRequest::new(key(1), LONG).with_mode(Mode::Shared);
    assert_eq!(
        kind(backend.acquire(&shared).await),
        BackendErrorKind::Unsupported
    );

    // The same when a route is set up.
    let capabilities = backend.capabilities();
    let locks = LockManager::new(backend);
    let check = |policy: LockPolicy| policy.check(&capabilities, false);
    let fenced = LockPolicy::new().with_guarantee(Guarantee::CorrectnessFencedByStorage);
    check(fenced).unwrap();
    for (policy, part) in [
        (
            LockPolicy::new().with_guarantee(Guarantee::Correctness),
            "CorrectnessFencedByStorage",
        ),
        (LockPolicy::new().with_ttl(LONG * 2), "ttl"),
        (LockPolicy::new().with_mode(Mode::Shared), "Shared"),
        (LockPolicy::new().with_fairness(Fairness::Fifo), "Fifo"),
    ] {
        let error = check(policy).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let batched = Fairness::Batched(NonZeroU32::new(8).unwrap());
    check(LockPolicy::new().with_fairness(batched)).unwrap();
    let guard = locks.acquire(key(1), &LockPolicy::new()).await.unwrap();
    guard.release().await.unwrap();
}

/// A majority is enough to begin with; the others join when they are there.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_are_away_at_first_join_later() {
    let (servers, _) = deploy(5).await;
    servers.node(0).kill();
    servers.node(1).pause();
    let (backend, took) = timed(builder(&servers).connect()).await;
    let backend = backend.unwrap();
    println!("connected after {took:?}");
    assert!(took < Duration::from_secs(2) + SLACK, "{took:?}");
    backend.until_voting().await;
    hold(&backend, &key(1)).await;
    servers.node(1).resume();
    servers.node(2).kill();
    until("the one that was stopped votes", async || {
        try_for(&backend, &key(2), LONG).await.is_ok()
    })
    .await;
    assert!(votes(&servers, 1));

    servers.node(3).kill();
    let (refused, took) = timed(builder(&servers).connect()).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(
        error.to_string().contains("of 5 nodes could not be"),
        "{error}"
    );
    assert!(took < Duration::from_secs(3) + SLACK, "{took:?}");
}
