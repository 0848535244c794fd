//! `first-run`: what a request that is the first of its key costs beyond its handler, in round
//! trips.

use std::time::Duration;

use http::Method;
use serde_json::json;
use tokio::runtime::Runtime;
use tower::Layer;
use tower_lock::{
    IdempotencyKey, IdempotencyLayer, LockLayer, LockManager, SingleFlightLayer, key::HeaderKey,
};

use crate::{
    latency::{TRIVIAL, Trivial},
    locks::{Lock, Ours},
    report::{Effort, cell, line, ratio, round, table, us},
    requests::{Answer, KEY, Via},
    server::{Server, Work},
    throughput::one_thread,
    timed::{Candidate, acquire_of, take_turns},
    wires::Wires,
};

const AWAY: Duration = Duration::from_micros(500);

const HANDLER: &str = "the handler alone";
const LOCK: &str = "LockLayer";
const IDEMPOTENCY: &str = "IdempotencyLayer";
const FLIGHT: &str = "SingleFlightLayer";

const LENGTH: usize = 1 << 10;

/// Longer than a release is on its way, which nobody waits for behind `LockLayer`.
const SETTLED: Duration = Duration::from_millis(50);

pub(crate) fn first_run(effort: &Effort) {
    let (server, runtime) = (Server::start(), one_thread());
    let run = |network, url: &str, (rounds, times)| {
        // Each key is new again.
        server.flush();
        let mut candidates = candidates(effort, &runtime, url);
        let counted = count(effort, &server, &candidates);
        let mut timed: Vec<_> = candidates.drain(..).map(|(timed, _)| timed).collect();
        take_turns(&mut timed, effort.pick(rounds, 2), effort.pick(times, 30));
        report(network, &timed, &counted);
    };
    run("loopback", &server.url(), (21, 300));
    let wires = Wires::to([server.address()], AWAY);
    run("a millisecond away", &wires.urls()[0], (11, 200));
}

/// Asks so many times, and then as long as anything may be on its way.
type Ask<'a> = Box<dyn Fn(usize) + 'a>;

struct Candidates<'a> {
    runtime: &'a Runtime,
    all: Vec<(Candidate<'a>, Ask<'a>)>,
}

impl<'a> Candidates<'a> {
    fn add<L: Lock>(&mut self, name: &'static str, via: L) {
        let runtime = self.runtime;
        let timed = Candidate::of(name, runtime, &via);
        let ask = move |times| {
            runtime.block_on(async {
                for _ in 0..times {
                    let held = via.acquire(name).await;
                    via.release(held).await;
                }
                tokio::time::sleep(SETTLED).await;
            });
        };
        self.all.push((timed, Box::new(ask)));
    }
}

fn candidates<'a>(
    effort: &Effort,
    runtime: &'a Runtime,
    url: &str,
) -> Vec<(Candidate<'a>, Ask<'a>)> {
    // A backend each, which knows this runtime.
    let locks = || LockManager::new(runtime.block_on(Ours::ready(url)).0);
    let key = || HeaderKey::new("bench", KEY);
    let handler = Answer::of(LENGTH);
    let scoped = IdempotencyKey::header().global_keys();
    let flight = SingleFlightLayer::new(&locks(), key()).with_methods([Method::POST]);

    let mut candidates = Candidates {
        runtime,
        all: Vec::new(),
    };
    candidates.add(TRIVIAL, runtime.block_on(Trivial::connect(url)));
    candidates.add(HANDLER, Via::first(handler.clone(), LENGTH));
    let lock = LockLayer::new(&locks(), key()).layer(handler.clone());
    candidates.add(LOCK, Via::first(lock, LENGTH));
    let idempotent = IdempotencyLayer::new(&locks(), scoped).layer(handler.clone());
    candidates.add(IDEMPOTENCY, Via::first(idempotent, LENGTH));
    candidates.add(FLIGHT, Via::first(flight.layer(handler), LENGTH));
    let mut all = candidates.all;
    all.retain(|(candidate, _)| effort.wants(candidate.name));
    all
}

/// What the server counted for so many requests of a candidate.
struct Counted {
    requests: usize,
    work: Work,
}

fn count(
    effort: &Effort,
    server: &Server,
    candidates: &[(Candidate<'_>, Ask<'_>)],
) -> Vec<Counted> {
    let requests = effort.pick(1000, 100);
    // What the backends did to connect is over.
    std::thread::sleep(SETTLED);
    let counted = candidates.iter().map(|(_, ask)| {
        let ((), work) = server.during(|| ask(requests));
        Counted { requests, work }
    });
    counted.collect()
}

fn report(network: &str, candidates: &[Candidate<'_>], counted: &[Counted]) {
    let base = |name| acquire_of(candidates, name, 0.5);
    let rows: Vec<_> = candidates
        .iter()
        .zip(counted)
        .map(|(candidate, Counted { requests, work })| {
            let p50 = candidate.acquire(0.5);
            let beyond = p50 as f64 - base(HANDLER);
            let scripts = work.scripts_per(*requests);
            let figures = json!({
                "network": network,
                "p50_us": us(p50),
                "p99_us": us(candidate.acquire(0.99)),
                "round_trips": round(beyond / base(TRIVIAL)),
                "scripts_per_request": round(scripts),
                "calls_per_request": work.each_per(*requests),
            });
            line("first-run", candidate.name, &figures);
            vec![
                candidate.name.to_owned(),
                cell(us(p50)),
                cell(us(candidate.acquire(0.99))),
                cell(beyond / 1000.0),
                ratio(beyond, base(TRIVIAL)),
                cell(scripts),
                cell(work.calls_per(*requests) - scripts),
            ]
        })
        .collect();
    table(
        &format!("A request that is the first of its key, {network}; µs"),
        &[
            "",
            "p50",
            "p99",
            "beyond the handler",
            "in trivial scripts",
            "scripts sent",
            "commands in them",
        ],
        &rows,
    );
}
