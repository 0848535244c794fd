//! A deterministic simulation of managers over the memory backend: many tasks on one thread, under
//! paused time, driven by a seed.
//!
//! What happens, all at once: callers of every mode, fairness and wait; futures that are dropped
//! in any of their polls, also in the one that would have granted, or that nobody polls for a
//! while; holds longer than the ttl; threads that stand still, so that all timers are late;
//! losses, keys that are taken away, and a manager that is shut down meanwhile.

mod caller;
mod twists;
mod world;

use std::{rc::Rc, time::Duration};

use tokio::{
    task::{JoinSet, LocalSet, yield_now},
    time::{sleep, timeout},
};

use self::{
    twists::{Twist, Twisted},
    world::World,
};
use super::LockManager;
use crate::{
    backend::MemoryBackend,
    lease::Loss,
    simulation::{self, History},
};

#[derive(Clone, Copy, Debug)]
struct Settings {
    callers: u64,
    /// What each does, at most.
    acts: u64,
    keys: usize,
    /// Losses, force releases, stalls and a shutdown.
    troubles: bool,
    /// Futures that are dropped or not polled.
    leaves: bool,
    twist: Twist,
}

const USUAL: Settings = Settings {
    callers: 6,
    acts: 5,
    keys: 2,
    troubles: true,
    leaves: true,
    twist: Twist::None,
};

/// Nothing but load, so that no excuse stands in the way of an order or a bound.
const CALM: Settings = Settings {
    callers: 10,
    keys: 1,
    troubles: false,
    leaves: false,
    ..USUAL
};

/// However slow the machine, all that callers wait for ends long before.
const LONGEST: Duration = Duration::from_secs(600);

fn millis(random: &mut fastrand::Rng, most: u64) -> Duration {
    Duration::from_millis(random.u64(0..=most))
}

fn run(settings: Settings, seed: u64) -> History {
    // For what the crate itself draws: jitter and owner tokens.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without input and output");
    let world = LocalSet::new().block_on(&runtime, history(settings, seed));
    drop(runtime);
    world.end()
}

async fn history(settings: Settings, seed: u64) -> Rc<World> {
    let mut random = fastrand::Rng::with_seed(seed);
    let memory = MemoryBackend::new();
    let backend = Twisted::new(memory.clone(), settings.twist);
    // They share the backend, as the layers of two services in one process may.
    let managers = [4096, 6].map(|most| {
        LockManager::builder(backend.clone())
            .max_waiters(most)
            .renew_on_current_runtime()
            .build()
    });
    let world = Rc::new(World::new(settings.keys, memory.clone()));
    let mut tasks = JoinSet::new();
    for caller in 0..settings.callers {
        let (world, random) = (world.clone(), random.fork());
        let manager = managers[usize::from(caller % 3 == 2)].clone();
        tasks.spawn_local(caller::run(world, settings, caller, manager, random));
    }
    if settings.troubles {
        let (world, random) = (world.clone(), random.fork());
        let managers = managers.clone();
        tasks.spawn_local(trouble(world, managers, random));
    }
    let watch = tokio::task::spawn_local(world::watch(world.clone()));
    let all = async { while tasks.join_next().await.is_some() {} };
    if timeout(LONGEST, all).await.is_err() {
        world.problem("somebody waits for ever");
        tasks.shutdown().await;
    }
    watch.abort();
    // Whatever was dropped is the reaper's.
    sleep(Duration::from_millis(1)).await;
    for _ in 0..100 {
        yield_now().await;
    }
    if !memory.is_empty() {
        world.problem("keys are left in the backend");
    }
    for manager in managers {
        let state = manager.inspect();
        if !state.held.is_empty() || !state.waiting.is_empty() {
            world.problem(format_args!("left in the manager: {state:?}"));
        }
        if !manager.shutdown(Duration::ZERO).await.confirmed {
            world.problem("releases are left");
        }
    }
    world
}

async fn trouble(world: Rc<World>, managers: [LockManager; 2], mut random: fastrand::Rng) {
    for _ in 0..random.u64(0..8) {
        sleep(millis(&mut random, 800)).await;
        let key = random.usize(..world.keys.len());
        match random.u8(..16) {
            0..6 => {
                world.disturb(Some(key));
                let loss = [Loss::Expired, Loss::Revoked][random.usize(..2)];
                if world.memory.lose(&world.keys[key], loss) {
                    world.event("losses", format_args!("key {key} is lost: {loss:?}"));
                }
            }
            6..11 => {
                world.disturb(Some(key));
                if let Ok(true) = managers[0].force_release(&world.keys[key]).await {
                    world.event("force releases", format_args!("key {key} is taken away"));
                }
            }
            11..14 => {
                // All threads of the process stand still, and what was due comes late.
                let stall = millis(&mut random, 2500);
                world.disturb(None);
                world.event("stalls", format_args!("standstill of {stall:?}"));
                tokio::time::advance(stall).await;
                world.disturb(None);
            }
            _ => {
                let grace = millis(&mut random, 1000);
                world.event("shutdowns", format_args!("shutdown within {grace:?}"));
                world.closing.set(true);
                let report = managers[1].shutdown(grace).await;
                world.event("", format_args!("{report:?}"));
                if !report.confirmed {
                    world.problem("a shutdown left releases");
                }
                let state = managers[1].inspect();
                let waits = !state.waiting.is_empty() && !world.somebody_hangs();
                if !state.held.is_empty() || waits {
                    world.problem(format_args!("left by a shutdown: {state:?}"));
                }
            }
        }
    }
}

#[test]
fn whatever_happens_one_holds_and_nobody_is_forgotten() {
    let found = simulation::histories(USUAL, simulation::count(600), run);
    found.assert_none();
    // Each in so many of a hundred histories.
    for (what, least) in [
        ("exclusive", 300),
        ("shared", 100),
        ("batched", 50),
        ("renewed", 20),
        ("refused", 50),
        ("timed out", 30),
        ("draining", 10),
        ("dropped", 100),
        ("hung", 20),
        ("lost", 50),
        ("losses", 30),
        ("force releases", 30),
        ("stalls", 30),
        ("shutdowns", 20),
    ] {
        let times = found.seen.get(what);
        assert!(times * 100 >= found.histories * least, "{what}: {times}");
    }
}

#[test]
fn in_calm_weather_arrivals_are_served_in_order_and_in_time() {
    simulation::histories(CALM, simulation::count(200), run).assert_none();
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 0..10 {
        let (one, other) = (run(USUAL, seed), run(USUAL, seed));
        assert_eq!(one.events, other.events, "seed {seed}");
        assert_eq!(one.hash(), other.hash());
        assert!(one.events.len() > 10);
    }
}

#[test]
fn mistakes_are_found() {
    for (twist, shows) in [
        (Twist::Untold, "both hold"),
        (Twist::NeverReleases, "left"),
        (Twist::RepeatsTokens, "token"),
        (Twist::LastFirst, "overtakes"),
        (Twist::LostWakeUp, "free"),
        (Twist::LeavesGrants, "left"),
        (Twist::Overstays, "waits too long"),
    ] {
        let settings = Settings { twist, ..USUAL };
        let found = simulation::shows(settings, shows, 0..300, run);
        assert!(found, "{twist:?}");
    }
}
