//! One of the processes that contend, with any number of waiters.
//!
//! It says `ready`, then takes an order a line, prints a grant a line, and `end`. All times are
//! nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. `peers/` has the same
//! in other languages.
//!
//! - `steady <key> <tasks> <start> <end>`: each task acquires and releases until the end.
//! - `drain <key> <tasks> <start> <step> <first> <stride> <all>`: task `i` is the waiter number
//!   `first + i * stride` of `all`; it asks at `start + number * step`, once. Number 0 holds until
//!   all have asked.

use std::{fmt, future::Future, io::Write, str::FromStr, time::Duration};

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use crate::locks::Lock;

/// What a worker is told to do with a key.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Steady {
        start: u64,
        end: u64,
    },
    Drain {
        start: u64,
        step: u64,
        first: u64,
        stride: u64,
        all: u64,
    },
}

/// When a waiter asked, when it was granted the key, and when it began to release it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) task: u64,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    pub(crate) released: u64,
}

/// Now, as all processes of this machine see it.
pub(crate) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// When the first waiter of a drained queue lets go: when the last one has long asked.
pub(crate) fn drained_from(start: u64, step: u64, all: u64) -> u64 {
    start + all * step + 20_000_000
}

/// Takes orders until there are no more.
pub(crate) fn run<L: Lock>(connect: impl Future<Output = L>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    let lock = runtime.block_on(connect);
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("orders are text");
        let mut words = line.split(' ');
        let mut word = || {
            words
                .next()
                .unwrap_or_else(|| panic!("half an order: {line}"))
        };
        let (verb, key, tasks) = (word(), word().to_owned(), number(word()));
        let order = match verb {
            "steady" => Order::Steady {
                start: number(word()),
                end: number(word()),
            },
            "drain" => Order::Drain {
                start: number(word()),
                step: number(word()),
                first: number(word()),
                stride: number(word()),
                all: number(word()),
            },
            other => panic!("no order: {other}"),
        };
        let grants = runtime.block_on(contend(&lock, &key, tasks, &order));
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        for grant in grants {
            writeln!(out, "{grant}").expect("somebody reads");
        }
        writeln!(out, "end").expect("somebody reads");
    }
}

async fn contend<L: Lock>(lock: &L, key: &str, tasks: u64, order: &Order) -> Vec<Grant> {
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let (lock, key, order) = (lock.clone(), key.to_owned(), order.clone());
        set.spawn(async move {
            match order {
                Order::Steady { start, end } => steady(&lock, &key, task, start, end).await,
                Order::Drain {
                    start,
                    step,
                    first,
                    stride,
                    all,
                } => {
                    let number = first + task * stride;
                    sleep_until(start + number * step).await;
                    let until = match number {
                        0 => drained_from(start, step, all),
                        _ => 0,
                    };
                    vec![grant(&lock, &key, number, until).await]
                }
            }
        });
    }
    set.join_all().await.concat()
}

async fn steady<L: Lock>(lock: &L, key: &str, task: u64, start: u64, end: u64) -> Vec<Grant> {
    sleep_until(start).await;
    let mut grants = Vec::with_capacity(1 << 12);
    loop {
        let grant = grant(lock, key, task, 0).await;
        grants.push(grant);
        if grant.released >= end {
            return grants;
        }
    }
}

/// Acquires, holds until this moment, releases.
async fn grant<L: Lock>(lock: &L, key: &str, task: u64, until: u64) -> Grant {
    let asked = now();
    let held = lock.acquire(key).await;
    let granted = now();
    if until > granted {
        sleep_until(until).await;
    }
    let released = now();
    lock.release(held).await;
    Grant {
        task,
        asked,
        granted,
        released,
    }
}

async fn sleep_until(moment: u64) {
    tokio::time::sleep(Duration::from_nanos(moment.saturating_sub(now()))).await;
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("no number: {word}"))
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {} {}",
            self.task, self.asked, self.granted, self.released
        )
    }
}

impl FromStr for Grant {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let numbers: Vec<u64> = line
            .split(' ')
            .map_while(|word| word.parse().ok())
            .collect();
        match numbers[..] {
            [task, asked, granted, released] => Ok(Self {
                task,
                asked,
                granted,
                released,
            }),
            _ => Err(format!("no grant: {line}")),
        }
    }
}
