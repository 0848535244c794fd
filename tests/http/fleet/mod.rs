//! A service of several processes with their locks in one Redis: what only a second process shows.
//!
//! Each [`Instance`] is a copy of this test binary that serves HTTP, see [`instance`]. Its handlers
//! report to the [`Stage`] of the test and do what that tells them, so a test knows who is inside,
//! where, and under which token, and nothing waits for a time that could wait for an event.

mod away;
mod deaths;
mod instance;
mod leaving;
mod order;
mod stage;

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tokio::{task::JoinHandle, time::Instant};
use tower_lock::{LockKey, LockManager, RedisBackend, backend::KeyState};

use self::stage::Stage;
use crate::{
    servers::{Process, RedisServer},
    support::{Caller, Leave, SOON, h1, h1_answer, h1_head, soon},
};

/// A lease that is waited for in these tests.
const TTL: Duration = Duration::from_millis(1500);

/// How late a busy machine may be. Less than what a delay is told from: five seconds of the
/// manager's own timeout or of five offers.
const LATE: Duration = Duration::from_secs(3);

/// What the instances of a fleet are started with.
#[derive(Clone, Copy)]
struct Settings {
    /// How long an answer of Redis may take.
    operation: Duration,
    /// What holders get at the end of an instance.
    grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            operation: SOON,
            grace: SOON,
        }
    }
}

/// Several processes of one service, and a look at the locks that they share.
struct Fleet {
    prefix: String,
    instances: Vec<Instance>,
    /// One of its own, where the test does it harm.
    server: Option<RedisServer>,
    stage: Stage,
    /// An instance of the test itself.
    locks: LockManager,
}

/// One process.
struct Instance {
    process: Process,
    address: SocketAddr,
}

impl Fleet {
    /// So many processes, on the server that the tests share.
    async fn of(instances: usize) -> Self {
        Self::with(None, instances, Settings::default()).await
    }

    async fn with(own: Option<RedisServer>, instances: usize, settings: Settings) -> Self {
        let server = own.as_ref().unwrap_or_else(|| RedisServer::shared());
        static FLEETS: AtomicU32 = AtomicU32::new(0);
        let fleet = FLEETS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("fleet-{fleet}:");
        let backend = RedisBackend::builder(&server.url())
            .with_prefix(&prefix)
            .with_operation_timeout(settings.operation)
            .connect()
            .await
            .expect("the server is there");
        let starting: Vec<_> = (0..instances)
            .map(|_| instance::start(&server.url(), &prefix, settings))
            .collect();
        Self {
            prefix,
            instances: starting.into_iter().map(Instance::ready).collect(),
            server: own,
            stage: Stage::open().await,
            locks: LockManager::new(backend),
        }
    }

    fn server(&self) -> &RedisServer {
        self.server
            .as_ref()
            .unwrap_or_else(|| RedisServer::shared())
    }

    /// A path whose handler reports to the stage under this name.
    fn path(&self, route: &str, name: impl std::fmt::Display) -> String {
        format!("/{route}?stage={}&name={name}", self.stage.address())
    }

    /// A client of this instance, whose handler comes on stage.
    async fn caller(&self, at: usize, route: &str, name: impl std::fmt::Display) -> Caller {
        self.caller_who_may(Leave::H1Close, at, route, name).await
    }

    async fn caller_who_may(
        &self,
        leave: Leave,
        at: usize,
        route: &str,
        name: impl std::fmt::Display,
    ) -> Caller {
        Caller::post(self.instances[at].address, leave, &self.path(route, name)).await
    }

    /// The whole answer of this instance to a request.
    fn ask(&self, at: usize, method: &str, path: &str) -> JoinHandle<String> {
        let (address, head) = (self.instances[at].address, h1_head(method, path));
        tokio::spawn(async move {
            let mut stream = h1(address, head).await;
            h1_answer(&mut stream).await
        })
    }

    /// What the server knows of this key.
    async fn key(&self, id: &str) -> KeyState {
        let key = LockKey::new("order", id);
        let begun = Instant::now();
        loop {
            match self.locks.inspect_key(&key).await {
                Ok(state) => return state,
                // Our own connection was cut.
                Err(error) => assert!(begun.elapsed() < SOON, "{error}"),
            }
        }
    }

    /// So many wait in this instance.
    async fn waiters_at(&self, at: usize, count: usize) {
        soon("this many wait there", async {
            loop {
                let answer = self.ask(at, "GET", "/waiting").await.expect("no panic");
                if body(&answer) == count.to_string() {
                    break;
                }
            }
        })
        .await;
    }

    /// So many wait for this key, in the eyes of the server.
    async fn waiters(&self, id: &str, count: u64) {
        soon("this many wait", async {
            while self.key(id).await.waiters != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }

    /// What remains of the lease on this key.
    async fn remaining(&self, id: &str) -> Duration {
        let holders = self.key(id).await.holders;
        holders[0].remaining.expect("Redis knows")
    }

    /// Nobody holds or waits, and nothing is left of it on the server.
    async fn all_free(&self) {
        soon("nothing is left", async {
            while !self.server().keys_left(&self.prefix).is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

impl Instance {
    /// Waits until it listens.
    fn ready(mut process: Process) -> Self {
        loop {
            // The harness may have begun the line.
            let line = process.line();
            if let Some((_, address)) = line.split_once(instance::LISTENING) {
                let address = address.trim().parse().expect("an address");
                return Self { process, address };
            }
        }
    }
}

/// The status, in the answer that [`Fleet::ask`] gives.
fn status(answer: &str) -> u16 {
    let status = answer.strip_prefix("HTTP/1.1 ").expect("an answer");
    status[..3].parse().expect("a status")
}

/// What follows the head of an answer.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head").1
}

/// Checks that it is a refusal of this kind, as a problem that says when to come again.
#[track_caller]
fn assert_refusal(answer: &str, code: u16, slug: &str) {
    assert_eq!(status(answer), code, "{answer}");
    assert!(body(answer).contains(slug), "{answer}");
    let head = answer.to_lowercase();
    assert!(
        head.contains("content-type: application/problem+json"),
        "{answer}"
    );
    assert!(head.contains("\r\nretry-after: "), "{answer}");
}
