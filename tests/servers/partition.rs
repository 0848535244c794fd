//! Servers of Redis that do not reach each other, while clients reach all of them; and such that
//! forget together.

use super::{
    cluster::ClusterServers,
    front::Front,
    patience::{block_until, wait_until},
    redis::RedisServer,
    sentinel::SentinelServers,
};

/// What stands before this one.
fn front(node: &RedisServer) -> &Front {
    node.front().expect("it was asked for proxies")
}

impl SentinelServers {
    /// Cuts the master off from its replicas and the sentinels, in silence; it goes on serving.
    /// These clients do not reach its replicas either. To be [mended](Self::mend).
    pub fn cut_off_master(&self, clients: &[u32]) -> &RedisServer {
        let master = self.master();
        front(master).cut(&self.ids_beside(master));
        for replica in self.others(master).filter(|replica| replica.runs()) {
            front(replica).cut(clients);
        }
        master
    }

    /// Lets nothing of what the master sends reach its replicas and the sentinels, in silence; what they
    /// send arrives. To be [mended](Self::mend).
    pub fn mute_master(&self) -> &RedisServer {
        let master = self.master();
        front(master).cut_down(&self.ids_beside(master));
        master
    }

    /// The processes that come to the master. It goes to nobody by itself.
    fn ids_beside(&self, master: &RedisServer) -> Vec<u32> {
        let replicas = self.others(master).filter(|replica| replica.runs());
        let replicas = replicas.map(RedisServer::id);
        replicas.chain(self.sentinel_ids()).collect()
    }

    /// Lets everything pass again.
    pub fn mend(&self) {
        self.nodes.iter().for_each(|node| front(node).mend());
    }

    /// From now on the replicas get nothing of what is written, and may still become master, if
    /// that happens within ten times [`SentinelSetup::down_after`].
    pub fn cut_off_replicas(&self) {
        for replica in self.replicas() {
            // The sentinels would see to it if it were made to follow another.
            replica.command(&["CONFIG", "SET", "masterauth", "not the password"]);
            replica.command(&["CLIENT", "KILL", "TYPE", "master"]);
        }
        let master = self.master();
        block_until("no replica is connected", || {
            (master.info("connected_slaves") == "0").then_some(())
        });
    }

    /// Ends what [`cut_off_replicas`](Self::cut_off_replicas) began, on every server that runs,
    /// and waits until the replicas are in sync again.
    pub async fn reconnect_replicas(&self) {
        let password = self.setup.password.as_deref().unwrap_or_default();
        for node in self.nodes.iter().filter(|node| node.runs()) {
            node.command(&["CONFIG", "SET", "masterauth", password]);
        }
        let up = |node: &RedisServer| node.ask_info("master_link_status").as_deref() == Some("up");
        wait_until("the replicas are in sync", || {
            // They may be about to agree.
            let mut replicas = self.others(self.agreed()?);
            replicas.all(|node| !node.runs() || up(node)).then_some(())
        })
        .await;
    }

    /// Kills the master and starts it again at once without data, before it is missed: then its
    /// replicas have none either.
    pub async fn restart_master_empty(&self) {
        let master = self.master();
        master.restart_empty();
        self.lead_again(master).await;
    }

    /// Kills the master and all replicas, and starts them again with what they persisted.
    pub async fn restart_all(&self) {
        let master = self.master();
        self.nodes.iter().for_each(RedisServer::kill);
        master.restart();
        self.others(master).for_each(RedisServer::restart);
        self.lead_again(master).await;
    }

    /// One that was a replica at the start begins as that.
    async fn lead_again(&self, master: &RedisServer) {
        if master.info("role") != "master" {
            master.command(&["REPLICAOF", "NO", "ONE"]);
        }
        self.reconnect_replicas().await;
    }
}

impl ClusterServers {
    /// Cuts a node off from all others, in silence. These clients do not reach the others either. It
    /// does not count as one that runs until it is [mended](Self::mend).
    pub fn cut_off(&self, n: usize, clients: &[u32]) {
        let others = self.leave_out(n);
        let ids: Vec<_> = others.iter().map(|node| node.id()).collect();
        front(&self.nodes[n]).cut(&ids);
        let here = [&[self.nodes[n].id()], clients].concat();
        for other in others {
            front(other).cut(&here);
        }
    }

    /// Lets nothing of what a node sends reach the others, in silence; what they send arrives. It does
    /// not count as one that runs until it is [mended](Self::mend).
    pub fn mute(&self, n: usize) {
        let others = self.leave_out(n);
        let ids: Vec<_> = others.iter().map(|node| node.id()).collect();
        front(&self.nodes[n]).cut_down(&ids);
        for other in others {
            front(other).cut_up(&[self.nodes[n].id()]);
        }
    }

    /// The others that run; this one counts as none of them from now on.
    fn leave_out(&self, n: usize) -> Vec<&RedisServer> {
        *self.cut.lock().unwrap() = Some(n);
        let others = self.nodes.iter().enumerate();
        let others = others.filter(|(other, node)| *other != n && node.runs());
        others.map(|(_, node)| node).collect()
    }

    /// Lets everything pass again.
    pub fn mend(&self) {
        self.nodes.iter().for_each(|node| front(node).mend());
        *self.cut.lock().unwrap() = None;
    }
}
