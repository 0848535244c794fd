//! Pairs one after the other, each step of them timed, of candidates that take turns.

use std::time::Instant;

use tokio::runtime::Runtime;

use crate::{
    locks::Lock,
    report::{median, quantile},
};

pub(crate) struct Candidate<'a> {
    pub(crate) name: &'static str,
    /// Runs so many pairs.
    turn: Box<dyn FnMut(usize) -> Samples + 'a>,
    rounds: Vec<Samples>,
}

/// Nanoseconds.
#[derive(Default)]
pub(crate) struct Samples {
    pub(crate) acquires: Vec<u64>,
    pub(crate) renewals: Vec<u64>,
    pub(crate) releases: Vec<u64>,
}

impl<'a> Candidate<'a> {
    pub(crate) fn new(name: &'static str, turn: impl FnMut(usize) -> Samples + 'a) -> Self {
        Self {
            name,
            turn: Box::new(turn),
            rounds: Vec::new(),
        }
    }

    /// A key that is free, in a task of the runtime, as in a handler.
    pub(crate) fn of<L: Lock>(name: &'static str, runtime: &'a Runtime, lock: &L) -> Self {
        let lock = lock.for_key(name);
        Self::new(name, move |times| {
            let lock = lock.clone();
            let task = runtime.spawn(async move {
                let mut samples = Samples::default();
                for _ in 0..times {
                    let start = Instant::now();
                    let held = lock.acquire(name).await;
                    samples.acquires.push(nanos(start));
                    let start = Instant::now();
                    lock.release(held).await;
                    samples.releases.push(nanos(start));
                }
                samples
            });
            runtime.block_on(task).expect("the task ends well")
        })
    }

    /// The median of the rounds' quantiles, so that a slow moment is one round's.
    fn quantile(&self, q: f64, of: impl Fn(&Samples) -> &Vec<u64>) -> u64 {
        let rounds = self.rounds.iter();
        median(
            rounds
                .map(|r| quantile(&mut of(r).clone(), q) as f64)
                .collect(),
        ) as u64
    }

    pub(crate) fn acquire(&self, q: f64) -> u64 {
        self.quantile(q, |samples| &samples.acquires)
    }

    /// Where it renews.
    pub(crate) fn renewal(&self, q: f64) -> Option<u64> {
        let renewal = self.quantile(q, |samples| &samples.renewals);
        (renewal > 0).then_some(renewal)
    }

    pub(crate) fn release(&self, q: f64) -> u64 {
        self.quantile(q, |samples| &samples.releases)
    }
}

/// So many rounds of so many pairs, after one to warm up.
pub(crate) fn take_turns(candidates: &mut [Candidate<'_>], rounds: usize, times: usize) {
    for candidate in &mut *candidates {
        (candidate.turn)(times);
    }
    for round in 0..rounds {
        for turn in 0..candidates.len() {
            let at = (round + turn) % candidates.len();
            let candidate = &mut candidates[at];
            let samples = (candidate.turn)(times);
            candidate.rounds.push(samples);
        }
    }
}

/// The acquire of a candidate by this name, or no number.
pub(crate) fn acquire_of(candidates: &[Candidate<'_>], name: &str, q: f64) -> f64 {
    let found = candidates.iter().find(|c| c.name == name);
    found.map_or(f64::NAN, |c| c.acquire(q) as f64)
}

pub(crate) fn nanos(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}
