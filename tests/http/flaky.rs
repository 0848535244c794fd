//! A backend that fails on demand, and what the tests of this binary need to watch it.
//!
//! [`Flaky`] looks like a backend over a network (its scope is the fleet), so the manager treats
//! it as one: nothing is decided on the first poll, and a failed release goes to the reaper.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response},
    routing::post,
};
use tokio::{sync::Semaphore, task::JoinHandle, time::Instant};
use tower_lock::{
    BackendError, BackendErrorKind, FencingToken, Lease, LockBackend, LockKey, LockLayer,
    LockManager, Loss, MemoryBackend, Refusal,
    backend::{
        AcquireRequest, Capabilities, DynLease, DynLockBackend, DynRecords, KeyState, Scope,
        WaitBound,
    },
    key::PathKey,
    lease::LossSignal,
};

use crate::{
    backends::{Backend, On},
    support::SOON,
};

/// What goes wrong with one kind of call, until told otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Fault {
    /// Nothing.
    #[default]
    None,
    /// It is answered with this kind of error, and not carried out.
    Error(BackendErrorKind),
    /// It is carried out after this time.
    Slow(Duration),
    /// It is carried out, and the reply takes this time.
    LateReply(Duration),
    /// It is neither carried out nor answered.
    Hung,
}

/// The faults, and how often each call was made.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    pub(crate) acquire: Mutex<Fault>,
    pub(crate) renew: Mutex<Fault>,
    pub(crate) release: Mutex<Fault>,
    /// Looking at records, also with an acquire.
    pub(crate) load: Mutex<Fault>,
    pub(crate) save: Mutex<Fault>,
    pub(crate) saves: AtomicUsize,
    pub(crate) acquires: AtomicUsize,
    pub(crate) renews: AtomicUsize,
    pub(crate) releases: AtomicUsize,
}

impl Wire {
    /// The backend is down: nothing works.
    pub(crate) fn down(&self) {
        self.all(Fault::Error(BackendErrorKind::Unavailable));
    }

    /// Everything works again.
    pub(crate) fn up(&self) {
        self.all(Fault::None);
    }

    pub(crate) fn all(&self, fault: Fault) {
        for slot in [
            &self.acquire,
            &self.renew,
            &self.release,
            &self.load,
            &self.save,
        ] {
            *slot.lock().unwrap() = fault;
        }
    }

    pub(crate) fn count(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::SeqCst)
    }
}

/// Makes a call as the fault has it.
pub(crate) async fn faulty<T>(
    slot: &Mutex<Fault>,
    call: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let fault = *slot.lock().unwrap();
    match fault {
        Fault::None => call.await,
        Fault::Error(kind) => Err(BackendError::new(kind, "secret-context-of-the-backend")),
        Fault::Slow(time) => {
            tokio::time::sleep(time).await;
            call.await
        }
        Fault::LateReply(time) => {
            let reply = call.await;
            tokio::time::sleep(time).await;
            reply
        }
        Fault::Hung => std::future::pending().await,
    }
}

/// A backend behind a [`Wire`].
#[derive(Clone, Debug)]
pub(crate) struct Flaky {
    pub(crate) below: Backend,
    pub(crate) wire: Arc<Wire>,
    pub(crate) erased: Arc<dyn DynLockBackend>,
    keeps_records: bool,
}

impl Default for Flaky {
    /// A memory backend behind it.
    fn default() -> Self {
        Self::over(Backend::Memory(MemoryBackend::new()))
    }
}

impl Flaky {
    pub(crate) fn over(below: Backend) -> Self {
        Self {
            erased: below.erased(),
            below,
            wire: Arc::default(),
            keeps_records: false,
        }
    }

    /// The same, of a backend that keeps records.
    pub(crate) fn with_records(mut self) -> Self {
        self.keeps_records = true;
        self
    }

    pub(crate) fn lease(&self, inner: Arc<dyn DynLease>) -> FlakyLease {
        FlakyLease {
            inner,
            wire: self.wire.clone(),
            lost: LossSignal::new(),
        }
    }

    /// Takes the key from its holder and tells nobody: the holder learns it when it renews.
    /// Returns the lease of the thief.
    pub(crate) async fn steal(&self, key: &LockKey, ttl: Duration) -> Arc<dyn DynLease> {
        assert!(self.below.take_away(key).await, "somebody holds it");
        self.erased
            .acquire(&AcquireRequest::new(key.clone(), ttl).with_wait(WaitBound::Fail))
            .await
            .expect("it was just freed")
    }
}

impl LockBackend for Flaky {
    type Lease = FlakyLease;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.erased.capabilities();
        capabilities.name = "flaky";
        capabilities.scope = Scope::Fleet;
        capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<FlakyLease, BackendError> {
        self.wire.acquires.fetch_add(1, Ordering::SeqCst);
        let inner = faulty(&self.wire.acquire, self.erased.acquire(request)).await?;
        Ok(self.lease(inner))
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        self.erased.wait_free(key, wait).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        self.erased.inspect(key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        self.erased.force_release(key).await
    }

    fn records(&self) -> Option<&dyn DynRecords> {
        self.keeps_records.then_some(self)
    }
}

/// A grant of [`Flaky`]. It learns of a loss when it renews, as over a network.
#[derive(Debug)]
pub(crate) struct FlakyLease {
    inner: Arc<dyn DynLease>,
    wire: Arc<Wire>,
    lost: LossSignal,
}

impl Lease for FlakyLease {
    fn fencing_token(&self) -> FencingToken {
        self.inner.fencing_token()
    }

    fn reserved_tokens(&self) -> u32 {
        self.inner.reserved_tokens()
    }

    fn valid_until(&self) -> Instant {
        self.inner.valid_until()
    }

    async fn renew(&self) -> Result<(), BackendError> {
        self.wire.renews.fetch_add(1, Ordering::SeqCst);
        let renewed = faulty(&self.wire.renew, self.inner.renew()).await;
        if matches!(&renewed, Err(e) if e.kind() == BackendErrorKind::Lost) {
            self.lost.fire(Loss::Revoked);
        }
        renewed
    }

    fn lost(&self) -> &LossSignal {
        &self.lost
    }

    async fn release(&self) -> Result<(), BackendError> {
        self.wire.releases.fetch_add(1, Ordering::SeqCst);
        faulty(&self.wire.release, self.inner.release()).await
    }
}

/// A manager on a new flaky backend that lives on this test's runtime, so that paused time works.
pub(crate) fn flaky() -> (Flaky, LockManager) {
    let backend = Flaky::default();
    let locks = LockManager::builder(backend.clone())
        .renew_on_current_runtime()
        .build();
    (backend, locks)
}

/// The same on any backend; a server has the time that its own backend gives it.
pub(crate) async fn flaky_on(on: On) -> (Flaky, LockManager) {
    let backend = Flaky::over(on.backend().await);
    let builder = LockManager::builder(backend.clone()).renew_on_current_runtime();
    let locks = if on.is_here() {
        builder.build()
    } else {
        builder.backend_timeout(SOON).build()
    };
    (backend, locks)
}

/// A manager on a new memory backend that lives on this test's runtime.
pub(crate) fn memory() -> (MemoryBackend, LockManager) {
    let backend = MemoryBackend::new();
    let locks = LockManager::builder(backend.clone())
        .renew_on_current_runtime()
        .build();
    (backend, locks)
}

/// Waits, by yielding, for what other tasks are about to do. Paused time stands still meanwhile. A
/// condition that never comes true fails instead of hanging.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    for looks in 0.. {
        if condition() {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "it never came true: {what}"
        );
        tokio::task::yield_now().await;
        if looks > 1000 {
            // It is for another thread or process to do, which may need this core.
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// How many requests wait for locks in this process.
pub(crate) fn waiting(locks: &LockManager) -> usize {
    locks.inspect().waiting.iter().map(|w| w.waiters).sum()
}

/// Waits until this many requests wait.
pub(crate) async fn until_waiting(locks: &LockManager, n: usize) {
    until(&format!("{n} wait"), || waiting(locks) == n).await;
}

/// Sends a request to any service of axum's shape.
pub(crate) async fn call(app: &Router, request: Request<Body>) -> Response<Body> {
    use tower::ServiceExt;
    let response: Result<_, Infallible> = app.clone().oneshot(request).await;
    response.unwrap()
}

/// A `POST` without a body.
pub(crate) fn post_to(path: &str) -> Request<Body> {
    Request::post(path).body(Body::empty()).unwrap()
}

/// Begins a request whose answer is awaited later.
pub(crate) fn start(app: &Router, request: Request<Body>) -> JoinHandle<Response<Body>> {
    let app = app.clone();
    tokio::spawn(async move { call(&app, request).await })
}

/// The status and the kind of refusal of a response, empty if a handler gave it.
pub(crate) fn outcome(response: &Response<Body>) -> (u16, &'static str) {
    let refusal = response.extensions().get::<Refusal>();
    (
        response.status().as_u16(),
        refusal.map_or("", |refusal| refusal.kind().as_str()),
    )
}

/// Serves the router on a free port of the loopback until the test's runtime ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// How many are inside at once, and the most that ever were.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inside(Arc<Mutex<(usize, usize, usize)>>);

impl Inside {
    fn lock(&self) -> MutexGuard<'_, (usize, usize, usize)> {
        self.0.lock().unwrap()
    }

    /// Enters until the guard is dropped.
    pub(crate) fn enter(&self) -> Visit {
        let mut state = self.lock();
        state.0 += 1;
        state.1 = state.1.max(state.0);
        state.2 += 1;
        Visit(self.clone())
    }

    pub(crate) fn now(&self) -> usize {
        self.lock().0
    }

    pub(crate) fn most(&self) -> usize {
        self.lock().1
    }

    pub(crate) fn visits(&self) -> usize {
        self.lock().2
    }
}

/// Keeps its visitors inside until they are let out.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) inside: Inside,
    exits: Arc<Semaphore>,
}

impl Gate {
    pub(crate) fn shut() -> Self {
        Self {
            inside: Inside::default(),
            exits: Arc::new(Semaphore::new(0)),
        }
    }

    /// What a handler does: goes in, and stays until it is let out.
    pub(crate) async fn pass(&self) {
        let _visit = self.inside.enter();
        self.exits.acquire().await.unwrap().forget();
    }

    /// Lets this many out, now or later.
    pub(crate) fn let_out(&self, n: usize) {
        self.exits.add_permits(n);
    }

    /// Waits until this many are inside.
    pub(crate) async fn until_inside(&self, n: usize) {
        until(&format!("{n} are inside"), || self.inside.now() == n).await;
    }

    /// `POST /orders/{id}/pay` goes through the gate, under this layer.
    pub(crate) fn orders(&self, layer: LockLayer) -> Router {
        let gate = self.clone();
        let pay = post(move || async move { gate.pass().await });
        Router::new().route("/orders/{id}/pay", pay.route_layer(layer))
    }
}

/// The key of `/orders/{id}`.
pub(crate) fn order(locks: &LockManager) -> LockLayer {
    LockLayer::new(locks, PathKey::new("order", "id"))
}

/// One that is inside.
#[derive(Debug)]
pub(crate) struct Visit(Inside);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.lock().0 -= 1;
    }
}
