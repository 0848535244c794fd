//! A deterministic simulation of processes that lock in Redis: managers and the backend as they
//! are, a network and a server in memory, and time that only moves when all have done what they
//! can. The server runs the crate's own scripts.
//!
//! Faults, all at once: connections that are reset while commands are still on their way to the
//! server, or black-holed in one direction or both; messages that are late, and those of channels
//! lost; a server that stands still, restarts with its data or without, or forgets its scripts;
//! processes that stand still for longer than their ttl, end, or vanish with their host; callers
//! that leave in any poll; others' locks under the same keys, and operators that take keys away.
//!
//! Each process has a runtime with a paused clock of its own. They run in turns, a [`WINDOW`] each;
//! a message takes at least as long, so it makes no difference who runs first.
//!
//! Tokio can be seeded in unstable builds only: the branch of a `select!` that is polled first, and
//! which waiter of a `watch` channel is woken first. So the client's tasks use `biased`, and a link
//! wakes by a `Notify`, in order of arrival.
//!
//! Not in it: records, connections of further runtimes of a process (it has one), and the gate of
//! those who wait until nobody holds.

mod keyspace;
mod log;
mod net;
mod process;
mod server;
mod twist;
mod world;

use std::time::Duration;

use self::{twist::Twist, world::World};
use crate::simulation::{self, count, histories};

/// Microseconds.
type Time = u64;

const MS: Time = 1000;
const SECOND: Time = 1000 * MS;
const WINDOW: Time = 5 * MS;
/// How long the backend waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Settings {
    processes: usize,
    /// In each process.
    callers: usize,
    /// What each does, at most.
    acts: u64,
    keys: usize,
    troubles: bool,
    /// How long it is from fault to fault, about, if not by chance.
    every: Option<Time>,
    /// For how long there are troubles.
    lasts: Time,
    leaves: bool,
    /// Messages in a thousand that are lost, if not by chance.
    loses: Option<u64>,
    twist: Twist,
}

const USUAL: Settings = Settings {
    processes: 3,
    callers: 3,
    acts: 4,
    keys: 1,
    troubles: true,
    every: None,
    lasts: 12 * SECOND,
    leaves: true,
    loses: None,
    twist: Twist::None,
};

/// Nothing but load and messages that take their time.
const CALM: Settings = Settings {
    troubles: false,
    ..USUAL
};

pub(crate) fn counts_from_reply() -> bool {
    twist::counts_from_reply()
}

#[test]
fn whatever_happens_one_holds_and_nobody_is_forgotten() {
    let found = histories(USUAL, count(150), World::run);
    found.assert_none();
    // Each in so many of a hundred histories.
    for (what, least) in [
        ("exclusive", 300),
        ("shared", 50),
        ("batched", 20),
        ("renewed", 5),
        ("timed out", 20),
        ("unavailable", 20),
        ("dropped", 50),
        ("lost", 20),
        ("resets", 50),
        ("cuts", 50),
        ("pauses", 30),
        ("losses of data", 20),
        ("restarts", 20),
        ("standstills", 30),
        ("crashes", 10),
        ("force releases", 10),
        ("foreign", 10),
    ] {
        let times = found.seen.get(what);
        assert!(times * 100 >= found.histories * least, "{what}: {times}");
    }
}

#[test]
fn in_calm_weather_all_is_served_in_order_and_in_time() {
    histories(CALM, count(30), World::run).assert_none();
    // A message that is lost costs a second.
    let loses = Some(200);
    histories(Settings { loses, ..CALM }, count(30), World::run).assert_none();
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 0..8 {
        let (one, other) = (World::run(USUAL, seed), World::run(USUAL, seed));
        assert_eq!(one.events, other.events, "seed {seed}");
        assert_eq!(one.hash(), other.hash());
        assert!(one.events.len() > 10);
    }
}

#[test]
fn mistakes_are_found() {
    let lossy = Settings {
        loses: Some(500),
        ..CALM
    };
    let stormy = Settings {
        every: Some(400 * MS),
        ..USUAL
    };
    // Each from shortly before a history that showed it, as it is now: the rare ones take long.
    for (twist, settings, first, shows) in [
        (Twist::ReleasesOthers, stormy, 55, "both hold"),
        (Twist::CountsTokens, USUAL, 0, "tokens"),
        // An attempt that comes after its undo shows in many ways.
        (Twist::KillsNothing, stormy, 188, ""),
        (Twist::LastFirst, CALM, 0, "passed over"),
        (Twist::LeavesLease, CALM, 0, "held for nobody"),
        (Twist::NobodyLooks, lossy, 0, "is free"),
        (Twist::Endless, CALM, 0, "no end"),
        (Twist::FromReply, stormy, 224, "both hold"),
    ] {
        let settings = Settings { twist, ..settings };
        let found = simulation::shows(settings, shows, first..first + 400, World::run);
        assert!(found, "{twist:?}");
    }
}
