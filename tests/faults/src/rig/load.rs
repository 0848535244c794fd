//! Who asks for which key, how, and when they go away.

use std::{
    convert::Infallible,
    future::Future,
    hint::black_box,
    num::NonZeroU32,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::{Layer as _, ServiceExt as _, service_fn, util::BoxCloneSyncService};
use tower_lock::{
    Fairness, HeldLock, LockKey, LockLayer, LockManager, LockPolicy, OnLost, Wait, key::HeaderKey,
};

use super::{
    COLD, HOT, Load, PATIENT, Setup,
    recorder::Recorder,
    storage::Client,
    work::{Attempt, Holder, Shop},
};
use crate::history::{Order, What};

/// How often the wall clock is read.
const CLOCK: Duration = Duration::from_millis(20);

const IMPATIENT: Duration = Duration::from_millis(500);

/// More than any storm has.
const MAX_WAITERS: usize = 100_000;

/// The hot key that a process hands on to its own waiters, where the backend can do that.
const HANDED_ON: u32 = 1;

/// How often, before it goes back to the queue.
const BATCH: NonZeroU32 = NonZeroU32::new(4).expect("it is not zero");

/// More often than any process has waiters.
const ENDLESS: NonZeroU32 = NonZeroU32::new(64).expect("it is not zero");

const NAMESPACE: &str = "fault";

/// The lock of the key of this number, of requests as of jobs.
pub(crate) fn key_of(number: u32) -> LockKey {
    LockKey::new(NAMESPACE, number.to_string())
}

/// The header that says which key.
const HEADER: &str = "x-key";

/// Whether the key is handed on within the process, and how long their requests wait.
type Routes = [[Service; 3]; 2];

type Service = BoxCloneSyncService<Request<()>, Response<Full<Bytes>>, Infallible>;

/// Many at once, for one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storm {
    pub(super) key: u32,
    pub(super) count: usize,
    pub(super) wait: Duration,
}

/// All that this process asks for.
pub(super) struct Traffic {
    source: Source,
    load: Load,
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
}

/// What an attempt needs.
#[derive(Clone)]
struct Source {
    shop: Arc<Shop>,
    locks: LockManager,
    routes: Routes,
    /// Whether the backend reserves tokens, so that a key can be handed on within the process.
    batches: bool,
    rng: fastrand::Rng,
    ttl: Duration,
    load: Load,
}

/// The ways in which work is done under a lock.
#[derive(Clone, Copy)]
enum Way {
    /// A request, whose handler is dropped when the lock is lost.
    Request,
    /// A job that stops when it is told that its lock is lost.
    Job,
    /// A job that works on, and writes all the same.
    Stubborn,
}

/// How long an attempt is ready to wait.
#[derive(Clone, Copy)]
enum Patience {
    None,
    Short,
    Long,
}

impl Patience {
    fn time(self) -> Duration {
        match self {
            Self::None => Duration::ZERO,
            Self::Short => IMPATIENT,
            Self::Long => PATIENT,
        }
    }
}

impl Traffic {
    pub(super) fn new(setup: &Setup, locks: LockManager, recorder: Recorder) -> Self {
        let shop = Arc::new(Shop {
            recorder,
            storage: Client::new(setup.storage.clone()),
        });
        let batches = locks.capabilities().reserves_tokens;
        let routes = [HANDED_ON, 0].map(|key| {
            [Patience::None, Patience::Short, Patience::Long].map(|patience| {
                let fairness = setup.load.served(fairness(key, setup.load.fifo, batches));
                route(&locks, &shop, policy(setup.ttl, fairness, patience))
            })
        });
        Self {
            source: Source {
                shop,
                locks,
                routes,
                batches,
                rng: fastrand::Rng::with_seed(setup.seed),
                ttl: setup.ttl,
                load: setup.load,
            },
            load: setup.load,
            tasks: JoinSet::new(),
            stop: Arc::default(),
        }
    }

    /// Begins to ask.
    pub(super) fn start(&mut self) {
        // As whoever logs does: so it is known that the process has the time that it is given.
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                black_box(SystemTime::now());
                sleep(CLOCK).await;
            }
        });
        for _ in 0..self.load.tasks {
            let mut source = self.source.clone();
            source.rng = self.source.rng.fork();
            let stop = self.stop.clone();
            self.tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    source.attempt().await;
                    sleep(Duration::from_millis(source.rng.u64(0..30))).await;
                }
            });
        }
    }

    pub(super) fn storm(&mut self, storm: Storm) {
        let policy = self.source.policy(storm.key, Patience::Long);
        let policy = policy.with_wait(storm.wait);
        for _ in 0..storm.count {
            let source = self.source.clone();
            let policy = policy.clone();
            self.tasks.spawn(async move {
                let attempt = source.new_attempt(storm.key, Duration::ZERO);
                source.call(&attempt, storm.wait);
                source.job(attempt, policy, false).await;
            });
        }
    }

    /// Asks for nothing more; returns when every attempt is over.
    pub(super) async fn rest(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(done) = self.tasks.join_next().await {
            done.expect("no panic");
        }
    }
}

impl Source {
    fn new_attempt(&self, key: u32, holds: Duration) -> Attempt {
        Attempt::new(self.shop.recorder.new_attempt(), key, holds)
    }

    fn fairness(&self, key: u32) -> Fairness {
        fairness(key, self.load.fifo, self.batches)
    }

    fn policy(&self, key: u32, patience: Patience) -> LockPolicy {
        let fairness = self.load.served(self.fairness(key));
        policy(self.ttl, fairness, patience)
    }

    fn call(&self, attempt: &Attempt, wait: Duration) {
        self.shop.recorder.write(What::Call {
            id: attempt.id,
            key: attempt.key,
            order: match self.fairness(attempt.key) {
                Fairness::Fifo => Order::Fifo,
                Fairness::Batched(most) if self.load.fifo => Order::Batched(most.get()),
                _ => Order::Unfair,
            },
            wait: wait.as_nanos() as u64,
        });
    }

    /// One attempt, as it is drawn.
    async fn attempt(&mut self) {
        let rng = &mut self.rng;
        let key = if rng.u32(0..10) < 8 {
            rng.u32(0..HOT)
        } else {
            HOT + rng.u32(0..COLD)
        };
        let holds = match key {
            0 => Duration::from_millis(rng.u64(self.load.queue..self.load.queue * 2)),
            1 if self.load.batch > 0 => {
                Duration::from_millis(rng.u64(self.load.batch..self.load.batch * 2))
            }
            1 => Duration::from_millis(rng.u64(0..8)),
            // Only by renewals.
            _ if rng.u32(0..1000) < self.load.long => self.ttl.mul_f32(self.load.ttls),
            _ => Duration::from_millis(rng.u64(0..8)),
        };
        let patience = match rng.u32(0..10) {
            0 => Patience::None,
            1..=3 => Patience::Short,
            _ => Patience::Long,
        };
        let way = match rng.u32(0..4) {
            0 => Way::Job,
            1 => Way::Stubborn,
            _ => Way::Request,
        };
        let cancel = rng.u32(0..1000) < self.load.cancels;
        let leaves = Duration::from_micros(rng.u64(0..400_000));

        let attempt = self.new_attempt(key, holds);
        self.call(&attempt, patience.time());
        let work = async {
            match way {
                Way::Request => self.request(attempt.clone(), patience).await,
                Way::Job => {
                    self.job(attempt.clone(), self.policy(key, patience), false)
                        .await
                }
                Way::Stubborn => {
                    self.job(attempt.clone(), self.policy(key, patience), true)
                        .await
                }
            }
        };
        if cancel {
            self.until_it_leaves(&attempt, work, leaves).await;
        } else {
            work.await;
        }
    }

    /// Drops the work at some moment.
    async fn until_it_leaves(
        &self,
        attempt: &Attempt,
        work: impl Future<Output = ()>,
        leaves: Duration,
    ) {
        let mut work = Box::pin(work);
        if timeout(leaves, &mut work).await.is_err() {
            attempt.cancel();
            drop(work);
            // Who holds has written it down.
            if !attempt.is_granted() {
                let id = attempt.id;
                self.shop.recorder.write(What::Cancelled { id });
            }
        }
    }

    async fn request(&self, attempt: Attempt, patience: Patience) {
        let request = Request::post("/")
            .header(HEADER, attempt.key.to_string())
            .extension(attempt.clone())
            .body(())
            .expect("a request");
        let routes = &self.routes[usize::from(attempt.key != HANDED_ON)];
        let route = routes[patience as usize].clone();
        let Ok(response) = route.oneshot(request).await;
        // What was granted has told its end itself.
        if !attempt.is_granted() {
            self.refused(&attempt, response.status().as_str());
        }
    }

    async fn job(&self, attempt: Attempt, policy: LockPolicy, stubborn: bool) {
        let key = key_of(attempt.key);
        let guard = match self.locks.acquire(key, &policy).await {
            Ok(guard) => guard,
            Err(error) => return self.refused(&attempt, error.kind().as_str()),
        };
        // Declared after the guard, so that a drop writes the end down before the lock goes back.
        let holder = Holder::new(self.shop.clone(), attempt, guard.held());
        let mut work = pin!(holder.work());
        tokio::select! {
            () = &mut work => {}
            _ = guard.lost() => {
                holder.lost();
                if stubborn {
                    work.await;
                }
                return;
            }
        }
        holder.releases();
        // An error is the reaper's to mend.
        let _ = guard.release().await;
    }

    fn refused(&self, attempt: &Attempt, why: &str) {
        let (id, why) = (attempt.id, why.to_owned());
        self.shop.recorder.write(What::Refused { id, why });
    }
}

impl Load {
    /// What is asked for where the history says this.
    fn served(&self, fairness: Fairness) -> Fairness {
        match fairness {
            Fairness::Fifo if self.barges => Fairness::Unfair,
            Fairness::Batched(_) if self.barges => Fairness::Batched(ENDLESS),
            fairness => fairness,
        }
    }
}

fn fairness(key: u32, fifo: bool, batches: bool) -> Fairness {
    match key {
        HANDED_ON if batches => Fairness::Batched(BATCH),
        _ if fifo => Fairness::Fifo,
        _ => Fairness::BestAvailable,
    }
}

fn policy(ttl: Duration, fairness: Fairness, patience: Patience) -> LockPolicy {
    LockPolicy::new()
        .with_ttl(ttl)
        .with_fairness(fairness)
        .with_max_waiters(MAX_WAITERS)
        .with_wait(match patience {
            Patience::None => Wait::Fail,
            _ => Wait::For(patience.time()),
        })
}

/// A route whose handler is dropped when its lock is lost.
fn route(locks: &LockManager, shop: &Arc<Shop>, policy: LockPolicy) -> Service {
    let layer = LockLayer::new(locks, HeaderKey::new(NAMESPACE, HEADER))
        .with_policy(policy.with_on_lost(OnLost::Abort));
    let shop = shop.clone();
    let handler = service_fn(move |mut request: Request<()>| {
        let shop = shop.clone();
        async move {
            let extensions = request.extensions_mut();
            let attempt = extensions.remove::<Attempt>().expect("it is our request");
            let held = extensions.remove::<HeldLock>().expect("it is locked");
            let holder = Holder::new(shop, attempt, held);
            holder.work().await;
            holder.releases();
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        }
    });
    BoxCloneSyncService::new(layer.layer(handler).map_response(|response: Response<_>| {
        let (head, _) = response.into_parts();
        Response::from_parts(head, Full::default())
    }))
}
