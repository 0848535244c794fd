//! `cost`: what the server does for a pair, and for a renewal.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Script;
use serde_json::json;
use tower_lock::{Fairness, Lease};

use crate::{
    locks::{Lock, Managed, Ours, connect},
    report::{Effort, cell, line, median, ratio, round, table},
    server::Server,
    throughput::{one_thread, pairs},
};

/// What most clients send for each key.
const EXTEND: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";

pub(crate) fn cost(effort: &Effort) {
    pairs(effort);
    for held in [10, 100] {
        renewals(effort, held);
    }
    managed_renewals(effort, 10);
}

/// How many renewals a manager sends in one script, of locks that were acquired at random.
fn managed_renewals(effort: &Effort, held: u64) {
    let (server, runtime) = (Server::start(), one_thread());
    let (ttl, time) = (Duration::from_millis(600), effort.time(6000, 400));
    let url = server.url();
    let locks = runtime.block_on(Managed::with_ttl(&url, Fairness::Fifo, ttl));
    let guards: Vec<_> = (0..held)
        .map(|at| {
            std::thread::sleep(Duration::from_millis(fastrand::u64(0..40)));
            runtime.block_on(locks.acquire(&format!("held-{at}")))
        })
        .collect();
    let ((), work) = server.during(|| std::thread::sleep(time));
    let renewals = work.calls("pexpire");
    let figures = json!({
        "held": held,
        "renewals": renewals,
        "scripts_per_renewal": round(work.scripts_per(renewals)),
    });
    line(
        "cost",
        "LockManager, renewals of locks acquired at random",
        &figures,
    );
    drop(guards);
}

const BATCHED: &str = "leases renewed at once";
const TOGETHER: &str = "a script for each key, sent at once";
const IN_TURN: &str = "a script for each key, one after the other";

fn renewals(effort: &Effort, held: usize) {
    let (server, runtime) = (Server::start(), one_thread());
    let keys: Vec<String> = (0..held).map(|at| format!("held-{at}")).collect();
    let (ours, mut connection) = runtime.block_on(async {
        (
            Ours::ready(&server.url()).await,
            connect(&server.url()).await,
        )
    });
    let leases = runtime.block_on(join_all(keys.iter().map(|key| ours.lease(key))));
    for key in &keys {
        server.command(&["SET", key, "an owner", "PX", "60000"]);
    }
    let script = Script::new(EXTEND);
    let load = script.load_async(&mut connection);
    runtime.block_on(load).expect("it is loaded");
    let extend = async |key: &str| {
        let mut connection = connection.clone();
        let mut extend = script.key(key);
        extend.arg("an owner").arg(60_000);
        let done: i64 = extend
            .invoke_async(&mut connection)
            .await
            .expect("an answer");
        assert_eq!(done, 1, "it is held");
    };

    let time = effort.time(300, 30);
    let mut found: [Vec<(f64, f64, f64)>; 3] = Default::default();
    for turn in 0..effort.pick(33, 3) {
        let which = turn % 3;
        let (count, work) = server.during(|| {
            let (start, mut count) = (Instant::now(), 0);
            while start.elapsed() < time {
                runtime.block_on(async {
                    match which {
                        0 => {
                            let renewed = join_all(leases.iter().map(Lease::renew)).await;
                            renewed.into_iter().for_each(|r| r.expect("it is held"));
                        }
                        1 => drop(join_all(keys.iter().map(|key| extend(key))).await),
                        _ => {
                            for key in &keys {
                                extend(key).await;
                            }
                        }
                    }
                });
                count += held;
            }
            count
        });
        found[which].push((
            work.cpu_per(count),
            work.scripts_per(count),
            work.calls_per(count),
        ));
    }
    let figure = |which: usize, of: fn(&(f64, f64, f64)) -> f64| {
        median(found[which].iter().map(of).collect())
    };
    let rows: Vec<_> = [BATCHED, TOGETHER, IN_TURN]
        .into_iter()
        .enumerate()
        .map(|(which, name)| {
            let (cpu, scripts) = (figure(which, |f| f.0), figure(which, |f| f.1));
            let figures = json!({
                "held": held,
                "server_cpu_us_per_renewal": round(cpu),
                "scripts_per_renewal": round(scripts),
                "commands_per_renewal": round(figure(which, |f| f.2)),
            });
            line("cost", name, &figures);
            vec![
                name.to_owned(),
                cell(cpu),
                ratio(cpu, figure(1, |f| f.0)),
                ratio(cpu, figure(2, |f| f.0)),
                cell(scripts),
            ]
        })
        .collect();
    table(
        &format!("Renewals of {held} held keys"),
        &[
            "",
            "server CPU each, µs",
            "to at once",
            "to in turn",
            "scripts each",
        ],
        &rows,
    );
}
