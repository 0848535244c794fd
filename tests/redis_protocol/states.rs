//! What is left on the server, and what a server that is down costs.

use std::{mem::ManuallyDrop, time::Duration};

use tokio::time::{Instant, sleep};
use tower_lock::{
    BackendErrorKind, LockBackend, LockKey, Mode, RedisBackend, backend::AcquireRequest,
    lease::Lease,
};

use crate::servers::RedisServer;

/// The last reader crashed; another had a lease of ten minutes and gave it back.
#[tokio::test]
async fn nothing_of_readers_outlives_the_last_of_them() {
    let server = RedisServer::shared();
    let prefix = format!("readers-{:08x}:", fastrand::u32(..));
    let builder = RedisBackend::builder(&server.url()).with_prefix(prefix.clone());
    let backend = builder.connect().await.unwrap();
    let key = LockKey::new("order", 7);
    let read = |ttl| AcquireRequest::new(key.clone(), ttl).with_mode(Mode::Shared);
    let long = backend
        .acquire(&read(Duration::from_secs(600)))
        .await
        .unwrap();
    let short = backend
        .acquire(&read(Duration::from_millis(300)))
        .await
        .unwrap();
    let _crashed = ManuallyDrop::new(short);
    long.release().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(server.keys_left(&prefix), Vec::<String>::new());
    assert_eq!(
        server.keys_left(&format!("{{{prefix}")),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn a_server_that_is_down_is_refused_at_once() {
    let server = RedisServer::start();
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    server.kill();
    let request = || AcquireRequest::new(LockKey::new("order", 7), Duration::from_secs(60));
    let error = backend.acquire(&request()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    // By now it is known.
    sleep(Duration::from_millis(1200)).await;
    let started = Instant::now();
    let error = backend.acquire(&request()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(
        started.elapsed() < Duration::from_millis(300),
        "{:?}",
        started.elapsed()
    );
}
