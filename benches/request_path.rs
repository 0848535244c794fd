//! What a lock adds to a request, and how fast it changes hands. See `benches/README.md`.
//!
//! `--quick` is a run of seconds; `--instructions` counts with valgrind's callgrind instead.

mod support;

use std::{
    future::Future,
    num::NonZeroU32,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{runtime::Runtime, sync::mpsc, task::JoinSet};
use tower::{Layer, Service, ServiceExt};
use tower_lock::{
    Fairness, Lease, LockBackend, LockKey, LockManager, LockPolicy, MemoryBackend,
    backend::{AcquireRequest, WaitBound},
};

use self::support::{
    Candidate, Effort, current_thread, medians, ns, ratio,
    services::{
        HandWritten, Noop, Plain, app, app_request, bare_app, hand_written_by_header,
        hand_written_by_path, lock_by_header, lock_by_path, manager, patient, plain_request, quick,
        yielding,
    },
    table,
};

fn main() {
    let effort = Effort::from_args();
    let args: Vec<String> = std::env::args().collect();
    let after = |name| {
        args.iter()
            .position(|a| a == name)
            .map(|at| &args[at + 1..])
    };
    if let Some([which, times, ..]) = after("--only") {
        let times = times.parse().expect("a number of requests");
        return only(which, times);
    }
    if after("--instructions").is_some() {
        return instructions(effort);
    }
    uncontended(effort);
    contended(effort);
    hand_off(effort);
    keys(effort);
}

const BARE: &str = "no layer";
const NOOP: &str = "no-op layer";
const HAND: &str = "hand-written layer";
const LOCK: &str = "LockLayer";

/// One request after the other, each with a free key.
fn uncontended(effort: Effort) {
    let (rounds, times) = (effort.pick(61, 3), effort.pick(4000, 200));
    let runtime = current_thread();
    let mut candidates: Vec<_> = [BARE, NOOP, HAND, LOCK]
        .into_iter()
        .map(|name| Candidate::each(name, request_on_axum(&runtime, name)))
        .collect();
    let found = medians(rounds, times, &mut candidates);
    overhead(
        "Uncontended request, axum router, key from the path",
        &candidates,
        &found,
        1,
    );

    let mut candidates: Vec<_> = [BARE, NOOP, HAND, LOCK]
        .into_iter()
        .map(|name| Candidate::each(name, request_on_tower(&runtime, name)))
        .collect();
    let found = medians(rounds, times, &mut candidates);
    overhead(
        "Uncontended request, plain tower service, key from a header",
        &candidates,
        &found,
        1,
    );
}

/// Nanoseconds beyond the no-op layer, against the hand-written one.
fn overhead(title: &str, candidates: &[Candidate<'_>], found: &[f64], noop: usize) {
    let at = |name| candidates.iter().position(|c| c.name == name);
    let hand = at(HAND).map_or(f64::NAN, |at| found[at] - found[noop]);
    let rows: Vec<_> = candidates
        .iter()
        .zip(found)
        .map(|(candidate, &value)| {
            let over = value - found[noop];
            vec![
                candidate.name.to_owned(),
                ns(value),
                ns(over),
                ratio(over, hand),
            ]
        })
        .collect();
    table(
        title,
        &["", "ns", "over no-op, ns", "of the hand-written"],
        &rows,
    );
}

fn request_on_axum<'a>(runtime: &'a Runtime, name: &str) -> Box<dyn FnMut() + 'a> {
    let router = match name {
        BARE => bare_app(quick),
        NOOP => app(quick, Noop),
        HAND => app(quick, hand_written_by_path()),
        LOCK => app(quick, lock_by_path(&manager(), patient())),
        _ => panic!("no candidate is called {name}"),
    };
    let mut id = 0;
    Box::new(move || {
        id += 1;
        let response = runtime.block_on(router.clone().oneshot(app_request(id % 1000)));
        assert!(response.is_ok_and(|r| r.status().is_success()));
    })
}

fn request_on_tower<'a>(runtime: &'a Runtime, name: &str) -> Box<dyn FnMut() + 'a> {
    fn run<'a, S>(runtime: &'a Runtime, mut service: S) -> Box<dyn FnMut() + 'a>
    where
        S: Service<http::Request<http_body_util::Full<bytes::Bytes>>> + 'a,
    {
        let mut id = 0;
        Box::new(move || {
            id += 1;
            let response = runtime.block_on(service.call(plain_request(id % 1000)));
            assert!(response.is_ok());
        })
    }
    match name {
        BARE => run(runtime, Plain),
        NOOP => run(runtime, Noop.layer(Plain)),
        HAND => run(runtime, hand_written_by_header().layer(Plain)),
        LOCK => run(runtime, lock_by_header(&manager(), patient()).layer(Plain)),
        _ => panic!("no candidate is called {name}"),
    }
}

/// Sixteen tasks, one key, a handler that yields once while it holds.
fn contended(effort: Effort) {
    const TASKS: usize = 16;
    let (rounds, times) = (effort.pick(41, 3), effort.pick(3200, 160));
    let batched = patient().with_fairness(Fairness::Batched(NonZeroU32::new(16).expect("16")));
    for threads in [1, 2] {
        let runtime = threads_of(threads);
        let apps = [
            (NOOP, app(yielding, Noop)),
            (HAND, app(yielding, hand_written_by_path())),
            (LOCK, app(yielding, lock_by_path(&manager(), patient()))),
            (
                "LockLayer, Batched(16)",
                app(yielding, lock_by_path(&manager(), batched.clone())),
            ),
        ];
        let mut candidates: Vec<_> = apps
            .into_iter()
            .map(|(name, router)| {
                let runtime = &runtime;
                Candidate::timed(name, move |times| {
                    let router = router.clone();
                    runtime.block_on(async move {
                        let start = Instant::now();
                        let mut tasks = JoinSet::new();
                        for _ in 0..TASKS {
                            let router = router.clone();
                            tasks.spawn(async move {
                                for _ in 0..times / TASKS {
                                    let response = router.clone().oneshot(app_request(7)).await;
                                    assert!(response.is_ok_and(|r| r.status().is_success()));
                                }
                            });
                        }
                        while let Some(done) = tasks.join_next().await {
                            done.expect("the task ends well");
                        }
                        start.elapsed()
                    })
                })
            })
            .collect();
        let found = medians(rounds, times, &mut candidates);
        overhead(
            &format!(
                "{TASKS} tasks on one key, {threads} worker thread(s); the no-op does not lock"
            ),
            &candidates,
            &found,
            0,
        );
    }
}

fn threads_of(threads: usize) -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("a runtime starts")
}

/// From a release to the next waiter's own release, while a queue of waiters drains.
fn hand_off(effort: Effort) {
    let counts: &[usize] = if effort.quick {
        &[1, 16]
    } else {
        &[1, 16, 1000, 10_000]
    };
    let runtime = current_thread();
    let rt = &runtime;
    let mut rows: Vec<Vec<String>> = Vec::new();
    for &waiters in counts {
        let rounds = effort.pick(if waiters > 1000 { 9 } else { 31 }, 3);
        let drains = (effort.pick(2000, 32) / waiters).max(1);
        let mut candidates = hand_off_candidates(rt, waiters);
        let found = medians(rounds, drains, &mut candidates);
        for (at, candidate) in candidates.iter().enumerate() {
            if rows.len() <= at {
                rows.push(vec![candidate.name.to_owned()]);
            }
            let each = found[at] / waiters as f64;
            let base = found[0] / waiters as f64;
            rows[at].push(format!("{} ({})", ns(each), ratio(each, base)));
        }
    }
    let head: Vec<String> = counts.iter().map(|n| format!("{n} waiters")).collect();
    let mut columns = vec![""];
    columns.extend(head.iter().map(String::as_str));
    table(
        "Hand-off to a waiter, ns each while a queue drains (ratio to a bare tokio mutex)",
        &columns,
        &rows,
    );
}

#[expect(
    clippy::async_yields_async,
    reason = "whoever holds gives the release as a future"
)]
fn hand_off_candidates(runtime: &Runtime, waiters: usize) -> Vec<Candidate<'_>> {
    let key = || LockKey::new("order", 7);
    let mutex = Arc::new(tokio::sync::Mutex::new(()));
    let held = mutex.clone();
    let bare = Drain::new(
        move || {
            let guard = held.clone().lock_owned();
            async move {
                let guard = guard.await;
                async move { drop(guard) }
            }
        },
        move || {
            let mutex = mutex.clone();
            async move { drop(mutex.lock().await) }
        },
    );

    let backend = MemoryBackend::new();
    let holder = backend.clone();
    let ask = move |backend: MemoryBackend| async move {
        let ttl = Duration::from_secs(30);
        let request = AcquireRequest::new(key(), ttl).with_wait(WaitBound::Forever);
        backend.acquire(&request).await.expect("a grant")
    };
    let on_backend = Drain::new(
        move || {
            let lease = ask(holder.clone());
            async move {
                let lease = lease.await;
                async move { lease.release().await.expect("a release") }
            }
        },
        move || {
            let lease = ask(backend.clone());
            async move { lease.await.release().await.expect("a release") }
        },
    );

    let locks = manager();
    let acquire = move |locks: LockManager, policy: Arc<LockPolicy>| async move {
        locks.acquire(key(), &policy).await.expect("a grant")
    };
    let hold = move |locks: LockManager, policy: Arc<LockPolicy>| async move {
        let guard = acquire(locks, policy).await;
        async move { guard.release().await.expect("a release") }
    };
    let on_manager = |policy: LockPolicy| {
        let (locks, policy) = (locks.clone(), Arc::new(policy));
        let (holder, held) = (locks.clone(), policy.clone());
        Drain::new(
            move || hold(holder.clone(), held.clone()),
            move || {
                let guard = acquire(locks.clone(), policy.clone());
                async move { guard.await.release().await.expect("a release") }
            },
        )
    };
    let batched = patient().with_fairness(Fairness::Batched(NonZeroU32::new(64).expect("64")));

    let through = |policy: LockPolicy| {
        let (locks, held) = (locks.clone(), Arc::new(policy.clone()));
        let service = lock_by_header(&locks, policy).layer(Plain);
        Drain::new(
            move || hold(locks.clone(), held.clone()),
            move || {
                let response = service.clone().call(plain_request(7));
                async move { drop(response.await) }
            },
        )
    };
    let layer = hand_written_by_header();
    let service = layer.layer(Plain);
    let by_hand = Drain::new(
        move || {
            let held = layer.lock("7".to_owned());
            async move {
                let held = held.await;
                async move { drop(held) }
            }
        },
        move || {
            let response = service.clone().call(plain_request(7));
            async move { drop(response.await) }
        },
    );

    vec![
        bare.candidate("tokio mutex", runtime, waiters),
        on_backend.candidate("MemoryBackend", runtime, waiters),
        on_manager(patient()).candidate("LockManager", runtime, waiters),
        on_manager(batched.clone()).candidate("LockManager, Batched(64)", runtime, waiters),
        by_hand.candidate("hand-written layer", runtime, waiters),
        through(patient()).candidate("LockLayer", runtime, waiters),
        through(batched).candidate("LockLayer, Batched(64)", runtime, waiters),
    ]
}

/// A lock that is held until the future of `hold`'s output runs, and tasks that wait for it and let go at once.
struct Drain<H, W> {
    hold: H,
    wait: W,
}

impl<H, HF, W, WF> Drain<H, W>
where
    H: FnMut() -> HF + 'static,
    HF: Future<Output: Future<Output = ()>> + 'static,
    W: FnMut() -> WF + 'static,
    WF: Future<Output = ()> + Send + 'static,
{
    fn new(hold: H, wait: W) -> Self {
        Self { hold, wait }
    }

    /// A round is so many queues drained. Only the draining is timed: not the tasks, nor how the
    /// queue came about.
    fn candidate<'a>(
        mut self,
        name: &'static str,
        runtime: &'a Runtime,
        waiters: usize,
    ) -> Candidate<'a> {
        Candidate::timed(name, move |drains| {
            runtime.block_on(async {
                let mut took = Duration::ZERO;
                for _ in 0..drains {
                    took += self.drain(waiters).await;
                }
                took
            })
        })
    }

    async fn drain(&mut self, waiters: usize) -> Duration {
        let release = (self.hold)().await;
        let queued = Arc::new(AtomicUsize::new(0));
        let (done, mut last) = mpsc::channel(1);
        let mut tasks = JoinSet::new();
        for _ in 0..waiters {
            let wait = (self.wait)();
            let (queued, done) = (queued.clone(), done.clone());
            tasks.spawn(async move {
                queued.fetch_add(1, Ordering::Relaxed);
                wait.await;
                if queued.fetch_sub(1, Ordering::Relaxed) == 1 {
                    let _ = done.try_send(Instant::now());
                }
            });
        }
        // A task that was polled once stands in the queue.
        while queued.load(Ordering::Relaxed) < waiters {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        release.await;
        let end = last.recv().await.expect("the last waiter says so");
        while let Some(done) = tasks.join_next().await {
            done.expect("the task ends well");
        }
        end.saturating_duration_since(start)
    }
}

/// Acquire and release of a free key, beside so many that are held, and over so many in turn.
fn keys(effort: Effort) {
    let counts: &[usize] = if effort.quick {
        &[1, 1000]
    } else {
        &[1, 1000, 1_000_000]
    };
    let (rounds, times) = (effort.pick(21, 3), effort.pick(20_000, 500));
    let runtime = current_thread();
    let mut rows = [
        vec!["LockManager, in turn".to_owned()],
        vec!["LockManager, beside held ones".to_owned()],
        vec!["DashMap of mutexes, in turn".to_owned()],
        vec!["DashMap of mutexes, beside held ones".to_owned()],
    ];
    for &count in counts {
        let policy = patient().with_ttl(Duration::from_secs(3600));
        let key = |id: usize| LockKey::new("order", id);
        let (free, full) = (manager(), manager());
        let hand = [hand_written_by_header(), hand_written_by_header()];
        // Held for the whole measurement.
        let _held: Vec<_> = runtime.block_on(async {
            let mut held = Vec::with_capacity(count);
            for id in 0..count {
                let guard = full.acquire(key(id), &policy).await.expect("a grant");
                held.push((guard, hand[1].lock(id.to_string()).await));
            }
            held
        });
        let (policy, runtime) = (&policy, &runtime);
        let job = move |locks: LockManager, from: usize| {
            let mut id = 0;
            move || {
                id += 1;
                runtime.block_on(async {
                    let key = key(from + id % count);
                    let guard = locks.acquire(key, policy).await.expect("a grant");
                    guard.release().await.expect("a release");
                });
            }
        };
        let by_hand = |layer: HandWritten, from: usize| {
            let mut id = 0;
            move || {
                id += 1;
                let key = (from + id % count).to_string();
                drop(runtime.block_on(layer.lock(key)));
            }
        };
        let [hand_free, hand_full] = hand;
        let found = medians(
            rounds,
            times,
            &mut [
                Candidate::each("", job(free, 0)),
                Candidate::each("", job(full, count)),
                Candidate::each("", by_hand(hand_free, 0)),
                Candidate::each("", by_hand(hand_full, count)),
            ],
        );
        for (row, found) in rows.iter_mut().zip(found) {
            row.push(ns(found));
        }
    }
    let head: Vec<String> = counts.iter().map(|n| format!("{n} keys")).collect();
    let mut columns = vec![""];
    columns.extend(head.iter().map(String::as_str));
    table(
        "Acquire and release by the number of keys, ns",
        &columns,
        &rows,
    );
}

/// Requests of one candidate and nothing else, for a profiler.
fn only(which: &str, times: usize) {
    let runtime = current_thread();
    let mut request = match which.split_once(':') {
        Some(("axum", name)) => request_on_axum(&runtime, name),
        Some(("tower", name)) => request_on_tower(&runtime, name),
        _ => panic!("`--only axum:LockLayer 1000`, not {which}"),
    };
    for _ in 0..times {
        request();
    }
}

/// Counts the instructions of a request: the difference of two runs under callgrind.
fn instructions(effort: Effort) {
    let times = effort.pick(4000, 400);
    let mut rows = Vec::new();
    for stack in ["axum", "tower"] {
        let found: Option<Vec<u64>> = [BARE, NOOP, HAND, LOCK]
            .iter()
            .map(|name| {
                let which = format!("{stack}:{name}");
                let (few, many) = (collected(&which, 100)?, collected(&which, 100 + times)?);
                Some(many.saturating_sub(few) / times as u64)
            })
            .collect();
        let Some(found) = found else {
            println!("no valgrind, so no instructions are counted");
            return;
        };
        for (name, &count) in [BARE, NOOP, HAND, LOCK].iter().zip(&found) {
            let over = count as f64 - found[1] as f64;
            let hand = found[2] as f64 - found[1] as f64;
            rows.push(vec![
                format!("{stack}, {name}"),
                count.to_string(),
                ns(over),
                ratio(over, hand),
            ]);
        }
    }
    table(
        "Instructions of an uncontended request",
        &["", "instructions", "over no-op", "of the hand-written"],
        &rows,
    );
}

fn collected(which: &str, times: usize) -> Option<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().ok()?)
        .args(["--only", which, &times.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let (_, count) = text.split_once("Collected : ")?;
    count.split_whitespace().next()?.parse().ok()
}
