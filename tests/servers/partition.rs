//! Servers that do not reach each other, while clients reach all of them.

use super::{cluster::ClusterServers, front::Front, redis::RedisServer, sentinel::SentinelServers};

/// What stands before this one.
fn front(node: &RedisServer) -> &Front {
    node.front().expect("it was asked for proxies")
}

impl SentinelServers {
    /// Cuts the master off from its replicas and the sentinels, in silence; it goes on serving.
    /// These clients do not reach its replicas either. To be [mended](Self::mend).
    pub fn cut_off_master(&self, clients: &[u32]) {
        let replicas: Vec<_> = self.replicas().filter(|replica| replica.runs()).collect();
        let mut others: Vec<_> = replicas.iter().map(|replica| replica.id()).collect();
        others.extend(self.sentinel_ids());
        // A master goes to nobody by itself.
        front(self.master()).cut(&others);
        for replica in replicas {
            front(replica).cut(clients);
        }
    }

    /// Lets everything pass again.
    pub fn mend(&self) {
        self.nodes.iter().for_each(|node| front(node).mend());
    }
}

impl ClusterServers {
    /// Cuts a node off from all others, in silence. These clients do not reach the others either. It
    /// does not count as one that runs until it is [mended](Self::mend).
    pub fn cut_off(&self, n: usize, clients: &[u32]) {
        let others = self.nodes.iter().enumerate();
        let others: Vec<_> = others
            .filter(|(other, node)| *other != n && node.runs())
            .collect();
        *self.cut.lock().unwrap() = Some(n);
        let ids: Vec<_> = others.iter().map(|(_, node)| node.id()).collect();
        front(&self.nodes[n]).cut(&ids);
        let here = [&[self.nodes[n].id()], clients].concat();
        for (_, other) in others {
            front(other).cut(&here);
        }
    }

    /// Lets everything pass again.
    pub fn mend(&self) {
        self.nodes.iter().for_each(|node| front(node).mend());
        *self.cut.lock().unwrap() = None;
    }
}
