//! `redlock`: an acquire on a majority of three and of five nodes against one raw round trip to
//! one of them, on loopback and a millisecond away. RedLock refuses a single node: one node is
//! `RedisBackend`.

use std::{pin::Pin, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use serde_json::json;
use tokio::runtime::Runtime;
use tower_lock::{
    Lease, LockBackend, LockKey, RedLockBackend,
    backend::{AcquireRequest, WaitBound},
};

use crate::{
    latency::{SOCKET_TRIVIAL, TRIVIAL, Trivial},
    locks::{Lock, Ours},
    report::{Effort, cell, line, ratio, table, us},
    servers::{RedLockServers, RedisServer},
    throughput::one_thread,
    timed::{Candidate, acquire_of, take_turns},
    wires::Wires,
};

/// Each way; there and back it is a millisecond.
const AWAY: Duration = Duration::from_micros(500);

/// The longest that a deployment takes by default.
const TTL: Duration = Duration::from_secs(30);

const RAW_3: &str = "EVALSHA of `return 1` on 3 nodes, majority";
const RAW_5: &str = "EVALSHA of `return 1` on 5 nodes, majority";

pub(crate) fn redlock(effort: &Effort) {
    let servers = RedLockServers::start(5);
    let addresses = servers.iter().map(RedisServer::address);
    let wires = Wires::to(addresses, AWAY);
    let runtime = one_thread();
    for nodes in [3, 5] {
        let urls = &servers.urls()[..nodes];
        let found = runtime.block_on(async { of(nodes, urls).await.found().await });
        assert!(found.expect("all nodes are there"), "they are new");
    }
    for (network, urls, socket, rounds, times) in [
        (
            "loopback",
            servers.urls(),
            servers.node(0).address(),
            21,
            300,
        ),
        (
            "a millisecond away",
            wires.urls(),
            wires.address(0),
            11,
            200,
        ),
    ] {
        let mut candidates = runtime.block_on(async {
            let trivial = Trivial::connect(&urls[0]).await;
            vec![
                Candidate::of(TRIVIAL, &runtime, &trivial),
                trivial.over_socket(socket),
                Candidate::of("RedisBackend", &runtime, &Ours::ready(&urls[0]).await),
                Candidate::of(RAW_3, &runtime, &AtOnce::connect(&urls[..3]).await),
                Candidate::of(RAW_5, &runtime, &AtOnce::connect(&urls).await),
                majority("RedLock, 3 nodes", &runtime, 3, &urls).await,
                majority("RedLock, 5 nodes", &runtime, 5, &urls).await,
            ]
        });
        candidates.retain(|candidate| effort.wants(candidate.name));
        let (rounds, times) = (effort.pick(rounds, 2), effort.pick(times, 30));
        take_turns(&mut candidates, rounds, times);
        report(network, &candidates);
    }
}

/// The first of these nodes, as a deployment of their own.
async fn of(nodes: usize, urls: &[String]) -> RedLockBackend {
    let builder = RedLockBackend::builder_of(urls[..nodes].to_vec());
    let builder = builder.with_prefix(format!("bench-of-{nodes}:"));
    builder.connect().await.expect("the nodes are there")
}

async fn majority<'a>(
    name: &'static str,
    runtime: &'a Runtime,
    nodes: usize,
    urls: &[String],
) -> Candidate<'a> {
    let backend = of(nodes, urls).await;
    backend.until_voting().await;
    Candidate::of(name, runtime, &Majority(backend))
}

#[derive(Clone)]
struct Majority(RedLockBackend);

impl Lock for Majority {
    type Held = <RedLockBackend as LockBackend>::Lease;

    async fn acquire(&self, key: &str) -> Self::Held {
        let request =
            AcquireRequest::new(LockKey::new("bench", key), TTL).with_wait(WaitBound::Forever);
        self.0.acquire(&request).await.expect("a grant")
    }

    async fn release(&self, held: Self::Held) {
        held.release().await.expect("a release");
    }
}

/// A script that does nothing on each node at once, until a majority has answered: what this
/// machine takes for that many servers.
#[derive(Clone)]
struct AtOnce(Vec<Trivial>);

type Rest = FuturesUnordered<Pin<Box<dyn Future<Output = ()> + Send>>>;

impl AtOnce {
    async fn connect(urls: &[String]) -> Self {
        let mut nodes = Vec::new();
        for url in urls {
            nodes.push(Trivial::connect(url).await);
        }
        Self(nodes)
    }
}

impl Lock for AtOnce {
    /// Answers that are still to come.
    type Held = Rest;

    async fn acquire(&self, _key: &str) -> Rest {
        let asks = self.0.iter().cloned();
        let mut asks: Rest = asks
            .map(|node| Box::pin(async move { node.acquire("").await }) as Pin<Box<_>>)
            .collect();
        for _ in 0..=self.0.len() / 2 {
            asks.next().await;
        }
        asks
    }

    async fn release(&self, rest: Rest) {
        rest.collect::<()>().await;
    }
}

fn report(network: &str, candidates: &[Candidate<'_>]) {
    let rows: Vec<_> = candidates
        .iter()
        .map(|candidate| {
            let (acquire, release) = (candidate.acquire(0.5), candidate.release(0.5));
            let figures = json!({
                "network": network,
                "acquire_p50_us": us(acquire),
                "acquire_p99_us": us(candidate.acquire(0.99)),
                "release_p50_us": us(release),
            });
            line("redlock", candidate.name, &figures);
            let to = |name| ratio(acquire as f64, acquire_of(candidates, name, 0.5));
            vec![
                candidate.name.to_owned(),
                cell(us(acquire)),
                cell(us(candidate.acquire(0.99))),
                to(TRIVIAL),
                to(SOCKET_TRIVIAL),
                match candidate.name {
                    "RedLock, 3 nodes" => to(RAW_3),
                    "RedLock, 5 nodes" => to(RAW_5),
                    _ => "–".to_owned(),
                },
                to("RedisBackend"),
                cell(us(release)),
            ]
        })
        .collect();
    table(
        &format!("An uncontended pair on a majority, {network}; µs"),
        &[
            "",
            "acquire p50",
            "p99",
            "to a trivial script",
            "to trivial, blocking",
            "to as many nodes",
            "to RedisBackend",
            "release p50",
        ],
        &rows,
    );
}
