//! `depth`: what a hand-off costs when many wait.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    locks::{Lock, Ours},
    report::{Effort, cell, line, median, quantile, ratio, round, table, us},
    server::Server,
    throughput::one_thread,
};

/// The queue keeps its length: whoever had the key queues again.
pub(crate) fn depth(effort: &Effort) {
    let depths: &[usize] = match effort.quick {
        true => &[10, 100],
        false => &[10, 100, 1000, 10_000],
    };
    for backends in [1, 2] {
        let found: Vec<_> = depths
            .iter()
            .map(|&waiters| measure(effort, waiters, backends))
            .collect();
        let rows: Vec<_> = depths
            .iter()
            .zip(&found)
            .map(|(waiters, figures)| {
                vec![
                    waiters.to_string(),
                    cell(figures.cpu_us),
                    ratio(figures.cpu_us, found[0].cpu_us),
                    cell(us(figures.p50 as u64)),
                    ratio(figures.p50, found[0].p50),
                    cell(us(figures.p99 as u64)),
                    cell(figures.scripts),
                ]
            })
            .collect();
        table(
            &format!("One hot key and so many waiters, of {backends} backend(s) in this process"),
            &[
                "waiters",
                "server CPU per grant, µs",
                "to 10",
                "hand-off p50, µs",
                "to 10",
                "p99",
                "scripts per grant",
            ],
            &rows,
        );
    }
}

struct Figures {
    cpu_us: f64,
    scripts: f64,
    p50: f64,
    p99: f64,
}

fn measure(effort: &Effort, waiters: usize, backends: usize) -> Figures {
    let (server, runtime) = (Server::start(), one_thread());
    let mut ours = Vec::new();
    for _ in 0..backends {
        ours.push(runtime.block_on(Ours::ready(&server.url())));
    }
    let over = Arc::new(AtomicBool::new(false));
    let (grants, mut granted) = mpsc::unbounded_channel::<(Instant, Instant)>();
    let mut tasks = JoinSet::new();
    let first = runtime.block_on(ours[0].lease("hot"));
    {
        let _in_runtime = runtime.enter();
        for task in 0..waiters {
            let (lock, over, grants) =
                (ours[task % backends].clone(), over.clone(), grants.clone());
            tasks.spawn(async move {
                loop {
                    let held = lock.acquire("hot").await;
                    let at = Instant::now();
                    // Nobody listens any more when it is over.
                    let _ = grants.send((at, Instant::now()));
                    lock.release(held).await;
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
    }
    drop(grants);
    runtime.block_on(async {
        while server.command(&["ZCARD", &Ours::queue("hot")]).int() < waiters as i64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        ours[0].release(first).await;
    });

    let (rounds, each) = (effort.pick(11, 2), effort.pick(2000, 100));
    let (mut cpu, mut scripts, mut p50, mut p99) = (vec![], vec![], vec![], vec![]);
    for round in 0..rounds {
        let (mut hand_offs, work) = server.during(|| {
            runtime.block_on(async {
                let mut hand_offs = Vec::with_capacity(each);
                let mut before: Option<Instant> = None;
                while hand_offs.len() < each {
                    let (at, released) = granted.recv().await.expect("they go on");
                    if let Some(before) = before.replace(released) {
                        hand_offs.push((at - before).as_nanos() as u64);
                    }
                }
                hand_offs
            })
        });
        if round > 0 {
            cpu.push(work.cpu_per(each + 1));
            scripts.push(work.scripts_per(each + 1));
            p50.push(quantile(&mut hand_offs, 0.5) as f64);
            p99.push(quantile(&mut hand_offs, 0.99) as f64);
        }
    }
    over.store(true, Ordering::Relaxed);
    let figures = Figures {
        cpu_us: median(cpu),
        scripts: median(scripts),
        p50: median(p50),
        p99: median(p99),
    };
    let line_of = json!({
        "waiters": waiters,
        "backends": backends,
        "server_cpu_us_per_grant": round(figures.cpu_us),
        "scripts_per_grant": round(figures.scripts),
        "hand_off_p50_us": us(figures.p50 as u64),
        "hand_off_p99_us": us(figures.p99 as u64),
    });
    line("depth", "RedisBackend", &line_of);
    figures
}
