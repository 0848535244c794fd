//! Redis behind Sentinels: the master moves, and locks move with it, or are lost.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tower_lock::{
    BackendError, BackendErrorKind, Lease as _, Loss, RedisBackend, backend::redis::RedisLease,
};

use crate::{
    servers::{RedisServer, SentinelServers, SentinelSetup},
    storage::Storage,
    support::{SLACK, connect, hold, key, name, served, try_it, wait},
};

/// How long a fail-over may take, from the fault to the first answer of the new master.
const FAIL_OVER: Duration = Duration::from_secs(20);

async fn connect_all(servers: &SentinelServers) -> (RedisBackend, RedisBackend) {
    let one = RedisBackend::connect(&servers.url()).await.unwrap();
    (one, RedisBackend::connect(&servers.url()).await.unwrap())
}

/// Waits until the replicas have what was written.
fn replicated(servers: &SentinelServers) {
    let replicas = servers.replicas().count();
    // A connection waits for what it wrote itself, which is behind all that was written before.
    let mut client = servers.master().client();
    client.call(&["SET", "last", "1"]).unwrap();
    let answer = client.call(&["WAIT", &replicas.to_string(), "10000"]);
    assert_eq!(answer.unwrap().int(), replicas as i64);
}

async fn until_had(backend: &RedisBackend, value: &str) -> RedisLease {
    let begun = Instant::now();
    loop {
        match try_it(backend, &key(value)).await {
            Ok(lease) => return lease,
            Err(error) => assert!(begun.elapsed() < FAIL_OVER, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_renewed(lease: &RedisLease) {
    let begun = Instant::now();
    while let Err(error) = lease.renew().await {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(begun.elapsed() < FAIL_OVER, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_planned_failover_holders_hold_on_and_waiters_are_served() {
    let servers = SentinelServers::start(2);
    let (one, two) = connect_all(&servers).await;
    let held = hold(&one, &key(1)).await;
    let waiting = wait(servers.master(), &two, &key(1)).await;
    replicated(&servers);

    let old = servers.master();
    let new = servers.failover().await;
    assert_ne!(old.port(), new.port());
    until_renewed(&held).await;
    assert_eq!(held.lost().get(), None);
    // Nothing goes to the old master any more, which takes writes for another 10 s, once we have
    // heard of the new one too.
    let is_there = |server: &RedisServer, value: &str| {
        let lock = name(&key(value));
        server.command(&["EXISTS", &lock]).int() == 1
    };
    let begun = Instant::now();
    let mut values = (2..).map(|n: u32| n.to_string());
    let (other, value) = loop {
        let value = values.next().unwrap();
        let lease = until_had(&one, &value).await;
        if is_there(new, &value) {
            break (lease, value);
        }
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "never at the new master"
        );
    };
    assert!(!is_there(old, &value));
    assert!(other.fencing_token() > held.fencing_token());

    held.release().await.unwrap();
    let (next, _) = served(waiting, FAIL_OVER).await;
    assert!(next.fencing_token() > held.fencing_token());
    // The inbox moved too: this hand-off needs no timer.
    let waiting = wait(new, &one, &key(1)).await;
    next.release().await.unwrap();
    let (last, _) = served(waiting, SLACK).await;
    last.release().await.unwrap();
    other.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_master_is_killed_the_next_one_is_found_without_a_restart_of_anything() {
    let servers = SentinelServers::start(1);
    let (one, two) = connect_all(&servers).await;
    let held = hold(&one, &key(1)).await;
    // It waits through the fail-over.
    let waiting = wait(servers.master(), &two, &key(1)).await;
    replicated(&servers);
    let old = servers.kill_master();
    servers.switched_from(old).await;

    until_renewed(&held).await;
    held.release().await.unwrap();
    let (next, _) = served(waiting, FAIL_OVER).await;
    assert!(next.fencing_token() > held.fencing_token());
    next.release().await.unwrap();
}

/// The honest part: replication is asynchronous, so a fail-over can forget a lock. Two hold it
/// then, and only a storage that compares tokens tells them apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_can_grant_twice_and_the_token_tells() {
    let servers = SentinelServers::start(1);
    let (one, two) = connect_all(&servers).await;
    // A client of the old master alone, like one that is cut off from the rest.
    let cut_off = connect(servers.master()).await;
    servers.cut_off_replicas();
    let stale = hold(&cut_off, &key(1)).await;
    let doomed = hold(&one, &key(2)).await;
    let queued = wait(servers.master(), &two, &key(2)).await;

    let old = servers.pause_master();
    servers.switched_from(old).await;
    // Whoever follows the Sentinels learns it by the renewal that each new connection brings.
    let lost = timeout(FAIL_OVER, doomed.lost().wait()).await;
    assert_eq!(lost.expect("it is told"), Loss::Revoked);
    let (next, _) = served(queued, FAIL_OVER).await;
    assert!(next.fencing_token() > doomed.fencing_token());

    let fresh = until_had(&one, "1").await;
    old.resume();
    stale.renew().await.unwrap();
    let now = Instant::now();
    assert!(
        stale.valid_until() > now && fresh.valid_until() > now,
        "two hold"
    );

    let mut storage = Storage::default();
    assert!(storage.takes(fresh.fencing_token()));
    assert!(
        !storage.takes(stale.fencing_token()),
        "the stale one is refused"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_of_both_sides() {
    let servers = SentinelServers::start_with(SentinelSetup {
        password: Some("data/secret".into()),
        sentinel_password: Some("eye/secret".into()),
        ..SentinelSetup::default()
    });
    let url = |data: &str, eye: &str| {
        let hosts = servers.hosts();
        let eye = if eye.is_empty() {
            String::new()
        } else {
            format!("?sentinel_password={eye}")
        };
        format!("redis+sentinel://:{data}@{hosts}/mymaster{eye}")
    };
    let backend = RedisBackend::connect(&url("data%2Fsecret", "eye%2Fsecret"))
        .await
        .unwrap();
    hold(&backend, &key(1)).await.release().await.unwrap();

    for (data, eye) in [
        ("wrong", "eye%2Fsecret"),
        ("data%2Fsecret", "wrong"),
        ("data%2Fsecret", ""),
    ] {
        let error = RedisBackend::connect(&url(data, eye)).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}

async fn refusal(url: &str) -> BackendError {
    RedisBackend::connect(url).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_url_is_said() {
    let servers = SentinelServers::start(1);
    let misconfigured = BackendErrorKind::Misconfigured;
    let error = refusal(&servers.url_of("nobody")).await;
    assert_eq!(error.kind(), misconfigured, "{error}");
    assert!(
        error.to_string().contains("do not know the service"),
        "{error}"
    );

    let server = servers.master().address();
    let error = refusal(&format!("redis+sentinel://{server}/mymaster")).await;
    assert_eq!(error.kind(), misconfigured, "{error}");
    assert!(
        error.to_string().contains("not a Redis Sentinel"),
        "{error}"
    );

    let sentinel = servers.hosts().split(',').next().unwrap().to_owned();
    let error = refusal(&format!("redis://{sentinel}")).await;
    assert_eq!(error.kind(), misconfigured, "{error}");
    assert!(error.to_string().contains("redis+sentinel://"), "{error}");

    // Not all Sentinels need to be there.
    servers.kill_sentinel(0);
    let backend = RedisBackend::connect(&servers.url()).await.unwrap();
    hold(&backend, &key(1)).await.release().await.unwrap();
    for n in [1, 2] {
        servers.kill_sentinel(n);
    }
    // Where the master is stays known.
    hold(&backend, &key(2)).await.release().await.unwrap();
    let error = refusal(&servers.url()).await;
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
}
