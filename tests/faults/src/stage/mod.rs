//! The servers of a run, and what stands between them and the processes.

mod begin;

mod rigs;

use std::{sync::Arc, time::Duration};

pub(crate) use self::{begin::Needs, rigs::Rigs};
use crate::{
    rig::{Locks, Naive},
    servers::{
        Clock, ClusterServers, Ensemble, Etcd, RedLockServers, RedisServer, SentinelServers,
        TcpProxy, sentinel::SERVICE,
    },
};

/// The prefix that all processes use.
pub(crate) const PREFIX: &str = "tower-lock:";

/// What is put to the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backend {
    Memory,
    Redis,
    Sentinel,
    /// With grants that a replica has acknowledged.
    SentinelAcked,
    Cluster,
    RedLock,
    Etcd,
    ZooKeeper,
    /// `SET NX PX` by hand, on one server.
    Naive,
    /// The same with a counter for tokens.
    NaiveCounter,
    /// On the master behind Sentinels.
    NaiveSentinel,
    /// On three servers.
    NaiveRedLock,
    /// Ours on one server of Redis, asked to keep no order while the history says that it does.
    Barging,
}

impl Backend {
    /// Those of the crate.
    pub(crate) const OURS: [Self; 8] = [
        Self::Memory,
        Self::Redis,
        Self::Sentinel,
        Self::SentinelAcked,
        Self::Cluster,
        Self::RedLock,
        Self::Etcd,
        Self::ZooKeeper,
    ];

    /// Those that are known to be broken.
    pub(crate) const CONTROLS: [Self; 5] = [
        Self::Naive,
        Self::NaiveCounter,
        Self::NaiveSentinel,
        Self::NaiveRedLock,
        Self::Barging,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Sentinel => "sentinel",
            Self::SentinelAcked => "sentinel-acked",
            Self::Cluster => "cluster",
            Self::RedLock => "redlock",
            Self::Etcd => "etcd",
            Self::ZooKeeper => "zookeeper",
            Self::Naive => "naive",
            Self::NaiveCounter => "naive-counter",
            Self::NaiveSentinel => "naive-sentinel",
            Self::NaiveRedLock => "naive-redlock",
            Self::Barging => "barging",
        }
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::OURS.into_iter().chain(Self::CONTROLS)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::all().find(|backend| backend.name() == name)
    }

    /// Whether arrival order is promised, or said to be.
    pub(crate) fn is_fifo(self) -> bool {
        self != Self::RedLock && !self.is_naive()
    }

    /// Whether it is there to be found broken.
    pub(crate) fn is_control(self) -> bool {
        Self::CONTROLS.contains(&self)
    }

    /// Whether it is made by hand.
    pub(crate) fn is_naive(self) -> bool {
        self.is_control() && self != Self::Barging
    }

    /// Whether more than one process can use it.
    pub(crate) fn is_shared(self) -> bool {
        self != Self::Memory
    }
}

/// What decides who holds a key.
#[derive(Debug)]
pub(crate) enum Servers {
    None,
    Redis(RedisServer),
    Sentinel(SentinelServers),
    Cluster(ClusterServers),
    /// RedLock's nodes, too.
    Nodes(RedLockServers),
    Etcd(Etcd),
    ZooKeeper(Ensemble),
}

/// Everything of one run but the processes.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) backend: Backend,
    /// The lease of all locks.
    pub(crate) ttl: Duration,
    pub(crate) servers: Servers,
    /// The servers' wall clocks, where they can be set.
    pub(crate) clocks: Vec<Clock>,
    /// The processes' wall clocks by their places, where they can be set.
    pub(crate) client_clocks: Vec<Clock>,
    /// For each process, one in front of each server or Sentinel: so that it alone can be cut off.
    /// Servers that announce themselves have [fronts](Servers::fronts) beside these.
    pub(crate) proxies: Vec<Vec<Arc<TcpProxy>>>,
}

impl Stage {
    /// How the process in this place locks.
    pub(crate) fn locks(&self, place: usize) -> Locks {
        let hosts = || {
            let hosts = self.proxies[place].iter();
            let hosts = hosts.map(|proxy| proxy.address().to_string());
            hosts.collect::<Vec<_>>()
        };
        let acks = u32::from(self.backend == Backend::SentinelAcked);
        match (self.backend, &self.servers) {
            (_, Servers::None) => Locks::Memory,
            (backend, servers) if backend.is_naive() => Locks::Naive(Naive {
                nodes: servers.addresses(),
                majority: backend == Backend::NaiveRedLock,
                counts: backend == Backend::NaiveCounter,
            }),
            (_, Servers::Redis(_)) => Locks::Redis {
                url: format!("redis://{}", hosts()[0]),
                acks,
            },
            (_, Servers::Sentinel(_)) => Locks::Redis {
                url: format!("redis+sentinel://{}/{SERVICE}", hosts().join(",")),
                acks,
            },
            (_, Servers::Cluster(servers)) => Locks::Redis {
                url: servers.url(),
                acks,
            },
            (_, Servers::Nodes(_)) => Locks::RedLock {
                url: format!("redlock://{}", hosts().join(",")),
            },
            (_, Servers::Etcd(_)) => Locks::Etcd {
                url: format!("etcd://{}", hosts().join(",")),
            },
            (_, Servers::ZooKeeper(_)) => Locks::ZooKeeper {
                url: format!("zookeeper://{}", hosts().join(",")),
            },
        }
    }

    /// What the servers said last.
    pub(crate) fn logs(&self) -> String {
        let of = |nodes: &[RedisServer]| {
            let log = |node: &RedisServer| (node.port(), node.log());
            nodes.iter().map(log).collect::<Vec<_>>()
        };
        let logs = match &self.servers {
            Servers::None => Vec::new(),
            Servers::Redis(server) => vec![(server.port(), server.log())],
            Servers::Sentinel(servers) => [of(servers.nodes()), servers.sentinel_logs()].concat(),
            Servers::Cluster(servers) => of(servers.nodes()),
            Servers::Nodes(nodes) => nodes.iter().map(|node| (node.port(), node.log())).collect(),
            Servers::Etcd(servers) => (0..servers.len())
                .map(|n| (servers.address(n).port(), servers.log(n)))
                .collect(),
            Servers::ZooKeeper(ensemble) => (ensemble.servers.iter())
                .map(|server| (server.address().port(), server.log()))
                .collect(),
        };
        let logs = logs.iter().map(|(port, log)| format!("{port}:\n{log}\n"));
        logs.collect()
    }

    /// What is left on the servers that should not be, once nobody holds or waits.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        match &self.servers {
            Servers::None => Vec::new(),
            // What is made by hand leaves its counter, and may leave what it likes.
            _ if self.backend.is_naive() => Vec::new(),
            Servers::Redis(server) => server.keys_left(PREFIX),
            Servers::Sentinel(servers) => servers.keys_left(PREFIX),
            Servers::Cluster(servers) => servers.keys_left(PREFIX),
            Servers::Nodes(nodes) => nodes.keys_left(PREFIX).into_iter().collect(),
            Servers::Etcd(servers) => servers.keys_left("tower-lock/"),
            Servers::ZooKeeper(ensemble) => ensemble.servers[0].nodes_left("/tower-lock"),
        }
    }
}
