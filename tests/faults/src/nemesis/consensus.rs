//! What befalls members of etcd and servers of ZooKeeper.

use super::Nemesis;
use crate::{
    faults::Fault,
    servers::{Ensemble, Etcd, ZooKeeperServer},
};

impl Nemesis<'_> {
    pub(super) fn etcd(&mut self, servers: &Etcd, fault: Fault) {
        let any = self.rng.usize(0..servers.len());
        match fault {
            Fault::KillServer => {
                servers.kill(any);
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
                let one = if fault == Fault::StopLeader {
                    servers.leader()
                } else {
                    any
                };
                servers.pause(one);
                self.pause_between(1.1, 2.0);
                servers.resume(one);
            }
            Fault::FailOver => servers.move_leader(),
            Fault::CutServers | Fault::Split => {
                let leader = servers.leader();
                let beside = self.beside(fault, Some(leader));
                servers.cut_off(leader);
                self.pause_between(1.0, 2.0);
                servers.mend();
                beside.heal();
            }
            Fault::MuteLeader => {
                servers.mute(servers.leader());
                self.pause_between(1.0, 2.0);
                servers.mend();
            }
            Fault::DiskFull => {
                servers.raise_alarm();
                self.pause_between(0.3, 1.2);
                servers.disarm_alarm();
            }
            _ => unreachable!("not on etcd: {fault:?}"),
        }
    }

    pub(super) fn zookeeper(&mut self, ensemble: &Ensemble, fault: Fault) -> Result<(), String> {
        let servers = &ensemble.servers;
        let any = self.rng.usize(0..servers.len());
        let but = |one: usize| (0..servers.len()).filter(move |&other| other != one);
        match fault {
            Fault::KillServer => {
                servers[any].kill();
                self.rest(300..1500);
                servers[any].restart();
            }
            Fault::KillLeader => {
                let leader = ensemble.leader();
                servers[leader].kill();
                self.rest(1000..2000);
                servers[leader].restart();
            }
            Fault::KillAll => {
                servers.iter().for_each(ZooKeeperServer::kill);
                servers.iter().for_each(ZooKeeperServer::start_again);
            }
            Fault::Empty => {
                let follower = (ensemble.leader() + 1) % servers.len();
                servers[follower].restart_empty();
            }
            Fault::StopServer | Fault::StopLeader => {
                let one = if fault == Fault::StopLeader {
                    ensemble.leader()
                } else {
                    any
                };
                servers[one].pause();
                self.pause_between(1.1, 2.0);
                servers[one].resume();
            }
            Fault::CutServers | Fault::Split => {
                let leader = ensemble.leader();
                let beside = self.beside(fault, Some(leader));
                but(leader).for_each(|other| ensemble.cut(leader, other));
                self.pause_between(1.0, 2.0);
                but(leader).for_each(|other| ensemble.mend(leader, other));
                beside.heal();
            }
            Fault::MuteLeader => {
                let leader = ensemble.leader();
                but(leader).for_each(|other| ensemble.mute(leader, other));
                ensemble.wait_for_a_leader_beside(leader);
                self.pause_between(0.0, 0.5);
                but(leader).for_each(|other| ensemble.mend(leader, other));
            }
            Fault::ServerClock => {
                // It is the one that ends sessions.
                let leads = self.rng.bool();
                self.clocks(if leads { ensemble.leader() } else { any }, 1)?;
            }
            _ => unreachable!("not on ZooKeeper: {fault:?}"),
        }
        ensemble.wait_until_it_serves();
        Ok(())
    }
}
