//! Locks outside HTTP: jobs acquire through the manager, several keys at once, in batches, and
//! let go at shutdown.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use tokio::{
    sync::Barrier,
    time::{Instant, advance, sleep},
};
use tower_lock::{
    AcquireErrorKind, Fairness, LockGuard, LockKey, LockManager, LockPolicy, Loss, MemoryBackend,
    Mode, OnLost, Wait,
};

fn paused(backend: &MemoryBackend) -> LockManager {
    LockManager::builder(backend.clone())
        .renew_on_current_runtime()
        .build()
}

/// Lets the worker and the woken tasks run, without a clock.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_keeps_its_lock_far_beyond_the_ttl() {
    let backend = MemoryBackend::new();
    let locks = paused(&backend);
    let policy = LockPolicy::new()
        .with_ttl(Duration::from_secs(3))
        .with_wait(Wait::Fail);
    let key = LockKey::new("job", "nightly");
    let guard = locks.acquire(key.clone(), &policy).await.unwrap();
    for _ in 0..25 {
        advance(Duration::from_secs(1)).await;
        settle().await;
        assert!(guard.is_held());
        let refused = locks.acquire(key.clone(), &policy).await.unwrap_err();
        assert_eq!(refused.kind(), AcquireErrorKind::Contended);
        assert!(refused.retry_after().unwrap() > Duration::from_secs(1));
    }
    guard.release().await.unwrap();
    assert!(backend.is_empty());
    assert!(locks.inspect().held.is_empty());
}

/// Renewals that are nearly due go along with the first, so that a backend may send them together.
#[tokio::test(start_paused = true)]
async fn locks_of_the_same_age_are_renewed_together() {
    let locks = paused(&MemoryBackend::new());
    let policy = LockPolicy::new().with_ttl(Duration::from_secs(30));
    let mut guards = Vec::new();
    for number in 0..10 {
        let key = LockKey::new("order", number);
        guards.push(locks.acquire(key, &policy).await.unwrap());
    }
    let begun = Instant::now();
    let renewed = || {
        let left = |guard: &LockGuard| guard.remaining() + begun.elapsed();
        let renewed = guards.iter().map(left);
        renewed.filter(|end| *end > Duration::from_secs(35)).count()
    };
    while renewed() == 0 {
        sleep(Duration::from_millis(100)).await;
    }
    // Each after a third of its ttl, give or take a tenth of that.
    assert!(begun.elapsed() < Duration::from_secs(12));
    assert_eq!(renewed(), guards.len());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_holds_too_long_is_told_and_the_lease_runs_out() {
    let backend = MemoryBackend::new();
    let locks = paused(&backend);
    let policy = LockPolicy::new()
        .with_ttl(Duration::from_secs(3))
        .with_max_hold(Duration::from_secs(10))
        .with_wait(Wait::Forever);
    let key = LockKey::new("job", "hung");
    let guard = locks.acquire(key.clone(), &policy).await.unwrap();
    let start = Instant::now();
    assert_eq!(guard.lost().await, Loss::MaxHold);
    let told = start.elapsed();
    assert!(
        (Duration::from_secs(9)..Duration::from_millis(10_100)).contains(&told),
        "{told:?}"
    );
    // The holder still runs: its key is not given away before its lease has ended.
    let next = locks.acquire(key, &policy).await.unwrap();
    assert!(
        start.elapsed() >= told + Duration::from_secs(1),
        "it was renewed until it was told, at least two thirds of the ttl were left"
    );
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    guard.release().await.unwrap();
    assert!(next.is_held(), "a late release touches no successor");
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_all_or_nothing() {
    let backend = MemoryBackend::new();
    let locks = paused(&backend);
    let policy = LockPolicy::new().with_wait(Duration::from_secs(1));
    let keys = |names: [&str; 3]| names.map(|n| LockKey::new("account", n));
    let blocker = locks
        .acquire(LockKey::new("account", "c"), &policy)
        .await
        .unwrap();
    let start = Instant::now();
    let error = locks
        .acquire_all(keys(["b", "c", "a"]), &policy)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), AcquireErrorKind::WaitTimedOut);
    assert_eq!(start.elapsed().as_secs(), 1);
    assert_eq!(backend.len(), 1, "what was acquired before is free again");
    drop(blocker);
    let guards = locks
        .acquire_all(keys(["b", "a", "b"]), &policy)
        .await
        .unwrap();
    let order: Vec<_> = guards.iter().map(|g| g.key().as_str()).collect();
    assert_eq!(order, ["account:1.a;", "account:1.b;"]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_frees_its_key_through_the_reaper() {
    let backend = MemoryBackend::new();
    let locks = paused(&backend);
    let policy = LockPolicy::new().with_wait(Wait::Forever);
    let key = LockKey::new("job", 1);
    let guard = locks.acquire(key.clone(), &policy).await.unwrap();
    drop(guard);
    drop(locks.acquire(key, &policy).await.unwrap());
    settle().await;
    assert!(backend.is_empty());
    assert!(locks.inspect().held.is_empty());
}

#[tokio::test(start_paused = true)]
async fn readers_share_and_writers_do_not() {
    let backend = MemoryBackend::new();
    let locks = paused(&backend);
    let read = LockPolicy::new()
        .with_mode(Mode::Shared)
        .with_wait(Wait::Fail);
    let write = LockPolicy::new().with_wait(Wait::Fail);
    let key = LockKey::new("doc", 1);
    let one = locks.acquire(key.clone(), &read).await.unwrap();
    let two = locks.acquire(key.clone(), &read).await.unwrap();
    assert_eq!(
        locks.acquire(key.clone(), &write).await.unwrap_err().kind(),
        AcquireErrorKind::Contended
    );
    one.release().await.unwrap();
    two.release().await.unwrap();
    let _writer = locks.acquire(key.clone(), &write).await.unwrap();
    assert_eq!(
        locks.acquire(key, &read).await.unwrap_err().kind(),
        AcquireErrorKind::Contended
    );
}

/// A hundred tasks on one key in batches of eight: nobody holds beside another, tokens grow in
/// the order of grants, and nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_batch_hands_over_in_the_process_with_a_token_each() {
    let backend = MemoryBackend::new();
    let locks = LockManager::new(backend.clone());
    let policy = LockPolicy::new()
        .with_fairness(Fairness::Batched(NonZeroU32::new(8).unwrap()))
        .with_wait(Wait::Forever)
        .with_max_waiters(1000);
    let key = LockKey::new("stock", "hot");
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let inside = Arc::new(tokio::sync::Mutex::new(()));
    let start = Arc::new(Barrier::new(100));
    let tasks: Vec<_> = (0..100)
        .map(|i| {
            let (locks, policy, key) = (locks.clone(), policy.clone(), key.clone());
            let (seen, inside, start) = (seen.clone(), inside.clone(), start.clone());
            tokio::spawn(async move {
                start.wait().await;
                for round in 0..20 {
                    let wish = locks.acquire(key.clone(), &policy);
                    let guard = if (i + round) % 7 == 0 {
                        // Some give up, at whatever point they have reached.
                        match tokio::time::timeout(Duration::from_micros(50), wish).await {
                            Ok(guard) => guard.unwrap(),
                            Err(_) => continue,
                        }
                    } else {
                        wish.await.unwrap()
                    };
                    let alone = inside.try_lock().expect("one holder");
                    seen.lock().unwrap().push(guard.fencing_token());
                    tokio::task::yield_now().await;
                    drop(alone);
                    if round % 2 == 0 {
                        guard.release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert!(seen.len() > 1000);
    assert!(
        seen.windows(2).all(|w| w[0] < w[1]),
        "tokens grow with every grant"
    );
    let report = locks.shutdown(Duration::from_secs(5)).await;
    assert!(report.confirmed);
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_batch_serves_routes_with_different_ttls() {
    let backend = MemoryBackend::new();
    let locks = paused(&backend);
    let batched = LockPolicy::new()
        .with_fairness(Fairness::Batched(NonZeroU32::new(4).unwrap()))
        .with_wait(Wait::Forever);
    let short = batched.clone().with_ttl(Duration::from_millis(300));
    let long = batched
        .with_ttl(Duration::from_secs(60))
        .with_on_lost(OnLost::Signal);
    let key = LockKey::new("stock", 1);
    let first = locks.acquire(key.clone(), &short).await.unwrap();
    let second = tokio::spawn({
        let (locks, key) = (locks.clone(), key.clone());
        async move { locks.acquire(key, &long).await.unwrap() }
    });
    settle().await;
    let token = first.fencing_token();
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(
        second.fencing_token().get(),
        token.get() + 1,
        "handed over, not asked again"
    );
    // The lease it was handed is the short one: it must be renewed at that pace.
    for _ in 0..100 {
        advance(Duration::from_millis(50)).await;
        settle().await;
        assert!(second.is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_refuses_waiters_and_tells_holders() {
    let backend = MemoryBackend::new();
    let locks = paused(&backend);
    let policy = LockPolicy::new().with_wait(Wait::Forever);
    let key = LockKey::new("job", 1);
    let stubborn = locks.acquire(key.clone(), &policy).await.unwrap();
    let polite = locks
        .acquire(LockKey::new("job", 2), &policy)
        .await
        .unwrap();
    let waiter = tokio::spawn({
        let (locks, policy, key) = (locks.clone(), policy.clone(), key.clone());
        async move { locks.acquire(key, &policy).await }
    });
    settle().await;
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(Duration::from_secs(10)).await }
    });
    let refused = waiter.await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), AcquireErrorKind::Draining);
    assert_eq!(
        locks.acquire(key, &policy).await.unwrap_err().kind(),
        AcquireErrorKind::Draining
    );
    assert!(polite.is_held(), "the grace is the holders'");
    polite.release().await.unwrap();
    assert_eq!(stubborn.lost().await, Loss::Shutdown);
    let report = shutdown.await.unwrap();
    assert_eq!(
        (report.finished, report.interrupted, report.forced),
        (1, 0, 1)
    );
    assert!(report.confirmed);
    assert!(backend.is_empty());
    drop(stubborn);
    assert_eq!(locks.shutdown(Duration::ZERO).await.forced, 0);
}

#[tokio::test(start_paused = true)]
async fn an_operator_sees_and_breaks_locks() {
    let backend = MemoryBackend::new();
    let locks = paused(&backend);
    let policy = LockPolicy::new().with_wait(Wait::Forever);
    let key = LockKey::new("order", 7);
    let guard = locks.acquire(key.clone(), &policy).await.unwrap();
    let waiter = tokio::spawn({
        let (locks, policy, key) = (locks.clone(), policy.clone(), key.clone());
        async move { locks.acquire(key, &policy).await.unwrap() }
    });
    settle().await;
    let state = locks.inspect();
    assert_eq!(state.held.len(), 1);
    assert_eq!(state.held[0].fencing_token, guard.fencing_token());
    assert_eq!(state.waiting[0].waiters, 1);
    let seen = locks.inspect_key(&key).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiters), (1, 1));
    assert!(locks.force_release(&key).await.unwrap());
    assert_eq!(guard.lost().await, Loss::ForceReleased);
    let next = waiter.await.unwrap();
    assert!(next.is_held() && !guard.is_held());
    drop(guard);
    settle().await;
    assert!(next.is_held());
}
