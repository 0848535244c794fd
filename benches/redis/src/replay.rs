//! `replay`: a stored response against a handler that asks Redis for the same bytes.

use std::sync::Arc;

use serde_json::json;
use tokio::runtime::Runtime;
use tower::Layer;
use tower_lock::{IdempotencyKey, IdempotencyLayer, LockManager};

use crate::{
    locks::{Lock, Ours, connect},
    recipe::command,
    report::{Effort, cell, line, ratio, round, table, us},
    requests::{Answer, Ask, Via},
    server::Server,
    throughput::{self, one_thread},
    timed::{self, acquire_of, take_turns},
};

const HANDLER: &str = "the handler alone";
const GET: &str = "a GET in the handler, redis-rs";
const SCRIPT: &str = "the script of a replay in the handler, redis-rs";
const REPLAY: &str = "replay, IdempotencyLayer";

const TASKS: usize = 64;

pub(crate) fn replay(effort: &Effort) {
    for kib in [1, 64] {
        measure(effort, kib);
    }
}

/// All candidates, once for latency and once for throughput.
struct Candidates<'a> {
    timed: Vec<timed::Candidate<'a>>,
    counted: Vec<throughput::Candidate<'a>>,
}

impl<'a> Candidates<'a> {
    fn add<L: Lock>(&mut self, effort: &Effort, name: &'static str, runtime: &'a Runtime, via: L) {
        if effort.wants(name) {
            self.timed.push(timed::Candidate::of(name, runtime, &via));
            self.counted
                .push(throughput::Candidate::of(name, runtime, via));
        }
    }
}

fn measure(effort: &Effort, kib: usize) {
    let (server, runtime) = (Server::start(), one_thread());
    let (url, length) = (server.url(), kib << 10);
    let handler = Answer::of(length);
    let backend = runtime.block_on(Ours::ready(&url)).0;
    let locks = LockManager::new(backend);
    let layer = IdempotencyLayer::new(&locks, IdempotencyKey::header().global_keys());
    let replay = Via::repeated(layer.layer(handler.clone()), length);

    // What the layer sends for a request that it has seen.
    let seen = "a request that is copied";
    runtime.block_on(replay.acquire(seen));
    let ((), sent) = server.sent(|| runtime.block_on(replay.acquire(seen)));
    let scripts = sent.into_iter().filter(|command| command[0] == b"EVALSHA");
    let Ok([script]) = <[_; 1]>::try_from(scripts.collect::<Vec<_>>()) else {
        panic!("a replay is one script");
    };
    let bytes = "a".repeat(length);
    server.command(&["SET", "the-bytes", &bytes]);
    let ask = |words: &[Vec<u8>]| Ask {
        connection: runtime.block_on(connect(&url)),
        command: Arc::new(command(words)),
    };
    let get = ask(&["GET", "the-bytes"].map(|word| word.as_bytes().to_vec()));

    let mut all = Candidates {
        timed: Vec::new(),
        counted: Vec::new(),
    };
    let alone = Via::repeated(Answer::of(length), length);
    all.add(effort, HANDLER, &runtime, alone);
    all.add(effort, GET, &runtime, Via::repeated(get, length));
    all.add(
        effort,
        SCRIPT,
        &runtime,
        Via::repeated(ask(&script), length),
    );
    all.add(effort, REPLAY, &runtime, replay);
    take_turns(&mut all.timed, effort.pick(31, 2), effort.pick(300, 50));
    let rates = throughput::rates(effort, &mut all.counted, TASKS);
    if effort.wants(REPLAY) {
        // The one that was copied, the one that was timed, and one for each task.
        assert_eq!(handler.runs(), 2 + TASKS, "each request ran once");
    }
    report(kib, &all.timed, &rates);
}

fn report(kib: usize, candidates: &[timed::Candidate<'_>], rates: &[(&str, f64)]) {
    let rate = |name: &str| {
        let found = rates.iter().find(|(of, _)| *of == name);
        found.map_or(f64::NAN, |(_, rate)| *rate)
    };
    let rows: Vec<_> = candidates
        .iter()
        .map(|candidate| {
            let (p50, p99) = (candidate.acquire(0.5), candidate.acquire(0.99));
            let per_s = rate(candidate.name);
            let figures = json!({
                "response_kib": kib,
                "p50_us": us(p50),
                "p99_us": us(p99),
                "tasks": TASKS,
                "responses_per_s": round(per_s),
            });
            line("replay", candidate.name, &figures);
            let to = |name, q, own: u64| ratio(own as f64, acquire_of(candidates, name, q));
            vec![
                candidate.name.to_owned(),
                cell(us(p50)),
                to(GET, 0.5, p50),
                to(SCRIPT, 0.5, p50),
                cell(us(p99)),
                to(GET, 0.99, p99),
                cell(per_s),
                ratio(per_s, rate(GET)),
                ratio(per_s, rate(SCRIPT)),
            ]
        })
        .collect();
    table(
        &format!(
            "A response of {kib} KiB; µs, one after the other, and {TASKS} tasks with a key each"
        ),
        &[
            "",
            "p50",
            "to a GET",
            "to the script",
            "p99",
            "to a GET",
            "responses/s",
            "to a GET",
            "to the script",
        ],
        &rows,
    );
}
