//! Does what goes wrong, and heals it.

mod consensus;
mod network;
mod redis;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    expect,
    faults::Fault,
    history::{Nanos, What, now},
    rig::{self, HELD_LONG},
    servers::{Clock, TcpProxy},
    stage::{Backend, Rigs, Servers, Stage},
};

/// How far a clock jumps.
const HOUR: Duration = Duration::from_secs(3600);

/// How many requests a storm has.
const STORM: usize = 10_000;

/// How often somebody who holds is waited for. More than once on a busy machine alone.
const PATIENCE: usize = 4;

/// How long a process may take to ask for the time. Only reached by failures.
const PATIENCE_FOR_CLOCKS: Duration = Duration::from_secs(10);

/// How long those of a storm wait.
const STORM_WAIT: Duration = Duration::from_secs(8);

/// A process that is on a leader's side of a partition.
#[derive(Default)]
struct Beside {
    /// What stands between it and the other side.
    proxies: Vec<Arc<TcpProxy>>,
    /// Its number in the system.
    id: Option<u32>,
}

impl Beside {
    fn heal(&self) {
        self.proxies.iter().for_each(|proxy| proxy.heal());
    }
}

/// How often anything was.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Brought {
    /// Faults.
    pub(crate) rounds: u32,
    /// Times that another server took over by itself.
    pub(crate) unasked: u32,
}

/// Who brings the faults of a run, in an order that its seed decides.
pub(crate) struct Nemesis<'a> {
    stage: &'a Stage,
    rigs: &'a mut Rigs,
    rng: fastrand::Rng,
    runtime: &'a tokio::runtime::Runtime,
    pub(crate) brought: Brought,
    /// Who led the servers when the last fault was over, and when that was.
    led: (Vec<u16>, Nanos),
}

impl<'a> Nemesis<'a> {
    pub(crate) fn new(
        stage: &'a Stage,
        rigs: &'a mut Rigs,
        seed: u64,
        runtime: &'a tokio::runtime::Runtime,
    ) -> Self {
        let mut this = Self {
            stage,
            rigs,
            rng: fastrand::Rng::with_seed(seed),
            runtime,
            brought: Brought::default(),
            led: (Vec::new(), 0),
        };
        this.led = (this.leaders(), now());
        this
    }

    /// One fault from its beginning to its end.
    pub(crate) fn strike(&mut self, fault: Fault) -> Result<(), String> {
        let fault = match fault {
            Fault::Any => {
                let some = Fault::any_of(self.stage.backend);
                some[self.rng.usize(0..some.len())]
            }
            fault => fault,
        };
        self.brought.rounds += 1;
        // Who holds is met, if that is what it is about.
        let place = if fault.is_of_one_process() || expect::meets_holders(self.stage.backend, fault)
        {
            self.holder()
        } else {
            self.rng.usize(0..self.rigs.len())
        };
        let process = self.rigs.number_at(place);
        match fault {
            Fault::Calm | Fault::Cancel => {
                self.begins(fault, None);
                self.pause_between(0.7, 1.0);
                self.heals(fault, None);
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
                let time = self.stage.ttl * 2;
                self.rigs
                    .tell(place, &format!("block {}", time.as_millis()));
                self.rigs.hear(place, rig::AWAKE)?;
                self.heals(fault, process);
            }
            Fault::Drain => {
                let said = self.rigs.drain(place)?;
                if !said.contains("confirmed: true") {
                    return Err(format!("a process has not released everything: {said}"));
                }
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
                self.begins(fault, None);
                // Apart from each other, by two hours.
                let clocks: Vec<_> = self.stage.client_clocks.iter().collect();
                self.jump(&clocks, |place| place % 2 == 0)?;
                self.heals(fault, None);
            }
            Fault::BlackHole | Fault::LoseRequests | Fault::LoseReplies => {
                self.silence(fault, place);
            }
            Fault::Reset | Fault::Late | Fault::Slow | Fault::Lossy => self.network(fault, place),
            _ => self.servers(fault)?,
        }
        Ok(())
    }

    fn servers(&mut self, fault: Fault) -> Result<(), String> {
        let stage = self.stage;
        // What the one before brought is over for locks, and may not be for servers yet.
        match &stage.servers {
            Servers::Sentinel(servers) => self.runtime.block_on(servers.ready()),
            Servers::Cluster(servers) => self.runtime.block_on(servers.ready()),
            _ => {}
        }
        self.failed_over();
        self.begins(fault, None);
        match &stage.servers {
            Servers::None => unreachable!("it has none"),
            Servers::Redis(server) => self.redis(server, fault)?,
            Servers::Sentinel(servers) => self.sentinel(servers, fault)?,
            Servers::Cluster(servers) => self.cluster(servers, fault),
            Servers::Nodes(nodes) => self.nodes(nodes, fault)?,
            Servers::Etcd(servers) => self.etcd(servers, fault),
            Servers::ZooKeeper(ensemble) => self.zookeeper(ensemble, fault)?,
        }
        if !expect::is_fail_over(stage.backend, fault) {
            // Another one took over although this fault makes nobody do so.
            self.failed_over();
        }
        self.led = (self.leaders(), now());
        self.heals(fault, None);
        Ok(())
    }

    /// Whether another server leads than after the last fault, as where a machine stands still for
    /// seconds. That is written down as the fail-over that it is, and is over now.
    pub(crate) fn failed_over(&mut self) -> bool {
        let leaders = self.leaders();
        if leaders == self.led.0 {
            return false;
        }
        if let Servers::Sentinel(servers) = &self.stage.servers
            && self.stage.backend == Backend::SentinelAcked
        {
            // Without a replica nothing is granted.
            self.runtime.block_on(servers.reconnect_replicas());
        }
        self.brought.unasked += 1;
        let name = Fault::FailOver.name().to_owned();
        let process = None;
        let since = self.led.1;
        self.rigs.note_at(since, What::Fault { name, process });
        self.heals(Fault::FailOver, None);
        self.led = (leaders, now());
        true
    }

    /// By the ports that they announce, where others may take over.
    fn leaders(&self) -> Vec<u16> {
        match &self.stage.servers {
            Servers::Sentinel(servers) => vec![self.runtime.block_on(servers.leader())],
            Servers::Cluster(servers) => self.runtime.block_on(servers.leaders()),
            _ => Vec::new(),
        }
    }

    /// The place of a process that holds, or of any. It has just begun, so that what lasts for a
    /// lease takes its lock.
    fn holder(&mut self) -> usize {
        let somebody = self.rng.usize(0..self.rigs.len());
        let mut tries = (0..PATIENCE).map(|_| self.rigs.at_work(HELD_LONG, now()));
        tries.find_map(|place| place).unwrap_or(somebody)
    }

    /// Waits until somebody holds of whom no replica knows, and so until whoever holds now has ended. For no
    /// longer than replicas that are cut off may become master for; and not for long where a replica has
    /// to know before anybody holds.
    fn unreplicated_holder(&mut self) {
        let since = now();
        let tries = match self.stage.backend {
            Backend::SentinelAcked => 1,
            _ => 3,
        };
        let mut places = (0..tries).map(|_| self.rigs.at_work(HELD_LONG, since));
        places.find_map(|place| place);
    }

    /// Where the leader is cut off together with a process: what is to be cut at its own proxies,
    /// which stand before the servers in their order, and its number in the system. Nothing, where
    /// it is cut off alone.
    fn beside(&mut self, fault: Fault, leader: Option<usize>) -> Beside {
        if fault != Fault::Split {
            return Beside::default();
        }
        let place = self.holder();
        let proxies = self.stage.proxies[place].iter().enumerate();
        let proxies: Vec<_> = proxies
            .filter(|(n, _)| Some(*n) != leader)
            .map(|(_, proxy)| proxy.clone())
            .collect();
        proxies.iter().for_each(|proxy| proxy.black_hole());
        let id = self.rigs.process_id_at(place);
        Beside { proxies, id }
    }

    /// So many servers' clocks jump, ahead and then back, from this one on.
    fn clocks(&mut self, first: usize, count: usize) -> Result<(), String> {
        let clocks = self.stage.clocks.iter().cycle();
        let some: Vec<_> = clocks.skip(first).take(count).collect();
        self.jump(&some, |_| true)
    }

    /// Clocks jump by an hour: ahead and then back, or the other way around.
    fn jump(&mut self, clocks: &[&Clock], ahead_first: fn(usize) -> bool) -> Result<(), String> {
        for is_first in [true, false] {
            for (n, clock) in clocks.iter().enumerate() {
                if ahead_first(n) == is_first {
                    clock.set_ahead(HOUR);
                } else {
                    clock.set_behind(HOUR);
                }
            }
            self.pause_between(0.3, 0.7);
            // Or nothing was brought.
            let begun = Instant::now();
            while !clocks.iter().all(|clock| clock.was_read()) {
                if begun.elapsed() > PATIENCE_FOR_CLOCKS {
                    return Err("a process does not ask for the time".to_owned());
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        clocks
            .iter()
            .for_each(|clock| clock.set_ahead(Duration::ZERO));
        Ok(())
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
        thread::sleep(self.stage.ttl.mul_f32(ttls));
    }

    /// Lets so many milliseconds pass.
    fn rest(&mut self, millis: std::ops::Range<u64>) {
        thread::sleep(Duration::from_millis(self.rng.u64(millis)));
    }
}
