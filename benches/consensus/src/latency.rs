//! `latency`: uncontended pairs, one after the other; the candidates take turns.

use std::time::Instant;

use serde_json::json;
use tokio::runtime::Runtime;

use crate::{
    locks::Lock,
    report::{Effort, cell, line, median, quantile_us, ratio, table},
};

/// One candidate, and what was measured of it.
pub(crate) struct Candidate<'a> {
    name: &'a str,
    pairs: Box<dyn Fn(usize) -> Pairs + 'a>,
    found: [Vec<f64>; 4],
}

/// Nanoseconds of each acquire and release, and what the server did for them.
struct Pairs {
    acquires: Vec<u64>,
    releases: Vec<u64>,
    requests: f64,
}

/// How many requests the server has received.
pub(crate) type Requests<'a> = &'a dyn Fn() -> f64;

impl<'a> Candidate<'a> {
    pub(crate) fn new(
        name: &'a str,
        runtime: &'a Runtime,
        lock: impl Lock,
        requests: Requests<'a>,
    ) -> Self {
        let pairs = move |count| {
            let before = requests();
            let (mut acquires, mut releases) = (Vec::new(), Vec::new());
            runtime.block_on(async {
                for _ in 0..count {
                    let asked = Instant::now();
                    let held = lock.acquire("uncontended").await;
                    let granted = Instant::now();
                    lock.release(held).await;
                    acquires.push((granted - asked).as_nanos() as u64);
                    releases.push(granted.elapsed().as_nanos() as u64);
                }
            });
            Pairs {
                acquires,
                releases,
                requests: (requests() - before) / count as f64,
            }
        };
        Self {
            name,
            pairs: Box::new(pairs),
            found: Default::default(),
        }
    }
}

/// The first candidate is what the others are compared with.
pub(crate) fn latency(effort: Effort, server: &str, mut candidates: Vec<Candidate<'_>>) {
    for turn in 0..effort.pick(12, 2) {
        for candidate in &mut candidates {
            let mut pairs = (candidate.pairs)(effort.pick(300, 20));
            if turn == 0 {
                // Connections, caches and the JIT compiler of the server warm up.
                continue;
            }
            let figures = [
                quantile_us(&mut pairs.acquires, 0.5),
                quantile_us(&mut pairs.acquires, 0.99),
                quantile_us(&mut pairs.releases, 0.5),
                pairs.requests,
            ];
            for (found, figure) in candidate.found.iter_mut().zip(figures) {
                found.push(figure);
            }
        }
    }
    let figures: Vec<_> = candidates
        .into_iter()
        .map(|candidate| (candidate.name, candidate.found.map(median)))
        .collect();
    let [first, ..] = figures.as_slice() else {
        return;
    };
    let rows: Vec<_> = figures
        .iter()
        .map(|(name, figures)| {
            let [p50, p99, release, requests] = *figures;
            let found = json!({
                "acquire_p50_us": p50,
                "acquire_p99_us": p99,
                "release_p50_us": release,
                "requests_per_pair": requests,
            });
            line("latency", server, name, &found);
            let [first_p50, _, first_release, _] = first.1;
            vec![
                (*name).to_owned(),
                cell(p50),
                ratio(p50, first_p50),
                cell(p99),
                cell(release),
                ratio(p50 + release, first_p50 + first_release),
                cell(requests),
            ]
        })
        .collect();
    table(
        &format!("{server}: an uncontended pair after the other; µs"),
        &[
            "",
            "acquire p50",
            "to the first",
            "p99",
            "release p50",
            "pair to the first",
            "requests per pair",
        ],
        &rows,
    );
}
