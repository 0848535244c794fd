//! The servers that all tests of a process share.

use std::{sync::OnceLock, time::Duration};

use super::{
    cluster::{ClusterServers, ClusterSetup},
    etcd::Etcd,
    redis::RedisServer,
    redlock::RedLockServers,
    zookeeper::ZooKeeperServer,
};

impl RedisServer {
    /// One for all tests of this process that need a server and do it no harm, each with a prefix
    /// of its own. Its heir ends it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }
}

impl ClusterServers {
    /// As [`RedisServer::shared`]: three masters without replicas.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ClusterServers> = OnceLock::new();
        SHARED.get_or_init(|| {
            // Nobody takes its nodes away, so none is to be given up while the machine is busy.
            Self::start_with(ClusterSetup {
                node_timeout: Duration::from_secs(15),
                ..ClusterSetup::default()
            })
        })
    }
}

impl RedLockServers {
    /// As [`RedisServer::shared`]: three nodes.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedLockServers> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(3))
    }
}

impl Etcd {
    /// As [`RedisServer::shared`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Etcd> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }
}

impl ZooKeeperServer {
    /// One for all tests of this process that need a server and do it no harm, each with a base of
    /// its own. Its heir ends it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ZooKeeperServer> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }
}
