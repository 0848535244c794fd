//! What stands before a Redis server that is found by what it announces.

use std::net::Ipv4Addr;

use super::{ports::free_port, proxy::TcpProxy, redis::RedisServer};

/// Proxies whose addresses the server announces as its own: whoever hears of it, from whomever,
/// comes by them.
#[derive(Debug)]
pub struct Front {
    /// Before its port: clients, replicas and Sentinels.
    pub server: TcpProxy,
    /// Before the port that nodes of a Cluster use among each other.
    pub bus: Option<TcpProxy>,
}

impl Front {
    /// Before a server that will have this port, and this one for its Cluster.
    pub(super) fn before(port: u16, bus: Option<u16>) -> Self {
        let proxy = |port| TcpProxy::start((Ipv4Addr::LOCALHOST, port).into());
        Self {
            server: proxy(port),
            bus: bus.map(proxy),
        }
    }

    /// By which the server announces it.
    pub(super) fn options(&self) -> Vec<String> {
        let port = self.server.address().port().to_string();
        let options = match &self.bus {
            None => vec![("replica-announce-port", port)],
            Some(bus) => vec![
                ("cluster-announce-port", port),
                (
                    "cluster-announce-bus-port",
                    bus.address().port().to_string(),
                ),
            ],
        };
        let options = options.into_iter();
        let options = options.flat_map(|(name, value)| [format!("--{name}"), value]);
        options.collect()
    }

    /// Lets nothing pass between these processes and the server, in silence, if they began it.
    pub(super) fn cut(&self, processes: &[u32]) {
        self.proxies().for_each(|proxy| proxy.cut(processes));
    }

    /// Lets nothing pass to the server from these processes, on what they began.
    pub(super) fn cut_up(&self, processes: &[u32]) {
        self.proxies().for_each(|proxy| proxy.cut_up(processes));
    }

    /// Lets nothing pass from the server to these processes, on what they began.
    pub(super) fn cut_down(&self, processes: &[u32]) {
        self.proxies().for_each(|proxy| proxy.cut_down(processes));
    }

    /// Ends every fault, for everybody.
    pub(super) fn mend(&self) {
        self.proxies().for_each(TcpProxy::mend);
    }

    fn proxies(&self) -> impl Iterator<Item = &TcpProxy> {
        [&self.server].into_iter().chain(&self.bus)
    }
}

/// A server with a proxy before it.
pub(super) fn start(options: &[&str]) -> RedisServer {
    for _ in 0..20 {
        let port = free_port();
        match RedisServer::try_start_behind(Front::before(port, None), port, options) {
            Ok(server) => return server,
            Err(log) if log.contains("Address already in use") => {}
            Err(log) => panic!("redis-server did not start:\n{log}"),
        }
    }
    panic!("redis-server found no free port");
}
