//! Moving a slot of a cluster from one master to another, a step at a time.

use super::{ClusterServers, Reply, block_until};

impl ClusterServers {
    /// Begins to move a slot from the master that has it: new keys are made at `to`.
    pub fn begin_move(&self, slot: u16, to: usize) -> SlotMove<'_> {
        let from = self.node_of(slot);
        let this = SlotMove {
            cluster: self,
            slot: slot.to_string(),
            from,
            to,
        };
        // In this order: else the old master sends clients to one who sends them back.
        this.set_slot(to, &["IMPORTING", &self.ids[from]]);
        this.set_slot(from, &["MIGRATING", &self.ids[to]]);
        this
    }

    /// Moves a slot with all that is in it.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let moving = self.begin_move(slot, to);
        moving.keys();
        moving.end();
    }
}

/// A slot on its way.
#[derive(Debug)]
pub struct SlotMove<'a> {
    cluster: &'a ClusterServers,
    slot: String,
    pub from: usize,
    pub to: usize,
}

impl SlotMove<'_> {
    fn set_slot(&self, node: usize, state: &[&str]) {
        let mut command = vec!["CLUSTER", "SETSLOT", &self.slot];
        command.extend(state);
        self.cluster.nodes[node].command(&command);
    }

    /// The keys that are still where they were.
    pub fn left(&self) -> Vec<String> {
        self.cluster.nodes[self.from]
            .command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1000"])
            .texts()
    }

    /// Moves all keys.
    pub fn keys(&self) {
        loop {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            self.these_keys(&left);
        }
    }

    /// Moves these keys, at once. Those that are no longer there are left out.
    pub fn these_keys(&self, keys: &[impl AsRef<str>]) {
        let port = self.cluster.nodes[self.to].port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000"];
        if let Some(password) = &self.cluster.setup.password {
            command.extend(["AUTH", password]);
        }
        command.push("KEYS");
        command.extend(keys.iter().map(AsRef::as_ref));
        self.cluster.nodes[self.from].command(&command);
    }

    /// Hands the slot over, tells every master, and blocks until each node knows of it for good.
    pub fn end(self) {
        let new = &self.cluster.ids[self.to];
        self.set_slot(self.to, &["NODE", new]);
        self.set_slot(self.from, &["NODE", new]);
        for (n, node) in self.cluster.running() {
            if n != self.to && n != self.from && node.info("role") == "master" {
                self.set_slot(n, &["NODE", new]);
            }
        }
        // A node that does not know the new owner's epoch yet would believe what the old one said
        // before it yielded, and give the slot back to it for a moment.
        let epoch = self.epoch_at(self.to);
        block_until("all nodes know the new owner", || {
            let knows = |(n, _)| self.epoch_at(n) >= epoch;
            let slot = self.slot.parse().expect("a slot");
            let agree = || self.cluster.agreed_owner(slot) == Some(self.to);
            (self.cluster.running().all(knows) && agree()).then_some(())
        });
    }

    /// The configuration epoch of the new owner, as far as this node knows.
    fn epoch_at(&self, n: usize) -> u64 {
        let Reply::Text(nodes) = self.cluster.nodes[n].command(&["CLUSTER", "NODES"]) else {
            panic!("CLUSTER NODES is a text");
        };
        let new = &self.cluster.ids[self.to];
        let line = nodes.lines().find(|line| line.starts_with(&**new));
        let epoch = line.and_then(|line| line.split(' ').nth(6));
        epoch.expect("it knows the node").parse().expect("a number")
    }

    /// Gives it up: the slot stays where it was. For slots of which no key was moved.
    pub fn cancel(self) {
        self.set_slot(self.from, &["STABLE"]);
        self.set_slot(self.to, &["STABLE"]);
    }
}
