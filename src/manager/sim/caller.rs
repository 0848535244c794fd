//! Who acquires, and what becomes of it.

use std::{
    future::{Future, poll_fn},
    num::NonZeroU32,
    pin::pin,
    rc::Rc,
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::{
    Settings, millis,
    world::{Waits, World},
};
use crate::{
    backend::Mode,
    manager::{AcquireErrorKind, LockGuard, LockManager},
    policy::{Fairness, LockPolicy, Wait},
};

/// Beyond its bound: timers go by whole milliseconds.
const SLACK: Duration = Duration::from_millis(5);

/// What becomes of the future of an acquire.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Stays,
    /// Dropped in this poll.
    Polls(u32),
    /// Dropped after this time.
    Time(Duration),
    /// After its first poll it is not polled for this time.
    Hangs(Duration),
}

pub(super) async fn run(
    world: Rc<World>,
    settings: Settings,
    me: u64,
    manager: LockManager,
    mut random: fastrand::Rng,
) {
    for _ in 0..random.u64(1..=settings.acts) {
        sleep(millis(&mut random, 400)).await;
        let key = random.usize(..world.keys.len());
        let ttl = Duration::from_millis(random.u64(60..1500));
        let wait = match random.u8(..8) {
            0 => Wait::Fail,
            1..5 => Wait::For(millis(&mut random, 2000)),
            _ => Wait::Forever,
        };
        let fairness = match random.u8(..8) {
            0 => Fairness::Unfair,
            1 => Fairness::Batched(NonZeroU32::MIN.saturating_add(2)),
            _ => Fairness::Fifo,
        };
        let mode = match random.u8(..4) {
            0 => Mode::Shared,
            _ => Mode::Exclusive,
        };
        let fate = match random.u8(..8) {
            0 if settings.leaves => Fate::Polls(random.u32(0..4)),
            1 if settings.leaves => Fate::Time(millis(&mut random, 1500)),
            2 if settings.leaves => Fate::Hangs(millis(&mut random, 3000)),
            _ => Fate::Stays,
        };
        let policy = LockPolicy::new()
            .with_ttl(ttl)
            .with_wait(wait)
            .with_fairness(fairness)
            .with_mode(mode)
            .with_max_hold(ttl * random.u32(1..6));
        let wish = format!("{me} key {key} {mode:?} {fairness:?} {wait:?} {ttl:?} {fate:?}");
        world.event("", &wish);
        let waits = Waits {
            caller: me,
            key,
            mode,
            fifo: fairness == Fairness::Fifo && wait != Wait::Fail,
            since: Instant::now(),
            hangs: false,
        };
        let began = Instant::now();
        let acquire = manager.acquire(world.keys[key].clone(), &policy);
        let arrival = world.arrives(waits);
        let ended = suffer(&world, arrival, fate, acquire).await;
        world.leaves(arrival);
        let waited = began.elapsed();
        let bound = match wait {
            Wait::Fail => Some(Duration::ZERO),
            Wait::For(bound) => Some(bound),
            Wait::Forever => None,
        };
        if !matches!(fate, Fate::Hangs(_))
            && !world.is_disturbed(key, began)
            && bound.is_some_and(|bound| waited > bound + SLACK)
        {
            world.problem(format_args!("{me} waits too long: {waited:?}"));
        }
        match ended {
            None => world.event("dropped", format_args!("{me} leaves")),
            Some(Ok(guard)) => {
                let name = match (mode, fairness) {
                    (Mode::Exclusive, Fairness::Batched(_)) => "batched",
                    (Mode::Exclusive, _) => "exclusive",
                    (Mode::Shared, _) => "shared",
                };
                world.event(name, format_args!("{me} has key {key}"));
                world.granted(me, key, (arrival, waits), &guard);
                hold(&world, me, guard, ttl, &mut random).await;
            }
            Some(Err(error)) => {
                let kind = error.kind();
                world.event(
                    match kind {
                        AcquireErrorKind::Contended => "refused",
                        AcquireErrorKind::WaitTimedOut => "timed out",
                        AcquireErrorKind::Draining => "draining",
                        AcquireErrorKind::Overloaded => "overloaded",
                        _ => "",
                    },
                    format_args!("{me} gets no key {key}: {kind:?}"),
                );
                let may_be = match kind {
                    AcquireErrorKind::Contended => {
                        wait == Wait::Fail || bound == Some(Duration::ZERO)
                    }
                    AcquireErrorKind::WaitTimedOut => {
                        wait == Wait::Fail || bound.is_some_and(|bound| waited + SLACK >= bound)
                    }
                    AcquireErrorKind::Draining => world.closing.get(),
                    AcquireErrorKind::Overloaded => true,
                    _ => false,
                };
                if !may_be {
                    world.problem(format_args!("{me} is refused: {error}"));
                }
            }
        }
    }
}

/// Polls the future as its caller does: `None` if it leaves.
async fn suffer<T>(
    world: &World,
    arrival: u64,
    fate: Fate,
    acquire: impl Future<Output = T>,
) -> Option<T> {
    let mut acquire = pin!(acquire);
    match fate {
        Fate::Stays => Some(acquire.await),
        Fate::Time(time) => timeout(time, acquire).await.ok(),
        Fate::Polls(mut polls) => {
            poll_fn(|cx| {
                if polls == 0 {
                    return Poll::Ready(None);
                }
                polls -= 1;
                acquire.as_mut().poll(cx).map(Some)
            })
            .await
        }
        Fate::Hangs(time) => {
            let first = poll_fn(|cx| Poll::Ready(acquire.as_mut().poll(cx))).await;
            if let Poll::Ready(ended) = first {
                return Some(ended);
            }
            world.event("hung", "");
            world.hangs(arrival, true);
            sleep(time).await;
            world.hangs(arrival, false);
            Some(acquire.await)
        }
    }
}

async fn hold(world: &World, me: u64, guard: LockGuard, ttl: Duration, random: &mut fastrand::Rng) {
    let time = match random.u8(..4) {
        0 => Duration::ZERO,
        1 => ttl * 3,
        _ => millis(random, 300),
    };
    let before = Instant::now();
    if let Ok(loss) = timeout(time, guard.lost()).await {
        world.event("lost", format_args!("{me} lost it: {loss:?}"));
        if guard.is_held() {
            world.problem(format_args!("{me} holds what is lost"));
        }
    } else if before.elapsed() > ttl {
        world.event("renewed", format_args!("{me} holds on"));
    }
    world.gives_back(&guard);
    match random.u8(..4) {
        0 => {
            world.event("", format_args!("{me} drops it"));
            drop(guard);
        }
        1 => {
            // The reaper finishes it.
            world.event("", format_args!("{me} begins to release it"));
            let mut release = pin!(guard.release());
            poll_fn(|cx| {
                let _ = release.as_mut().poll(cx);
                Poll::Ready(())
            })
            .await;
        }
        _ => {
            world.event("", format_args!("{me} releases it"));
            if let Err(error) = guard.release().await {
                world.problem(format_args!("{me} cannot release: {error}"));
            }
        }
    }
}
