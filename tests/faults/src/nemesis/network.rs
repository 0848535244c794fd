//! What a network does to one process.

use std::{sync::Arc, time::Duration};

use super::Nemesis;
use crate::{faults::Fault, servers::TcpProxy};

impl Nemesis<'_> {
    /// Cuts this process off, and then one that holds, for less than a ttl and for more than one.
    pub(super) fn silence(&mut self, fault: Fault, place: usize) {
        let mut spans = [(0.3, 0.7), (1.15, 1.6)];
        self.rng.shuffle(&mut spans);
        self.network_for(fault, place, spans[0]);
        self.pause_between(0.2, 0.5);
        let place = self.holder();
        self.network_for(fault, place, spans[1]);
    }

    pub(super) fn network(&mut self, fault: Fault, place: usize) {
        self.network_for(fault, place, (0.0, 0.0));
    }

    /// From so many ttls to so many, where it is silence.
    fn network_for(&mut self, fault: Fault, place: usize, (from, to): (f32, f32)) {
        let process = self.rigs.number_at(place);
        let stage = self.stage;
        // By these all processes come: only this one is meant.
        let fronts = stage.servers.fronts();
        let id = self.rigs.process_id_at(place);
        let aim = |front: &&TcpProxy| front.aim_at(id.as_slice());
        fronts.iter().for_each(aim);
        let own = stage.proxies[place].iter().map(Arc::as_ref);
        let proxies: Vec<_> = own.chain(fronts.iter().copied()).collect();
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
                self.pause_between(from, to);
            }
            Fault::LoseRequests => {
                all(TcpProxy::drop_up);
                self.pause_between(from, to);
            }
            Fault::LoseReplies => {
                all(TcpProxy::drop_down);
                self.pause_between(from, to);
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
        fronts.iter().for_each(|front| front.aim_at_all());
        self.heals(fault, process);
    }
}
