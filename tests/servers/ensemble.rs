//! Three ZooKeeper servers that agree, and what stands between them.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use super::{
    clock::Clock,
    ports::free_port,
    proxy::TcpProxy,
    zookeeper::{PATIENCE, ZooKeeperServer},
};

/// Three servers that agree. Killed on drop.
#[derive(Debug)]
pub struct Ensemble {
    pub servers: Vec<ZooKeeperServer>,
    /// What stands between them: from the server of the first number to that of the second.
    links: BTreeMap<(usize, usize), [TcpProxy; 2]>,
}

impl Ensemble {
    pub fn start() -> Self {
        Self::launch(false, &[], &[])
    }

    /// With a proxy on every way between two of them, so that it can be cut.
    pub fn start_with_links() -> Self {
        Self::launch(true, &[], &[])
    }

    /// The same with these system properties, and each server with the clock in its place, if
    /// there is one.
    pub fn start_with_links_and(properties: &[&str], clocks: &[Clock]) -> Self {
        Self::launch(true, properties, clocks)
    }

    fn launch(has_links: bool, properties: &[&str], clocks: &[Clock]) -> Self {
        for _ in 0..20 {
            let mut this = Self::plan(has_links);
            for (n, server) in this.servers.iter_mut().enumerate() {
                server.run_with(properties, clocks.get(n));
            }
            let spawned: Result<(), String> = thread::scope(|scope| {
                let spawning: Vec<_> = this
                    .servers
                    .iter()
                    .map(|s| scope.spawn(|| s.spawn()))
                    .collect();
                spawning.into_iter().try_for_each(|one| one.join().unwrap())
            });
            let mut servers = this.servers.iter();
            match spawned.and_then(|()| servers.try_for_each(ZooKeeperServer::serves)) {
                Ok(()) => return this,
                Err(log) if log.contains("in use") => this.servers.clear(),
                Err(log) => panic!("the ensemble did not start:\n{log}"),
            }
        }
        panic!("the ensemble found no free ports");
    }

    fn plan(has_links: bool) -> Self {
        let ports: Vec<[u16; 2]> = (0..3).map(|_| [free_port(), free_port()]).collect();
        let mut links = BTreeMap::new();
        for from in 0..3 {
            for to in (0..3).filter(|&to| has_links && to != from) {
                let proxy = |port| TcpProxy::start((Ipv4Addr::LOCALHOST, port).into());
                links.insert((from, to), ports[to].map(proxy));
            }
        }
        let server = |this: usize| {
            let mut config = "standaloneEnabled=false\n".to_owned();
            if has_links {
                // A follower that is cut off serves reads for so long: 10 s.
                config += "syncLimit=50\n";
            }
            for (other, &own) in ports.iter().enumerate() {
                let [quorum, election] = match links.get(&(this, other)) {
                    Some(proxies) => [0, 1].map(|n| proxies[n].address().port()),
                    None => own,
                };
                let id = other + 1;
                // It tells others its own address, by which they would pass the proxies: but not
                // if that is any. So its ports are open on all interfaces while it runs.
                let ip = if has_links && other == this {
                    Ipv4Addr::UNSPECIFIED
                } else {
                    Ipv4Addr::LOCALHOST
                };
                config += &format!("server.{id}={ip}:{quorum}:{election}\n");
            }
            ZooKeeperServer::new(this + 1, config)
        };
        let servers = (0..3).map(server).collect();
        Self { servers, links }
    }

    pub fn wait_until_it_serves(&self) {
        for server in &self.servers {
            server.wait_until_it_serves();
        }
    }

    /// A connect string of all of them.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self
            .servers
            .iter()
            .map(|s| s.address().to_string())
            .collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// The number of the leader, waited for.
    pub fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            let mut modes = self.servers.iter().map(ZooKeeperServer::mode);
            if let Some(at) = modes.position(|mode| mode.as_deref() == Some("leader")) {
                return at;
            }
            assert!(begun.elapsed() < PATIENCE, "there is no leader");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The last lines of each one's log.
    fn logs(&self) -> String {
        let numbered = self.servers.iter().enumerate();
        numbered
            .map(|(n, server)| format!("server {n}:\n{}\n", server.log()))
            .collect()
    }

    /// Waits until another one than this leads, too.
    pub fn wait_for_a_leader_beside(&self, old: usize) {
        let begun = Instant::now();
        let leads = |n: usize| self.servers[n].mode().as_deref() == Some("leader");
        while !(0..self.servers.len()).any(|n| n != old && leads(n)) {
            assert!(
                begun.elapsed() < PATIENCE,
                "no other one leads:\n{}",
                self.logs()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// How often the first one opened a way to elections of the second.
    pub fn calls(&self, from: usize, to: usize) -> usize {
        self.links[&(from, to)][1].accepted()
    }

    /// Cuts every way between these two, in silence.
    pub fn cut(&self, one: usize, other: usize) {
        for way in [(one, other), (other, one)] {
            for proxy in &self.links[&way] {
                proxy.black_hole();
            }
        }
    }

    /// Lets nothing of what the first one sends reach the second, in silence; the other way is open.
    pub fn mute(&self, one: usize, other: usize) {
        self.links[&(one, other)].iter().for_each(TcpProxy::drop_up);
        self.links[&(other, one)]
            .iter()
            .for_each(TcpProxy::drop_down);
    }

    /// Mends what was cut: it is opened anew.
    pub fn mend(&self, one: usize, other: usize) {
        for way in [(one, other), (other, one)] {
            for proxy in &self.links[&way] {
                proxy.mend();
            }
        }
    }
}
