//! `hand-off`: one hot key; whoever had it queues again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{runtime::Runtime, sync::mpsc, task::JoinSet};

use crate::{
    latency::Requests,
    locks::Lock,
    report::{Effort, cell, line, quantile_us, ratio, table},
};

pub(crate) const WAITERS: usize = 64;

pub(crate) struct HandOffs {
    pub(crate) name: String,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) per_second: f64,
    /// Unknown for programs that stop and start outside of the measurement.
    pub(crate) requests: Option<f64>,
}

/// How long one candidate runs, after a first part that is not counted.
pub(crate) fn lasts(effort: Effort) -> (Duration, Duration) {
    (effort.time(2000, 300), effort.time(5000, 500))
}

pub(crate) fn measure(
    effort: Effort,
    name: &str,
    runtime: &Runtime,
    lock: impl Lock,
    requests: Requests<'_>,
) -> HandOffs {
    let over = Arc::new(AtomicBool::new(false));
    // When it was granted, and when its release began.
    let (grants, mut granted) = mpsc::unbounded_channel::<(Instant, Instant)>();
    let found = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..WAITERS {
            let (lock, over, grants) = (lock.clone(), over.clone(), grants.clone());
            tasks.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let held = lock.acquire("hot").await;
                    let at = Instant::now();
                    // Nobody listens any more when it is over.
                    let _ = grants.send((at, Instant::now()));
                    lock.release(held).await;
                }
            });
        }
        let (warm_up, time) = lasts(effort);
        tokio::time::sleep(warm_up).await;
        while granted.try_recv().is_ok() {}
        let (begun, before) = (Instant::now(), requests());
        tokio::time::sleep(time).await;
        let mut all = Vec::new();
        while let Ok(grant) = granted.try_recv() {
            all.push(grant);
        }
        let (seconds, requests) = (begun.elapsed().as_secs_f64(), requests() - before);
        over.store(true, Ordering::Relaxed);
        while tasks.join_next().await.is_some() {}
        (all, seconds, requests)
    });
    let (all, seconds, requests) = found;
    let mut hand_offs: Vec<_> = all
        .windows(2)
        .map(|pair| pair[1].0.saturating_duration_since(pair[0].1).as_nanos() as u64)
        .collect();
    assert!(!hand_offs.is_empty(), "{name}: nobody was granted the key");
    HandOffs {
        name: name.to_owned(),
        p50_us: quantile_us(&mut hand_offs, 0.5),
        p99_us: quantile_us(&mut hand_offs, 0.99),
        per_second: all.len() as f64 / seconds,
        requests: Some(requests / all.len() as f64),
    }
}

/// The first is what the others are compared with.
pub(crate) fn report(server: &str, found: &[HandOffs]) {
    let rows: Vec<_> = found
        .iter()
        .map(|one| {
            let mut figures = json!({
                "waiters": WAITERS,
                "hand_off_p50_us": one.p50_us,
                "hand_off_p99_us": one.p99_us,
                "hand_offs_per_s": one.per_second,
            });
            if let Some(requests) = one.requests {
                figures["requests_per_grant"] = Value::from(requests);
            }
            line("hand-off", server, &one.name, &figures);
            vec![
                one.name.clone(),
                cell(one.p50_us),
                ratio(one.p50_us, found[0].p50_us),
                cell(one.p99_us),
                cell(one.per_second),
                one.requests.map_or_else(|| "–".to_owned(), cell),
            ]
        })
        .collect();
    table(
        &format!("{server}: one hot key, {WAITERS} waiters of one process"),
        &[
            "",
            "hand-off p50, µs",
            "to the first",
            "p99",
            "hand-offs/s",
            "requests per grant",
        ],
        &rows,
    );
}
