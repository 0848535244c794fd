//! The servers that all tests of a process share.

use std::{
    path::Path,
    process::Command,
    sync::{Mutex, OnceLock},
    time::Duration,
};

use super::{
    cluster::{ClusterServers, ClusterSetup},
    etcd::Etcd,
    process::Process,
    redis::RedisServer,
    redlock::RedLockServers,
    zookeeper::ZooKeeperServer,
};

/// Ends the server when its standard input does, which is when our process is gone: however that
/// ends, and without a drop, which statics do not have.
const WATCH: &str = r#"read _; kill -9 "$0"; rm -rf "$1""#;

fn watch(process_id: impl ToString, directory: &Path) -> Mutex<Process> {
    let mut watch = Command::new("sh");
    watch
        .args(["-c", WATCH])
        .arg(process_id.to_string())
        .arg(directory);
    Mutex::new(Process::spawn(&mut watch, "it is part of every system"))
}

impl RedisServer {
    /// One for all tests of this process that need a server and do it no harm, each with a prefix
    /// of its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<(RedisServer, Mutex<Process>)> = OnceLock::new();
        let (server, _watch) = SHARED.get_or_init(|| {
            let server = Self::start();
            let watch = watch(server.info("process_id"), server.directory());
            (server, watch)
        });
        server
    }
}

impl ClusterServers {
    /// As [`RedisServer::shared`]: three masters without replicas.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<(ClusterServers, Vec<Mutex<Process>>)> = OnceLock::new();
        let (servers, _watches) = SHARED.get_or_init(|| {
            // Nobody takes its nodes away, so none is to be given up while the machine is busy.
            let servers = Self::start_with(ClusterSetup {
                node_timeout: Duration::from_secs(15),
                ..ClusterSetup::default()
            });
            let nodes = servers.nodes().iter();
            let watches = nodes.map(|node| watch(node.info("process_id"), node.directory()));
            let watches = watches.collect();
            (servers, watches)
        });
        servers
    }
}

impl RedLockServers {
    /// As [`RedisServer::shared`]: three nodes.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<(RedLockServers, Vec<Mutex<Process>>)> = OnceLock::new();
        let (servers, _watches) = SHARED.get_or_init(|| {
            let servers = Self::start(3);
            let nodes = servers.iter();
            let watches = nodes.map(|node| watch(node.info("process_id"), node.directory()));
            let watches = watches.collect();
            (servers, watches)
        });
        servers
    }
}

impl Etcd {
    /// As [`RedisServer::shared`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<(Etcd, Mutex<Process>)> = OnceLock::new();
        let (server, _watch) = SHARED.get_or_init(|| {
            let server = Self::start();
            let watch = watch(server.process_id(), server.directory());
            (server, watch)
        });
        server
    }
}

impl ZooKeeperServer {
    /// One for all tests of this process that need a server and do it no harm, each with a base of
    /// its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<(ZooKeeperServer, Mutex<Process>)> = OnceLock::new();
        let (server, _watch) = SHARED.get_or_init(|| {
            let server = Self::start();
            let watch = watch(server.id(), server.directory());
            (server, watch)
        });
        server
    }
}
