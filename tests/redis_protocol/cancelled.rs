//! Futures that are dropped, and runtimes that end or stand still, with everything in flight.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    runtime::Builder,
    time::{Instant, sleep, timeout},
};
use tower_lock::{
    LockBackend, LockKey, Mode, RedisBackend,
    backend::{AcquireRequest, Order, WaitBound},
    lease::Lease,
};

use crate::servers::RedisServer;

const TTL: Duration = Duration::from_secs(60);

async fn nothing_is_left(server: &RedisServer, prefix: &str, limit: Duration) {
    let start = Instant::now();
    loop {
        let left = server.keys_left(prefix);
        if left.is_empty() {
            return;
        }
        assert!(start.elapsed() < limit, "left: {left:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn connect(prefix: &str) -> RedisBackend {
    let builder = RedisBackend::builder(&RedisServer::shared().url()).with_prefix(prefix);
    builder.connect().await.expect("a server")
}

fn request(n: u64) -> AcquireRequest {
    AcquireRequest::new(LockKey::new("order", n), TTL).with_wait(WaitBound::Forever)
}

/// At every moment of a wait: asked, queued, offered, confirming, released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_that_are_dropped_at_any_moment_leave_nothing() {
    let prefix = format!("dropped-{:08x}:", fastrand::u32(..));
    let backends = [connect(&prefix).await, connect(&prefix).await];
    let backends = Arc::new(backends);
    let mut tasks = Vec::new();
    for n in 0..8 {
        let backends = backends.clone();
        tasks.push(tokio::spawn(async move {
            for _ in 0..150 {
                let shared = fastrand::u32(..3) == 0;
                let unfair = fastrand::u32(..3) == 0;
                let request = request(n % 2)
                    .with_mode(if shared {
                        Mode::Shared
                    } else {
                        Mode::Exclusive
                    })
                    .with_order(if unfair { Order::Unfair } else { Order::Fifo });
                let limit = Duration::from_micros(fastrand::u64(..3000));
                let acquiring = backends[fastrand::usize(..2)].acquire(&request);
                if let Ok(lease) = timeout(limit, acquiring).await {
                    let lease = lease.expect("a server");
                    let mut releasing = pin!(lease.release());
                    let limit = Duration::from_micros(fastrand::u64(..500));
                    // Dropped too, with the lease.
                    let _ = timeout(limit, &mut releasing).await;
                }
            }
        }));
    }
    for task in tasks {
        task.await.expect("it ends");
    }
    nothing_is_left(RedisServer::shared(), &prefix, Duration::from_secs(3)).await;
}

#[tokio::test]
async fn a_runtime_that_ends_with_everything_in_flight_leaves_nothing() {
    let prefix = format!("ended-{:08x}:", fastrand::u32(..));
    let backend = connect(&prefix).await;
    for round in 0..5 {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        for n in 0..40 {
            let backend = backend.clone();
            runtime.spawn(async move {
                let _lease = backend.acquire(&request(n / 4)).await;
                std::future::pending::<()>().await;
            });
        }
        sleep(Duration::from_millis(round * 10)).await;
        runtime.shutdown_background();
        nothing_is_left(RedisServer::shared(), &prefix, Duration::from_secs(3)).await;
    }
    let lease = backend.acquire(&request(0)).await.expect("it works on");
    lease.release().await.expect("it works on");
}

/// What was granted over the connection of a runtime that nobody drives any more is undone
/// without it.
#[tokio::test]
async fn a_runtime_that_stands_still_costs_an_answers_time() {
    let prefix = format!("parked-{:08x}:", fastrand::u32(..));
    let backend = connect(&prefix).await;
    let (parked, lease) = std::thread::spawn({
        let backend = backend.clone();
        move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let lease = runtime.block_on(async {
                // The first one has this runtime connect.
                backend
                    .acquire(&request(0))
                    .await
                    .unwrap()
                    .release()
                    .await
                    .unwrap();
                sleep(Duration::from_millis(50)).await;
                backend.acquire(&request(0)).await.unwrap()
            });
            (runtime, lease)
        }
    })
    .join()
    .unwrap();
    lease.renew().await.expect("renewals do not need it");
    let started = Instant::now();
    drop(lease);
    let next = timeout(Duration::from_secs(3), backend.acquire(&request(0))).await;
    let next = next.unwrap_or_else(|_| panic!("not in {:?}", started.elapsed()));
    next.expect("a server").release().await.expect("a server");
    // Another thread, as a runtime must not be dropped inside of one.
    std::thread::spawn(move || drop(parked)).join().unwrap();
    nothing_is_left(RedisServer::shared(), &prefix, Duration::from_secs(3)).await;
}
