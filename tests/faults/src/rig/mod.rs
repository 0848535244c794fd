//! One process of the service under test: requests through a [`LockLayer`](tower_lock::LockLayer)
//! and jobs through its manager, all on a few hot keys and many cold ones.
//!
//! It is this program again, told by lines on its standard input. It writes what happens into a
//! file at once, so that nothing is missing when it is killed.

mod connect;
mod control;
mod load;
mod naive;
mod recorder;
mod storage;
mod work;

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

pub(crate) use self::{control::run, load::key_of, naive::Naive};

/// How many threads its runtime has.
pub(crate) const THREADS: usize = 2;

/// The longest that anybody but a storm waits.
pub(crate) const PATIENT: Duration = Duration::from_secs(4);

/// What holders get when the process is asked to end: some hold for longer, and are told then, and
/// some of these work on.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// What it prints when it is ready.
pub(crate) const READY: &str = "ready";

/// What it prints once all its attempts are over.
pub(crate) const RESTED: &str = "rested";

/// What it prints when the threads of its runtime, which were blocked, run again.
pub(crate) const AWAKE: &str = "awake";

/// What it prints at its end.
pub(crate) const DRAINED: &str = "drained";

/// What a rig is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) process: u32,
    pub(crate) seed: u64,
    pub(crate) locks: Locks,
    pub(crate) ttl: Duration,
    /// The Unix socket of the storage.
    pub(crate) storage: PathBuf,
    /// Where it writes its events.
    pub(crate) events: PathBuf,
    pub(crate) load: Load,
}

/// How it locks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Locks {
    Memory,
    Redis {
        url: String,
        acks: u32,
    },
    RedLock {
        url: String,
    },
    Etcd {
        url: String,
    },
    ZooKeeper {
        url: String,
    },
    /// What the field writes by hand, to show that the harness sees what is wrong with it.
    Naive(Naive),
}

/// What it does all the time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// How many ask at the same time.
    pub(crate) tasks: usize,
    /// Of a thousand attempts, how many are dropped at some moment.
    pub(crate) cancels: u32,
    /// Whether any process may expect its place in the queue to be kept.
    pub(crate) fifo: bool,
    /// Whether it asks for no order all the same, so that the harness has something to find.
    pub(crate) barges: bool,
    /// For how many milliseconds the first hot key is held: twice that at the most. It has a long
    /// queue, and so arrival order is seen.
    pub(crate) queue: u64,
    /// The same for the one that is handed on within a process: 0 where its order is not looked at.
    pub(crate) batch: u64,
    /// Of a thousand holders of the last hot key and the cold ones, how many hold for long.
    pub(crate) long: u32,
    /// How many ttls that is.
    pub(crate) ttls: f32,
}

/// The keys that everybody wants.
pub(crate) const HOT: u32 = 3;

/// The one of them that some hold for long.
pub(crate) const HELD_LONG: u32 = 2;

/// All the others.
pub(crate) const COLD: u32 = 500;
