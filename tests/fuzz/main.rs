//! Every entry point of the fuzzing, for a bounded time: over the corpus, and seeded mutations of it.
//!
//! `TOWER_LOCK_FUZZ_SEED=n` repeats a run, `TOWER_LOCK_FUZZ_RUNS=n` sets how many inputs each entry
//! gets instead of a time.

// Both runners share it, and each uses its part.
#[allow(dead_code, unreachable_pub)]
mod entries;
#[path = "../servers/mod.rs"]
mod servers;

mod controls;
mod mutate;
mod runner;

use std::time::Duration;

use entries::{PURE, SERVERS};
use runner::Runner;

/// For each entry. The servers make it wait, so many inputs are under way at once.
const PURE_TIME: Duration = Duration::from_secs(4);
const SERVER_TIME: Duration = Duration::from_secs(8);

#[test]
fn keys() {
    Runner::of(PURE[0], PURE_TIME, 1).run();
}

#[test]
fn headers() {
    Runner::of(PURE[1], PURE_TIME, 1).run();
}

#[test]
fn stored() {
    Runner::of(PURE[2], PURE_TIME, 1).run();
}

#[test]
fn urls() {
    Runner::of(PURE[3], PURE_TIME, 1).run();
}

#[test]
fn redis() {
    Runner::of(SERVERS[0], SERVER_TIME, 16).run();
}

#[test]
fn redlock() {
    Runner::of(SERVERS[1], SERVER_TIME, 16).run();
}

#[test]
fn zookeeper() {
    Runner::of(SERVERS[2], SERVER_TIME, 16).run();
}

#[test]
fn etcd() {
    Runner::of(SERVERS[3], SERVER_TIME, 16).run();
}
