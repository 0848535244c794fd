//! What the tests share: clients, requests, waits that end.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::timeout};
use tower_lock::{
    BackendError, Lease as _, LockBackend, LockKey, RedisBackend,
    backend::{AcquireRequest, WaitBound, redis::RedisLease},
};

use crate::servers::RedisServer;

/// A lease that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// How late something may be on a busy machine that is to happen at once.
pub(crate) const SLACK: Duration = Duration::from_millis(600);

/// By when what was given up is undone, on a busy machine too. By itself a lease of a test would
/// end minutes later, and a queue more than ten seconds.
pub(crate) const UNDONE: Duration = Duration::from_secs(5);

/// How long to wait for what must come. Only reached by failures.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const PREFIX: &str = "tower-lock:";

pub(crate) async fn connect(server: &RedisServer) -> RedisBackend {
    RedisBackend::connect(&server.url()).await.unwrap()
}

/// A backend with an operation timeout of its own, over this URL.
pub(crate) async fn connect_with(url: &str, operation_timeout: Duration) -> RedisBackend {
    let builder = RedisBackend::builder(url).with_operation_timeout(operation_timeout);
    builder.connect().await.unwrap()
}

pub(crate) fn key(value: impl std::fmt::Display) -> LockKey {
    LockKey::new("order", value)
}

/// The name of a lock on the server.
pub(crate) fn name(key: &LockKey) -> String {
    format!("{PREFIX}{}", key.as_str())
}

/// A wait of so long that only failures end it.
pub(crate) fn patient(key: &LockKey, ttl: Duration) -> AcquireRequest {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    AcquireRequest::new(key.clone(), ttl).with_wait(WaitBound::Until(deadline))
}

/// Tries, without a wait, for a lease that no test outlives.
pub(crate) async fn try_it(
    backend: &RedisBackend,
    key: &LockKey,
) -> Result<RedisLease, BackendError> {
    backend
        .acquire(&AcquireRequest::new(key.clone(), LONG))
        .await
}

/// Gets a free key.
pub(crate) async fn hold(backend: &RedisBackend, key: &LockKey) -> RedisLease {
    try_it(backend, key).await.unwrap()
}

pub(crate) type Waiting = JoinHandle<Result<RedisLease, BackendError>>;

/// A waiter that is in the queue when this returns.
pub(crate) async fn wait(server: &RedisServer, backend: &RedisBackend, key: &LockKey) -> Waiting {
    wait_with(server, backend, patient(key, LONG)).await
}

pub(crate) async fn wait_with(
    server: &RedisServer,
    backend: &RedisBackend,
    request: AcquireRequest,
) -> Waiting {
    let queued = || waiters(server, &request.key);
    let before = queued();
    let task = tokio::spawn({
        let (backend, request) = (backend.clone(), request.clone());
        async move { backend.acquire(&request).await }
    });
    until("it is in the queue", async || queued() > before).await;
    task
}

/// How many entries the queue of a key has on the server.
pub(crate) fn waiters(server: &RedisServer, key: &LockKey) -> i64 {
    let queue = format!("{{{}}}:q", name(key));
    server.command(&["ZCARD", &queue]).int()
}

/// The lease of a waiter that has to be served within `limit`, and how long that took.
pub(crate) async fn served(waiting: Waiting, limit: Duration) -> (RedisLease, Duration) {
    let begun = Instant::now();
    let result = timeout(limit, waiting).await;
    let lease = result.unwrap_or_else(|_| panic!("not served within {limit:?}"));
    (lease.unwrap().unwrap(), begun.elapsed())
}

/// Serves all of them, in whichever order, each for a moment, within `limit`.
pub(crate) async fn all_served(waiting: impl IntoIterator<Item = Waiting>, limit: Duration) {
    let served = waiting.into_iter().map(|waiting| async move {
        let (lease, _) = served(waiting, limit).await;
        lease.release().await.unwrap();
    });
    let served: Vec<_> = served.map(tokio::spawn).collect();
    for one in served {
        one.await.unwrap();
    }
}

/// Waits until it is so.
pub(crate) async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !so().await {
        assert!(
            begun.elapsed() < PATIENCE,
            "it does not come about that {what}"
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the server has nothing of locks any more but token counters and tombstones, and
/// says how long that took.
pub(crate) async fn until_nothing_is_left(server: &RedisServer, limit: Duration) -> Duration {
    let begun = Instant::now();
    loop {
        let left = server.keys_left(PREFIX);
        if left.is_empty() {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < limit, "left after {limit:?}: {left:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// What a future gives, and how long it took.
pub(crate) async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    let output = future.await;
    (output, begun.elapsed())
}
