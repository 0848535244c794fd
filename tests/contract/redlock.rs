//! The contract suite on real Redis servers that know nothing of each other.

use std::{sync::Mutex, time::Duration};

use tower_lock::{
    BoxError, RedLockBackend,
    contract::{ContractTarget, Erased, Options},
};

use crate::{
    modest, passes,
    servers::{RedLockServers, TcpProxy},
};

const PREFIX: &str = "tower-lock:";

/// What RedLock does not have: an order among waiters, and readers.
const NOT_APPLICABLE: [&str; 5] = [
    "arrival_order",
    "dead_waiters_cost_one_wait",
    "queued_owner_keeps_its_place",
    "readers_and_writers",
    "nobody_starves",
];

/// Nodes with their append-only files, so that a restart keeps the data.
struct RedLock {
    servers: RedLockServers,
    /// In front of them for clients whose replies are slow.
    slow: Mutex<Vec<TcpProxy>>,
}

impl RedLock {
    fn new(nodes: usize) -> Self {
        let options = ["--appendonly", "yes", "--appendfsync", "no"];
        Self {
            servers: RedLockServers::start_with(nodes, &options),
            slow: Mutex::default(),
        }
    }
}

impl ContractTarget for RedLock {
    type Backend = RedLockBackend;

    async fn connect(&self) -> Result<RedLockBackend, BoxError> {
        let slow: Vec<_> = self
            .slow
            .lock()
            .unwrap()
            .iter()
            .map(TcpProxy::redis_url)
            .collect();
        let urls = if slow.is_empty() {
            self.servers.urls()
        } else {
            slow
        };
        let backend = RedLockBackend::builder_of(urls)
            // The suite has leases of ten minutes, and a machine that may be busy.
            .with_max_ttl(Duration::from_secs(600))
            .with_node_timeout(Duration::from_millis(500))
            .connect()
            .await?;
        // Nothing was granted before the first of them.
        backend.found().await?;
        backend.until_voting().await;
        Ok(backend)
    }

    async fn leftovers(&self) -> Option<u64> {
        Some(self.servers.keys_left(PREFIX).len() as u64)
    }

    /// One of the nodes: it does not vote after that, so each vote of the others counts.
    async fn restart(&self) -> bool {
        self.servers.node(0).restart();
        true
    }

    async fn slow_replies(&self, delay: Duration) -> bool {
        let mut slow = self.slow.lock().unwrap();
        slow.clear();
        if !delay.is_zero() {
            slow.extend(self.servers.iter().map(|node| {
                let proxy = TcpProxy::start(node.address());
                proxy.set_latency(Duration::ZERO, delay);
                proxy
            }));
        }
        true
    }

    fn options(&self) -> Options {
        modest()
    }
}

#[test]
fn redlock_of_three_passes() {
    passes(&RedLock::new(3), &NOT_APPLICABLE);
}

#[test]
fn redlock_of_five_passes_erased() {
    passes(&Erased(RedLock::new(5)), &NOT_APPLICABLE);
}
