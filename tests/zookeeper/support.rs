//! What the tests share: clients, requests, waits that end.

use std::{
    future::Future,
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::timeout};
use tower_lock::{
    BackendError, Lease as _, LockBackend as _, LockKey, ZooKeeperBackend,
    backend::{AcquireRequest, WaitBound, zookeeper::ZooKeeperLease},
};

use crate::servers::ZooKeeperServer;

/// A lease that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// How late something may be on a busy machine that is to happen at once.
pub(crate) const SLACK: Duration = Duration::from_secs(3);

/// The session timeout of most: a machine that stalls for two seconds loses no locks.
pub(crate) const SESSION: Duration = Duration::from_secs(6);

/// How long to wait for what must come. Only reached by failures.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const BASE: &str = "/tower-lock";

pub(crate) async fn connect(server: &ZooKeeperServer) -> ZooKeeperBackend {
    connect_with(&server.url(), SESSION).await
}

/// A backend with a session timeout of its own, over this connect string.
pub(crate) async fn connect_with(url: &str, session: Duration) -> ZooKeeperBackend {
    let builder = ZooKeeperBackend::builder(url).with_session_timeout(session);
    builder.connect().await.unwrap()
}

pub(crate) fn url(address: SocketAddr) -> String {
    format!("zookeeper://{address}")
}

pub(crate) fn key(value: impl std::fmt::Display) -> LockKey {
    LockKey::new("order", value)
}

/// The node of a key.
pub(crate) fn path(key: &LockKey) -> String {
    format!("{BASE}/{}", key.as_str())
}

/// A wait of so long that only failures end it.
pub(crate) fn patient(key: &LockKey) -> AcquireRequest {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    AcquireRequest::new(key.clone(), LONG).with_wait(WaitBound::Until(deadline))
}

/// Tries, without a wait, for a lease that no test outlives.
pub(crate) async fn try_it(
    backend: &ZooKeeperBackend,
    key: &LockKey,
) -> Result<ZooKeeperLease, BackendError> {
    backend
        .acquire(&AcquireRequest::new(key.clone(), LONG))
        .await
}

/// Gets a free key.
pub(crate) async fn hold(backend: &ZooKeeperBackend, key: &LockKey) -> ZooKeeperLease {
    try_it(backend, key).await.unwrap()
}

pub(crate) type Waiting = JoinHandle<Result<ZooKeeperLease, BackendError>>;

/// Acquires in a task of its own.
pub(crate) fn begin(backend: &ZooKeeperBackend, request: AcquireRequest) -> Waiting {
    let backend = backend.clone();
    tokio::spawn(async move { backend.acquire(&request).await })
}

/// A waiter that is in the queue when this returns.
pub(crate) async fn wait(
    server: &ZooKeeperServer,
    backend: &ZooKeeperBackend,
    key: &LockKey,
) -> Waiting {
    let before = standing(server, key);
    let task = begin(backend, patient(key));
    until("it is in the queue", async || {
        standing(server, key) > before
    })
    .await;
    task
}

/// How many nodes stand under the key's.
pub(crate) fn standing(server: &ZooKeeperServer, key: &LockKey) -> usize {
    server.session().children(&path(key)).len()
}

/// The lease of a waiter that has to be served within `limit`, and how long that took.
pub(crate) async fn served(waiting: Waiting, limit: Duration) -> (ZooKeeperLease, Duration) {
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

/// Gets the key as soon as it can be had, and gives it back; says how long that took.
pub(crate) async fn until_it_works(backend: &ZooKeeperBackend, key: &LockKey) -> Duration {
    let begun = Instant::now();
    until("it works again", async || {
        match try_it(backend, key).await {
            Ok(lease) => lease.release().await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
    begun.elapsed()
}

/// Waits until the server has no node of any key any more, and says how long that took.
pub(crate) async fn until_nothing_is_left(server: &ZooKeeperServer, limit: Duration) -> Duration {
    let begun = Instant::now();
    loop {
        let left = server.nodes_left(BASE);
        if left.is_empty() {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < limit, "left after {limit:?}: {left:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What a future gives, and how long it took.
pub(crate) async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    let output = future.await;
    (output, begun.elapsed())
}
