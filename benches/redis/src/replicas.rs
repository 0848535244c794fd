//! `replicas`: what it costs that a replica has the lock before it counts.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use redis::aio::MultiplexedConnection;
use serde_json::json;
use tokio::runtime::Runtime;
use tower_lock::{Lease, RedisBackend, ReplicaAck};

use crate::{
    latency::{TRIVIAL, Trivial},
    locks::{Lock, Ours, connect},
    report::{Effort, cell, line, ratio, round, table, us},
    servers::RedisServer,
    throughput::{self, one_thread},
    timed::{Candidate, Samples, acquire_of, nanos, take_turns},
    wires::Wires,
};

const AWAY: Duration = Duration::from_micros(500);

/// Longer than a replica ever takes here: nothing is refused under the bench.
const WITHIN: Duration = Duration::from_secs(5);

const WAIT: &str = "SET and WAIT 1, redis-rs";
const OFF: &str = "ReplicaAck::Off";
const REQUIRE: &str = "ReplicaAck::Require(1)";

const TASKS: usize = 64;

pub(crate) fn replicas(effort: &Effort) {
    let runtime = one_thread();
    let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let near = replica_at(&master, master.port());
    measure(effort, &runtime, "loopback", &master.url(), (21, 300));
    throughput(effort, &runtime, &master.url());
    drop(near);

    // The replica is as far from the master as we are.
    let wires = Wires::to([master.address()], AWAY);
    let _far = replica_at(&master, wires.address(0).port());
    let url = &wires.urls()[0];
    measure(effort, &runtime, "a millisecond away", url, (11, 200));
}

/// A replica of the server at this port that is in sync.
fn replica_at(master: &RedisServer, port: u16) -> RedisServer {
    let replica = RedisServer::start_with(&["--replicaof", &format!("127.0.0.1 {port}")]);
    let begun = Instant::now();
    // Only what it has acknowledged counts as a replica of the master.
    while master.command(&["WAIT", "1", "100"]).int() < 1
        || replica.info("master_link_status") != "up"
    {
        assert!(begun.elapsed() < WITHIN * 12, "the replica is not in sync");
        std::thread::sleep(Duration::from_millis(5));
    }
    replica
}

async fn with(ack: ReplicaAck, url: &str) -> Ours {
    let builder = RedisBackend::builder(url).with_replica_ack(ack, WITHIN);
    Ours::settled(builder.connect().await.expect("a backend")).await
}

fn measure(
    effort: &Effort,
    runtime: &Runtime,
    network: &str,
    url: &str,
    (rounds, times): (usize, usize),
) {
    let mut candidates = runtime.block_on(async {
        vec![
            Candidate::of(TRIVIAL, runtime, &Trivial::connect(url).await),
            Candidate::of(WAIT, runtime, &SetWait(connect(url).await)),
            renewing(OFF, runtime, with(ReplicaAck::Off, url).await),
            renewing(REQUIRE, runtime, with(ReplicaAck::Require(1), url).await),
        ]
    });
    candidates.retain(|candidate| effort.wants(candidate.name));
    take_turns(
        &mut candidates,
        effort.pick(rounds, 2),
        effort.pick(times, 30),
    );
    report(network, &candidates);
}

/// A pair with a renewal in between.
fn renewing<'a>(name: &'static str, runtime: &'a Runtime, lock: Ours) -> Candidate<'a> {
    let lock = Arc::new(lock);
    Candidate::new(name, move |times| {
        let lock = lock.clone();
        let task = runtime.spawn(async move {
            let mut samples = Samples::default();
            for _ in 0..times {
                let start = Instant::now();
                let held = lock.acquire(name).await;
                samples.acquires.push(nanos(start));
                let start = Instant::now();
                held.renew().await.expect("it is held");
                samples.renewals.push(nanos(start));
                let start = Instant::now();
                lock.release(held).await;
                samples.releases.push(nanos(start));
            }
            samples
        });
        runtime.block_on(task).expect("the task ends well")
    })
}

/// The least that an acknowledgement can cost: both commands sent at once.
#[derive(Clone)]
struct SetWait(MultiplexedConnection);

impl Lock for SetWait {
    type Held = ();

    async fn acquire(&self, key: &str) {
        let mut both = redis::pipe();
        both.cmd("SET")
            .arg(key)
            .arg("an owner")
            .arg("PX")
            .arg(60_000);
        both.cmd("WAIT").arg(1).arg(WITHIN.as_millis() as u64);
        let ((), replicas): ((), i64) = both
            .query_async(&mut self.0.clone())
            .await
            .expect("an answer");
        assert_eq!(replicas, 1, "the replica is there");
    }

    async fn release(&self, (): ()) {}
}

fn report(network: &str, candidates: &[Candidate<'_>]) {
    let rows: Vec<_> = candidates
        .iter()
        .map(|candidate| {
            let (acquire, release) = (candidate.acquire(0.5), candidate.release(0.5));
            let renewal = candidate.renewal(0.5).map_or(f64::NAN, us);
            let figures = json!({
                "network": network,
                "acquire_p50_us": us(acquire),
                "acquire_p99_us": us(candidate.acquire(0.99)),
                "renewal_p50_us": renewal,
                "release_p50_us": us(release),
            });
            line("replicas", candidate.name, &figures);
            let to = |name| ratio(acquire as f64, acquire_of(candidates, name, 0.5));
            vec![
                candidate.name.to_owned(),
                cell(us(acquire)),
                cell(us(candidate.acquire(0.99))),
                to(TRIVIAL),
                to(WAIT),
                to(OFF),
                cell(renewal),
                cell(us(release)),
            ]
        })
        .collect();
    table(
        &format!("A pair and an acknowledgement by one replica, {network}; µs"),
        &[
            "",
            "acquire p50",
            "p99",
            "to a trivial script",
            "to SET and WAIT",
            "to Off",
            "renewal p50",
            "release p50",
        ],
        &rows,
    );
}

/// Many tasks: what comes in meanwhile is acknowledged together.
fn throughput(effort: &Effort, runtime: &Runtime, url: &str) {
    let mut candidates = runtime.block_on(async {
        let (off, require) = (ReplicaAck::Off, ReplicaAck::Require(1));
        vec![
            throughput::Candidate::of(OFF, runtime, with(off, url).await),
            throughput::Candidate::of(REQUIRE, runtime, with(require, url).await),
        ]
    });
    candidates.retain(|candidate| effort.wants(candidate.name));
    let rates = throughput::rates(effort, &mut candidates, TASKS);
    let base = rates.first().map_or(f64::NAN, |(_, rate)| *rate);
    let rows: Vec<_> = rates
        .iter()
        .map(|&(name, rate)| {
            let figures = json!({ "tasks": TASKS, "pairs_per_s": round(rate) });
            line("replicas", name, &figures);
            vec![name.to_owned(), cell(rate), ratio(rate, base)]
        })
        .collect();
    table(
        &format!("{TASKS} tasks, each with its own key, loopback"),
        &["", "pairs/s", "to the first"],
        &rows,
    );
}
