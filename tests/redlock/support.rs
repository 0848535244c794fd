//! What the tests share: deployments, clients, requests, waits that end.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::timeout};
use tower_lock::{
    BackendError, BackendErrorKind, Lease as _, LockBackend as _, LockKey, RedLockBackend,
    backend::{
        AcquireRequest, WaitBound,
        redlock::{RedLockBuilder, RedLockLease},
    },
};

use crate::servers::RedLockServers;

/// A lease that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// How late something may be on a busy machine that is to happen at once.
pub(crate) const SLACK: Duration = Duration::from_millis(800);

/// As long as it may be: what has one round to be answered in is to be answered on a busy machine.
const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// By when what was given up is undone, on a busy machine too. By itself a lease of a test would
/// end minutes later, and a queue more than ten seconds.
pub(crate) const UNDONE: Duration = Duration::from_secs(5);

/// How long to wait for what must come. Only reached by failures.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const PREFIX: &str = "tower-lock:";

/// How a client is set up where its timeouts are not the subject.
pub(crate) fn builder(servers: &RedLockServers) -> RedLockBuilder {
    RedLockBackend::builder(&servers.url())
        .with_max_ttl(LONG)
        .with_node_timeout(NODE_TIMEOUT)
}

/// So many nodes which vote, and a client of theirs.
pub(crate) async fn deploy(nodes: usize) -> (RedLockServers, RedLockBackend) {
    let servers = RedLockServers::start(nodes);
    let backend = builder(&servers).connect().await.unwrap();
    assert!(backend.found().await.unwrap());
    (servers, backend)
}

/// Another client of the same nodes.
pub(crate) async fn connect(servers: &RedLockServers) -> RedLockBackend {
    let backend = builder(servers).connect().await.unwrap();
    backend.until_voting().await;
    backend
}

pub(crate) fn key(value: impl std::fmt::Display) -> LockKey {
    LockKey::new("order", value)
}

/// The name of a lock on the nodes.
pub(crate) fn name(key: &LockKey) -> String {
    format!("{PREFIX}{}", key.as_str())
}

/// A wait of so long that only failures end it.
pub(crate) fn patient(key: &LockKey, ttl: Duration) -> AcquireRequest {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    AcquireRequest::new(key.clone(), ttl).with_wait(WaitBound::Until(deadline))
}

/// Tries, without a wait, for a lease of this ttl.
pub(crate) async fn try_for(
    backend: &RedLockBackend,
    key: &LockKey,
    ttl: Duration,
) -> Result<RedLockLease, BackendError> {
    backend
        .acquire(&AcquireRequest::new(key.clone(), ttl))
        .await
}

/// Tries, without a wait, for a lease that no test outlives.
pub(crate) async fn try_it(
    backend: &RedLockBackend,
    key: &LockKey,
) -> Result<RedLockLease, BackendError> {
    try_for(backend, key, LONG).await
}

/// Gets a free key.
pub(crate) async fn hold(backend: &RedLockBackend, key: &LockKey) -> RedLockLease {
    try_it(backend, key).await.unwrap()
}

pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, BackendError>) -> BackendErrorKind {
    result.unwrap_err().kind()
}

pub(crate) type Waiting = JoinHandle<Result<RedLockLease, BackendError>>;

/// A waiter that the nodes know of when this returns.
pub(crate) async fn wait(backend: &RedLockBackend, key: &LockKey) -> Waiting {
    wait_with(backend, patient(key, LONG)).await
}

pub(crate) async fn wait_with(backend: &RedLockBackend, request: AcquireRequest) -> Waiting {
    let key = request.key.clone();
    let before = backend.inspect(&key).await.unwrap().waiters;
    let task = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire(&request).await }
    });
    until("it waits", async || {
        backend.inspect(&key).await.unwrap().waiters > before
    })
    .await;
    task
}

/// The lease of a waiter that has to be served within `limit`, and how long that took.
pub(crate) async fn served(waiting: Waiting, limit: Duration) -> (RedLockLease, Duration) {
    let begun = Instant::now();
    let result = timeout(limit, waiting).await;
    let lease = result.unwrap_or_else(|_| panic!("not served within {limit:?}"));
    (lease.unwrap().unwrap(), begun.elapsed())
}

/// Waits until it is so.
pub(crate) async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !so().await {
        assert!(
            begun.elapsed() < PATIENCE,
            "it does not come about that {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until no node has anything of locks any more but what it knows of itself and tombstones.
pub(crate) async fn until_nothing_is_left(servers: &RedLockServers, limit: Duration) {
    let begun = Instant::now();
    loop {
        let left = servers.keys_left(PREFIX);
        if left.is_empty() {
            return;
        }
        assert!(begun.elapsed() < limit, "left after {limit:?}: {left:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// At how many nodes the lock of this key stands.
pub(crate) fn standing(servers: &RedLockServers, nodes: &[usize], key: &LockKey) -> usize {
    let name = name(key);
    let stands = |at: &&usize| servers.node(**at).command(&["EXISTS", &name]).int() == 1;
    nodes.iter().filter(stands).count()
}

/// Whether a node is a member, as it says itself.
pub(crate) fn votes(servers: &RedLockServers, at: usize) -> bool {
    let node = servers.node(at);
    let member = node.command(&["HGET", &format!("{PREFIX}node"), "member"]);
    !member.is_nil() && member.text() == node.info("run_id")
}

/// What a future gives, and how long it took.
pub(crate) async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    let output = future.await;
    (output, begun.elapsed())
}

/// Why a lease is not renewed, as the nodes say: when enough of them have answered in time.
pub(crate) async fn not_renewed(lease: &RedLockLease) -> BackendErrorKind {
    let begun = Instant::now();
    loop {
        let kind = kind(lease.renew().await);
        if kind != BackendErrorKind::Unavailable || begun.elapsed() > PATIENCE {
            return kind;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A lease that was not lost, renewed until it is so.
pub(crate) async fn renewed(lease: &RedLockLease) {
    until("it is renewed", async || lease.renew().await.is_ok()).await;
    assert_eq!(lease.lost().get(), None);
}
