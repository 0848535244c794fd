//! What a lock costs in memory: allocations of a request, bytes of a held key and of a waiter.
//! See `benches/README.md`.
//!
//! Apart from the other bench, because counting makes every allocation slower. Only the thread of
//! the bench is counted, not the lock runtime's.

mod support;

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use tokio::runtime::Runtime;
use tower::{Layer, Service, ServiceExt};
use tower_lock::{
    LockBackend, LockGuard, LockKey, MemoryBackend,
    backend::{AcquireRequest, WaitBound},
};

use self::support::{
    Effort, current_thread,
    services::{
        Noop, Plain, app, app_request, hand_written_by_header, hand_written_by_path,
        lock_by_header, lock_by_path, manager, patient, plain_request, quick,
    },
    table,
};

fn main() {
    let effort = Effort::from_args();
    allocations();
    bytes(effort.pick(10_000, 500));
}

/// Allocations and bytes of one uncontended request.
fn allocations() {
    let runtime = current_thread();
    let locks = manager();
    let mut rows = Vec::new();
    let mut add = |name: &str, request: &mut dyn FnMut()| {
        // The first ones fill pools and tables.
        (0..100).for_each(|_| request());
        let found = measure(|| (0..100).for_each(|_| request()));
        let (count, bytes) = (found.count_total / 100, found.bytes_total / 100);
        rows.push(vec![name.to_owned(), count.to_string(), bytes.to_string()]);
    };
    for (name, router) in [
        ("axum, no-op layer", app(quick, Noop)),
        (
            "axum, hand-written layer",
            app(quick, hand_written_by_path()),
        ),
        (
            "axum, LockLayer",
            app(quick, lock_by_path(&locks, patient())),
        ),
    ] {
        add(name, &mut || {
            let response = runtime.block_on(router.clone().oneshot(app_request(7)));
            assert!(response.is_ok_and(|r| r.status().is_success()));
        });
    }
    let mut noop = Noop.layer(Plain);
    add("tower, no-op layer", &mut || {
        drop(runtime.block_on(noop.call(plain_request(7))));
    });
    let mut hand = hand_written_by_header().layer(Plain);
    add("tower, hand-written layer", &mut || {
        drop(runtime.block_on(hand.call(plain_request(7))));
    });
    let mut lock = lock_by_header(&locks, patient()).layer(Plain);
    add("tower, LockLayer", &mut || {
        drop(runtime.block_on(lock.call(plain_request(7))));
    });
    table(
        "Allocations of an uncontended request",
        &["", "allocations", "bytes"],
        &rows,
    );
}

/// Bytes that stay while so many keys are held, or so many wait for one; without what the caller
/// has in his hands: the guard, or the future of the wait.
fn bytes(count: usize) {
    let runtime = current_thread();
    let mut rows = Vec::new();
    let mut add = |name: &str, kept: i64, after: i64, future: usize| {
        rows.push(vec![
            name.to_owned(),
            (kept / count as i64).to_string(),
            match future {
                0 => String::new(),
                future => future.to_string(),
            },
            after.to_string(),
        ]);
    };
    let _in_runtime = runtime.enter();
    let key = |id: usize| LockKey::new("order", id);

    let locks = manager();
    let mut held = Vec::with_capacity(count);
    let kept = measure(|| {
        for id in 0..count {
            held.push(
                runtime
                    .block_on(locks.acquire(key(id), &patient()))
                    .expect("a grant"),
            );
        }
    });
    let after = measure(|| {
        for guard in held.drain(..) {
            runtime.block_on(guard.release()).expect("a release");
        }
    });
    add(
        "held key, LockManager",
        kept.bytes_current,
        kept.bytes_current + after.bytes_current,
        0,
    );

    let backend = MemoryBackend::new();
    let mut held = Vec::with_capacity(count);
    let kept = measure(|| {
        for id in 0..count {
            let request = AcquireRequest::new(key(id), std::time::Duration::from_secs(60));
            held.push(
                runtime
                    .block_on(backend.acquire(&request))
                    .expect("a grant"),
            );
        }
    });
    let after = measure(|| held.clear());
    add(
        "held key, MemoryBackend",
        kept.bytes_current,
        kept.bytes_current + after.bytes_current,
        0,
    );

    let hand = hand_written_by_header();
    let mut held = Vec::with_capacity(count);
    let kept = measure(|| {
        for id in 0..count {
            held.push(runtime.block_on(hand.lock(id.to_string())));
        }
    });
    let after = measure(|| held.clear());
    add(
        "held key, hand-written",
        kept.bytes_current,
        kept.bytes_current + after.bytes_current,
        0,
    );

    // Waiters of one key.
    let request = AcquireRequest::new(key(7), std::time::Duration::from_secs(60));
    let hold = || {
        let lease = runtime.block_on(backend.acquire(&request));
        lease.expect("a grant")
    };
    let (kept, after, size) = waiting(count, hold, || {
        let backend = backend.clone();
        async move {
            let request = AcquireRequest::new(key(7), std::time::Duration::from_secs(60))
                .with_wait(WaitBound::Forever);
            drop(backend.acquire(&request).await);
        }
    });
    add("waiter, MemoryBackend", kept, after, size);

    let policy = patient();
    let hold = || Released {
        guard: Some(
            runtime
                .block_on(locks.acquire(key(7), &policy))
                .expect("a grant"),
        ),
        runtime: &runtime,
    };
    let (kept, after, size) = waiting(count, hold, || {
        let (locks, policy) = (&locks, &policy);
        async move { drop(locks.acquire(key(7), policy).await) }
    });
    add("waiter, LockManager", kept, after, size);

    let layer = lock_by_header(&locks, patient()).layer(Plain);
    let (kept, after, size) = waiting(count, hold, || {
        let response = layer.clone().call(plain_request(7));
        async move { drop(response.await) }
    });
    add("waiter, LockLayer", kept, after, size);

    let layer = hand.layer(Plain);
    let hold = || runtime.block_on(hand.lock("7".to_owned()));
    let (kept, after, size) = waiting(count, hold, || {
        let response = layer.clone().call(plain_request(7));
        async move { drop(response.await) }
    });
    add("waiter, hand-written", kept, after, size);

    table(
        &format!("Bytes of each of {count}, beyond the guard or the caller's own future"),
        &["", "bytes", "(its future)", "left in all, after"],
        &rows,
    );
}

/// The bytes beyond the boxed futures while they wait, the bytes left after, and a future's size.
fn waiting<H, F: Future<Output = ()>>(
    count: usize,
    hold: impl FnOnce() -> H,
    mut wait: impl FnMut() -> F,
) -> (i64, i64, usize) {
    let mut futures: Vec<Pin<Box<F>>> = Vec::with_capacity(count);
    let mut kept = 0;
    let all = measure(|| {
        let held = hold();
        let during = measure(|| {
            for _ in 0..count {
                let mut future = Box::pin(wait());
                let polled = future
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(polled, Poll::Pending), "the key is held");
                futures.push(future);
            }
        });
        kept = during.bytes_current - (count * size_of::<F>()) as i64;
        futures.clear();
        drop(held);
    });
    (kept, all.bytes_current, size_of::<F>())
}

/// A guard that is released where it is dropped, not later by the reaper's thread.
struct Released<'a> {
    guard: Option<LockGuard>,
    runtime: &'a Runtime,
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            self.runtime.block_on(guard.release()).expect("a release");
        }
    }
}
