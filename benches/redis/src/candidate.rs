//! Who contends, and how a process of each is started.

use std::{fmt, path::Path, process::Command, time::Duration};

use tower_lock::Fairness;

use crate::{
    locks::{Managed, Ours, Rslock, SetNx},
    servers::{Process, foreign::installed},
    worker,
};

/// A kind of process that contends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Candidate {
    /// `RedisBackend` by itself, in arrival order.
    Backend,
    /// `LockManager` with `Fairness::Fifo`.
    Fifo,
    /// `LockManager` with `Fairness::Batched(32)`.
    Batched,
    /// `SET NX PX` asked again every so many milliseconds, and a script that unlocks.
    Poll(u64),
    Rslock,
    /// `redis.lock.Lock` of redis-py, with its default sleep.
    RedisPy,
    /// npm's `redlock` on one node, with its default delays.
    NpmRedlock,
}

impl Candidate {
    const ALL: [Self; 8] = [
        Self::Backend,
        Self::Fifo,
        Self::Batched,
        Self::Poll(10),
        Self::Poll(50),
        Self::Rslock,
        Self::RedisPy,
        Self::NpmRedlock,
    ];

    /// Whether its waiters stand in a queue of ours.
    pub(crate) fn queues(self) -> bool {
        matches!(self, Self::Backend | Self::Fifo)
    }

    pub(crate) fn named(name: &str) -> Self {
        let candidate = Self::ALL.into_iter().find(|c| c.to_string() == name);
        candidate.unwrap_or_else(|| panic!("no candidate is called {name}"))
    }

    /// A process of it that is ready to take orders.
    pub(crate) fn start(self, url: &str) -> Process {
        let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
        let (mut command, remedy) = match self {
            Self::RedisPy => {
                let mut python = Command::new("python3");
                python.env("PYTHONPATH", installed("python"));
                python.arg(peers.join("redis_py.py")).arg(url);
                (python, REMEDY)
            }
            Self::NpmRedlock => {
                let mut node = Command::new("node");
                node.env("NODE_PATH", installed("node_modules"));
                node.arg(peers.join("redlock.js")).arg(url);
                (node, REMEDY)
            }
            ours => {
                let bench = std::env::current_exe().expect("this program");
                let mut command = Command::new(bench);
                command.args(["worker", &ours.to_string(), url]);
                (command, "it is this program")
            }
        };
        let mut process = Process::spawn(&mut command, remedy);
        assert!(process.wait_for("ready"), "{self}:\n{}", process.log());
        process
    }

    /// Runs as such a process.
    pub(crate) fn work(name: &str, url: &str) {
        match Self::named(name) {
            Self::Backend => worker::run(Ours::connect(url)),
            Self::Fifo => worker::run(Managed::connect(url, Fairness::Fifo)),
            Self::Batched => worker::run(Managed::connect(url, Fairness::Batched(BATCH))),
            Self::Poll(ms) => worker::run(SetNx::connect(url, Duration::from_millis(ms))),
            Self::Rslock => worker::run(async { Rslock::new(url) }),
            Self::RedisPy | Self::NpmRedlock => panic!("{name} is no Rust"),
        }
    }
}

const REMEDY: &str = "scripts/test installs it";

const BATCH: std::num::NonZeroU32 = std::num::NonZeroU32::new(32).expect("not zero");

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backend => f.write_str("RedisBackend"),
            Self::Fifo => f.write_str("LockManager-Fifo"),
            Self::Batched => f.write_str("LockManager-Batched(32)"),
            Self::Poll(ms) => write!(f, "SET-NX-every-{ms}-ms"),
            Self::Rslock => f.write_str("rslock"),
            Self::RedisPy => f.write_str("redis-py"),
            Self::NpmRedlock => f.write_str("npm-redlock"),
        }
    }
}
