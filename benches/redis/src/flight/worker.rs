//! One of the processes of a flight.
//!
//! It says `ready`, then takes an order a line. All times are nanoseconds of CLOCK_MONOTONIC, which
//! all processes of a machine share.
//!
//! - `lead <key>`: a task leads; `leading` when it has begun.
//! - `follow <key> <tasks>`: so many tasks follow; `waiting` when all of them wait, or
//!   have asked a server to.
//! - `land`: the leader's work ends; `ended <when> <when it had its own answer>`.
//! - `collect`: `answered <when>..`, for each follower.

use std::{fmt::Write, sync::Arc, thread, time::Duration};

use tokio::{
    runtime::Builder,
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};
use tower_lock::{LockManager, MemoryBackend};

use super::{
    candidate::{Candidate, Store},
    flights::{Bare, Behind, Flights, Runway, Watch},
};
use crate::{locks::Ours, worker::now};

/// How often it looks whether all wait.
const LOOK: Duration = Duration::from_millis(1);

/// Runs as such a process.
pub(crate) fn work(name: &str, threads: &str, url: &str) {
    let threads: usize = threads.parse().expect("a number of threads");
    let mut runtime = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(threads).enable_all().build();
    runtime.expect("a runtime starts").block_on(async {
        match Candidate::named(name) {
            Candidate::Watch => take_orders(Watch::new()).await,
            Candidate::Notify => take_orders(Bare::default()).await,
            Candidate::Layer { store, shares } => {
                let locks = match store {
                    Store::Memory => LockManager::new(MemoryBackend::new()),
                    Store::Redis => LockManager::new(Ours::ready(url).await.0),
                };
                take_orders(Behind::new(locks, shares)).await;
            }
        }
    });
}

/// Takes orders until there are no more.
async fn take_orders<F: Flights>(flights: F) {
    let (sender, mut orders) = mpsc::unbounded_channel();
    // The runtime runs on while nothing is ordered.
    thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let line = line.expect("orders are text");
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    println!("ready");
    let mut process = Process {
        flights,
        leader: None,
        followers: JoinSet::new(),
    };
    while let Some(order) = orders.recv().await {
        let words: Vec<_> = order.split(' ').collect();
        match *words {
            ["lead", key] => process.lead(key).await,
            ["follow", key, tasks] => {
                process
                    .follow(key, tasks.parse().expect("a number of tasks"))
                    .await;
            }
            ["land"] => process.land().await,
            ["collect"] => process.collect().await,
            _ => panic!("no order: {order}"),
        }
    }
}

struct Process<F> {
    flights: F,
    leader: Option<(Arc<Runway>, JoinHandle<u64>)>,
    followers: JoinSet<u64>,
}

impl<F: Flights> Process<F> {
    async fn lead(&mut self, key: &str) {
        let runway = Arc::<Runway>::default();
        let (flights, key) = (self.flights.clone(), key.to_owned());
        let task = tokio::spawn({
            let runway = runway.clone();
            async move {
                flights.lead(&key, &runway).await;
                now()
            }
        });
        runway.begun.notified().await;
        self.leader = Some((runway, task));
        println!("leading");
    }

    async fn follow(&mut self, key: &str, tasks: usize) {
        for _ in 0..tasks {
            let (flights, key) = (self.flights.clone(), key.to_owned());
            self.followers.spawn(async move {
                flights.follow(&key).await;
                now()
            });
        }
        while self.flights.waiting() < tasks {
            tokio::time::sleep(LOOK).await;
        }
        println!("waiting");
    }

    async fn land(&mut self) {
        let (runway, task) = self.leader.take().expect("one leads");
        runway.land.notify_one();
        let answered = task.await.expect("the leader ends well");
        println!("ended {} {answered}", runway.ended());
    }

    async fn collect(&mut self) {
        let followers = std::mem::take(&mut self.followers);
        let mut line = "answered".to_owned();
        for moment in followers.join_all().await {
            write!(line, " {moment}").expect("it is memory");
        }
        println!("{line}");
    }
}
