//! Does what goes wrong, and heals it.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    faults::Fault,
    history::What,
    servers::TcpProxy,
    stage::{Rigs, Servers, Stage, TTL},
};

const HOUR: Duration = Duration::from_secs(3600);

/// How many requests a storm has.
const STORM: usize = 10_000;

/// How long those of a storm wait.
const STORM_WAIT: Duration = Duration::from_secs(8);

/// Who brings the faults of a run, in an order that its seed decides.
pub(crate) struct Nemesis<'a> {
    pub(crate) stage: &'a Stage,
    pub(crate) rigs: &'a mut Rigs,
    pub(crate) rng: fastrand::Rng,
    pub(crate) runtime: &'a tokio::runtime::Runtime,
    /// How often it did so.
    pub(crate) round: u32,
}

impl Nemesis<'_> {
    /// One fault from its beginning to its end.
    pub(crate) fn strike(&mut self, fault: Fault) -> Result<(), String> {
        self.round += 1;
        let place = self.rng.usize(0..self.rigs.len());
        let process = self.rigs.number_at(place);
        match fault {
            Fault::Calm | Fault::Cancel => {
                self.lasts(fault, None, |_| {});
            }
            Fault::KillClient => {
                self.rigs.kill(place);
                self.pause_between(0.0, 1.0);
                self.rigs.fill(self.stage)?;
            }
            Fault::StopClient => {
                self.rigs.stop(place);
                self.pause_between(1.25, 2.0);
                self.rigs.resume(place);
            }
            Fault::BlockThreads => {
                self.begins(fault, process);
                let time = TTL * 2;
                self.rigs.tell(place, &format!("block {}", time.as_millis()));
                thread::sleep(time);
                self.heals(fault, process);
            }
            Fault::Drain => {
                self.rigs.drain(place)?;
                self.rigs.fill(self.stage)?;
            }
            Fault::Storm => {
                self.begins(fault, None);
                let each = STORM / self.rigs.len();
                let wait = STORM_WAIT.as_millis();
                for place in 0..self.rigs.len() {
                    self.rigs.tell(place, &format!("storm 0 {each} {wait}"));
                }
                thread::sleep(STORM_WAIT);
                self.heals(fault, None);
            }
            Fault::ClientClock => {
                let clock = self.stage.client_clock.as_ref().expect("it was asked for");
                self.begins(fault, None);
                clock.set_ahead(HOUR);
                self.pause_between(0.3, 0.7);
                clock.set_behind(HOUR);
                self.pause_between(0.3, 0.7);
                clock.set_ahead(Duration::ZERO);
                self.heals(fault, None);
            }
            Fault::Reset
            | Fault::BlackHole
            | Fault::LoseRequests
            | Fault::LoseReplies
            | Fault::Late
            | Fault::Slow
            | Fault::Lossy => self.network(fault, place),
            _ => self.servers(fault)?,
        }
        Ok(())
    }

    fn network(&mut self, fault: Fault, place: usize) {
        let process = self.rigs.number_at(place);
        let proxies = self.stage.proxies[place].clone();
        let all = |what: fn(&TcpProxy)| proxies.iter().for_each(|proxy| what(proxy));
        self.begins(fault, process);
        match fault {
            Fault::Reset => {
                for _ in 0..self.rng.u32(5..15) {
                    if self.rng.bool() {
                        all(TcpProxy::reset);
                    } else {
                        all(TcpProxy::close);
                    }
                    self.rest(20..250);
                }
            }
            Fault::BlackHole => {
                all(TcpProxy::black_hole);
                self.pause_between(0.3, 1.6);
            }
            Fault::LoseRequests => {
                all(TcpProxy::drop_up);
                self.pause_between(0.3, 1.6);
            }
            Fault::LoseReplies => {
                all(TcpProxy::drop_down);
                self.pause_between(0.3, 1.6);
            }
            Fault::Late => {
                for _ in 0..3 {
                    all(TcpProxy::strand);
                    self.pause_between(0.1, 0.8);
                    all(TcpProxy::heal);
                    self.rest(50..300);
                }
            }
            Fault::Slow => {
                for _ in 0..15 {
                    for proxy in &proxies {
                        let mut draw = || Duration::from_millis(self.rng.u64(5..60));
                        proxy.set_latency(draw(), draw());
                    }
                    self.rest(50..250);
                }
            }
            Fault::Lossy => {
                for _ in 0..8 {
                    if self.rng.bool() {
                        all(TcpProxy::hold_up);
                    } else {
                        all(TcpProxy::hold_down);
                    }
                    self.rest(50..400);
                    all(TcpProxy::heal);
                    self.rest(10..150);
                }
            }
            _ => unreachable!("it is none of the network"),
        }
        all(TcpProxy::heal);
        self.heals(fault, process);
    }

    fn servers(&mut self, fault: Fault) -> Result<(), String> {
        self.begins(fault, None);
        match &self.stage.servers {
            Servers::None => unreachable!("it has none"),
            Servers::Redis(server) => match fault {
                Fault::KillConnections => {
                    for _ in 0..self.rng.u32(4..10) {
                        let kind = if self.rng.bool() { "normal" } else { "pubsub" };
                        server.command(&["CLIENT", "KILL", "TYPE", kind]);
                        self.rest(20..250);
                    }
                }
                Fault::KillServer => {
                    server.kill();
                    self.rest(0..800);
                    server.restart();
                }
                Fault::Empty => {
                    server.kill();
                    self.rest(0..300);
                    server.restart_empty();
                }
                Fault::StopServer => {
                    server.pause();
                    self.pause_between(1.1, 2.0);
                    server.resume();
                }
                Fault::ServerClock | Fault::MajorityClock => self.clocks(1),
                Fault::DiskFull => {
                    // A snapshot that fails stops all writes, as Redis does by default.
                    server.command(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
                    let dir = server.directory().join("gone");
                    std::fs::create_dir(&dir).map_err(|error| error.to_string())?;
                    server.command(&["CONFIG", "SET", "dir", &dir.to_string_lossy()]);
                    std::fs::remove_dir(&dir).map_err(|error| error.to_string())?;
                    server.command(&["CONFIG", "SET", "save", "3600 1"]);
                    server.command(&["BGSAVE"]);
                    until("the snapshot fails", || {
                        server.info("rdb_last_bgsave_status") == "err"
                    })?;
                    self.pause_between(0.3, 1.2);
                    server.command(&["CONFIG", "SET", "save", ""]);
                    let home = server.directory().to_string_lossy();
                    server.command(&["CONFIG", "SET", "dir", &home]);
                    server.command(&["BGSAVE"]);
                    until("a snapshot succeeds", || {
                        server.info("rdb_last_bgsave_status") == "ok"
                    })?;
                }
                Fault::MemoryFull => {
                    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
                    self.pause_between(0.3, 1.2);
                    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
                }
                _ => unreachable!("not on one server: {fault:?}"),
            },
            Servers::Sentinel(servers) => {
                let old = servers.master();
                match fault {
                    Fault::KillConnections => {
                        for _ in 0..self.rng.u32(4..10) {
                            let kind = if self.rng.bool() { "normal" } else { "pubsub" };
                            old.command(&["CLIENT", "KILL", "TYPE", kind]);
                            self.rest(20..250);
                        }
                    }
                    Fault::KillServer | Fault::UnreplicatedFailOver => {
                        if fault == Fault::UnreplicatedFailOver {
                            servers.cut_off_replicas();
                            self.rest(300..600);
                        }
                        servers.kill_master();
                        self.runtime.block_on(servers.switched_from(old));
                        old.restart();
                    }
                    Fault::StopServer => {
                        servers.pause_master();
                        self.runtime.block_on(servers.switched_from(old));
                        old.resume();
                    }
                    Fault::FailOver => {
                        self.runtime.block_on(servers.failover());
                    }
                    _ => unreachable!("not behind Sentinels: {fault:?}"),
                }
                self.heals(fault, None);
                self.runtime.block_on(servers.reconnect_replicas());
                return Ok(());
            }
            Servers::Cluster(servers) => {
                let masters = servers.masters();
                let master = masters[self.rng.usize(0..masters.len())];
                match fault {
                    Fault::KillConnections => {
                        for _ in 0..self.rng.u32(4..10) {
                            for &master in &masters {
                                let kind = if self.rng.bool() { "normal" } else { "pubsub" };
                                let node = servers.node(master);
                                node.command(&["CLIENT", "KILL", "TYPE", kind]);
                            }
                            self.rest(20..250);
                        }
                    }
                    Fault::KillServer | Fault::UnreplicatedFailOver => {
                        if fault == Fault::UnreplicatedFailOver {
                            servers.cut_off_replicas(master);
                            self.rest(300..600);
                        }
                        servers.kill(master);
                        self.runtime.block_on(servers.taken_over(master));
                        servers.node(master).restart();
                    }
                    Fault::StopServer => {
                        servers.node(master).pause();
                        self.runtime.block_on(servers.taken_over(master));
                        servers.node(master).resume();
                    }
                    Fault::FailOver => {
                        self.runtime.block_on(servers.failover(master));
                    }
                    _ => unreachable!("not in a Cluster: {fault:?}"),
                }
                self.heals(fault, None);
                for node in servers.nodes().iter().filter(|node| node.runs()) {
                    node.command(&["CONFIG", "SET", "masterauth", ""]);
                }
                self.runtime.block_on(servers.ok());
                return Ok(());
            }
            Servers::Nodes(nodes) => {
                let node = nodes.node(self.rng.usize(0..nodes.len()));
                match fault {
                    Fault::KillConnections => {
                        for _ in 0..self.rng.u32(4..10) {
                            for node in nodes.iter() {
                                let kind = if self.rng.bool() { "normal" } else { "pubsub" };
                                node.command(&["CLIENT", "KILL", "TYPE", kind]);
                            }
                            self.rest(20..250);
                        }
                    }
                    Fault::KillServer => {
                        node.kill();
                        self.rest(0..800);
                        node.restart();
                    }
                    Fault::KillAll => {
                        nodes.iter().for_each(|node| node.kill());
                        self.rest(0..800);
                        nodes.iter().for_each(|node| node.restart());
                    }
                    Fault::Empty => node.restart_empty(),
                    Fault::EmptyMajority => {
                        nodes.iter().take(2).for_each(|node| node.restart_empty());
                    }
                    Fault::StopServer => {
                        node.pause();
                        self.pause_between(1.1, 2.0);
                        node.resume();
                    }
                    Fault::ServerClock => self.clocks(1),
                    Fault::MajorityClock => self.clocks(2),
                    Fault::MemoryFull => {
                        for node in nodes.iter() {
                            node.command(&["CONFIG", "SET", "maxmemory", "1"]);
                        }
                        self.pause_between(0.3, 1.2);
                        for node in nodes.iter() {
                            node.command(&["CONFIG", "SET", "maxmemory", "0"]);
                        }
                    }
                    _ => unreachable!("not on independent nodes: {fault:?}"),
                }
            }
            Servers::Etcd(servers) => {
                let one = self.rng.usize(0..servers.len());
                match fault {
                    Fault::KillServer => {
                        servers.kill(one);
                        self.rest(300..1500);
                        servers.restart();
                    }
                    Fault::KillLeader => {
                        servers.kill(servers.leader());
                        self.rest(1000..2000);
                        servers.restart();
                    }
                    Fault::KillAll => {
                        servers.kill_all();
                        self.rest(0..500);
                        servers.restart();
                    }
                    Fault::StopServer | Fault::StopLeader => {
                        let one = match fault {
                            Fault::StopLeader => servers.leader(),
                            _ => one,
                        };
                        servers.pause(one);
                        self.pause_between(1.1, 2.0);
                        servers.resume(one);
                    }
                    Fault::FailOver => {
                        let leader = servers.leader();
                        servers.move_leader(leader, (leader + 1) % servers.len());
                    }
                    Fault::DiskFull => {
                        servers.raise_alarm();
                        self.pause_between(0.3, 1.2);
                        servers.disarm_alarm();
                    }
                    _ => unreachable!("not on etcd: {fault:?}"),
                }
            }
            Servers::ZooKeeper(ensemble) => {
                let servers = &ensemble.servers;
                let one = self.rng.usize(0..servers.len());
                match fault {
                    Fault::KillServer => {
                        servers[one].kill();
                        self.rest(300..1500);
                        servers[one].restart();
                    }
                    Fault::KillLeader => {
                        let leader = ensemble.leader();
                        servers[leader].kill();
                        self.rest(1000..2000);
                        servers[leader].restart();
                    }
                    Fault::KillAll => {
                        servers.iter().for_each(|server| server.kill());
                        servers.iter().for_each(|server| server.start_again());
                        ensemble.wait_until_it_serves();
                    }
                    Fault::Empty => {
                        let leader = ensemble.leader();
                        let follower = (leader + 1) % servers.len();
                        servers[follower].restart_empty();
                    }
                    Fault::StopServer | Fault::StopLeader => {
                        let one = match fault {
                            Fault::StopLeader => ensemble.leader(),
                            _ => one,
                        };
                        servers[one].pause();
                        self.pause_between(1.1, 2.0);
                        servers[one].resume();
                    }
                    Fault::CutServers => {
                        let leader = ensemble.leader();
                        let others = (0..servers.len()).filter(|&other| other != leader);
                        others.clone().for_each(|other| ensemble.cut(leader, other));
                        self.pause_between(1.0, 2.0);
                        others.for_each(|other| ensemble.mend(leader, other));
                    }
                    _ => unreachable!("not on ZooKeeper: {fault:?}"),
                }
                ensemble.wait_until_it_serves();
            }
        }
        self.heals(fault, None);
        Ok(())
    }

    /// So many servers' clocks jump.
    fn clocks(&mut self, count: usize) {
        let clocks = &self.stage.clocks;
        clocks.iter().take(count).for_each(|clock| clock.set_ahead(HOUR));
        self.pause_between(0.3, 0.7);
        let clocks = &self.stage.clocks;
        clocks.iter().take(count).for_each(|clock| clock.set_behind(HOUR));
        self.pause_between(0.3, 0.7);
        let clocks = &self.stage.clocks;
        clocks.iter().for_each(|clock| clock.set_ahead(Duration::ZERO));
    }

    fn lasts(&mut self, fault: Fault, process: Option<u32>, what: impl FnOnce(&mut Self)) {
        self.begins(fault, process);
        what(self);
        self.pause_between(0.7, 1.0);
        self.heals(fault, process);
    }

    fn begins(&mut self, fault: Fault, process: Option<u32>) {
        let name = fault.name().to_owned();
        self.rigs.note(What::Fault { name, process });
    }

    fn heals(&mut self, fault: Fault, process: Option<u32>) {
        let name = fault.name().to_owned();
        self.rigs.note(What::Healed { name, process });
    }

    /// Lets a time pass between so many and so many ttls.
    fn pause_between(&mut self, from: f32, to: f32) {
        let ttls = from + (to - from) * self.rng.f32();
        thread::sleep(TTL.mul_f32(ttls));
    }

    /// Lets so many milliseconds pass.
    fn rest(&mut self, millis: std::ops::Range<u64>) {
        thread::sleep(Duration::from_millis(self.rng.u64(millis)));
    }
}

/// Waits for what a server does in its own time.
fn until(what: &str, mut so: impl FnMut() -> bool) -> Result<(), String> {
    let begun = Instant::now();
    while !so() {
        if begun.elapsed() > Duration::from_secs(30) {
            return Err(format!("{what}: not so"));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
