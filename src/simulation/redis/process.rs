//! A process: a thread of its own that may stand still or end at any moment, a manager, and those
//! who acquire.

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    num::NonZeroU32,
    pin::pin,
    rc::Rc,
    sync::{Arc, Mutex},
    task::Poll,
    time::Duration,
};

use tokio::{
    runtime::Runtime,
    task::{JoinHandle, LocalSet},
    time::{Instant, advance, sleep, sleep_until, timeout},
};

use super::{
    Settings, TIMEOUT, Time,
    log::{Belief, Log},
    net::{Clock, Net, dialer},
};
use crate::{
    AcquireErrorKind, Fairness, HeldLock, LockGuard, LockKey, LockManager, LockPolicy, Mode,
    RedisBackend, Wait,
};

pub(super) struct Process {
    pub(super) id: usize,
    runtime: Runtime,
    local: LocalSet,
    clock: Clock,
    manager: Option<LockManager>,
    callers: Vec<JoinHandle<()>>,
    pub(super) stands_until: Time,
    /// Until when it has run.
    ran: Time,
    pub(super) waiting: Rc<RefCell<Vec<Waits>>>,
    /// How long it stood still, in all.
    stood: Rc<Cell<Time>>,
}

/// Who waits for a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    pub(super) caller: usize,
    pub(super) key: usize,
    pub(super) since: Time,
}

/// What a caller needs.
#[derive(Clone)]
struct Place {
    process: usize,
    clock: Clock,
    keys: Rc<Vec<LockKey>>,
    log: Rc<RefCell<Log>>,
    waiting: Rc<RefCell<Vec<Waits>>>,
    stood: Rc<Cell<Time>>,
    settings: Settings,
}

impl Process {
    pub(super) fn start(
        id: usize,
        now: Time,
        settings: Settings,
        net: &Arc<Mutex<Net>>,
        keys: &Rc<Vec<LockKey>>,
        log: &Rc<RefCell<Log>>,
        random: &mut fastrand::Rng,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without input and output");
        let local = LocalSet::new();
        let clock = local.block_on(&runtime, async {
            Clock {
                base: Instant::now(),
                born: now,
            }
        });
        let dialer = dialer(net.clone(), id, clock);
        let manager = local.block_on(&runtime, async {
            let backend = RedisBackend::simulated(dialer, &format!("sim:inbox:{id}"), TIMEOUT);
            LockManager::builder(backend)
                .renew_on_current_runtime()
                .build()
        });
        let mut process = Self {
            id,
            runtime,
            local,
            clock,
            manager: Some(manager.clone()),
            callers: Vec::new(),
            stands_until: 0,
            ran: now,
            waiting: Rc::default(),
            stood: Rc::default(),
        };
        let place = Place {
            process: id,
            clock,
            keys: keys.clone(),
            log: log.clone(),
            waiting: process.waiting.clone(),
            stood: process.stood.clone(),
            settings,
        };
        for n in 0..settings.callers {
            let caller = id * 100 + n;
            let run = run(place.clone(), caller, manager.clone(), random.fork());
            process.callers.push(process.local.spawn_local(run));
        }
        process
    }

    /// Lets it run up to that time, if it does not stand still.
    pub(super) fn run(&mut self, until: Time) {
        if self.stands_until >= until {
            return;
        }
        let missed = self.stands_until.saturating_sub(self.ran);
        if missed > 0 {
            self.stood.set(self.stood.get() + missed);
            let missed = Duration::from_micros(missed);
            let skip = async { advance(missed).await };
            self.local.block_on(&self.runtime, skip);
        }
        let then = self.clock.instant(until);
        let work = async { sleep_until(then).await };
        self.local.block_on(&self.runtime, work);
        self.ran = until;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.callers.iter().all(JoinHandle::is_finished)
    }

    /// Whether its clock is behind.
    pub(super) fn stands(&self, now: Time) -> bool {
        self.ran < now
    }

    /// What is left of a lease, by its own clock.
    pub(super) fn remaining(&self, held: &HeldLock) -> Time {
        let _entered = self.runtime.enter();
        held.remaining().as_micros() as Time
    }

    pub(super) fn force_release(&mut self, key: LockKey) {
        if let Some(manager) = self.manager.clone() {
            self.local.spawn_local(async move {
                let _ = manager.force_release(&key).await;
            });
        }
    }

    /// Ends it in an orderly way.
    pub(super) fn shut_down(&mut self, log: &Rc<RefCell<Log>>) {
        let Some(manager) = self.manager.take() else {
            return;
        };
        let (log, clock, id) = (log.clone(), self.clock, self.id);
        self.local.spawn_local(async move {
            let state = manager.inspect();
            if !state.held.is_empty() || !state.waiting.is_empty() {
                let text = format!("left in the manager of {id}: {state:?}");
                log.borrow_mut().problem(clock.now(), text);
            }
            if !manager.shutdown(Duration::ZERO).await.confirmed {
                let text = format!("releases of {id} are left");
                log.borrow_mut().problem(clock.now(), text);
            }
        });
    }

    /// Ends it at once.
    pub(super) fn crash(self) {
        let _entered = self.runtime.enter();
        drop(self.local);
        drop(self.callers);
        drop(self.manager);
    }
}

fn millis(random: &mut fastrand::Rng, most: u64) -> Duration {
    Duration::from_millis(random.u64(0..=most))
}

async fn run(place: Place, me: usize, manager: LockManager, mut random: fastrand::Rng) {
    for _ in 0..random.u64(1..=place.settings.acts) {
        sleep(millis(&mut random, 1200)).await;
        act(&place, me, &manager, &mut random).await;
    }
}

async fn act(place: &Place, me: usize, manager: &LockManager, random: &mut fastrand::Rng) {
    let key = random.usize(..place.keys.len());
    let ttl = Duration::from_millis(match random.u8(..3) {
        0 => random.u64(150..1000),
        _ => random.u64(1000..8000),
    });
    let wait = match random.u8(..8) {
        0 => Wait::Fail,
        1..5 => Wait::For(millis(random, 4000)),
        _ => Wait::Forever,
    };
    let fairness = match random.u8(..10) {
        0 => Fairness::Unfair,
        1 => Fairness::Batched(NonZeroU32::MIN.saturating_add(2)),
        _ => Fairness::Fifo,
    };
    let mode = match random.u8(..5) {
        0 => Mode::Shared,
        _ => Mode::Exclusive,
    };
    let leaves = match random.u8(..6) {
        0 if place.settings.leaves => Some(Err(random.u32(0..6))),
        1 if place.settings.leaves => Some(Ok(millis(random, 1500))),
        _ => None,
    };
    let policy = LockPolicy::new()
        .with_ttl(ttl)
        .with_wait(wait)
        .with_fairness(fairness)
        .with_mode(mode);
    let asked = place.clock.now();
    let event = |at: Time, name: &'static str, what: String| {
        place.log.borrow_mut().event(at, name, what);
    };
    event(
        asked,
        "",
        format!("{me} asks: key {key} {mode:?} {fairness:?} {wait:?} {ttl:?} leaves {leaves:?}"),
    );
    let stood = place.stood.get();
    let waits = Waits {
        caller: me,
        key,
        since: asked,
    };
    place.waiting.borrow_mut().push(waits);
    let acquire = manager.acquire(place.keys[key].clone(), &policy);
    let ended = suffer(leaves, acquire).await;
    place.waiting.borrow_mut().retain(|w| w.caller != me);
    let now = place.clock.now();
    let waited = Duration::from_micros(now - asked - (place.stood.get() - stood));
    let bound = match wait {
        Wait::Fail => Some(Duration::ZERO),
        Wait::For(bound) => Some(bound),
        Wait::Forever => None,
    };
    // The first answer may take as long as a connection and an answer may take; asked again once.
    let slack = if place.settings.troubles {
        TIMEOUT * 3
    } else {
        TIMEOUT / 4
    };
    let problem = |what: String| place.log.borrow_mut().problem(now, what);
    if let Some(bound) = bound
        && waited > bound.max(slack) + Duration::from_millis(50)
    {
        problem(format!("{me} waits too long: {waited:?}"));
    }
    match ended {
        None => event(now, "dropped", format!("{me} leaves")),
        Some(Ok(guard)) => {
            let name = match (mode, fairness) {
                (Mode::Exclusive, Fairness::Batched(_)) => "batched",
                (Mode::Exclusive, _) => "exclusive",
                (Mode::Shared, _) => "shared",
            };
            let belief = Rc::new(Belief::new(
                me,
                place.process,
                key,
                &guard,
                asked,
                now,
                place.clock,
            ));
            event(now, name, format!("{me} has key {key}"));
            place.log.borrow_mut().beliefs.push(belief.clone());
            hold(place, me, guard, ttl, belief, random).await;
        }
        Some(Err(error)) => {
            let kind = error.kind();
            let name = match kind {
                AcquireErrorKind::Contended => "refused",
                AcquireErrorKind::WaitTimedOut => "timed out",
                AcquireErrorKind::BackendUnavailable => "unavailable",
                _ => "",
            };
            event(now, name, format!("{me} gets no key {key}: {error}"));
            let may_be = match kind {
                AcquireErrorKind::Contended => bound == Some(Duration::ZERO),
                AcquireErrorKind::WaitTimedOut => bound.is_some(),
                AcquireErrorKind::BackendUnavailable => place.settings.troubles,
                _ => false,
            };
            if !may_be {
                problem(format!("{me} is refused: {error}"));
            }
        }
    }
}

/// `None` if its caller leaves: in one of its polls, or after a time.
async fn suffer<T>(
    leaves: Option<Result<Duration, u32>>,
    acquire: impl Future<Output = T>,
) -> Option<T> {
    let mut acquire = pin!(acquire);
    match leaves {
        None => Some(acquire.await),
        Some(Ok(time)) => timeout(time, acquire).await.ok(),
        Some(Err(mut polls)) => {
            poll_fn(|cx| {
                if polls == 0 {
                    return Poll::Ready(None);
                }
                polls -= 1;
                acquire.as_mut().poll(cx).map(Some)
            })
            .await
        }
    }
}

async fn hold(
    place: &Place,
    me: usize,
    guard: LockGuard,
    ttl: Duration,
    belief: Rc<Belief>,
    random: &mut fastrand::Rng,
) {
    let event = |name: &'static str, what: String| {
        place.log.borrow_mut().event(place.clock.now(), name, what);
    };
    let time = match random.u8(..6) {
        0 => Duration::ZERO,
        1 => ttl * 2,
        _ => millis(random, 800),
    };
    let began = Instant::now();
    if let Ok(loss) = timeout(time, guard.lost()).await {
        event("lost", format!("{me} lost it: {loss:?}"));
    } else if began.elapsed() > ttl {
        event("renewed", format!("{me} holds on"));
    }
    belief.ends();
    match random.u8(..4) {
        0 => {
            event("", format!("{me} drops it"));
            drop(guard);
        }
        1 => {
            event("", format!("{me} begins to release it"));
            let mut release = pin!(guard.release());
            poll_fn(|cx| {
                let _ = release.as_mut().poll(cx);
                Poll::Ready(())
            })
            .await;
        }
        _ => {
            event("", format!("{me} releases it"));
            let released = guard.release().await;
            event("", format!("{me} has released it: {}", released.is_ok()));
        }
    }
}
