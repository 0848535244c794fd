//! One owner that asks more than once.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use tokio::time::{Instant, sleep};
use tower_lock::{
    LockBackend, LockKey, RedisBackend,
    backend::{AcquireRequest, WaitBound},
    lease::Lease,
};

use crate::servers::{RedisServer, TcpProxy};

const TTL: Duration = Duration::from_secs(60);

fn key() -> LockKey {
    LockKey::new("test", format_args!("{:032x}", fastrand::u128(..)))
}

async fn connect(url: &str) -> RedisBackend {
    RedisBackend::connect(url).await.expect("a server")
}

async fn until_free(backend: &RedisBackend, key: &LockKey, limit: Duration) {
    let start = Instant::now();
    loop {
        let state = backend.inspect(key).await.expect("a server");
        if state.holders.is_empty() && state.waiters == 0 {
            return;
        }
        assert!(start.elapsed() < limit, "not free: {state:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// The undo of what was dropped must not reach what the same owner got afterwards.
#[tokio::test]
async fn an_owner_may_ask_again_after_it_dropped_its_lease() {
    let backend = connect(&RedisServer::shared().url()).await;
    for round in 0..50 {
        let request = AcquireRequest::new(key(), TTL);
        drop(backend.acquire(&request).await.unwrap());
        let lease = backend.acquire(&request).await.unwrap();
        sleep(Duration::from_millis(5)).await;
        let other = AcquireRequest::new(request.key.clone(), TTL);
        let second = backend.acquire(&other).await;
        assert!(second.is_err(), "two holders in round {round}");
        lease.renew().await.expect("it holds");
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn an_owner_may_ask_again_after_it_gave_up() {
    let backend = connect(&RedisServer::shared().url()).await;
    for round in 0..50 {
        let holder = AcquireRequest::new(key(), TTL);
        let held = backend.acquire(&holder).await.unwrap();
        let request = AcquireRequest::new(holder.key.clone(), TTL).with_wait(WaitBound::Forever);
        // In the queue, and dropped.
        let limit = Duration::from_millis(10);
        let waited = tokio::time::timeout(limit, backend.acquire(&request)).await;
        assert!(waited.is_err());
        let (lease, released) = tokio::join!(backend.acquire(&request), held.release());
        released.unwrap();
        let lease = lease.unwrap();
        sleep(Duration::from_millis(5)).await;
        lease
            .renew()
            .await
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn one_owner_may_want_two_keys() {
    let backend = connect(&RedisServer::shared().url()).await;
    let first = AcquireRequest::new(key(), TTL);
    let mut second = first.clone();
    second.key = key();
    let one = backend.acquire(&first).await.unwrap();
    let two = backend.acquire(&second).await.unwrap();
    for request in [&first, &second] {
        let state = backend.inspect(&request.key).await.unwrap();
        assert_eq!(state.holders.len(), 1, "{state:?}");
    }
    assert!(backend.force_release(&first.key).await.unwrap());
    one.lost().wait().await;
    two.renew().await.expect("it still holds");
    two.release().await.unwrap();
    until_free(&backend, &second.key, Duration::from_secs(1)).await;
}

/// A waiter of one owner and two keys is served on both.
#[tokio::test]
async fn one_owner_may_wait_for_two_keys() {
    let backend = connect(&RedisServer::shared().url()).await;
    let keys = [key(), key()];
    let mut held = Vec::new();
    for key in &keys {
        held.push(
            backend
                .acquire(&AcquireRequest::new(key.clone(), TTL))
                .await
                .unwrap(),
        );
    }
    let request = AcquireRequest::new(keys[0].clone(), TTL).with_wait(WaitBound::Forever);
    let mut other = request.clone();
    other.key = keys[1].clone();
    let started = Instant::now();
    let (one, two, ()) = tokio::join!(backend.acquire(&request), backend.acquire(&other), async {
        sleep(Duration::from_millis(50)).await;
        for held in &held {
            held.release().await.unwrap();
        }
    });
    assert!(
        started.elapsed() < Duration::from_millis(800),
        "{:?}",
        started.elapsed()
    );
    one.unwrap().release().await.unwrap();
    two.unwrap().release().await.unwrap();
}

/// Whoever has the owner's token has the lease, over whatever connection.
#[tokio::test]
async fn an_owner_may_ask_again_through_another_backend() {
    let url = RedisServer::shared().url();
    let (one, two) = (connect(&url).await, connect(&url).await);
    let request = AcquireRequest::new(key(), TTL);
    let first = one.acquire(&request).await.unwrap();
    let second = two.acquire(&request).await.unwrap();
    assert_eq!(first.fencing_token(), second.fencing_token());
    second.renew().await.expect("it holds");
    second.release().await.unwrap();
    until_free(&one, &request.key, Duration::from_secs(1)).await;
}

/// The newer acquire of an owner takes the place of the older, and leaves before it asked.
#[tokio::test]
async fn an_owner_whose_second_wish_ended_before_it_was_sent_leaves_nothing() {
    let server = RedisServer::shared();
    let proxy = TcpProxy::start(server.address());
    let backend = connect(&proxy.redis_url()).await;
    let control = connect(&server.url()).await;
    let request = AcquireRequest::new(key(), TTL);
    proxy.refuse();
    proxy.reset();
    // Both wait for a connection.
    let mut first = pin!(backend.acquire(&request));
    let first_is_pending = poll_fn(|cx| Poll::Ready(first.as_mut().poll(cx).is_pending())).await;
    assert!(first_is_pending);
    {
        let limit = Duration::from_millis(20);
        let second = tokio::time::timeout(limit, backend.acquire(&request)).await;
        assert!(second.is_err());
    }
    proxy.heal();
    let first = first.await;
    assert!(first.is_err(), "{first:?}");
    until_free(&control, &request.key, Duration::from_secs(2)).await;
}

/// An attempt that was replaced while its request was on its way leaves nothing either.
#[tokio::test]
async fn an_owner_that_asks_from_two_runtimes_leaves_nothing() {
    let server = RedisServer::shared();
    let proxy = TcpProxy::start(server.address());
    let backend = connect(&proxy.redis_url()).await;
    let control = connect(&server.url()).await;
    // So that this runtime has a connection of its own.
    let warm = AcquireRequest::new(key(), TTL);
    backend
        .acquire(&warm)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    sleep(Duration::from_millis(50)).await;
    let request = AcquireRequest::new(key(), TTL);
    proxy.hold_up();
    {
        let mut first = pin!(backend.acquire(&request));
        let pending = poll_fn(|cx| Poll::Ready(first.as_mut().poll(cx).is_pending())).await;
        assert!(pending);
        let mut second = pin!(backend.acquire(&request));
        let pending = poll_fn(|cx| Poll::Ready(second.as_mut().poll(cx).is_pending())).await;
        assert!(pending);
    }
    proxy.heal();
    sleep(Duration::from_millis(100)).await;
    until_free(&control, &request.key, Duration::from_secs(2)).await;
}
