use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{task::JoinSet, time::Instant};

use super::*;
use crate::{
    backend::{Mode, Order},
    error::BackendErrorKind,
    lease::Lease,
};

type Result<T> = std::result::Result<T, BackendError>;

const TTL: Duration = Duration::from_secs(30);

fn key() -> LockKey {
    LockKey::new("order", 7)
}

fn request() -> AcquireRequest {
    AcquireRequest::new(key(), TTL)
}

fn patient() -> AcquireRequest {
    request().with_wait(WaitBound::Forever)
}

/// One poll: what a process-scope backend decides at once is decided by then.
fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn now<F: Future>(future: F) -> F::Output {
    poll(pin!(future)).expect("ready on the first poll")
}

fn take(backend: &MemoryBackend) -> MemoryLease {
    now(backend.acquire(&request())).expect("free")
}

fn kind<T>(result: Result<T>) -> BackendErrorKind {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.kind(),
    }
}

fn waiters(backend: &MemoryBackend) -> u64 {
    now(backend.inspect(&key())).expect("inspect").waiters
}

/// A task that waits; it is in the queue when this returns.
async fn enqueue(
    backend: &MemoryBackend,
    request: AcquireRequest,
) -> tokio::task::JoinHandle<Result<MemoryLease>> {
    let before = waiters(backend);
    let task = {
        let backend = backend.clone();
        tokio::spawn(async move { backend.acquire(&request).await })
    };
    while waiters(backend) == before && !task.is_finished() {
        tokio::task::yield_now().await;
    }
    task
}

#[test]
fn without_waiting_everything_ends_on_the_first_poll_and_needs_no_runtime() {
    let backend = MemoryBackend::new();
    let lease = take(&backend);
    let error = now(backend.acquire(&request())).expect_err("held");
    assert_eq!(error.kind(), BackendErrorKind::Contended);
    assert!(error.remaining().expect("known") > TTL / 2);
    now(lease.renew()).expect("held");
    now(lease.release()).expect("release");
    now(lease.release()).expect("harmless");
    assert_eq!(kind(now(lease.renew())), BackendErrorKind::Lost);
    assert!(backend.is_empty());
    now(backend.wait_free(&key(), WaitBound::Fail)).expect("free");
}

#[test]
fn dropping_the_last_lease_frees_the_key() {
    let backend = MemoryBackend::new();
    let request = request();
    let first = now(backend.acquire(&request)).expect("free");
    let again = now(backend.acquire(&request)).expect("same owner");
    assert_eq!(first.fencing_token(), again.fencing_token());
    drop(first);
    assert_eq!(backend.len(), 1);
    drop(again);
    assert!(backend.is_empty());
}

/// What a held key and a waiter cost, beside the key's own text and the task.
#[test]
fn holders_and_waiters_are_small() {
    assert_eq!(size_of::<MemoryLease>(), 8);
    let grant = size_of::<lease::Grant>() + 2 * size_of::<usize>();
    assert!(grant <= 168, "{grant} bytes per held key");
    let node = size_of::<slab::Node>();
    assert!(node <= 96, "{node} bytes per waiter");
}

#[test]
fn a_waker_may_drop_a_lease_of_the_same_key() {
    struct Dropper(std::sync::Mutex<Option<MemoryLease>>);

    impl std::task::Wake for Dropper {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().expect("not poisoned").take());
        }
    }

    let backend = MemoryBackend::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("runtime");
    let _guard = runtime.enter();
    let shared = || patient().with_mode(Mode::Shared);
    let first = now(backend.acquire(&shared())).expect("free");
    let second = now(backend.acquire(&shared())).expect("readers share");
    let waker = Waker::from(Arc::new(Dropper(std::sync::Mutex::new(Some(second)))));
    // The loss of the first, fired by a stranger, drops the second; so does waking a waiter.
    let mut lost = Box::pin(first.lost().wait());
    assert!(
        lost.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    assert!(now(backend.force_release(&key())).expect("answered"));
    drop(lost);
    let held = take(&backend);
    let other = now(backend.acquire(&AcquireRequest::new(LockKey::new("order", 8), TTL)));
    let waker = Waker::from(Arc::new(Dropper(std::sync::Mutex::new(other.ok()))));
    let request = patient();
    let mut waiter = Box::pin(backend.acquire(&request));
    assert!(
        waiter
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    drop(held);
    assert_eq!(backend.len(), 1, "the waiter's offer is all that is left");
    drop(waiter);
    assert!(backend.is_empty());
}

#[test]
fn tokens_grow_above_the_floor_and_by_whole_ranges() {
    let floor = FencingToken::new(1 << 60).expect("in range");
    let backend = MemoryBackend::with_token_floor(floor);
    let lease = now(backend.acquire(&request().with_tokens(10))).expect("free");
    assert_eq!(lease.fencing_token().get(), floor.get() + 1);
    assert_eq!(lease.reserved_tokens(), 10);
    drop(lease);
    assert_eq!(take(&backend).fencing_token().get(), floor.get() + 11);

    let full = MemoryBackend::with_token_floor(FencingToken::MAX);
    assert_eq!(
        kind(now(full.acquire(&request()))),
        BackendErrorKind::Misconfigured
    );
    assert!(full.is_empty());
}

#[test]
fn idle_keys_leave_no_memory() {
    let backend = MemoryBackend::new();
    let leases: Vec<_> = (0..100_000)
        .map(|n| {
            let request = AcquireRequest::new(LockKey::new("k", n), TTL);
            now(backend.acquire(&request)).expect("free")
        })
        .collect();
    assert_eq!(backend.len(), leases.len());
    drop(leases);
    assert!(backend.is_empty());
    assert!(backend.table.capacity() <= 64 * 128);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_arrival_order() {
    let backend = MemoryBackend::new();
    let mut held = take(&backend);
    let mut tasks = Vec::new();
    for _ in 0..10 {
        tasks.push(enqueue(&backend, patient()).await);
    }
    for task in tasks {
        let before = held.fencing_token();
        held.release().await.expect("release");
        // A newcomer does not come between, not even before the head has run.
        assert_eq!(
            kind(now(backend.acquire(&request()))),
            BackendErrorKind::Contended
        );
        held = task.await.expect("task").expect("granted");
        assert!(held.fencing_token() > before);
        assert!(held.valid_until() > Instant::now() + TTL * 9 / 10);
    }
    drop(held);
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn readers_go_together_and_never_past_a_waiting_writer() {
    let backend = MemoryBackend::new();
    let shared = || patient().with_mode(Mode::Shared);
    let reader = now(backend.acquire(&shared())).expect("free");
    let beside = now(backend.acquire(&shared())).expect("readers share");
    let writer = enqueue(&backend, patient()).await;
    let late = enqueue(&backend, shared()).await;
    let later = enqueue(&backend, shared()).await;
    assert_eq!(waiters(&backend), 3);
    drop(reader);
    assert_eq!(waiters(&backend), 3);
    drop(beside);
    let writer = writer.await.expect("task").expect("granted");
    assert_eq!(waiters(&backend), 2);
    drop(writer);
    let (late, later) = (late.await.expect("task"), later.await.expect("task"));
    assert!(late.is_ok() && later.is_ok());
    drop((late, later));
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn readers_behind_a_writer_that_leaves_join_the_readers() {
    let backend = MemoryBackend::new();
    let shared = || patient().with_mode(Mode::Shared);
    let reader = now(backend.acquire(&shared())).expect("free");
    let writer = enqueue(&backend, patient()).await;
    let late = enqueue(&backend, shared()).await;
    writer.abort();
    let late = late.await.expect("task").expect("granted");
    drop((reader, late));
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn unfair_ones_barge_only_where_no_fifo_waiter_stands() {
    let backend = MemoryBackend::new();
    let unfair = || patient().with_order(Order::Unfair);
    let held = take(&backend);
    let waiting = enqueue(&backend, unfair()).await;
    drop(held);
    // The waiter is woken, but has not run.
    let barged = now(backend.acquire(&unfair())).expect("free for an unfair one");
    assert_eq!(waiters(&backend), 1);
    let fifo = enqueue(&backend, patient()).await;
    drop(barged);
    assert_eq!(
        kind(now(backend.acquire(&request().with_order(Order::Unfair)))),
        BackendErrorKind::Contended
    );
    drop(waiting.await.expect("task").expect("granted"));
    drop(fifo.await.expect("task").expect("granted"));
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn many_unfair_ones_all_get_it() {
    let backend = MemoryBackend::new();
    let mut tasks = JoinSet::new();
    for n in 0..50 {
        let backend = backend.clone();
        let mode = if n % 5 == 0 {
            Mode::Exclusive
        } else {
            Mode::Shared
        };
        tasks.spawn(async move {
            let request = patient().with_order(Order::Unfair).with_mode(mode);
            let lease = backend.acquire(&request).await.expect("granted");
            tokio::task::yield_now().await;
            lease.release().await.expect("release");
        });
    }
    let start = Instant::now();
    while let Some(result) = tasks.join_next().await {
        result.expect("no panic");
    }
    assert!(
        start.elapsed() < Duration::from_millis(10),
        "woken, not polled"
    );
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_passes_its_offer_on() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let request = patient();
    let mut gone = Box::pin(backend.acquire(&request));
    assert!(poll(gone.as_mut()).is_none());
    let next = enqueue(&backend, patient()).await;
    drop(held);
    drop(gone);
    let next = next.await.expect("task").expect("granted");
    assert_eq!(waiters(&backend), 0);
    drop(next);
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_taken_over_and_its_late_calls_are_harmless() {
    let backend = MemoryBackend::new();
    let start = Instant::now();
    let old = take(&backend);
    assert_eq!(old.valid_until(), start + TTL - Duration::from_millis(302));
    let mut next = backend.acquire(&patient()).await.expect("taken over");
    assert!(start.elapsed() >= TTL && start.elapsed() < TTL + Duration::from_millis(5));
    assert_eq!(old.lost().get(), Some(Loss::Expired));
    assert!(next.fencing_token() > old.fencing_token());
    assert_eq!(kind(old.renew().await), BackendErrorKind::Lost);
    old.release().await.expect("harmless");
    drop(old);
    next.renew().await.expect("still held");
    // The same without a waiter: a newcomer finds it.
    tokio::time::advance(TTL).await;
    next = {
        let newcomer = take(&backend);
        assert_eq!(next.lost().get(), Some(Loss::Expired));
        newcomer
    };
    // And without a successor: renewing comes too late.
    tokio::time::advance(TTL).await;
    assert_eq!(kind(next.renew().await), BackendErrorKind::Lost);
    assert_eq!(next.lost().get(), Some(Loss::Expired));
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_is_not_taken_over() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let waiter = enqueue(&backend, patient()).await;
    for _ in 0..10 {
        tokio::time::sleep(TTL / 3).await;
        held.renew().await.expect("held");
    }
    assert!(!waiter.is_finished());
    drop(held);
    waiter.await.expect("task").expect("granted");
}

#[tokio::test(start_paused = true)]
async fn the_head_notices_a_successor_with_a_shorter_lease() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let mut short = patient();
    short.ttl = Duration::from_millis(100);
    let short = enqueue(&backend, short).await;
    let next = enqueue(&backend, patient()).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    let start = Instant::now();
    drop(held);
    let short = short.await.expect("task").expect("granted");
    let next = next.await.expect("task").expect("taken over");
    assert!(
        start.elapsed() < Duration::from_millis(110),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(short.lost().get(), Some(Loss::Expired));
    drop((short, next));
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_its_deadline() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let start = Instant::now();
    let wait = Duration::from_millis(2500);
    let request = request().with_wait(WaitBound::Until(start + wait));
    let error = backend.acquire(&request).await.expect_err("held");
    assert_eq!(error.kind(), BackendErrorKind::WaitTimedOut);
    assert!(start.elapsed() >= wait && start.elapsed() < wait + Duration::from_millis(5));
    assert_eq!(waiters(&backend), 0);
    let past = self::request().with_wait(WaitBound::Until(start));
    assert_eq!(
        kind(now(backend.acquire(&past))),
        BackendErrorKind::WaitTimedOut
    );
    drop(held);
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_queued_owner_that_asks_again_keeps_the_place_and_ends_the_older_wait() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let same = patient();
    let older = enqueue(&backend, same.clone()).await;
    let other = enqueue(&backend, patient()).await;
    let mut newer = Box::pin(backend.acquire(&same));
    assert!(poll(newer.as_mut()).is_none());
    assert_eq!(waiters(&backend), 2);
    assert_eq!(
        kind(older.await.expect("task")),
        BackendErrorKind::WaitTimedOut
    );
    // Without waiting it is refused, and the place stays.
    let hasty = same.clone().with_wait(WaitBound::Fail);
    assert_eq!(
        kind(now(backend.acquire(&hasty))),
        BackendErrorKind::Contended
    );
    drop(held);
    let newer = newer.await.expect("first in line");
    assert!(!other.is_finished());
    drop(newer);
    other.await.expect("task").expect("granted");
}

#[tokio::test(start_paused = true)]
async fn an_offer_can_be_claimed_by_asking_again() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let same = patient();
    let mut older = Box::pin(backend.acquire(&same));
    assert!(poll(older.as_mut()).is_none());
    drop(held);
    let newer = now(backend.acquire(&same)).expect("it was offered");
    assert_eq!(kind(older.await), BackendErrorKind::WaitTimedOut);
    newer.renew().await.expect("held");
    drop(newer);
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ten_hung_waiters_cost_one_offer() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let requests: Vec<_> = (0..10).map(|_| patient()).collect();
    let mut hung: Vec<_> = requests
        .iter()
        .map(|request| Box::pin(backend.acquire(request)))
        .collect();
    for future in &mut hung {
        assert!(poll(future.as_mut()).is_none());
    }
    let first = enqueue(&backend, patient()).await;
    let second = enqueue(&backend, patient()).await;
    let start = Instant::now();
    drop(held);
    drop(first.await.expect("task").expect("granted"));
    drop(second.await.expect("task").expect("granted"));
    assert!(
        start.elapsed() < Duration::from_millis(2200),
        "{:?}",
        start.elapsed()
    );
    // Who wakes up later queues again.
    drop(hung.remove(5).await.expect("granted"));
    assert_eq!(backend.len(), 1);
    drop(hung);
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_late_claim_has_a_whole_lease() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let mut slow = slow_waiter(backend.clone(), patient());
    assert!(poll(slow.as_mut()).is_none());
    drop(held);
    tokio::time::advance(TTL * 2).await;
    let lease = slow.await.expect("nobody else wanted it");
    assert!(lease.valid_until() > Instant::now() + TTL * 9 / 10);
    lease.renew().await.expect("held");
    drop(lease);
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiters_end_when_the_tokens_do() {
    let floor = FencingToken::new(FencingToken::MAX.get() - 1).expect("in range");
    let backend = MemoryBackend::with_token_floor(floor);
    let held = take(&backend);
    assert_eq!(held.fencing_token(), FencingToken::MAX);
    let error = backend
        .acquire(&patient())
        .await
        .expect_err("no token left");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    drop(held);
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_late_but_living_waiter_keeps_its_place_in_the_roll_call() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let request = patient();
    let mut slow = slow_waiter(backend.clone(), request);
    assert!(poll(slow.as_mut()).is_none());
    let behind = enqueue(&backend, patient()).await;
    drop(held);
    while waiters(&backend) < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The offer has lapsed; the slow one answers now.
    let slow = slow.await.expect("granted first");
    assert!(!behind.is_finished());
    drop(slow);
    behind.await.expect("task").expect("granted");
}

fn slow_waiter(
    backend: MemoryBackend,
    request: AcquireRequest,
) -> Pin<Box<dyn Future<Output = Result<MemoryLease>>>> {
    Box::pin(async move { backend.acquire(&request).await })
}

#[tokio::test(start_paused = true)]
async fn wait_free_returns_once_nobody_holds() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let mut gate = {
        let backend = backend.clone();
        tokio::spawn(async move { backend.wait_free(&key(), WaitBound::Forever).await })
    };
    let next = enqueue(&backend, patient()).await;
    assert_eq!(
        kind(now(backend.wait_free(&key(), WaitBound::Fail))),
        BackendErrorKind::Contended
    );
    drop(held);
    let next = next.await.expect("task").expect("granted");
    let early = tokio::time::timeout(Duration::from_secs(20), &mut gate).await;
    assert!(early.is_err(), "a successor holds it");
    let soon = WaitBound::Until(Instant::now() + Duration::from_millis(10));
    assert_eq!(
        kind(backend.wait_free(&key(), soon).await),
        BackendErrorKind::WaitTimedOut
    );
    // It is free the moment the lease is, although nobody acquires; taken at once it was free.
    drop(next);
    let again = take(&backend);
    gate.await.expect("task").expect("it was free");
    // An expired holder holds nothing.
    backend
        .wait_free(&key(), WaitBound::Forever)
        .await
        .expect("expired");
    assert_eq!(again.lost().get(), Some(Loss::Expired));
    assert!(backend.is_empty());
    // A dropped watcher leaves nothing.
    let held = take(&backend);
    let dropped = key();
    let mut gate = Box::pin(backend.wait_free(&dropped, WaitBound::Forever));
    assert!(poll(gate.as_mut()).is_none());
    drop(held);
    drop(gate);
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn force_release_tells_holders_and_serves_the_next() {
    let backend = MemoryBackend::new();
    assert!(!now(backend.force_release(&key())).expect("answered"));
    let shared = || patient().with_mode(Mode::Shared);
    let a = now(backend.acquire(&shared())).expect("free");
    let b = now(backend.acquire(&shared())).expect("readers share");
    let next = enqueue(&backend, patient()).await;
    assert!(backend.force_release(&key()).await.expect("answered"));
    for lease in [a, b] {
        assert_eq!(lease.lost().get(), Some(Loss::ForceReleased));
        assert_eq!(kind(lease.renew().await), BackendErrorKind::Lost);
    }
    // The waiter was granted and has not looked: it gets a lease that is lost.
    assert!(backend.lose(&key(), Loss::Revoked));
    let next = next.await.expect("task").expect("granted");
    assert_eq!(next.lost().get(), Some(Loss::Revoked));
    assert!(backend.is_empty());
}

#[tokio::test(start_paused = true)]
async fn inspect_names_holders_and_counts_waiters() {
    let backend = MemoryBackend::new();
    let held = take(&backend);
    let waiter = enqueue(&backend, patient()).await;
    let state = now(backend.inspect(&key())).expect("inspect");
    assert_eq!(state.name, "order:1.7;");
    assert_eq!(state.waiters, 1);
    assert_eq!(state.holders.len(), 1);
    assert_eq!(state.holders[0].fencing_token, Some(held.fencing_token()));
    assert_eq!(state.holders[0].remaining, Some(TTL));
    waiter.abort();
    drop(held);
    let _ = waiter.await;
    assert_eq!(
        now(backend.inspect(&key())).expect("inspect"),
        KeyState::free("order:1.7;")
    );
}

#[test]
fn the_queue_stays_flat_with_many_waiters() {
    // Not a timing: 20 000 waiters enqueue, half of them leave from the middle, the rest is
    // served in order. A linear step anywhere makes this take minutes.
    let backend = MemoryBackend::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("runtime");
    let _guard = runtime.enter();
    let mut held = take(&backend);
    let requests: Vec<_> = (0..20_000).map(|_| patient()).collect();
    let mut futures: Vec<_> = requests
        .iter()
        .map(|request| Box::pin(backend.acquire(request)))
        .collect();
    for future in &mut futures {
        assert!(poll(future.as_mut()).is_none());
    }
    let mut nth = 0;
    futures.retain(|_| {
        nth += 1;
        nth % 2 == 0
    });
    assert_eq!(waiters(&backend), 10_000);
    for mut future in futures {
        drop(held);
        held = poll(future.as_mut()).expect("its turn").expect("granted");
    }
    drop(held);
    assert!(backend.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stress_with_readers_writers_unfair_ones_timeouts_and_aborts() {
    let backend = MemoryBackend::new();
    // -1: a writer inside; n: so many readers.
    let inside: Arc<[AtomicI64; 3]> = Arc::default();
    let last: Arc<[AtomicU64; 3]> = Arc::default();
    let mut tasks = JoinSet::new();
    for _ in 0..32 {
        let (backend, inside, last) = (backend.clone(), inside.clone(), last.clone());
        tasks.spawn(async move {
            for _ in 0..200 {
                let n = fastrand::usize(..3);
                let mode = if fastrand::bool() {
                    Mode::Shared
                } else {
                    Mode::Exclusive
                };
                let order = if n == 2 || fastrand::u8(..4) == 0 {
                    Order::Unfair
                } else {
                    Order::Fifo
                };
                let request = AcquireRequest::new(LockKey::new("stress", n), TTL)
                    .with_mode(mode)
                    .with_order(order)
                    .with_wait(WaitBound::Forever);
                let patience = match fastrand::u8(..3) {
                    0 => Duration::from_micros(fastrand::u64(..300)),
                    _ => Duration::from_secs(60),
                };
                let acquired = tokio::time::timeout(patience, backend.acquire(&request)).await;
                let Ok(lease) = acquired else { continue };
                let lease = lease.expect("granted");
                if mode == Mode::Exclusive {
                    assert_eq!(inside[n].fetch_sub(1, Ordering::SeqCst), 0);
                    let token = lease.fencing_token().get();
                    assert!(last[n].swap(token, Ordering::SeqCst) < token);
                } else {
                    assert!(inside[n].fetch_add(1, Ordering::SeqCst) >= 0);
                }
                tokio::task::yield_now().await;
                if mode == Mode::Exclusive {
                    inside[n].fetch_add(1, Ordering::SeqCst);
                } else {
                    inside[n].fetch_sub(1, Ordering::SeqCst);
                }
                if fastrand::bool() {
                    lease.release().await.expect("release");
                }
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.expect("no panic");
    }
    assert!(backend.is_empty());
}
