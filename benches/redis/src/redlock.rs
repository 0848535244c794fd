//! What a lock on a majority of three and of five nodes costs, beside one raw round trip to one of
//! them: on loopback, and through proxies that add half a millisecond each way.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tower_lock::{Lease as _, LockBackend as _, LockKey, RedLockBackend, backend::AcquireRequest};

use crate::{
    report::Effort,
    servers::{RedLockServers, TcpProxy},
};

const TTL: Duration = Duration::from_secs(30);

pub(crate) fn redlock(effort: &Effort) {
    let rounds = if effort.quick { 200 } else { 5000 };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    println!("\nRedLock: p50 and p99 of an acquire, beside a PING to one node");
    println!("| nodes | network | PING | acquire p50 | p99 | p50 / PING |");
    println!("|---|---|---|---|---|---|");
    for nodes in [3, 5] {
        for each_way in [Duration::ZERO, Duration::from_micros(500)] {
            runtime.block_on(one(nodes, each_way, rounds));
        }
    }
}

async fn one(nodes: usize, each_way: Duration, rounds: usize) {
    let servers = RedLockServers::start(nodes);
    let direct = RedLockBackend::builder_of(servers.urls());
    let direct = direct.connect().await.expect("the nodes");
    assert!(direct.found().await.expect("the nodes"));
    let proxies: Vec<_> = servers
        .iter()
        .filter(|_| !each_way.is_zero())
        .map(|node| {
            let proxy = TcpProxy::start(node.address());
            proxy.set_latency(each_way, each_way);
            proxy
        })
        .collect();
    let urls = if proxies.is_empty() {
        servers.urls()
    } else {
        proxies.iter().map(TcpProxy::redis_url).collect()
    };
    let raw = redis::Client::open(&*urls[0]).expect("a URL");
    let mut raw = raw
        .get_multiplexed_async_connection()
        .await
        .expect("a node");
    let backend = RedLockBackend::builder_of(urls).connect().await;
    let backend = backend.expect("the nodes");
    backend.until_voting().await;
    let (mut pings, mut acquires) = (Vec::new(), Vec::new());
    for round in 0..rounds + rounds / 10 {
        let ping = timed_ping(&mut raw).await;
        let request = AcquireRequest::new(LockKey::new("bench", round), TTL);
        let begun = Instant::now();
        let lease = backend.acquire(&request).await.expect("a free key");
        let took = begun.elapsed();
        lease.release().await.expect("released");
        // The first are of an unwarmed process.
        if round >= rounds / 10 {
            pings.push(ping);
            acquires.push(took);
        }
    }
    pings.sort_unstable();
    acquires.sort_unstable();
    let (ping, p50, p99) = (
        pings[rounds / 2],
        acquires[rounds / 2],
        acquires[rounds * 99 / 100],
    );
    let network = if each_way.is_zero() {
        "loopback"
    } else {
        "+1 ms"
    };
    let ratio = p50.as_secs_f64() / ping.as_secs_f64();
    println!("| {nodes} | {network} | {ping:.0?} | {p50:.0?} | {p99:.0?} | {ratio:.2} |");
}

async fn timed_ping(raw: &mut MultiplexedConnection) -> Duration {
    let begun = Instant::now();
    let _: () = redis::cmd("PING").query_async(raw).await.expect("a pong");
    begun.elapsed()
}
