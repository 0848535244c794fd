//! Orders of events that are rare and that must not matter: losses while a lock changes hands,
//! handlers that are moved, taken or stuck, and backends, wakers and executors that misbehave.
//!
//! Each test builds one such order by hand, under paused time, so that it happens every time.

use std::{
    convert::Infallible,
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::{
    AcquireErrorKind, BackendError, BackendErrorKind, BoxError, Fairness, FencingToken, HeldLock,
    HeldLocks, Lease, LockBackend, LockKey, LockLayer, LockManager, LockPolicy, Loss,
    MemoryBackend, Mode, OnDisconnect, OnLost, ReleaseOn, Wait,
    backend::{AcquireRequest, Capabilities, KeyState, Scope, WaitBound, memory::MemoryLease},
    key,
    lease::LossSignal,
};

fn secs(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

fn a_key() -> LockKey {
    LockKey::new("order", "7")
}

fn manager(backend: impl LockBackend) -> LockManager {
    LockManager::builder(backend)
        .renew_on_current_runtime()
        .build()
}

fn post() -> Request<Empty<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri("/orders/7")
        .body(Empty::new())
        .unwrap()
}

fn layer(locks: &LockManager) -> LockLayer {
    LockLayer::new(locks, key::from_fn(|_: &http::request::Parts| a_key()))
}

fn batched() -> LockPolicy {
    LockPolicy::new()
        .with_fairness(Fairness::Batched(100.try_into().unwrap()))
        .with_wait(Wait::Forever)
}

/// Polls a future once; what it waits for wakes nobody.
fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A waker that panics.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a waker of somebody else panics");
    }
}

/// What a [`Wayward`] backend does wrong.
#[derive(Debug, Default)]
struct Faults {
    /// Releases that panic, and that fail, before they work.
    release_panics: AtomicUsize,
    release_errors: AtomicUsize,
    /// Releases get no answer for as long as this is set.
    release_waits: AtomicBool,
    /// Releases that were confirmed.
    released: AtomicUsize,
    /// Grants whose lease has no time left, and that are lost on arrival.
    expired: AtomicUsize,
    lost: AtomicUsize,
    /// Renewals that panic, and that never end.
    renew_panics: AtomicUsize,
    renew_hangs: AtomicUsize,
    /// Acquires that end only when they are dropped.
    acquire_hangs: AtomicUsize,
    acquires: AtomicUsize,
}

fn one_less(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
        .is_ok()
}

/// The memory backend with faults, as if it were in this process or elsewhere.
#[derive(Clone, Debug)]
struct Wayward {
    memory: MemoryBackend,
    scope: Scope,
    faults: Arc<Faults>,
}

impl Wayward {
    fn new(scope: Scope) -> Self {
        Self {
            memory: MemoryBackend::new(),
            scope,
            faults: Arc::default(),
        }
    }
}

impl LockBackend for Wayward {
    type Lease = WaywardLease;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.memory.capabilities();
        capabilities.scope = self.scope;
        capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<WaywardLease, BackendError> {
        self.faults.acquires.fetch_add(1, Ordering::SeqCst);
        let lease = self.memory.acquire(request).await?;
        if one_less(&self.faults.acquire_hangs) {
            pending::<()>().await;
        }
        if one_less(&self.faults.lost) {
            self.memory.lose(&request.key, Loss::Revoked);
        }
        Ok(WaywardLease {
            lease,
            faults: self.faults.clone(),
            expired: one_less(&self.faults.expired),
        })
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        self.memory.wait_free(key, wait).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        self.memory.inspect(key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        self.memory.force_release(key).await
    }
}

#[derive(Debug)]
struct WaywardLease {
    lease: MemoryLease,
    faults: Arc<Faults>,
    expired: bool,
}

impl Lease for WaywardLease {
    fn fencing_token(&self) -> FencingToken {
        self.lease.fencing_token()
    }

    fn reserved_tokens(&self) -> u32 {
        self.lease.reserved_tokens()
    }

    fn valid_until(&self) -> Instant {
        if self.expired {
            Instant::now()
        } else {
            self.lease.valid_until()
        }
    }

    async fn renew(&self) -> Result<(), BackendError> {
        if one_less(&self.faults.renew_panics) {
            panic!("a backend's renewal panics");
        }
        if one_less(&self.faults.renew_hangs) {
            pending::<()>().await;
        }
        self.lease.renew().await
    }

    fn lost(&self) -> &LossSignal {
        self.lease.lost()
    }

    async fn release(&self) -> Result<(), BackendError> {
        if one_less(&self.faults.release_panics) {
            panic!("a backend's release panics");
        }
        if one_less(&self.faults.release_errors) {
            return Err(BackendError::new(BackendErrorKind::Unavailable, ""));
        }
        while self.faults.release_waits.load(Ordering::SeqCst) {
            // A timer of the backend's own, of whichever runtime polls this first.
            sleep(secs(0.001)).await;
        }
        self.faults.released.fetch_add(1, Ordering::SeqCst);
        self.lease.release().await
    }
}

// One grant, many holders.

/// A lease is renewed by its own age, not by that of its present holder: it may have come to the
/// holder with little time left.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_handed_on_is_renewed_before_it_ends() {
    let locks = manager(MemoryBackend::new());
    let policy = batched().with_ttl(secs(3.0));
    let mut tasks = Vec::new();
    for hold in [0.7, 0.7, 0.7, 10.0] {
        let (locks, policy) = (locks.clone(), policy.clone());
        tasks.push(tokio::spawn(async move {
            let guard = locks.acquire(a_key(), &policy).await.unwrap();
            let lost = timeout(secs(hold), guard.lost()).await.ok();
            guard.release().await.unwrap();
            lost
        }));
        tokio::task::yield_now().await;
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), None);
    }
}

/// Whoever does not look at the loss of its lock must not keep the others of its process away
/// from the key: the lease ends, and they ask the backend.
#[tokio::test(start_paused = true)]
async fn a_stuck_holder_of_a_batch_blocks_its_process_no_longer_than_max_hold() {
    let locks = manager(MemoryBackend::new());
    let policy = batched().with_ttl(secs(3.0)).with_max_hold(secs(6.0));
    let stuck = locks.acquire(a_key(), &policy).await.unwrap();
    let next = timeout(secs(20.0), locks.acquire(a_key(), &policy))
        .await
        .expect("the key came free")
        .unwrap();
    assert!(!stuck.is_held());
    assert!(next.is_held());
    assert!(next.fencing_token() > stuck.fencing_token());
    stuck.release().await.unwrap();
    assert!(next.is_held(), "a late release touches nothing");
}

/// As above, where the backend tells of the loss, and not the manager.
#[tokio::test(start_paused = true)]
async fn a_stuck_holder_of_a_batch_blocks_nobody_after_a_force_release() {
    let locks = manager(MemoryBackend::new());
    let policy = batched().with_ttl(secs(3.0));
    let stuck = locks.acquire(a_key(), &policy).await.unwrap();
    assert!(locks.force_release(&a_key()).await.unwrap());
    let next = timeout(secs(3.0), locks.acquire(a_key(), &policy))
        .await
        .expect("the key came free")
        .unwrap();
    assert!(next.fencing_token() > stuck.fencing_token());
}

/// Every waiter leaves in the very moment in which it is handed the lock.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_handed_to_nobody_goes_back() {
    let backend = MemoryBackend::new();
    let locks = manager(backend.clone());
    let policy = batched();
    let guard = locks.acquire(a_key(), &policy).await.unwrap();
    let mut waiters: Vec<_> = (0..8)
        .map(|_| Box::pin(locks.acquire(a_key(), &policy)))
        .collect();
    for waiter in &mut waiters {
        assert!(poll_once(waiter.as_mut()).is_pending());
    }
    drop(guard);
    // The reaper hands it to the first, which is never polled again.
    tokio::task::yield_now().await;
    drop(waiters);
    timeout(secs(1.0), locks.acquire(a_key(), &policy))
        .await
        .expect("the role was not lost")
        .unwrap()
        .release()
        .await
        .unwrap();
    tokio::task::yield_now().await;
    assert!(backend.is_empty());
    assert!(locks.inspect().held.is_empty() && locks.inspect().waiting.is_empty());
}

/// The waiter that is next is alive, but nobody polls it: a branch of a busy `select!`.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_nobody_polls_costs_the_others_a_second() {
    for contend in [false, true] {
        let backend = MemoryBackend::new();
        let locks = manager(backend.clone());
        let policy = batched();
        let policy = if contend {
            // Its loss makes the next waiter ask the backend, instead of being handed the lock.
            policy.with_max_hold(secs(1.0))
        } else {
            policy
        };
        let guard = locks.acquire(a_key(), &policy).await.unwrap();
        let mut hung = Box::pin(locks.acquire(a_key(), &policy));
        assert!(poll_once(hung.as_mut()).is_pending());
        let others: Vec<_> = (0..3)
            .map(|_| {
                let (locks, policy) = (locks.clone(), policy.clone());
                tokio::spawn(async move {
                    let guard = locks.acquire(a_key(), &policy).await.unwrap();
                    assert!(guard.is_held());
                    guard.release().await.unwrap();
                })
            })
            .collect();
        tokio::task::yield_now().await;
        if contend {
            // Lost, it passes the role on without a hand-over.
            guard.lost().await;
        }
        let start = Instant::now();
        guard.release().await.unwrap();
        for other in others {
            other.await.unwrap();
        }
        let cost = start.elapsed();
        assert!(secs(0.9) < cost && cost < secs(2.6), "{cost:?}");
        // Polled again, it queues again.
        let guard = hung.await.unwrap();
        assert!(guard.is_held());
        guard.release().await.unwrap();
        assert!(backend.is_empty());
    }
}

// Handlers that are moved, taken or stuck.

/// A handler that finishes although its caller has left keeps the locks of the outer layers, be
/// they of its own key or of another: they must not be released while it runs.
#[tokio::test(start_paused = true)]
async fn a_detached_handler_takes_the_locks_of_the_outer_layers_along() {
    for outer_id in ["7", "another"] {
        for end in [None, Some(Loss::Revoked)] {
            let backend = MemoryBackend::new();
            let locks = manager(backend.clone());
            let (held, seen) = mpsc::channel::<HeldLock>();
            let (go, gone) = tokio::sync::watch::channel(false);
            let done = Arc::new(AtomicUsize::new(0));
            let count = done.clone();
            let handler = service_fn(move |request: Request<Empty<Bytes>>| {
                let lock = request.extensions().get::<HeldLock>().unwrap().clone();
                for lock in HeldLocks::from_extensions(request.extensions()).iter() {
                    held.send(lock.clone()).unwrap();
                }
                let (mut gone, count) = (gone.clone(), count.clone());
                async move {
                    gone.wait_for(|go| *go).await.unwrap();
                    assert!(lock.is_held());
                    count.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
                }
            });
            let inner = layer(&locks)
                .with_on_disconnect(OnDisconnect::Detach)
                .layer(handler);
            let outer_key = LockKey::new("order", outer_id);
            let key = outer_key.clone();
            let outer = LockLayer::new(
                &locks,
                key::from_fn(move |_: &http::request::Parts| key.clone()),
            )
            .layer(inner);
            let mut request = Box::pin(outer.oneshot(post()));
            assert!(poll_once(request.as_mut()).is_pending());
            drop(request);
            sleep(secs(1.0)).await;
            let seen: Vec<_> = seen.try_iter().collect();
            assert_eq!(seen.len(), locks.inspect().held.len());
            assert!(seen.iter().all(HeldLock::is_held), "the handler still runs");
            match end {
                None => go.send(true).unwrap(),
                Some(loss) => assert!(backend.lose(&outer_key, loss)),
            }
            sleep(secs(1.0)).await;
            assert_eq!(done.load(Ordering::SeqCst), usize::from(end.is_none()));
            assert!(backend.is_empty() && locks.inspect().held.is_empty());
        }
    }
}

/// The outer layer drops its handler because its lock is lost: that is no caller who leaves, and
/// the inner layer must not rescue the handler.
#[tokio::test(start_paused = true)]
async fn a_detachable_handler_ends_with_the_lock_of_the_outer_layer() {
    let backend = MemoryBackend::new();
    let locks = manager(backend.clone());
    let (held, seen) = mpsc::channel::<HeldLock>();
    let done = Arc::new(AtomicBool::new(false));
    let flag = done.clone();
    let handler = service_fn(move |request: Request<Empty<Bytes>>| {
        let lock = request.extensions().get::<HeldLock>().unwrap().clone();
        held.send(lock).unwrap();
        let flag = flag.clone();
        async move {
            sleep(secs(2.0)).await;
            flag.store(true, Ordering::SeqCst);
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let inner = layer(&locks)
        .with_on_disconnect(OnDisconnect::Detach)
        .layer(handler);
    let outer_key = LockKey::new("account", "7");
    let key = outer_key.clone();
    let by_account = key::from_fn(move |_: &http::request::Parts| key.clone());
    let outer = LockLayer::new(&locks, by_account).layer(inner);
    let request = tokio::spawn(outer.oneshot(post()));
    sleep(secs(1.0)).await;
    assert!(backend.lose(&outer_key, Loss::Revoked));
    let response = request.await.unwrap().unwrap();
    assert_ne!(response.status(), StatusCode::OK);
    sleep(secs(5.0)).await;
    assert!(!done.load(Ordering::SeqCst));
    assert!(!seen.recv().unwrap().is_held());
    assert!(backend.is_empty() && locks.inspect().held.is_empty());
}

/// A shutdown that has lost its patience releases the lock of a stuck handler. The handler, once
/// unstuck, is dropped as `Abort` says and not polled again.
#[tokio::test(start_paused = true)]
async fn a_handler_whose_lock_was_forced_away_is_never_polled_again() {
    let locks = manager(MemoryBackend::new());
    let polls = Arc::new(AtomicUsize::new(0));
    let count = polls.clone();
    let service = layer(&locks).layer(service_fn(move |_: Request<Empty<Bytes>>| {
        let count = count.clone();
        poll_fn(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Poll::<Result<Response<Empty<Bytes>>, Infallible>>::Pending
        })
    }));
    let mut request = Box::pin(service.oneshot(post()));
    assert!(poll_once(request.as_mut()).is_pending());
    let report = locks.shutdown(secs(1.0)).await;
    assert_eq!((report.interrupted, report.forced), (0, 1));
    assert!(report.confirmed);
    let Poll::Ready(Ok(response)) = poll_once(request.as_mut()) else {
        panic!("the loss was not reported");
    };
    assert_ne!(response.status(), StatusCode::OK);
    assert_eq!(polls.load(Ordering::SeqCst), 1);
}

/// As above, for a handler that answers in the poll in which it was stuck.
#[tokio::test(start_paused = true)]
async fn an_answer_made_after_the_lock_was_forced_away_is_no_success() {
    let locks = manager(MemoryBackend::new());
    let polled = Arc::new(AtomicBool::new(false));
    let flag = polled.clone();
    let (go, gone) = mpsc::channel::<()>();
    let gone = Arc::new(Mutex::new(gone));
    let service = layer(&locks).layer(service_fn(move |_: Request<Empty<Bytes>>| {
        let (flag, gone) = (flag.clone(), gone.clone());
        async move {
            flag.store(true, Ordering::SeqCst);
            // It blocks its thread.
            let _ = gone.lock().unwrap().recv();
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    }));
    let request = std::thread::spawn(move || {
        let mut request = Box::pin(service.oneshot(post()));
        match poll_once(request.as_mut()) {
            Poll::Ready(response) => response.unwrap().status(),
            Poll::Pending => panic!("it does not wait"),
        }
    });
    while !polled.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert_eq!(locks.shutdown(secs(1.0)).await.forced, 1);
    go.send(()).unwrap();
    assert_ne!(request.join().unwrap(), StatusCode::OK);
}

type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// A stream of frames that come when they are sent.
struct Sent(tokio::sync::mpsc::UnboundedReceiver<&'static str>);

impl Stream for Sent {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0
            .poll_recv(cx)
            .map(|text| text.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
    }
}

/// A streamed response under a lock that ends with the body, and the lock as the handler saw it.
async fn streamed(
    locks: &LockManager,
    max: Duration,
) -> (
    tower_lock::ResponseBody<StreamBody<Frames>>,
    HeldLock,
    tokio::sync::mpsc::UnboundedSender<&'static str>,
) {
    let (frames, source) = tokio::sync::mpsc::unbounded_channel();
    let (seen, lock) = mpsc::channel();
    let source = Arc::new(Mutex::new(Some(source)));
    let service = layer(locks)
        .with_ttl(secs(3.0))
        .with_release_on(ReleaseOn::BodyEnd { max })
        .layer(service_fn(move |request: Request<Empty<Bytes>>| {
            let lock = request.extensions().get::<HeldLock>().unwrap().clone();
            seen.send(lock).unwrap();
            let frames: Frames = Box::pin(Sent(source.lock().unwrap().take().unwrap()));
            std::future::ready(Ok::<_, Infallible>(Response::new(StreamBody::new(frames))))
        }));
    let body = service.oneshot(post()).await.unwrap().into_body();
    (body, lock.recv().unwrap(), frames)
}

/// The loss of a lock that the handler took is its taker's to see, also after the taker let go.
#[tokio::test(start_paused = true)]
async fn a_body_does_not_end_with_a_lock_that_was_taken_from_it() {
    let backend = MemoryBackend::new();
    let locks = manager(backend.clone());
    let (mut body, lock, frames) = streamed(&locks, secs(60.0)).await;
    let guard = lock.take_guard().unwrap();
    frames.send("one").unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    assert!(backend.lose(&a_key(), Loss::Revoked));
    drop(guard);
    frames.send("two").unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    drop(frames);
    assert!(body.frame().await.is_none());
}

/// A body's own bound does not follow a lock that was taken out of the body.
#[tokio::test(start_paused = true)]
async fn a_lock_taken_from_a_body_is_bounded_by_max_hold_alone() {
    let locks = manager(MemoryBackend::new());
    let (body, lock, _frames) = streamed(&locks, secs(5.0)).await;
    let guard = lock.take_guard().unwrap();
    drop(body);
    sleep(secs(8.0)).await;
    assert!(guard.is_held());
    assert_eq!(
        timeout(secs(60.0), guard.lost()).await.unwrap(),
        Loss::MaxHold
    );
}

// Backends, wakers and numbers that misbehave.

/// A release that fails at once is reported, and repeated by the reaper.
#[tokio::test(start_paused = true)]
async fn a_release_that_fails_at_once_is_reported_and_repeated() {
    for scope in [Scope::Process, Scope::Fleet] {
        let backend = Wayward::new(scope);
        let locks = manager(backend.clone());
        let guard = locks.acquire(a_key(), &LockPolicy::new()).await.unwrap();
        backend.faults.release_errors.store(1, Ordering::SeqCst);
        let error = guard.release().await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        sleep(secs(1.0)).await;
        assert!(backend.memory.is_empty(), "{scope:?}");
        assert!(locks.shutdown(secs(0.0)).await.confirmed);
    }
}

/// As above, for a guard that was dropped.
#[tokio::test(start_paused = true)]
async fn a_failed_release_of_a_dropped_guard_is_repeated() {
    for scope in [Scope::Process, Scope::Fleet] {
        let backend = Wayward::new(scope);
        let locks = manager(backend.clone());
        let guard = locks.acquire(a_key(), &LockPolicy::new()).await.unwrap();
        backend.faults.release_errors.store(1, Ordering::SeqCst);
        drop(guard);
        sleep(secs(1.0)).await;
        assert!(backend.memory.is_empty(), "{scope:?}");
    }
}

/// One backend call that panics in the worker costs its own lock, and nobody else's.
#[tokio::test(start_paused = true)]
async fn the_worker_outlives_a_release_that_panics() {
    for scope in [Scope::Process, Scope::Fleet] {
        let backend = Wayward::new(scope);
        let locks = manager(backend.clone());
        let policy = LockPolicy::new().with_ttl(secs(3.0));
        let acquire = |id: u32| locks.acquire(LockKey::new("order", id), &policy);
        let first = acquire(1).await.unwrap();
        let second = acquire(2).await.unwrap();
        let third = acquire(3).await.unwrap();
        backend.faults.release_panics.store(1, Ordering::SeqCst);
        // Both are in the reaper's hands at once.
        drop(first);
        drop(second);
        sleep(secs(6.0)).await;
        assert!(third.is_held(), "{scope:?}: it was renewed");
        drop(third);
        sleep(secs(0.1)).await;
        assert_eq!(backend.memory.len(), 0, "{scope:?}");
        assert!(locks.inspect().held.is_empty());
        assert!(locks.shutdown(secs(0.0)).await.confirmed);
    }
}

/// A loss wakes foreign code. If that panics, the others are still told, and the worker lives.
#[tokio::test(start_paused = true)]
async fn the_worker_outlives_a_waker_that_panics() {
    let locks = manager(MemoryBackend::new());
    let policy = LockPolicy::new()
        .with_ttl(secs(3.0))
        .with_max_hold(secs(5.0));
    let short = locks.acquire(a_key(), &policy).await.unwrap();
    let long = locks
        .acquire(
            LockKey::new("order", "8"),
            &policy.clone().with_max_hold(secs(60.0)),
        )
        .await
        .unwrap();
    let bomb = Waker::from(Arc::new(Bomb));
    let mut lost = Box::pin(short.lost());
    let polled = lost.as_mut().poll(&mut Context::from_waker(&bomb));
    assert!(polled.is_pending());
    sleep(secs(10.0)).await;
    assert_eq!(poll_once(lost.as_mut()), Poll::Ready(Loss::MaxHold));
    assert!(long.is_held(), "it was renewed");
}

/// The handler's waker panics; whoever waits for the loss by `lost` learns of it all the same.
#[test]
fn a_holder_that_panics_when_woken_hides_the_loss_from_nobody() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let backend = MemoryBackend::new();
        let locks = manager(backend.clone());
        let (seen, lock) = mpsc::channel();
        let service = layer(&locks).layer(service_fn(move |request: Request<Empty<Bytes>>| {
            let lock = request.extensions().get::<HeldLock>().unwrap().clone();
            seen.send(lock).unwrap();
            pending::<Result<Response<Empty<Bytes>>, Infallible>>()
        }));
        let bomb = Waker::from(Arc::new(Bomb));
        let mut request = Box::pin(service.oneshot(post()));
        let polled = request.as_mut().poll(&mut Context::from_waker(&bomb));
        assert!(polled.is_pending());
        let lock = lock.recv().unwrap();
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move { tell.send(lock.lost().await) });
        tokio::task::yield_now().await;
        let _ = catch_unwind(AssertUnwindSafe(|| backend.lose(&a_key(), Loss::Revoked)));
        let told = timeout(secs(1.0), told).await.expect("it was told");
        assert_eq!(told.unwrap(), Loss::Revoked);
    });
}

/// Renewals that fail in any way are tried again while there is time; without success, the holder
/// is told before its lease ends.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_panics_or_hangs_is_tried_again_or_the_loss_told_in_time() {
    type Fault = fn(&Faults) -> &AtomicUsize;
    let faults: [Fault; 2] = [|f| &f.renew_panics, |f| &f.renew_hangs];
    for fault in faults {
        let backend = Wayward::new(Scope::Fleet);
        let locks = manager(backend.clone());
        let policy = LockPolicy::new().with_ttl(secs(3.0));
        let guard = locks.acquire(a_key(), &policy).await.unwrap();
        fault(&backend.faults).store(1, Ordering::SeqCst);
        sleep(secs(10.0)).await;
        assert!(guard.is_held());
        fault(&backend.faults).store(1_000_000, Ordering::SeqCst);
        let left = guard.remaining();
        let told = timeout(left, guard.lost()).await;
        assert_eq!(told.expect("in time"), Loss::Expired);
        drop(guard);
        sleep(secs(0.1)).await;
        assert!(backend.memory.is_empty());
    }
}

/// An acquire that never answers ends with the backend's timeout and leaves nothing.
#[tokio::test(start_paused = true)]
async fn an_acquire_that_hangs_leaves_nothing() {
    for policy in [LockPolicy::new(), batched().with_wait(secs(1.0))] {
        let backend = Wayward::new(Scope::Fleet);
        let locks = manager(backend.clone());
        backend.faults.acquire_hangs.store(1, Ordering::SeqCst);
        let (first, second) = tokio::join!(
            timeout(secs(60.0), locks.acquire(a_key(), &policy)),
            timeout(secs(60.0), async {
                sleep(secs(8.0)).await;
                locks.acquire(a_key(), &policy).await
            }),
        );
        let error = first.unwrap().unwrap_err();
        assert_eq!(error.kind(), AcquireErrorKind::BackendUnavailable);
        second.unwrap().unwrap().release().await.unwrap();
        assert!(backend.memory.is_empty() && locks.inspect().waiting.is_empty());
    }
}

/// A grant that was lost on its way is asked for again.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_lost_on_arrival_is_asked_for_again() {
    for policy in [LockPolicy::new(), batched()] {
        let backend = Wayward::new(Scope::Fleet);
        let locks = manager(backend.clone());
        backend.faults.lost.store(2, Ordering::SeqCst);
        let guard = locks.acquire(a_key(), &policy).await.unwrap();
        assert!(guard.is_held());
        assert_eq!(backend.faults.acquires.load(Ordering::SeqCst), 3);
    }
}

/// A runtime ends with a body in it, whose release needs an answer: the lock runtime sees it
/// through.
#[test]
fn a_release_outlives_the_runtime_that_began_it() {
    let backend = Wayward::new(Scope::Fleet);
    let locks = LockManager::new(backend.clone());
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let (body, _, _frames) = first.block_on(streamed(&locks, secs(60.0)));
    first.spawn(async move {
        let _body = body;
        pending::<()>().await;
    });
    first.block_on(tokio::task::yield_now());
    backend.faults.release_waits.store(true, Ordering::SeqCst);
    drop(first);
    // Time for the lock runtime to look at the unanswered release.
    let second = runtime();
    second.block_on(async { sleep(secs(0.1)).await });
    backend.faults.release_waits.store(false, Ordering::SeqCst);
    assert!(second.block_on(locks.shutdown(secs(5.0))).confirmed);
    assert_eq!(backend.faults.released.load(Ordering::SeqCst), 1);
}

/// Leases that are worth nothing when they arrive must not keep a thread busy.
#[tokio::test(start_paused = true)]
async fn useless_grants_are_not_asked_for_in_a_hurry() {
    for wait in [Wait::Forever, Wait::For(secs(10.0))] {
        let backend = Wayward::new(Scope::Fleet);
        backend.faults.expired.store(100_000, Ordering::SeqCst);
        let locks = manager(backend.clone());
        let policy = LockPolicy::new().with_wait(wait);
        match timeout(secs(30.0), locks.acquire(a_key(), &policy)).await {
            Ok(Err(error)) => assert_eq!(error.kind(), AcquireErrorKind::WaitTimedOut),
            Ok(Ok(_)) => panic!("the lease had ended"),
            Err(_) => assert_eq!(wait, Wait::Forever),
        }
        let acquires = backend.faults.acquires.load(Ordering::SeqCst);
        assert!(acquires < 1000, "{acquires}");
        sleep(secs(0.1)).await;
        assert!(backend.memory.is_empty());
        assert!(locks.inspect().waiting.is_empty());
    }
}

/// The longest of all durations is an answer to "how long?" like any other.
#[tokio::test(start_paused = true)]
async fn the_longest_durations_overflow_nothing() {
    let locks = LockManager::builder(Wayward::new(Scope::Fleet))
        .renew_on_current_runtime()
        .backend_timeout(Duration::MAX)
        .build();
    let policy = LockPolicy::new().with_wait(secs(1.0));
    let guard = locks.acquire(a_key(), &policy).await.unwrap();
    guard.release().await.unwrap();
    let report = locks.shutdown(Duration::MAX).await;
    assert!(report.confirmed);
}

/// A lock that was handed on while a shutdown began: its receiver is refused, the lock released.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_served_and_refused_at_once_is_refused() {
    for policy in [batched(), LockPolicy::new().with_wait(Wait::Forever)] {
        let backend = MemoryBackend::new();
        let locks = manager(backend.clone());
        let guard = locks.acquire(a_key(), &policy).await.unwrap();
        let mut waiter = Box::pin(locks.acquire(a_key(), &policy));
        assert!(poll_once(waiter.as_mut()).is_pending());
        guard.release().await.unwrap();
        // It has the lock already, and does not know yet.
        let shutdown = tokio::spawn({
            let locks = locks.clone();
            async move { locks.shutdown(secs(1.0)).await }
        });
        tokio::task::yield_now().await;
        let Poll::Ready(Err(error)) = poll_once(waiter.as_mut()) else {
            panic!("the waiter was not refused");
        };
        assert_eq!(error.kind(), AcquireErrorKind::Draining);
        assert!(shutdown.await.unwrap().confirmed);
        assert!(backend.is_empty());
    }
}

/// Two shutdowns at once, and one after: each of them ends.
#[tokio::test(start_paused = true)]
async fn shutdowns_do_not_wait_for_each_other() {
    let locks = manager(MemoryBackend::new());
    let policy = batched().with_on_lost(OnLost::Signal);
    let _guard = locks.acquire(a_key(), &policy).await.unwrap();
    let mut waiter = Box::pin(locks.acquire(a_key(), &policy));
    assert!(poll_once(waiter.as_mut()).is_pending());
    let (a, b) = tokio::join!(locks.shutdown(secs(1.0)), locks.shutdown(secs(2.0)));
    assert!(a.confirmed && b.confirmed);
    let Poll::Ready(Err(error)) = poll_once(waiter.as_mut()) else {
        panic!("the waiter was not refused");
    };
    assert_eq!(error.kind(), AcquireErrorKind::Draining);
    assert!(locks.shutdown(secs(1.0)).await.confirmed);
}

// All of it at once.

/// What must be true at every grant.
#[derive(Default)]
struct Watchman {
    inside: Mutex<Vec<(u64, Mode, HeldLock)>>,
    last_token: Mutex<u64>,
    grants: AtomicUsize,
}

impl Watchman {
    fn enter(&self, lock: HeldLock) -> u64 {
        let mut inside = self.inside.lock().unwrap();
        let token = lock.fencing_token().get();
        for (other, mode, held) in &*inside {
            let alone = lock.mode() == Mode::Exclusive || *mode == Mode::Exclusive;
            assert!(*other != token, "one token for two");
            assert!(!(alone && held.is_held() && lock.is_held()), "two holders");
        }
        if lock.mode() == Mode::Exclusive {
            let mut last = self.last_token.lock().unwrap();
            // Under load, a lease may have ended before its holder came this far.
            assert!(token > *last || !lock.is_held(), "tokens go back");
            *last = token.max(*last);
        }
        inside.push((token, lock.mode(), lock));
        self.grants.fetch_add(1, Ordering::SeqCst);
        token
    }

    fn leave(&self, token: u64) {
        self.inside.lock().unwrap().retain(|(t, ..)| *t != token);
    }
}

fn any_policy() -> LockPolicy {
    let policy = LockPolicy::new()
        .with_ttl(Duration::from_millis(fastrand::u64(50..2000)))
        .with_max_hold(Duration::from_millis(fastrand::u64(50..4000)))
        .with_wait(match fastrand::u8(..4) {
            0 => Wait::Fail,
            1 => Wait::For(Duration::from_millis(fastrand::u64(..500))),
            _ => Wait::Forever,
        });
    match fastrand::u8(..6) {
        0 => policy.with_fairness(Fairness::Fifo),
        1 => policy.with_fairness(Fairness::Unfair),
        2 => policy.with_mode(Mode::Shared),
        n => policy.with_fairness(Fairness::Batched((u32::from(n) * 2).try_into().unwrap())),
    }
}

/// One caller that does one of everything that callers do.
async fn any_caller(locks: LockManager, watchman: Arc<Watchman>, slow: u64) {
    for _ in 0..20 {
        sleep(Duration::from_millis(fastrand::u64(..slow))).await;
        let policy = any_policy();
        let patience = Duration::from_millis(fastrand::u64(..slow * 20));
        let Ok(Ok(guard)) = timeout(patience, locks.acquire(a_key(), &policy)).await else {
            continue;
        };
        let token = watchman.enter(guard.held());
        let _kept = fastrand::bool().then(|| guard.held());
        let hold = sleep(Duration::from_millis(fastrand::u64(..slow * 2)));
        if fastrand::bool() {
            let _ = timeout(Duration::from_millis(slow), guard.lost()).await;
        } else {
            hold.await;
        }
        watchman.leave(token);
        match fastrand::u8(..3) {
            0 => drop(guard),
            1 => guard.release().await.unwrap(),
            _ => drop(poll_once(Box::pin(guard.release()).as_mut())),
        }
    }
}

async fn all_at_once(locks: LockManager, backend: MemoryBackend, slow: u64) -> usize {
    let watchman = Arc::new(Watchman::default());
    let mut callers: Vec<_> = (0..12)
        .map(|_| tokio::spawn(any_caller(locks.clone(), watchman.clone(), slow)))
        .collect();
    let operator = tokio::spawn({
        let locks = locks.clone();
        async move {
            loop {
                sleep(Duration::from_millis(fastrand::u64(..slow * 20))).await;
                locks.force_release(&a_key()).await.unwrap();
            }
        }
    });
    // Some callers are cancelled wherever they are.
    for caller in callers.split_off(8) {
        sleep(Duration::from_millis(fastrand::u64(..slow * 4))).await;
        caller.abort();
    }
    for caller in callers {
        caller.await.unwrap();
    }
    operator.abort();
    let report = locks.shutdown(secs(1.0)).await;
    assert!(report.confirmed, "{report:?}");
    assert!(backend.is_empty());
    let state = locks.inspect();
    assert!(
        state.held.is_empty() && state.waiting.is_empty(),
        "{state:?}"
    );
    watchman.grants.load(Ordering::SeqCst)
}

/// Callers of all kinds on one key, in many orders: one holder at a time, growing tokens, and
/// nothing left.
#[test]
fn any_order_of_callers_leaves_nothing_behind() {
    for seed in 0..40 {
        fastrand::seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let grants = runtime.block_on(async {
            let backend = MemoryBackend::new();
            let locks = manager(backend.clone());
            let work = all_at_once(locks, backend, 200);
            timeout(secs(3600.0), work).await.expect("nobody hangs")
        });
        assert!(grants > 10, "seed {seed}: {grants}");
    }
}

/// As above on several threads and in real time, with the renewals on their own thread.
#[test]
fn any_order_of_callers_on_several_threads_leaves_nothing_behind() {
    for _ in 0..5 {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(3)
            .enable_all()
            .build()
            .unwrap();
        let grants = runtime.block_on(async {
            let backend = MemoryBackend::new();
            let locks = LockManager::new(backend.clone());
            let work = all_at_once(locks, backend, 5);
            timeout(secs(60.0), work).await.expect("nobody hangs")
        });
        assert!(grants > 10, "{grants}");
    }
}

static RAN_WITHOUT_LOCK: AtomicUsize = AtomicUsize::new(0);

/// A handler that looks at its locks whenever it runs, which it must never do without one.
async fn any_handler(
    request: Request<Empty<Bytes>>,
    steps: Duration,
) -> Result<Response<StreamBody<Frames>>, BoxError> {
    let locks = HeldLocks::from_extensions(request.extensions());
    let mut taken = None;
    // Counted, because nobody sees a detached handler panic.
    let look = || {
        if !locks.iter().all(HeldLock::is_held) {
            RAN_WITHOUT_LOCK.fetch_add(1, Ordering::SeqCst);
        }
    };
    for _ in 0..fastrand::u8(..6) {
        look();
        sleep(steps.mul_f64(fastrand::f64())).await;
    }
    look();
    if fastrand::u8(..4) == 0 {
        taken = locks.iter().next().and_then(HeldLock::take_guard);
    }
    match fastrand::u8(..8) {
        0 => return Err("the handler failed".into()),
        1 => drop(taken.take()),
        2 if taken.is_some() => {
            // The lock goes on in a task.
            tokio::spawn(async move {
                sleep(steps).await;
                drop(taken.take());
            });
        }
        _ => {}
    }
    let (frames, source) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        for _ in 0..fastrand::u8(..4) {
            sleep(steps.mul_f64(fastrand::f64())).await;
            let _ = frames.send("frame");
        }
    });
    let frames: Frames = Box::pin(Sent(source));
    Ok(Response::new(StreamBody::new(frames)))
}

fn any_layer(locks: &LockManager, id: u32) -> LockLayer {
    let key = LockKey::new("order", id);
    LockLayer::new(
        locks,
        key::from_fn(move |_: &http::request::Parts| key.clone()),
    )
    .with_policy(
        any_policy()
            .with_mode(Mode::Exclusive)
            .with_on_disconnect(if fastrand::bool() {
                OnDisconnect::Detach
            } else {
                OnDisconnect::Cancel
            })
            .with_release_on(match fastrand::u8(..3) {
                0 => ReleaseOn::Head,
                1 => ReleaseOn::HeadConfirmed,
                _ => ReleaseOn::BodyEnd {
                    max: Duration::from_millis(fastrand::u64(1..1000)),
                },
            }),
    )
}

/// One request through two layers, whose keys may be the same, from a client that may leave.
async fn any_request(locks: LockManager, steps: Duration) -> usize {
    let handler = service_fn(move |request| any_handler(request, steps));
    let inner = any_layer(&locks, fastrand::u32(1..3)).layer(handler);
    // In one order, so that two requests do not wait for each other.
    let service = any_layer(&locks, 1).layer(inner);
    let patience = steps.mul_f64(20.0 * fastrand::f64());
    let Ok(Ok(response)) = timeout(patience, service.oneshot(post())).await else {
        return 0;
    };
    let mut body = response.into_body();
    for _ in 0..fastrand::u8(..6) {
        match timeout(patience, body.frame()).await {
            Ok(Some(Ok(_))) => {}
            _ => break,
        }
    }
    if fastrand::bool() {
        // A client that reads no more, for a while.
        sleep(steps.mul_f64(5.0)).await;
    }
    1
}

/// Requests of all kinds through layers of all kinds: no handler runs without its locks, and
/// nothing is left.
#[test]
fn any_order_of_requests_leaves_nothing_behind() {
    for seed in 0..60 {
        fastrand::seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let backend = MemoryBackend::new();
            let locks = manager(backend.clone());
            let mut answered = 0;
            let mut requests = tokio::task::JoinSet::new();
            for n in 0..60 {
                requests.spawn(any_request(locks.clone(), Duration::from_millis(200)));
                sleep(Duration::from_millis(fastrand::u64(..200))).await;
                if n % 10 == 9 {
                    backend.lose(&LockKey::new("order", n % 3), Loss::Revoked);
                }
            }
            while let Some(request) = requests.join_next().await {
                answered += request.unwrap();
            }
            // Detached handlers and taken locks have their time too.
            sleep(secs(60.0)).await;
            let state = locks.inspect();
            assert!(
                state.held.is_empty() && state.waiting.is_empty(),
                "{state:?}"
            );
            assert!(backend.is_empty(), "seed {seed}");
            assert!(answered > 5, "seed {seed}: {answered}");
            assert_eq!(RAN_WITHOUT_LOCK.load(Ordering::SeqCst), 0, "seed {seed}");
            let report = locks.shutdown(secs(0.0)).await;
            assert!(report.confirmed && report.forced == 0, "{report:?}");
        });
    }
}
