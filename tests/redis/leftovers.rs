//! What is left on the server when nobody holds or waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tower_lock::{
    Lease as _, LockBackend as _, Mode,
    backend::{AcquireRequest, Order, WaitBound},
};

use crate::{
    servers::RedisServer,
    support::{
        LONG, UNDONE, connect, connect_with, key, patient, until, until_nothing_is_left, wait_with,
        waiters,
    },
};

const KEYS: u32 = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_many_keys_but_the_counters() {
    let server = RedisServer::start();
    // None of the two million answers is to be late on a busy machine.
    let backend = connect_with(&server.url(), Duration::from_secs(10)).await;
    let next = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..256)
        .map(|_| {
            let (backend, next) = (backend.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= KEYS {
                        return;
                    }
                    let request = AcquireRequest::new(key(n), LONG);
                    backend
                        .acquire(&request)
                        .await
                        .unwrap()
                        .release()
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let left = server.command(&["KEYS", "*"]).texts();
    assert!(left.len() <= 256, "{} keys", left.len());
    for key in left {
        assert!(key.starts_with("tower-lock:token:"), "{key}");
        // They go too, when nobody locks anything for a day.
        let seconds = server.command(&["TTL", &key]).int();
        assert!((1..=86_400).contains(&seconds), "{key}: {seconds}");
    }
}

/// At all times, whatever is written has an end.
#[tokio::test(flavor = "multi_thread")]
async fn every_key_expires() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut leases = Vec::new();
    let mut waiting = Vec::new();
    for (n, mode) in [Mode::Exclusive, Mode::Shared].into_iter().enumerate() {
        let request = AcquireRequest::new(key(n), LONG).with_mode(mode);
        leases.push(backend.acquire(&request).await.unwrap());
        for order in [Order::Fifo, Order::Unfair] {
            let request = patient(&key(n), LONG).with_order(order);
            waiting.push(wait_with(&server, &backend, request).await);
        }
    }
    let gate = tokio::spawn({
        let backend = backend.clone();
        async move { backend.wait_free(&key(0), WaitBound::Forever).await }
    });
    until("the gate is there", async || waiters(&server, &key(0)) == 3).await;
    for step in 0..3 {
        let keys = server.command(&["KEYS", "*"]).texts();
        for key in keys {
            let ms = server.command(&["PTTL", &key]).int();
            assert_ne!(ms, -1, "{key} never ends, in step {step}");
        }
        // What is handed over, offered or left early has an end too.
        match step {
            0 => leases.clear(),
            1 => waiting.drain(..).for_each(|waiting| waiting.abort()),
            _ => {}
        }
    }
    gate.await.unwrap().unwrap();
    until_nothing_is_left(&server, UNDONE).await;
}

/// Of a backend that is dropped no connection is left, whatever it did.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_backend_closes_its_connections() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let lease = backend.acquire(&patient(&key(1), LONG)).await.unwrap();
    let waiting = wait_with(&server, &backend, patient(&key(1), LONG)).await;
    drop((backend, lease));
    // The last to hold on to it; what is to be undone still is.
    drop(waiting.await.unwrap().unwrap());
    until_nothing_is_left(&server, UNDONE).await;
    until("only this connection is left", async || {
        server.info("connected_clients") == "1"
    })
    .await;
}
