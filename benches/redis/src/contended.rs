//! One hot key, two processes: how fast it changes hands, in which order, and what that costs the
//! server.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    candidate::Candidate,
    locks::Ours,
    report::{median, quantile, round, us},
    server::{Server, Work},
    servers::Process,
    worker::{Grant, drained_from, now},
};

/// The two processes of a candidate, which contend with each other.
pub(crate) struct Pair {
    pub(crate) candidate: Candidate,
    processes: [Process; 2],
    rounds: Vec<Round>,
    drains: Vec<Drain>,
}

/// What a round on one key came to.
struct Round {
    grants_per_s: f64,
    /// Grants whose holder is not the one before.
    hand_offs_per_s: f64,
    /// From the call of the release to the grant of one who was waiting, in nanoseconds.
    latencies: Vec<u64>,
    /// The share of grants that came before the one of somebody who had asked earlier. Requests
    /// that are on their way at once have no order that the clients could know.
    overtaken: f64,
    cpu_us: f64,
    scripts: f64,
    commands: f64,
}

/// A queue whose order is known, emptied.
struct Drain {
    millis: f64,
    /// `None` where nobody could say in which order they arrived.
    inversions: Option<usize>,
}

/// A grant and the process that got it.
type Held = (usize, Grant);

impl Pair {
    pub(crate) fn start(candidate: Candidate, url: &str) -> Self {
        Self {
            candidate,
            processes: [candidate.start(url), candidate.start(url)],
            rounds: Vec::new(),
            drains: Vec::new(),
        }
    }

    /// So many waiters in all take turns for so long.
    pub(crate) fn contend(&mut self, server: &Server, waiters: usize, millis: u64) {
        server.flush();
        let (held, work) = server.during(|| {
            let (start, end) = span(millis);
            self.order(&format!("steady hot {} {start} {end}", waiters / 2));
            self.collect()
        });
        self.rounds.push(Round::new(&held, &work, millis));
    }

    /// So many queue up one after the other, `step` nanoseconds apart; then the first lets go.
    pub(crate) fn drain(&mut self, server: &Server, waiters: usize, step: u64) {
        server.flush();
        let start = now() + 20_000_000;
        for (first, process) in self.processes.iter_mut().enumerate() {
            let tasks = waiters / 2;
            process.send(&format!(
                "drain hot {tasks} {start} {step} {first} 2 {waiters}"
            ));
        }
        let in_order = self.candidate.queues() && in_order(server, waiters, start, step);
        let held = self.collect();
        let last = held.last().map_or(0, |(_, grant)| grant.granted);
        let from = drained_from(start, step, waiters as u64);
        self.drains.push(Drain {
            millis: last.saturating_sub(from) as f64 / 1e6,
            inversions: in_order.then(|| overtaking(&held, |grant| grant.task)),
        });
    }

    fn order(&mut self, order: &str) {
        self.processes.iter_mut().for_each(|p| p.send(order));
    }

    /// The grants of both, in the order of time.
    fn collect(&mut self) -> Vec<Held> {
        let mut held = Vec::new();
        for (at, process) in self.processes.iter_mut().enumerate() {
            loop {
                let line = process.line();
                if line == "end" {
                    break;
                }
                let grant: Grant = line.parse().unwrap_or_else(|error| panic!("{error}"));
                held.push((at, grant));
            }
        }
        held.sort_unstable_by_key(|(_, grant)| grant.granted);
        for pair in held.windows(2) {
            let [(_, one), (_, next)] = pair else {
                continue;
            };
            assert!(next.granted >= one.released, "two holders at once");
        }
        held
    }

    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        round(median(self.rounds.iter().map(figure).collect()))
    }

    pub(crate) fn grants_per_s(&self) -> f64 {
        self.median(|round| round.grants_per_s)
    }

    pub(crate) fn hand_offs_per_s(&self) -> f64 {
        self.median(|round| round.hand_offs_per_s)
    }

    pub(crate) fn cpu_us(&self) -> f64 {
        self.median(|round| round.cpu_us)
    }

    pub(crate) fn overtaken(&self) -> f64 {
        self.median(|round| round.overtaken)
    }

    /// Over all rounds, in nanoseconds.
    pub(crate) fn hand_off(&self, q: f64) -> u64 {
        let all = self.rounds.iter().flat_map(|round| &round.latencies);
        quantile(&mut all.copied().collect::<Vec<_>>(), q)
    }

    pub(crate) fn drain_ms(&self) -> f64 {
        let millis: Vec<f64> = self.drains.iter().map(|d| d.millis).collect();
        if millis.is_empty() {
            f64::NAN
        } else {
            round(median(millis))
        }
    }

    /// Of each queue whose order was known.
    pub(crate) fn inversions(&self) -> Vec<usize> {
        self.drains.iter().filter_map(|d| d.inversions).collect()
    }

    pub(crate) fn figures(&self) -> Value {
        json!({
            "rounds": self.rounds.len(),
            "grants_per_s": self.grants_per_s(),
            "hand_offs_per_s": self.hand_offs_per_s(),
            "hand_off_p50_us": us(self.hand_off(0.5)),
            "hand_off_p99_us": us(self.hand_off(0.99)),
            "overtaken": self.overtaken(),
            "server_cpu_us_per_grant": self.cpu_us(),
            "scripts_per_grant": self.median(|round| round.scripts),
            "commands_per_grant": self.median(|round| round.commands),
            "drain_ms": self.drain_ms(),
            "inversions": self.inversions().iter().sum::<usize>(),
            "queues_in_known_order": self.inversions().len(),
        })
    }
}

impl Round {
    fn new(held: &[Held], work: &Work, millis: u64) -> Self {
        // The first tenth warms up; what is granted after the end is the rest of the queue.
        let first = held.first().map_or(0, |(_, grant)| grant.granted);
        let (from, to) = (first + millis * 100_000, first + millis * 1_000_000);
        let within = |grant: &Grant| (from..to).contains(&grant.granted);
        let seconds = (to - from) as f64 / 1e9;
        let grants = held.iter().filter(|(_, grant)| within(grant)).count();
        let mut hand_offs = 0;
        let mut latencies = Vec::new();
        for pair in held.windows(2) {
            let [(one_at, one), (next_at, next)] = pair else {
                continue;
            };
            if !within(next) || (one_at, one.task) == (next_at, next.task) {
                continue;
            }
            hand_offs += 1;
            if next.asked < one.released {
                latencies.push(next.granted - one.released);
            }
        }
        Self {
            grants_per_s: grants as f64 / seconds,
            hand_offs_per_s: f64::from(hand_offs) / seconds,
            latencies,
            overtaken: overtaking(held, |grant| grant.asked) as f64 / held.len().max(1) as f64,
            cpu_us: work.cpu_per(held.len()),
            scripts: work.scripts_per(held.len()),
            commands: work.calls_per(held.len()),
        }
    }
}

/// Looks on while waiters queue up: whether each was in the queue before the next one asked.
fn in_order(server: &Server, waiters: usize, start: u64, step: u64) -> bool {
    let mut client = server.client();
    let mut known = true;
    for number in 1..waiters as u64 {
        let next = start + (number + 1) * step;
        let look = Duration::from_nanos((next - step / 4).saturating_sub(now()));
        std::thread::sleep(look);
        let length = client
            .call(&["ZCARD", &Ours::queue("hot")])
            .expect("an answer");
        known &= length.int() == number as i64 && now() < next;
    }
    known
}

/// How many grants came before the one of somebody who was first by this order.
fn overtaking(held: &[Held], order: impl Fn(&Grant) -> u64) -> usize {
    let mut earliest_later = u64::MAX;
    let mut count = 0;
    for (_, grant) in held.iter().rev() {
        let at = order(grant);
        count += usize::from(earliest_later < at);
        earliest_later = earliest_later.min(at);
    }
    count
}

/// From a moment at which both processes have their orders, for so long.
fn span(millis: u64) -> (u64, u64) {
    let start = now() + 20_000_000;
    (start, start + millis * 1_000_000)
}
