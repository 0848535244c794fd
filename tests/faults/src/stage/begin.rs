//! Starts the servers of a run.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use super::{Backend, Servers, Stage};
use crate::servers::{
    Clock, ClusterServers, ClusterSetup, Ensemble, Etcd, RedLockServers, RedisServer,
    SentinelServers, SentinelSetup, TcpProxy,
};

/// What a run needs beyond the servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) ttl: Duration,
    /// Whether another server is to take over from one that is silent, soon.
    pub(crate) fail_over: bool,
    /// Servers' wall clocks that can be set.
    pub(crate) server_clocks: bool,
    /// Wall clocks of the processes that can be set.
    pub(crate) client_clocks: bool,
    /// Whether what servers know is to outlive them, where others could know it too.
    pub(crate) durable: bool,
    /// How many processes.
    pub(crate) places: usize,
}

/// A restart keeps what was written, as far as Redis keeps it.
const DURABLE: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    // Its directory is one, which a fault takes away.
    "--enable-protected-configs",
    "yes",
];

impl Stage {
    pub(crate) fn begin(backend: Backend, needs: Needs) -> Self {
        let mut clocks = Vec::new();
        // Where nobody is to take over, a busy machine is no reason to. Sentinels ask once a
        // second.
        let silence = Duration::from_secs(if needs.fail_over { 2 } else { 10 });
        let options = match needs.durable {
            true => DURABLE.map(str::to_owned).to_vec(),
            false => Vec::new(),
        };
        let servers = match backend {
            Backend::Memory => Servers::None,
            Backend::Redis if needs.server_clocks => {
                clocks.push(Clock::new());
                Servers::Redis(RedisServer::start_in(clocks[0].environment()))
            }
            Backend::Redis | Backend::Barging => Servers::Redis(RedisServer::start_with(&DURABLE)),
            Backend::Naive | Backend::NaiveCounter => Servers::Redis(RedisServer::start()),
            Backend::Sentinel | Backend::SentinelAcked | Backend::NaiveSentinel => {
                Servers::Sentinel(SentinelServers::start_with(SentinelSetup {
                    replicas: 1,
                    down_after: silence,
                    fronts: true,
                    options,
                    ..SentinelSetup::default()
                }))
            }
            Backend::Cluster => Servers::Cluster(ClusterServers::start_with(ClusterSetup {
                masters: 3,
                replicas_per_master: 1,
                node_timeout: silence,
                fronts: true,
                options,
                ..ClusterSetup::default()
            })),
            Backend::RedLock if needs.server_clocks => {
                clocks.extend((0..3).map(|_| Clock::new()));
                let start = |clock: &Clock| RedisServer::start_in(clock.environment());
                Servers::Nodes(RedLockServers::of(clocks.iter().map(start).collect()))
            }
            Backend::RedLock => Servers::Nodes(RedLockServers::start_with(3, &DURABLE)),
            Backend::NaiveRedLock => Servers::Nodes(RedLockServers::start(3)),
            Backend::Etcd => Servers::Etcd(Etcd::cluster_with_links(3)),
            Backend::ZooKeeper => {
                // Processes that end leave the nodes of keys to the servers, who look once a
                // minute else.
                let often = "-Dznode.container.checkIntervalMs=1000";
                if needs.server_clocks {
                    clocks.extend((0..3).map(|_| Clock::new()));
                }
                Servers::ZooKeeper(Ensemble::start_with_links_and(&[often], &clocks))
            }
        };
        // Servers that are found by what they announce have one proxy for everybody: their front.
        let addresses = match &servers {
            Servers::Sentinel(servers) => servers.sentinels(),
            Servers::Cluster(_) => Vec::new(),
            servers => servers.addresses(),
        };
        let proxies = (0..needs.places)
            .map(|_| {
                let proxies = addresses.iter().copied().map(TcpProxy::start);
                proxies.map(Arc::new).collect()
            })
            .collect();
        let client_clocks = match needs.client_clocks {
            true => (0..needs.places).map(|_| Clock::new()).collect(),
            false => Vec::new(),
        };
        Self {
            backend,
            ttl: needs.ttl,
            servers,
            clocks,
            client_clocks,
            proxies,
        }
    }
}

impl Servers {
    /// What stands before those that announce themselves.
    pub(crate) fn fronts(&self) -> Vec<&TcpProxy> {
        let nodes = match self {
            Self::Sentinel(servers) => servers.nodes(),
            Self::Cluster(servers) => servers.nodes(),
            _ => &[],
        };
        let fronts = nodes.iter().filter_map(RedisServer::front);
        fronts.map(|front| &front.server).collect()
    }

    /// Where they listen.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let of = |nodes: &[RedisServer]| nodes.iter().map(RedisServer::address).collect();
        match self {
            Self::None => Vec::new(),
            Self::Redis(server) => vec![server.address()],
            Self::Sentinel(servers) => of(servers.nodes()),
            Self::Cluster(servers) => of(servers.nodes()),
            Self::Nodes(nodes) => nodes.iter().map(RedisServer::address).collect(),
            Self::Etcd(servers) => (0..servers.len()).map(|n| servers.address(n)).collect(),
            Self::ZooKeeper(ensemble) => {
                let servers = ensemble.servers.iter();
                servers.map(|server| server.address()).collect()
            }
        }
    }
}
