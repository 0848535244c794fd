//! `latency`: an uncontended acquire and release against what a round trip costs.

use std::{net::SocketAddr, sync::Arc, time::Instant};

use redis::{Cmd, Script, aio::MultiplexedConnection};
use serde_json::json;
use tokio::runtime::Runtime;
use tower_lock::Fairness;

use crate::{
    locks::{Dropped, Lock, Managed, Ours, Rslock, SetNx, connect},
    recipe::{Raw, Recipe, command},
    report::{Effort, cell, line, ratio, table, us},
    server::Server,
    socket::{Socket, pack},
    throughput::{one_thread, two_threads},
    timed::{Candidate, Samples, nanos, take_turns},
};

pub(crate) const TRIVIAL: &str = "EVALSHA of `return 1`, redis-rs";
const SAME: &str = "EVALSHA of our scripts, redis-rs";
pub(crate) const SOCKET_TRIVIAL: &str = "EVALSHA of `return 1`, blocking socket";
const SOCKET_SAME: &str = "EVALSHA of our scripts, blocking socket";

pub(crate) fn latency(effort: &Effort) {
    measure(effort, "current-thread", &one_thread());
    measure(effort, "two-threads", &two_threads());
}

fn measure(effort: &Effort, threads: &str, runtime: &Runtime) {
    let server = Server::start();
    let mut candidates = candidates(&server, runtime);
    candidates.retain(|candidate| effort.wants(candidate.name));
    take_turns(&mut candidates, effort.pick(41, 2), effort.pick(500, 50));
    report(threads, &candidates);
}

fn candidates<'a>(server: &'a Server, runtime: &'a Runtime) -> Vec<Candidate<'a>> {
    let url = &server.url();
    let recipe = Recipe::learn(server, runtime);
    runtime.block_on(async {
        let trivial = Trivial::connect(url).await;
        let managed = Managed::connect(url, Fairness::Fifo).await;
        let dropped = Managed::connect(url, Fairness::Fifo).await;
        let poll = std::time::Duration::from_millis(10);
        vec![
            Candidate::of(TRIVIAL, runtime, &trivial),
            Candidate::of(SAME, runtime, &Raw::connect(url, &recipe).await),
            trivial.over_socket(server.address()),
            pair_over_socket(server, &recipe),
            Candidate::of("RedisBackend", runtime, &Ours::ready(url).await),
            Candidate::of("LockManager", runtime, &managed),
            Candidate::of(
                "LockManager, guard dropped",
                runtime,
                &Dropped::new(dropped),
            ),
            Candidate::of(
                "SET NX, unlock script",
                runtime,
                &SetNx::connect(url, poll).await,
            ),
            Candidate::of("rslock", runtime, &Rslock::new(url)),
        ]
    })
}

/// A script that does nothing, with a key.
#[derive(Clone)]
pub(crate) struct Trivial {
    connection: MultiplexedConnection,
    args: Arc<[Vec<u8>]>,
    command: Arc<Cmd>,
}

impl Trivial {
    pub(crate) async fn connect(url: &str) -> Self {
        let mut connection = connect(url).await;
        let script = Script::new("return 1");
        script
            .load_async(&mut connection)
            .await
            .expect("it is loaded");
        let args = ["EVALSHA", script.get_hash(), "1", "a-key"].map(|arg| arg.as_bytes().to_vec());
        Self {
            connection,
            command: Arc::new(command(&args)),
            args: args.into(),
        }
    }

    pub(crate) fn over_socket<'a>(&self, server: SocketAddr) -> Candidate<'a> {
        let mut socket = Socket::connect(server);
        let packed = pack(&self.args);
        Candidate::new(SOCKET_TRIVIAL, move |times| {
            let mut samples = Samples::default();
            for _ in 0..times {
                let start = Instant::now();
                socket.call(&packed);
                samples.acquires.push(nanos(start));
            }
            samples
        })
    }
}

impl Lock for Trivial {
    type Held = ();

    async fn acquire(&self, _key: &str) {
        let reply = self
            .connection
            .clone()
            .send_packed_command(&self.command)
            .await;
        reply.expect("an answer");
    }

    async fn release(&self, (): ()) {}
}

fn pair_over_socket<'a>(server: &Server, recipe: &Recipe) -> Candidate<'a> {
    let mut socket = Socket::connect(server.address());
    let pair = recipe.pair(SOCKET_SAME);
    Candidate::new(SOCKET_SAME, move |times| {
        let mut samples = Samples::default();
        for _ in 0..times {
            let start = Instant::now();
            let token = socket.call(&pair.packed_acquire);
            samples.acquires.push(nanos(start));
            let release = pack(&pair.release(token));
            let start = Instant::now();
            socket.call(&release);
            samples.releases.push(nanos(start));
        }
        samples
    })
}

fn report(threads: &str, candidates: &[Candidate<'_>]) {
    let base = |name| {
        let base = candidates.iter().find(|c| c.name == name);
        base.map_or(f64::NAN, |c| c.acquire(0.5) as f64)
    };
    let rows: Vec<_> = candidates
        .iter()
        .map(|candidate| {
            let (acquire, release) = (candidate.acquire(0.5), candidate.release(0.5));
            let figures = json!({
                "runtime": threads,
                "acquire_p50_us": us(acquire),
                "acquire_p99_us": us(candidate.acquire(0.99)),
                "release_p50_us": us(release),
                "release_p99_us": us(candidate.release(0.99)),
            });
            line("latency", candidate.name, &figures);
            let to = |name| ratio(acquire as f64, base(name));
            vec![
                candidate.name.to_owned(),
                cell(us(acquire)),
                cell(us(candidate.acquire(0.99))),
                to(TRIVIAL),
                to(SAME),
                to(SOCKET_TRIVIAL),
                to(SOCKET_SAME),
                cell(us(release)),
            ]
        })
        .collect();
    table(
        &format!("An uncontended pair one after the other, runtime: {threads}; µs"),
        &[
            "",
            "acquire p50",
            "p99",
            "to a trivial script",
            "to our script",
            "to trivial, blocking",
            "to ours, blocking",
            "release p50",
        ],
        &rows,
    );
}
