//! What the benches share: the services that are compared, rounds that take turns, and tables.
//!
//! Nothing here asserts a time: the machine may be busy. A figure is the median of rounds in which
//! all candidates take turns, and what counts is the ratio within one run.

// Each bench uses its part.
#![allow(dead_code, unused_imports)]

pub(crate) mod services;
mod table;

use std::time::{Duration, Instant};

pub(crate) use self::table::{median, ns, ratio, table};

/// How the bench was called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// A run of seconds that shows that the bench works: `--quick`, or without cargo's `--bench`.
    pub quick: bool,
}

impl Effort {
    pub(crate) fn from_args() -> Self {
        let given = |name| std::env::args().any(|arg| arg == name);
        Self {
            quick: given("--quick") || !given("--bench"),
        }
    }

    /// The first number in a whole run, the second in a quick one.
    pub(crate) fn pick(self, whole: usize, quick: usize) -> usize {
        if self.quick { quick } else { whole }
    }
}

/// A candidate: runs one round of so many operations and says how long it took.
pub(crate) struct Candidate<'a> {
    pub(crate) name: &'static str,
    round: Box<dyn FnMut(usize) -> Duration + 'a>,
}

impl<'a> Candidate<'a> {
    /// Times the whole round itself.
    pub(crate) fn timed(name: &'static str, round: impl FnMut(usize) -> Duration + 'a) -> Self {
        Self {
            name,
            round: Box::new(round),
        }
    }

    /// One operation after the other.
    pub(crate) fn each(name: &'static str, mut operation: impl FnMut() + 'a) -> Self {
        Self::timed(name, move |times| {
            let start = Instant::now();
            for _ in 0..times {
                operation();
            }
            start.elapsed()
        })
    }
}

/// The nanoseconds per operation of all candidates: the median over rounds in which they take
/// turns, in an order that changes, so that a slow moment of the machine hits all of them.
pub(crate) fn medians(rounds: usize, times: usize, candidates: &mut [Candidate<'_>]) -> Vec<f64> {
    let mut samples = vec![Vec::with_capacity(rounds); candidates.len()];
    for candidate in candidates.iter_mut() {
        (candidate.round)(times.div_ceil(4));
    }
    for round in 0..rounds {
        for turn in 0..candidates.len() {
            let at = (round + turn) % candidates.len();
            let took = (candidates[at].round)(times);
            samples[at].push(took.as_secs_f64() * 1e9 / times as f64);
        }
    }
    samples.into_iter().map(median).collect()
}

pub(crate) fn current_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts")
}
