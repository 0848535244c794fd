//! Time, the network, and what goes wrong.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    time::Duration,
};

use super::{
    Settings,
    checker::Held,
    client::{Client, Reply, Request},
    node::{Clock, Node, Owner},
};
use crate::quorum::guard;
use crate::quorum::Nodes;

pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) random: Random,
    pub(crate) now: Duration,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    events: BinaryHeap<Reverse<(Duration, u64)>>,
    due: std::collections::HashMap<u64, Event>,
    count: u64,
    pub(crate) history: Vec<Held>,
}

pub(crate) enum Event {
    Arrives { client: usize, node: usize, tag: u64, request: Request },
    Answers { client: usize, node: usize, tag: u64, reply: Reply },
    Wakes { client: usize, tag: u64 },
    Crash,
    Jump,
    Pause,
    Snapshot,
    Join,
    Restart { node: usize, how: u8 },
}

/// Xorshift: the same seed, the same history, on every machine.
pub(crate) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n.max(1)
    }

    pub(crate) fn chance(&mut self, p: f64) -> bool {
        (self.below(1 << 20) as f64) < p * f64::from(1 << 20)
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from * 1000 + self.below((to - from) * 1000))
    }
}

impl World {
    pub(crate) fn run(settings: Settings, seed: u64) -> Vec<Held> {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.next();
        }
        let mut clock = || Clock {
            // Half a percent: two clocks differ by the margin of a percent at most.
            rate: 0.995 + random.below(1000) as f64 / 100_000.0,
            offset: Duration::from_millis(10_000 + random.below(3000)),
        };
        let nodes = (0..settings.nodes).map(|_| Node::new(clock())).collect();
        let clients = (0..settings.clients)
            .map(|at| Client::new(at, clock()))
            .collect();
        let mut world = Self {
            settings,
            random,
            now: Duration::ZERO,
            nodes,
            clients,
            events: BinaryHeap::new(),
            due: Default::default(),
            count: 0,
            history: Vec::new(),
        };
        for client in 0..settings.clients {
            let at = world.random.millis(0, 100);
            world.after(at, Event::Wakes { client, tag: 0 });
        }
        world.plan(Event::Join, 20, 60);
        if settings.crashes {
            world.plan(Event::Snapshot, 500, 3000);
            world.plan(Event::Crash, 500, 3000);
        }
        if settings.pauses {
            world.plan(Event::Pause, 100, 2000);
        }
        if settings.jumps {
            world.plan(Event::Jump, 500, 3000);
        }
        while let Some(Reverse((at, id))) = world.events.pop() {
            if at > settings.lasts {
                break;
            }
            world.now = at;
            if let Some(event) = world.due.remove(&id) {
                world.happens(event);
            }
        }
        world.now = settings.lasts;
        for at in 0..settings.clients {
            world.with_client(at, |client, world| client.ends(world));
        }
        world.history
    }

    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        self.count += 1;
        self.events.push(Reverse((self.now + delay, self.count)));
        self.due.insert(self.count, event);
    }

    fn plan(&mut self, event: Event, from: u64, to: u64) {
        let delay = self.random.millis(from, to);
        self.after(delay, event);
    }

    fn delay(&mut self) -> Duration {
        match self.random.below(20) {
            0 => self.random.millis(1, 30),
            1 => self.random.millis(1, 300),
            _ => self.random.millis(1, 4),
        }
    }

    pub(crate) fn send(&mut self, client: usize, node: usize, tag: u64, request: Request) {
        if self.random.chance(self.settings.loss) {
            return;
        }
        let delay = self.delay();
        self.after(delay, Event::Arrives { client, node, tag, request });
    }

    fn with_client(&mut self, at: usize, f: impl FnOnce(&mut Client, &mut Self)) {
        let mut client = std::mem::take(&mut self.clients[at]);
        f(&mut client, self);
        self.clients[at] = client;
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Arrives { client, node, tag, request } => self.arrives(client, node, tag, request),
            Event::Answers { client, node, tag, reply } => {
                if let Some(left) = self.stands_still(client) {
                    return self.after(left, Event::Answers { client, node, tag, reply });
                }
                self.with_client(client, |it, world| it.hears(world, node, tag, reply));
            }
            Event::Wakes { client, tag } => {
                if let Some(left) = self.stands_still(client) {
                    return self.after(left, Event::Wakes { client, tag });
                }
                self.with_client(client, |it, world| it.wakes(world, tag));
            }
            Event::Pause => {
                let client = self.random.below(self.settings.clients as u64) as usize;
                let time = self.random.millis(10, 2500);
                self.clients[client].stands_until = self.now + time;
                self.plan(Event::Pause, 100, 2000);
            }
            Event::Jump => {
                let node = self.random.below(self.settings.nodes as u64) as usize;
                let forward = self.random.chance(0.5);
                let by = self.random.millis(100, 3000);
                let clock = &mut self.nodes[node].clock;
                clock.offset = match forward {
                    true => clock.offset + by,
                    false => clock.offset.saturating_sub(by),
                };
                self.plan(Event::Jump, 500, 3000);
            }
            Event::Snapshot => {
                for node in &mut self.nodes {
                    node.snapshot = node.data.clone();
                }
                self.plan(Event::Snapshot, 500, 5000);
            }
            Event::Crash => self.crash(),
            Event::Restart { node, how } => {
                let it = &mut self.nodes[node];
                it.up = true;
                it.run = self.count;
                match how {
                    // Its disk has everything: the same members as before, under a new number.
                    0 => {}
                    1 => it.data = Default::default(),
                    _ => it.data = it.snapshot.clone(),
                }
            }
            Event::Join => {
                self.join();
                self.plan(Event::Join, 20, 60);
            }
        }
    }

    fn stands_still(&self, client: usize) -> Option<Duration> {
        let left = self.clients[client].stands_until.checked_sub(self.now)?;
        (!left.is_zero()).then_some(left)
    }

    /// A minority at most is without members at a time.
    fn crash(&mut self) {
        let quorum = Nodes(self.settings.nodes);
        let members = self.nodes.iter().filter(|node| node.is_member()).count();
        // Without the guard nobody looks.
        if members > quorum.majority() || !self.settings.guard {
            let node = self.random.below(self.settings.nodes as u64) as usize;
            if self.nodes[node].up {
                self.nodes[node].up = false;
                let how = self.random.below(3) as u8;
                let delay = self.random.millis(1, 500);
                self.after(delay, Event::Restart { node, how });
            }
        }
        self.plan(Event::Crash, 300, 3000);
    }

    /// Some client sees to the nodes that are no members.
    fn join(&mut self) {
        let quorum = Nodes(self.settings.nodes);
        for at in 0..self.nodes.len() {
            if !self.nodes[at].up || self.nodes[at].is_member() {
                continue;
            }
            let mut others: Vec<_> = (0..self.nodes.len())
                .filter(|&other| other != at && self.nodes[other].is_member())
                .collect();
            // Any of them, as they happen to answer.
            while others.len() > guard::teachers(quorum) {
                let out = self.random.below(others.len() as u64) as usize;
                others.swap_remove(out);
            }
            let taught = (others.len() == guard::teachers(quorum))
                .then(|| others.iter().map(|&other| self.nodes[other].counter()).max())
                .flatten();
            let (now, ttl) = (self.now, self.settings.ttl);
            self.nodes[at].join(now, ttl, taught);
        }
    }

    fn arrives(&mut self, client: usize, node: usize, tag: u64, request: Request) {
        let (now, guarded) = (self.now, self.settings.guard);
        let it = &mut self.nodes[node];
        if !it.up {
            return;
        }
        let owner = |nonce: u64| -> Owner { (client, nonce) };
        let reply = match request {
            Request::Ask { nonce, ttl, proposal } => {
                Reply::Vote(it.ask(now, guarded, owner(nonce), ttl, proposal))
            }
            Request::Raise { nonce, token } => Reply::Raise(it.raise(now, guarded, owner(nonce), token)),
            Request::Renew { nonce, ttl } => Reply::Renew(it.renew(now, guarded, owner(nonce), ttl)),
            Request::Release { nonce } => {
                it.release(owner(nonce));
                return;
            }
        };
        if self.random.chance(self.settings.loss) {
            return;
        }
        let delay = self.delay();
        self.after(delay, Event::Answers { client, node, tag, reply });
    }
}
