//! `cluster`: three masters of a Cluster against one server, on loopback.

use serde_json::json;

use crate::{
    latency::{TRIVIAL, Trivial},
    locks::Ours,
    report::{Effort, cell, line, ratio, round, table, us},
    server::Server,
    servers::ClusterServers,
    throughput::{self, one_thread},
    timed::{Candidate, acquire_of, take_turns},
};

const SINGLE: &str = "RedisBackend, one server";
const CLUSTER: &str = "RedisBackend, 3 masters";

const TASKS: usize = 64;
const WAITERS: usize = 16;

pub(crate) fn cluster(effort: &Effort) {
    let (server, cluster) = (Server::start(), ClusterServers::start(3, 0));
    let runtime = &one_thread();
    let (trivial, single, clustered) = runtime.block_on(async {
        (
            Trivial::connect(&server.url()).await,
            Ours::ready(&server.url()).await,
            Ours::ready(&cluster.url()).await,
        )
    });
    let mut pairs = vec![
        Candidate::of(TRIVIAL, runtime, &trivial),
        Candidate::of(SINGLE, runtime, &single),
        Candidate::of(CLUSTER, runtime, &clustered),
    ];
    pairs.retain(|candidate| effort.wants(candidate.name));
    take_turns(&mut pairs, effort.pick(31, 2), effort.pick(500, 50));

    let rates = |hot: bool| {
        let of = |name, lock: &Ours| match hot {
            true => throughput::Candidate::of_one_key(name, runtime, lock.clone()),
            false => throughput::Candidate::of(name, runtime, lock.clone()),
        };
        let mut candidates = vec![of(SINGLE, &single), of(CLUSTER, &clustered)];
        candidates.retain(|candidate| effort.wants(candidate.name));
        let tasks = if hot { WAITERS } else { TASKS };
        throughput::rates(effort, &mut candidates, tasks)
    };
    report(&pairs, &rates(false), &rates(true));
}

fn report(pairs: &[Candidate<'_>], distinct: &[(&str, f64)], hot: &[(&str, f64)]) {
    let rate = |rates: &[(&str, f64)], name: &str| {
        let found = rates.iter().find(|(of, _)| *of == name);
        found.map_or(f64::NAN, |(_, rate)| *rate)
    };
    let rows: Vec<_> = pairs
        .iter()
        .map(|candidate| {
            let (acquire, release) = (candidate.acquire(0.5), candidate.release(0.5));
            let (of_all, of_one) = (rate(distinct, candidate.name), rate(hot, candidate.name));
            let figures = json!({
                "acquire_p50_us": us(acquire),
                "acquire_p99_us": us(candidate.acquire(0.99)),
                "release_p50_us": us(release),
                "pairs_per_s": round(of_all),
                "hand_offs_per_s": round(of_one),
            });
            line("cluster", candidate.name, &figures);
            let to = |name| ratio(acquire as f64, acquire_of(pairs, name, 0.5));
            vec![
                candidate.name.to_owned(),
                cell(us(acquire)),
                cell(us(candidate.acquire(0.99))),
                to(TRIVIAL),
                to(SINGLE),
                cell(us(release)),
                cell(of_all),
                ratio(of_all, rate(distinct, SINGLE)),
                cell(of_one),
                ratio(of_one, rate(hot, SINGLE)),
            ]
        })
        .collect();
    table(
        "An uncontended pair, in a Cluster and on one server; µs",
        &[
            "",
            "acquire p50",
            "p99",
            "to a trivial script",
            "to one server",
            "release p50",
            &format!("pairs/s, {TASKS} tasks and keys"),
            "to one server",
            &format!("hand-offs/s, {WAITERS} tasks and one key"),
            "to one server",
        ],
        &rows,
    );
}
