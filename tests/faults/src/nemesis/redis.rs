//! What befalls servers of Redis: one, several behind Sentinels or in a Cluster, and independent
//! ones.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use super::Nemesis;
use crate::{
    faults::Fault,
    history::now,
    rig::{HELD_LONG, key_of},
    servers::{ClusterServers, RedLockServers, RedisServer, SentinelServers},
    stage::{Backend, PREFIX},
};

/// How long a server may take for what it does in its own time. Only reached by failures.
const PATIENCE: Duration = Duration::from_secs(30);

impl Nemesis<'_> {
    pub(super) fn redis(&mut self, server: &RedisServer, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::KillConnections => self.kill_connections(&[server]),
            Fault::KillServer => {
                server.kill();
                self.rest(0..800);
                server.restart();
            }
            Fault::Empty => {
                self.rigs.at_work(HELD_LONG, 0);
                server.restart_empty();
            }
            Fault::StopServer => {
                server.pause();
                self.pause_between(1.1, 2.0);
                server.resume();
            }
            Fault::ServerClock => self.clocks(0, 1)?,
            Fault::DiskFull => self.refuse_to_write(&[server])?,
            Fault::MemoryFull => self.run_out_of_memory(&[server]),
            _ => unreachable!("not on one server: {fault:?}"),
        }
        Ok(())
    }

    pub(super) fn nodes(&mut self, nodes: &RedLockServers, fault: Fault) -> Result<(), String> {
        let first = self.rng.usize(0..nodes.len());
        let any = nodes.node(first);
        let all: Vec<_> = nodes.iter().collect();
        match fault {
            Fault::KillConnections => self.kill_connections(&all),
            Fault::KillServer => {
                any.kill();
                self.rest(0..800);
                any.restart();
            }
            Fault::KillAll => {
                all.iter().for_each(|node| node.kill());
                self.rest(0..800);
                all.iter().for_each(|node| node.restart());
            }
            Fault::Empty => any.restart_empty(),
            Fault::EmptyMajority => {
                self.rigs.at_work(HELD_LONG, 0);
                all.iter().take(2).for_each(|node| node.restart_empty());
            }
            Fault::StopServer => {
                any.pause();
                self.pause_between(1.1, 2.0);
                any.resume();
            }
            Fault::ServerClock => self.clocks(first, 1)?,
            Fault::MajorityClock => self.clocks(first, 2)?,
            Fault::DiskFull => self.refuse_to_write(&all)?,
            Fault::MemoryFull => self.run_out_of_memory(&all),
            Fault::MinorityFull => self.run_out_of_memory(&[any]),
            _ => unreachable!("not on independent nodes: {fault:?}"),
        }
        Ok(())
    }

    pub(super) fn sentinel(
        &mut self,
        servers: &SentinelServers,
        fault: Fault,
    ) -> Result<(), String> {
        match fault {
            Fault::KillConnections => self.kill_connections(&[servers.master()]),
            Fault::KillServer | Fault::UnreplicatedFailOver => {
                if fault == Fault::UnreplicatedFailOver {
                    servers.cut_off_replicas();
                    self.unreplicated_holder();
                }
                let old = servers.kill_master();
                self.runtime.block_on(servers.switched_from(old));
                old.restart();
            }
            Fault::StopServer => {
                let old = servers.pause_master();
                self.runtime.block_on(servers.switched_from(old));
                old.resume();
            }
            Fault::FailOver => {
                self.runtime.block_on(servers.failover());
            }
            Fault::CutServers | Fault::Split => {
                let beside = self.beside(fault, None);
                let old = servers.cut_off_master(beside.id.as_slice());
                self.runtime.block_on(servers.switched_from(old));
                self.pause_between(0.0, 0.5);
                servers.mend();
                beside.heal();
            }
            Fault::MuteLeader => {
                let old = servers.mute_master();
                self.runtime.block_on(servers.switched_from(old));
                self.pause_between(0.0, 0.5);
                servers.mend();
            }
            Fault::DiskFull => self.refuse_to_write(&[servers.master()])?,
            Fault::MemoryFull => self.run_out_of_memory(&[servers.master()]),
            Fault::Empty => {
                self.rigs.at_work(HELD_LONG, now());
                self.runtime.block_on(servers.restart_master_empty());
            }
            Fault::KillAll => self.runtime.block_on(servers.restart_all()),
            _ => unreachable!("not behind Sentinels: {fault:?}"),
        }
        if self.stage.backend == Backend::SentinelAcked || fault == Fault::UnreplicatedFailOver {
            // Without a replica nothing is granted, and without its password it is none.
            self.runtime.block_on(servers.reconnect_replicas());
        }
        Ok(())
    }

    pub(super) fn cluster(&mut self, servers: &ClusterServers, fault: Fault) {
        // The one whose locks everybody wants.
        let name = [PREFIX, key_of(HELD_LONG).as_str()].concat();
        let master = servers.node_of_key(&name);
        let masters = servers.masters().into_iter();
        let masters: Vec<_> = masters.map(|n| servers.node(n)).collect();
        match fault {
            Fault::KillConnections => self.kill_connections(&masters),
            Fault::MemoryFull => self.run_out_of_memory(&masters),
            Fault::KillServer | Fault::UnreplicatedFailOver => {
                if fault == Fault::UnreplicatedFailOver {
                    servers.cut_off_replicas(master);
                    self.unreplicated_holder();
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
            Fault::CutServers | Fault::Split => {
                let beside = self.beside(fault, None);
                servers.cut_off(master, beside.id.as_slice());
                self.runtime.block_on(servers.taken_over(master));
                self.pause_between(0.0, 0.5);
                servers.mend();
                beside.heal();
            }
            Fault::MuteLeader => {
                servers.mute(master);
                self.runtime.block_on(servers.taken_over(master));
                self.pause_between(0.0, 0.5);
                servers.mend();
            }
            Fault::Empty => {
                self.rigs.at_work(HELD_LONG, now());
                servers.node(master).restart_empty();
            }
            Fault::KillAll => {
                servers.nodes().iter().for_each(RedisServer::kill);
                servers.nodes().iter().for_each(RedisServer::restart);
            }
            _ => unreachable!("not in a Cluster: {fault:?}"),
        }
        for node in servers.nodes() {
            node.command(&["CONFIG", "SET", "masterauth", ""]);
        }
        self.runtime.block_on(servers.ok());
    }

    /// Ends connections of either kind, again and again.
    fn kill_connections(&mut self, servers: &[&RedisServer]) {
        for round in 0..self.rng.usize(4..10) {
            for (n, server) in (0..).zip(servers) {
                let kind = ["normal", "pubsub"][(round + n) % 2];
                server.command(&["CLIENT", "KILL", "TYPE", kind]);
            }
            self.rest(20..250);
        }
    }

    fn run_out_of_memory(&mut self, servers: &[&RedisServer]) {
        let limit = |bytes| {
            for server in servers {
                set(server, "maxmemory", bytes);
            }
        };
        limit("1");
        self.pause_between(0.3, 1.2);
        limit("0");
    }

    /// A snapshot that fails stops all writes, as Redis does by default.
    fn refuse_to_write(&mut self, servers: &[&RedisServer]) -> Result<(), String> {
        for server in servers {
            let gone = server.directory().join("gone");
            fs::create_dir(&gone).map_err(|error| error.to_string())?;
            set(server, "dir", &gone.to_string_lossy());
            fs::remove_dir(&gone).map_err(|error| error.to_string())?;
            set(server, "save", "3600 1");
            server.command(&["BGSAVE"]);
            snapshot_is(server, "err")?;
        }
        self.pause_between(0.3, 1.2);
        for server in servers {
            set(server, "save", "");
            set(server, "dir", &server.directory().to_string_lossy());
            server.command(&["BGSAVE"]);
            snapshot_is(server, "ok")?;
        }
        Ok(())
    }
}

fn set(server: &RedisServer, name: &str, value: &str) {
    server.command(&["CONFIG", "SET", name, value]);
}

/// Waits until the last snapshot went like this.
fn snapshot_is(server: &RedisServer, wanted: &str) -> Result<(), String> {
    let begun = Instant::now();
    while server.info("rdb_last_bgsave_status") != wanted {
        if begun.elapsed() > PATIENCE {
            return Err(format!("no snapshot is {wanted}"));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
