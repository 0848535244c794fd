//! Nodes and clients, and what goes wrong.

use super::super::Nodes;
use super::{
    Coverage, Crashes, Settings,
    checker::Held,
    client::{Client, Reply, Request},
    net::{Event, Net},
    node::{Clock, Node},
};

pub(super) struct World {
    net: Net,
    nodes: Vec<Node>,
    clients: Vec<Client>,
}

impl World {
    pub(super) fn run(settings: Settings, seed: u64) -> (Vec<Held>, Coverage) {
        let mut world = Self::new(settings, seed);
        while let Some(event) = world.net.next() {
            world.happens(event);
        }
        world.net.now = settings.lasts;
        for client in &mut world.clients {
            client.ends(&mut world.net);
        }
        (world.net.history, world.net.seen)
    }

    fn new(settings: Settings, seed: u64) -> Self {
        let mut net = Net::new(settings, seed);
        let random = &mut net.random;
        // Four tenths of a percent: two clocks differ by less than the margin of a percent.
        let mut clock = || Clock {
            fast: random.below(8001) as i64 - 4000,
            offset: random.millis(100_000, 103_000) as i64,
        };
        let mut nodes = Vec::with_capacity(settings.nodes);
        nodes.resize_with(settings.nodes, || Node {
            clock: clock(),
            up: true,
            ..Node::default()
        });
        let mut clients = Vec::with_capacity(settings.clients);
        for at in 0..settings.clients {
            let clock = clock();
            clients.push(Client::new(at, &settings, clock));
        }
        for client in &mut clients {
            client.day.offset = day(&mut net);
            let (client, delay) = (client.at, net.random.millis(0, 50));
            net.after(delay, Event::Wakes { client, tag: 0 });
        }
        // Some deployments are new, and some have no tombstones.
        if !net.random.chance(100) {
            nodes.iter_mut().for_each(Node::starts_as_member);
        }
        if net.random.chance(500) {
            for node in &mut nodes {
                node.tombstones = Some(vec![0; settings.clients]);
            }
        }
        net.plan(Event::Looks, 1, 100);
        if settings.crashes != Crashes::Never {
            net.plan(Event::Snapshot, 100, 1500);
            net.plan(Event::Crash, 50, 1500);
        }
        if settings.pauses {
            net.plan(Event::Pause, 50, 1000);
        }
        net.plan(Event::Jump, 50, 1000);
        Self {
            net,
            nodes,
            clients,
        }
    }

    fn happens(&mut self, event: Event) {
        let client = match &event {
            Event::Answers { client, .. }
            | Event::Wakes { client, .. }
            | Event::LookAnswers { client, .. }
            | Event::LookEnds { client, .. } => Some(*client),
            _ => None,
        };
        if let Some(client) = client {
            let until = self.clients[client].stands_until;
            if until > self.net.now {
                return self.net.after(until - self.net.now, event);
            }
        }
        let net = &mut self.net;
        match event {
            Event::Arrives { .. } | Event::LookArrives { .. } | Event::JoinArrives { .. } => {
                self.arrives(event);
            }
            Event::Answers {
                client,
                node,
                tag,
                reply,
            } => self.clients[client].hears(net, node, tag, reply),
            Event::Wakes { client, tag } => self.clients[client].wakes(net, tag),
            Event::LookAnswers {
                client,
                node,
                round,
                looked,
            } => {
                let it = &mut self.clients[client];
                it.watch.hears(net, &it.clock, (node, round), looked);
            }
            Event::LookEnds { client, round } => self.clients[client].watch.ends(net, round),
            Event::Looks => {
                // Looks at members alone change nothing.
                let it = net.random.index(self.clients.len());
                let it = &mut self.clients[it];
                if it.stands_until <= net.now && !self.nodes.iter().all(Node::is_member) {
                    it.watch.looks(net, it.at, &it.clock);
                }
                net.plan(Event::Looks, 30, 120);
            }
            Event::Crash => self.crash(),
            Event::Restart { node, how } => self.restart(node, how),
            Event::Jump => self.jump(),
            Event::Pause => self.pause(),
            Event::Snapshot => {
                for node in &mut self.nodes {
                    node.snapshot = node.data.clone();
                }
                net.plan(Event::Snapshot, 200, 2000);
            }
        }
    }

    fn arrives(&mut self, event: Event) {
        let net = &mut self.net;
        let Settings { ttl, twist, .. } = net.settings;
        let now = net.now;
        match event {
            Event::Arrives {
                owner,
                node: at,
                tag,
                request,
            } => {
                let node = &mut self.nodes[at];
                if !node.up {
                    return;
                }
                let reply = match request {
                    Request::Ask { proposal } => {
                        Reply::Vote(node.ask(now, twist, owner, ttl, proposal))
                    }
                    Request::Raise { token } => Reply::Raise(node.raise(now, twist, owner, token)),
                    Request::Renew => Reply::Renew(node.renew(now, twist, owner, ttl)),
                    Request::Back => return node.back(owner),
                    Request::Release => return node.release(owner),
                };
                net.send(Event::Answers {
                    client: owner.client,
                    node: at,
                    tag,
                    reply,
                });
            }
            Event::LookArrives {
                client,
                node,
                round,
                name,
            } if self.nodes[node].up => {
                let looked = self.nodes[node].look(name);
                net.send(Event::LookAnswers {
                    client,
                    node,
                    round,
                    looked,
                });
            }
            Event::JoinArrives {
                node,
                name,
                counter,
            } if self.nodes[node].up => {
                let joined = self.nodes[node].join(twist, name, counter);
                net.seen.joined += u64::from(joined);
            }
            _ => {}
        }
    }

    fn crash(&mut self) {
        let net = &mut self.net;
        let members = self.nodes.iter().filter(|node| node.up && node.is_member());
        let spare = members.count() > Nodes(self.nodes.len()).majority();
        if spare || net.settings.crashes == Crashes::Any {
            let at = net.random.index(self.nodes.len());
            let (node, how) = (&mut self.nodes[at], net.random.below(6));
            match how {
                _ if !node.up => {}
                // Emptied while it runs, as by FLUSHALL, or read from an old disk.
                0 | 1 => {
                    net.seen.emptied += 1;
                    node.is_emptied(how == 1);
                }
                _ => {
                    node.up = false;
                    let delay = net.random.millis(1, 100);
                    net.after(delay, Event::Restart { node: at, how });
                }
            }
        }
        net.plan(Event::Crash, 20, 700);
    }

    fn restart(&mut self, at: usize, how: u64) {
        let (net, node) = (&mut self.net, &mut self.nodes[at]);
        node.up = true;
        net.seen.restarts += 1;
        node.run = net.seen.restarts;
        match how {
            // Its disk has everything.
            2 => {}
            3 => {
                node.data = node.snapshot.clone();
                net.seen.restored += 1;
            }
            _ => {
                node.data = Default::default();
                net.seen.emptied += 1;
            }
        }
    }

    /// Clocks are set: those of the day by any time, those of nodes by what the margin allows, or
    /// by any time.
    fn jump(&mut self) {
        let net = &mut self.net;
        let client = net.random.index(self.clients.len());
        self.clients[client].day.offset = day(net);
        let most = if net.settings.jumps { 2_000_000 } else { 1000 };
        let by = net.random.below(most) as i64;
        let node = net.random.index(self.nodes.len());
        self.nodes[node].clock.offset += if net.random.chance(500) { by } else { -by };
        // Not more than once in the time that a margin is for.
        let least = net.settings.ttl / 1000 * 11 / 10;
        let least = if net.settings.jumps { 20 } else { least };
        net.plan(Event::Jump, least, least + 400);
    }

    fn pause(&mut self) {
        let net = &mut self.net;
        let it = net.random.index(self.clients.len());
        let time = net.random.millis(5, net.settings.ttl / 400);
        let it = &mut self.clients[it];
        if it.stands_until < net.now {
            it.stands_until = net.now + time;
            if net.settings.stops {
                it.clock.offset -= time as i64;
            }
        }
        net.plan(Event::Pause, 100, 1000);
    }
}

/// What a client takes for the time of day.
fn day(net: &mut Net) -> i64 {
    1_000_000_000 + net.random.below(net.settings.skew) as i64
}
