//! `throughput`: pairs per second of many tasks, each with its own key, over one connection.
//! A part of `cost`: what a pair costs the server.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};
use tower_lock::Fairness;

use crate::{
    locks::{Lock, Managed, Ours, Rslock, SetNx},
    recipe::{Raw, Recipe},
    report::{Effort, cell, line, median, ratio, round, table},
    server::Server,
    socket::{Socket, pack},
};

pub(crate) struct Candidate<'a> {
    pub(crate) name: &'static str,
    /// Runs pairs for so long, and counts them.
    turn: Box<dyn FnMut(usize, Duration) -> usize + 'a>,
}

/// A round of a candidate.
pub(crate) struct Round {
    pub(crate) per_s: f64,
    /// Of the server, for each pair.
    pub(crate) cpu_us: f64,
    commands: f64,
    scripts: f64,
}

const RSLOCK: &str = "rslock";
const UNLOCK: &str = "SET NX, unlock script";

impl<'a> Candidate<'a> {
    /// A key of its own for each task.
    pub(crate) fn of<L: Lock>(name: &'static str, runtime: &'a Runtime, lock: L) -> Self {
        Self::with_keys(name, runtime, lock, move |task| format!("{name}-{task}"))
    }

    /// The same key for all tasks.
    pub(crate) fn of_one_key<L: Lock>(name: &'static str, runtime: &'a Runtime, lock: L) -> Self {
        Self::with_keys(name, runtime, lock, move |_| name.to_owned())
    }

    fn with_keys<L: Lock>(
        name: &'static str,
        runtime: &'a Runtime,
        lock: L,
        key: impl Fn(usize) -> String + 'a,
    ) -> Self {
        Self {
            name,
            turn: Box::new(move |tasks, time| {
                runtime.block_on(async {
                    let mut set = JoinSet::new();
                    for task in 0..tasks {
                        let key = key(task);
                        let lock = lock.for_key(&key);
                        set.spawn(async move {
                            let start = Instant::now();
                            let mut pairs = 0;
                            while start.elapsed() < time {
                                let held = lock.acquire(&key).await;
                                lock.release(held).await;
                                pairs += 1;
                            }
                            pairs
                        });
                    }
                    set.join_all().await.into_iter().sum()
                })
            }),
        }
    }
}

fn candidates<'a>(server: &Server, runtime: &'a Runtime) -> Vec<Candidate<'a>> {
    let url = &server.url();
    let recipe = Recipe::learn(server, runtime);
    let mut socket = Socket::connect(server.address());
    let batch_recipe = recipe.clone();
    let poll = Duration::from_millis(10);
    runtime.block_on(async {
        vec![
            Candidate::of("RedisBackend", runtime, Ours::ready(url).await),
            Candidate::of(
                "LockManager",
                runtime,
                Managed::connect(url, Fairness::Fifo).await,
            ),
            Candidate::of(RSLOCK, runtime, Rslock::new(url)),
            Candidate::of(UNLOCK, runtime, SetNx::connect(url, poll).await),
            Candidate::of("SET NX, DEL", runtime, SetNx::with_del(url).await),
            Candidate::of(
                "our scripts, redis-rs",
                runtime,
                Raw::connect(url, &recipe).await,
            ),
            Candidate {
                name: "our scripts, pipelined by a blocking socket",
                turn: Box::new(move |tasks, time| batches(&mut socket, &batch_recipe, tasks, time)),
            },
        ]
    })
}

/// All acquires at once, then all releases: the most that the server can do for so many.
fn batches(socket: &mut Socket, recipe: &Recipe, tasks: usize, time: Duration) -> usize {
    let pairs: Vec<_> = (0..tasks)
        .map(|task| recipe.pair(&format!("batch-{task}")))
        .collect();
    let acquires: Vec<u8> = pairs
        .iter()
        .flat_map(|pair| pair.packed_acquire.clone())
        .collect();
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < time {
        let mut tokens = Vec::with_capacity(tasks);
        socket.call_each(&acquires, tasks, |token| tokens.push(token.to_owned()));
        let releases: Vec<u8> = pairs
            .iter()
            .zip(&tokens)
            .flat_map(|(pair, token)| pack(&pair.release(token)))
            .collect();
        socket.call_each(&releases, tasks, |_| {});
        count += tasks;
    }
    count
}

pub(crate) fn throughput(effort: &Effort) {
    for (threads, runtime) in [
        ("current-thread", one_thread()),
        ("two-threads", two_threads()),
    ] {
        let server = Server::start();
        let mut candidates = candidates(&server, &runtime);
        candidates.retain(|candidate| effort.wants(candidate.name));
        for tasks in [64, 256] {
            let found = measure(effort, &server, &mut candidates, tasks);
            report("throughput", threads, tasks, &candidates, &found, RSLOCK);
        }
    }
    redis_benchmark(effort);
}

/// One after the other, the server wakes up for each command; of 64 tasks it finds several
/// commands at once, and what is left is the work on them.
pub(crate) fn pairs(effort: &Effort) {
    let (server, runtime) = (Server::start(), one_thread());
    let mut candidates = candidates(&server, &runtime);
    candidates.retain(|candidate| effort.wants(candidate.name));
    for tasks in [1, 64] {
        let found = measure(effort, &server, &mut candidates, tasks);
        report("cost", "current-thread", tasks, &candidates, &found, UNLOCK);
    }
}

/// Pairs per second of each, in the median of rounds in which they take turns.
pub(crate) fn rates(
    effort: &Effort,
    candidates: &mut [Candidate<'_>],
    tasks: usize,
) -> Vec<(&'static str, f64)> {
    let time = effort.time(500, 50);
    let mut found: Vec<Vec<f64>> = candidates.iter().map(|_| Vec::new()).collect();
    for round in 0..effort.pick(11, 1) {
        for turn in 0..candidates.len() {
            let at = (round + turn) % candidates.len();
            let start = Instant::now();
            let pairs = (candidates[at].turn)(tasks, time);
            found[at].push(pairs as f64 / start.elapsed().as_secs_f64());
        }
    }
    let names = candidates.iter().map(|candidate| candidate.name);
    names.zip(found.into_iter().map(median)).collect()
}

/// The same, with what the server did meanwhile.
pub(crate) fn measure(
    effort: &Effort,
    server: &Server,
    candidates: &mut [Candidate<'_>],
    tasks: usize,
) -> Vec<Vec<Round>> {
    let time = effort.time(500, 50);
    let mut found: Vec<Vec<Round>> = candidates.iter().map(|_| Vec::new()).collect();
    for round in 0..effort.pick(11, 1) {
        for turn in 0..candidates.len() {
            let at = (round + turn) % candidates.len();
            let start = Instant::now();
            let (pairs, work) = server.during(|| (candidates[at].turn)(tasks, time));
            found[at].push(Round {
                per_s: pairs as f64 / start.elapsed().as_secs_f64(),
                cpu_us: work.cpu_per(pairs),
                commands: work.calls_per(pairs),
                scripts: work.scripts_per(pairs),
            });
        }
    }
    found
}

fn report(
    bench: &str,
    threads: &str,
    tasks: usize,
    candidates: &[Candidate<'_>],
    found: &[Vec<Round>],
    base: &str,
) {
    let figure = |rounds: &[Round], of: fn(&Round) -> f64| median(rounds.iter().map(of).collect());
    let at = candidates.iter().position(|c| c.name == base);
    let of_base = |of| at.map_or(f64::NAN, |at| figure(&found[at], of));
    let mut rows = Vec::new();
    for (candidate, rounds) in candidates.iter().zip(found) {
        let per_s = figure(rounds, |r| r.per_s);
        let cpu = figure(rounds, |r| r.cpu_us);
        let (commands, scripts) = (
            figure(rounds, |r| r.commands),
            figure(rounds, |r| r.scripts),
        );
        let figures = json!({
            "runtime": threads,
            "tasks": tasks,
            "pairs_per_s": round(per_s),
            "server_cpu_us_per_pair": round(cpu),
            "commands_per_pair": round(commands),
            "scripts_per_pair": round(scripts),
        });
        line(bench, candidate.name, &figures);
        rows.push(vec![
            candidate.name.to_owned(),
            cell(per_s),
            ratio(per_s, of_base(|r| r.per_s)),
            cell(cpu),
            ratio(cpu, of_base(|r| r.cpu_us)),
            cell(commands),
        ]);
    }
    table(
        &format!("{tasks} tasks, each with its own key, one connection, runtime: {threads}"),
        &[
            "",
            "pairs/s",
            &format!("to {base}"),
            "server CPU per pair, µs",
            &format!("to {base}"),
            "commands per pair",
        ],
        &rows,
    );
}

/// The acquire script alone, each time with a free key, as `redis-benchmark` sends it.
fn redis_benchmark(effort: &Effort) {
    let server = Server::start();
    let recipe = Recipe::learn(&server, &one_thread());
    // It puts a number there.
    let acquire = recipe.pair("__rand_int__").acquire_args;
    for at_once in [64, 256] {
        let mut command = Command::new("redis-benchmark");
        command
            .args([
                "-p",
                &server.port().to_string(),
                "-c",
                "1",
                "-P",
                &at_once.to_string(),
            ])
            .args(["-n", &effort.pick(400_000, 5000).to_string()])
            .args(["-r", "1000000000", "--csv"]);
        for arg in &acquire {
            command.arg(str::from_utf8(arg).expect("names and numbers are text"));
        }
        server.flush();
        let (output, work) = server.during(|| {
            let output = command.output().expect("it comes with redis-server");
            String::from_utf8_lossy(&output.stdout).into_owned()
        });
        let per_s = output
            .lines()
            .last()
            .and_then(|row| row.split("\",\"").nth(1)?.parse::<f64>().ok());
        let figures = json!({
            "at_once": at_once,
            "acquires_per_s": per_s,
            "server_cpu_us_per_acquire": round(work.cpu_per(effort.pick(400_000, 5000))),
        });
        line(
            "throughput",
            "redis-benchmark, our acquire script alone",
            &figures,
        );
    }
}

pub(crate) fn one_thread() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts")
}

pub(crate) fn two_threads() -> Runtime {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts")
}
