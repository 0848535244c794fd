//! What the tests share: clients, requests, waits that end.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use tokio::{task::JoinHandle, time::timeout};
use tower_lock::{
    BackendError, BackendErrorKind, EtcdBackend, Lease as _, LockBackend, LockKey,
    backend::{AcquireRequest, WaitBound, etcd::EtcdLease},
};

use crate::servers::{Etcd, TcpProxy};

/// A lease that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// How late something may be on a busy machine that is to happen at once: less than the 4.5 s after
/// which a waiter looks again, whatever it has heard.
pub(crate) const SLACK: Duration = Duration::from_secs(3);

/// How long to wait for what must come. Only reached by failures.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const PREFIX: &str = "tower-lock/";

pub(crate) async fn connect(server: &Etcd) -> EtcdBackend {
    EtcdBackend::connect(&server.url()).await.unwrap()
}

/// A backend with an operation timeout of its own, over this URL. A short one may not be enough for
/// all that a connect asks, on a busy machine.
pub(crate) async fn connect_with(url: &str, operation_timeout: Duration) -> EtcdBackend {
    let begun = Instant::now();
    loop {
        let builder = EtcdBackend::builder(url).with_operation_timeout(operation_timeout);
        match builder.connect().await {
            Err(error)
                if error.kind() == BackendErrorKind::Unavailable && begun.elapsed() < PATIENCE => {}
            connected => return connected.unwrap(),
        }
    }
}

pub(crate) fn url_of(proxy: &TcpProxy) -> String {
    format!("etcd://{}", proxy.address())
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
    backend: &EtcdBackend,
    key: &LockKey,
) -> Result<EtcdLease, BackendError> {
    backend
        .acquire(&AcquireRequest::new(key.clone(), LONG))
        .await
}

/// Gets a free key.
pub(crate) async fn hold(backend: &EtcdBackend, key: &LockKey) -> EtcdLease {
    try_it(backend, key).await.unwrap()
}

/// Gets a free key for this long, unless renewed.
pub(crate) async fn hold_for(backend: &EtcdBackend, key: &LockKey, ttl: Duration) -> EtcdLease {
    let request = AcquireRequest::new(key.clone(), ttl);
    backend.acquire(&request).await.unwrap()
}

/// Renews at a third of the ttl, as the manager does, until told to end.
pub(crate) fn keep(lease: EtcdLease, ttl: Duration) -> (std::sync::Arc<EtcdLease>, JoinHandle<()>) {
    let lease = std::sync::Arc::new(lease);
    let task = tokio::spawn({
        let lease = lease.clone();
        async move {
            while lease.lost().get().is_none() {
                tokio::time::sleep(ttl / 3).await;
                // An error is not a loss.
                let _ = timeout(ttl / 3, lease.renew()).await;
            }
        }
    });
    (lease, task)
}

pub(crate) type Waiting = JoinHandle<Result<EtcdLease, BackendError>>;

/// A waiter that is in the queue when this returns.
pub(crate) async fn wait(backend: &EtcdBackend, key: &LockKey) -> Waiting {
    wait_with(backend, patient(key, LONG)).await
}

pub(crate) async fn wait_with(backend: &EtcdBackend, request: AcquireRequest) -> Waiting {
    let before = waiters(backend, &request.key).await;
    let task = tokio::spawn({
        let (backend, request) = (backend.clone(), request.clone());
        async move { backend.acquire(&request).await }
    });
    until("it is in the queue", async || {
        waiters(backend, &request.key).await > before
    })
    .await;
    task
}

/// How many wait for a key.
pub(crate) async fn waiters(backend: &EtcdBackend, key: &LockKey) -> u64 {
    backend.inspect(key).await.unwrap().waiters
}

/// The lease of a waiter that has to be served within `limit`, and how long that took.
pub(crate) async fn served(waiting: Waiting, limit: Duration) -> (EtcdLease, Duration) {
    let begun = Instant::now();
    let result = timeout(limit, waiting).await;
    let lease = result.unwrap_or_else(|_| panic!("not served within {limit:?}"));
    (lease.unwrap().unwrap(), begun.elapsed())
}

/// Waits until the servers answer again.
pub(crate) async fn until_it_serves(backend: &EtcdBackend) {
    until("it serves", async || {
        match try_it(backend, &key("nobody's")).await {
            Ok(lease) => lease.release().await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
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

/// Waits until the server has nothing of locks any more but marks.
pub(crate) async fn until_nothing_is_left(server: &Etcd, limit: Duration) {
    let begun = Instant::now();
    loop {
        let left = server.keys_left(PREFIX);
        if left.is_empty() {
            return;
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
