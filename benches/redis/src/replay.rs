//! `replay`: a stored response against a handler that asks Redis for the same bytes.

use serde_json::json;
use tokio::runtime::Runtime;
use tower::Layer;
use tower_lock::{IdempotencyKey, IdempotencyLayer, LockManager};

use crate::{
    locks::{Lock, Ours, connect},
    recipe::command,
    report::{Effort, cell, line, median, ratio, round, table, us},
    requests::{Answer, Ask, Via},
    server::Server,
    throughput::{self, Round, one_thread},
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

/// The keys of a candidate that is timed, and of its tasks.
fn keys_of(name: &str) -> impl Iterator<Item = String> {
    let of_tasks = (0..TASKS).map(move |task| format!("{name}-{task}"));
    [name.to_owned()].into_iter().chain(of_tasks)
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

    // What the layer sends for requests that it has seen.
    let keys = || keys_of(SCRIPT);
    let ask_each = || keys().for_each(|key| runtime.block_on(replay.acquire(&key)));
    ask_each();
    let ((), sent) = server.sent(ask_each);
    let scripts = sent.into_iter().filter(|command| command[0] == b"EVALSHA");
    let scripts: Vec<_> = scripts.map(|script| command(&script)).collect();
    assert_eq!(scripts.len(), keys().count(), "a replay is one script");
    let connection = || runtime.block_on(connect(&url));
    let script = Ask::new(connection(), keys().zip(scripts));

    let bytes = "a".repeat(length);
    let gets = keys_of(GET).map(|key| {
        server.command(&["SET", &key, &bytes]);
        let get = command(&[b"GET".to_vec(), key.clone().into_bytes()]);
        (key, get)
    });
    let get = Ask::new(connection(), gets);

    let mut all = Candidates {
        timed: Vec::new(),
        counted: Vec::new(),
    };
    let alone = Via::repeated(Answer::of(length), length);
    all.add(effort, HANDLER, &runtime, alone);
    all.add(effort, GET, &runtime, Via::repeated(get, length));
    all.add(effort, SCRIPT, &runtime, Via::repeated(script, length));
    all.add(effort, REPLAY, &runtime, replay);
    take_turns(&mut all.timed, effort.pick(31, 2), effort.pick(300, 50));
    let rounds = throughput::measure(effort, &server, &mut all.counted, TASKS);
    if effort.wants(REPLAY) {
        // Those that were copied, and those that were timed.
        let keys = keys_of(SCRIPT).chain(keys_of(REPLAY));
        assert_eq!(handler.runs(), keys.count(), "each request ran once");
    }
    report(kib, &all.timed, &rounds);
}

/// The rounds are those of the same candidates.
fn report(kib: usize, candidates: &[timed::Candidate<'_>], rounds: &[Vec<Round>]) {
    let figure = |rounds: &[Round], of: fn(&Round) -> f64| median(rounds.iter().map(of).collect());
    let rate = |name: &str| {
        let at = candidates.iter().position(|c| c.name == name);
        at.map_or(f64::NAN, |at| figure(&rounds[at], |round| round.per_s))
    };
    let rows: Vec<_> = candidates
        .iter()
        .zip(rounds)
        .map(|(candidate, rounds)| {
            let (p50, p99) = (candidate.acquire(0.5), candidate.acquire(0.99));
            let per_s = rate(candidate.name);
            let cpu = figure(rounds, |round| round.cpu_us);
            let figures = json!({
                "response_kib": kib,
                "p50_us": us(p50),
                "p99_us": us(p99),
                "tasks": TASKS,
                "responses_per_s": round(per_s),
                "server_cpu_us_per_response": round(cpu),
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
                cell(cpu),
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
            "server CPU each",
        ],
        &rows,
    );
}
