//! The contract suite on Redis behind Sentinels, and in a Cluster.

use std::time::Duration;

use tower_lock::{
    BoxError, RedisBackend,
    contract::{ContractTarget, Options},
};

use crate::{
    keeps_records, modest, passes,
    servers::{ClusterServers, SentinelServers},
};

const PREFIX: &str = "tower-lock:";

struct Sentinel(SentinelServers);

impl ContractTarget for Sentinel {
    type Backend = RedisBackend;

    async fn connect(&self) -> Result<RedisBackend, BoxError> {
        Ok(RedisBackend::connect(&self.0.url()).await?)
    }

    async fn leftovers(&self) -> Option<u64> {
        Some(self.0.keys_left(PREFIX).len() as u64)
    }

    /// The nearest to it: another server takes over, which knows what it has been told.
    async fn restart(&self) -> bool {
        self.0.failover().await;
        true
    }

    async fn slow_replies(&self, _: Duration) -> bool {
        false
    }

    fn options(&self) -> Options {
        modest()
    }
}

struct Cluster(ClusterServers);

impl ContractTarget for Cluster {
    type Backend = RedisBackend;

    async fn connect(&self) -> Result<RedisBackend, BoxError> {
        Ok(RedisBackend::connect(&self.0.url()).await?)
    }

    async fn leftovers(&self) -> Option<u64> {
        Some(self.0.keys_left(PREFIX).len() as u64)
    }

    /// The same, in every slot.
    async fn restart(&self) -> bool {
        for master in self.0.masters() {
            self.0.failover(master).await;
        }
        true
    }

    async fn slow_replies(&self, _: Duration) -> bool {
        false
    }

    fn options(&self) -> Options {
        modest()
    }
}

#[test]
fn redis_behind_sentinels_passes() {
    passes(&Sentinel(SentinelServers::start(1)), &[]);
}

#[test]
fn redis_cluster_passes() {
    passes(&Cluster(ClusterServers::start(3, 1)), &[]);
}

#[test]
fn redis_behind_sentinels_keeps_records() {
    keeps_records(&Sentinel(SentinelServers::start(1)));
}

#[test]
fn redis_cluster_keeps_records() {
    keeps_records(&Cluster(ClusterServers::start(3, 1)));
}
