//! Leaders and followers within one process.

use std::{
    convert::Infallible,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::sync::{Notify, watch};
use tower::{Layer, Service, ServiceExt};
use tower_lock::{
    LockManager, SingleFlightLayer, key::HeaderKey, single_flight::Flight,
    single_flight::SingleFlightService,
};

use crate::{requests::KEY, worker::now};

/// Longer than any flight here.
const LONG: Duration = Duration::from_secs(25);

/// What a leader answers.
static BODY: Bytes = Bytes::from_static(&[b'a'; 1 << 10]);

/// Tasks of this process that wait for another one, of this process or not.
pub(super) trait Flights: Clone + Send + Sync + 'static {
    /// Leads until it may land; returns when it has its own answer.
    fn lead(&self, key: &str, runway: &Arc<Runway>) -> impl Future<Output = ()> + Send;

    /// Returns when it has its answer.
    fn follow(&self, key: &str) -> impl Future<Output = ()> + Send;

    /// How many wait here.
    fn waiting(&self) -> usize;
}

/// Where a leader is told to land, and says when it has.
#[derive(Debug, Default)]
pub(super) struct Runway {
    pub(super) begun: Notify,
    pub(super) land: Notify,
    ended: AtomicU64,
}

impl Runway {
    /// The work of a leader.
    async fn fly(&self) {
        self.begun.notify_one();
        self.land.notified().await;
        self.ended.store(now(), Ordering::Release);
    }

    /// When the work ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }
}

/// A bare watch for whoever waits, and one value of it for each flight.
#[derive(Clone)]
pub(super) struct Watch {
    landed: watch::Sender<()>,
    waiting: Arc<AtomicUsize>,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            landed: watch::Sender::new(()),
            waiting: Arc::default(),
        }
    }
}

impl Flights for Watch {
    async fn lead(&self, _: &str, runway: &Arc<Runway>) {
        runway.fly().await;
        self.landed.send_replace(());
    }

    async fn follow(&self, _: &str) {
        let mut landed = self.landed.subscribe();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        landed.changed().await.expect("the sender is here");
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A bare `Notify` for whoever waits.
#[derive(Clone, Default)]
pub(super) struct Bare {
    landed: Arc<Notify>,
    waiting: Arc<AtomicUsize>,
}

impl Flights for Bare {
    async fn lead(&self, _: &str, runway: &Arc<Runway>) {
        runway.fly().await;
        self.landed.notify_waiters();
    }

    async fn follow(&self, _: &str) {
        let landed = self.landed.notified();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        landed.await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Requests behind a `SingleFlightLayer`.
#[derive(Clone)]
pub(super) struct Behind {
    locks: LockManager,
    service: SingleFlightService<Handler>,
    shares: bool,
}

impl Behind {
    pub(super) fn new(locks: LockManager, shares: bool) -> Self {
        let mut layer =
            SingleFlightLayer::new(&locks, HeaderKey::new("bench", KEY)).with_wait(LONG);
        if shares {
            layer = layer.share_response(LONG);
        }
        Self {
            service: layer.layer(Handler),
            locks,
            shares,
        }
    }

    /// A request, whose response is read to its end. `Flight` is what its own handler was told, if
    /// that ran.
    async fn ask(&self, key: &str, runway: Option<Arc<Runway>>) -> Option<Flight> {
        let mut request = Request::get("/report")
            .header(KEY, key)
            .body(())
            .expect("a request");
        if let Some(runway) = runway {
            request.extensions_mut().insert(runway);
        }
        let response = self.service.clone().oneshot(request).await;
        let (head, body) = response.expect("no service fails").into_parts();
        assert!(head.status.is_success(), "{}", head.status);
        let body = body.collect().await.expect("it has an end").to_bytes();
        assert_eq!(body, BODY);
        head.extensions.get().copied()
    }
}

impl Flights for Behind {
    async fn lead(&self, key: &str, runway: &Arc<Runway>) {
        let flight = self.ask(key, Some(runway.clone())).await;
        assert_eq!(flight, Some(Flight::Leads));
    }

    async fn follow(&self, key: &str) {
        let followed = (!self.shares).then_some(Flight::Follows);
        assert_eq!(self.ask(key, None).await, followed);
    }

    fn waiting(&self) -> usize {
        let state = self.locks.inspect();
        state.waiting.iter().map(|key| key.waiters).sum()
    }
}

/// Works until the leader may land, and says in the response what it was told of the flight.
#[derive(Clone)]
pub(super) struct Handler;

impl<B> Service<Request<B>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let flight = request.extensions().get::<Flight>().copied();
        let runway = request.extensions().get::<Arc<Runway>>().cloned();
        let mut response = Response::new(Full::new(BODY.clone()));
        if let Some(flight) = flight {
            response.extensions_mut().insert(flight);
        }
        Box::pin(async move {
            if let Some(runway) = runway {
                runway.fly().await;
            }
            Ok(response)
        })
    }
}
