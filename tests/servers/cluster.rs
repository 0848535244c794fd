//! A Redis Cluster of a test's own.

use std::{sync::Mutex, thread, time::Duration};

use super::{
    front::Front,
    patience::{block_until, wait_until},
    ports::{BUS, free_port_with_bus},
    redis::RedisServer,
    resp::Reply,
};

pub use self::slot_move::SlotMove;

#[path = "slot_move.rs"]
mod slot_move;

pub const SLOTS: u16 = 16_384;

/// What is to be started.
#[derive(Clone, Debug)]
pub struct ClusterSetup {
    pub masters: usize,
    pub replicas_per_master: usize,
    /// After how much silence a node counts as down.
    pub node_timeout: Duration,
    /// What all nodes ask for.
    pub password: Option<String>,
    /// More options of all nodes.
    pub options: Vec<String>,
    /// Whether proxies stand before all nodes, for everybody who comes.
    pub fronts: bool,
}

impl Default for ClusterSetup {
    fn default() -> Self {
        Self {
            masters: 3,
            replicas_per_master: 0,
            node_timeout: Duration::from_secs(1),
            password: None,
            options: Vec::new(),
            fronts: false,
        }
    }
}

/// The nodes of a cluster, known by their index: masters first, then the replicas of the first
/// master, and so on. Killed on drop.
///
/// Who waits for the cluster does so without blocking the runtime; everything else blocks for the
/// moment that a server takes.
#[derive(Debug)]
pub struct ClusterServers {
    setup: ClusterSetup,
    pub(super) nodes: Vec<RedisServer>,
    ids: Vec<String>,
    /// The one that is cut off from the others, and so cannot agree with them.
    pub(super) cut: Mutex<Option<usize>>,
}

/// Slots that follow each other, and the indexes of the nodes that have them: the master first.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    nodes: Vec<usize>,
}

impl ClusterServers {
    /// A cluster that serves all slots, with replicas that are in sync. It takes 2 s, which is how
    /// long a master that starts refuses to serve.
    pub fn start(masters: usize, replicas_per_master: usize) -> Self {
        Self::start_with(ClusterSetup {
            masters,
            replicas_per_master,
            ..ClusterSetup::default()
        })
    }

    pub fn start_with(setup: ClusterSetup) -> Self {
        let count = setup.masters * (1 + setup.replicas_per_master);
        let nodes: Vec<_> = thread::scope(|scope| {
            let start = |_| scope.spawn(|| start_node(&setup));
            let starting: Vec<_> = (0..count).map(start).collect();
            let started = starting.into_iter().map(|it| it.join().unwrap());
            started.collect()
        });
        let id = |node: &RedisServer| node.command(&["CLUSTER", "MYID"]).to_string();
        let this = Self {
            ids: nodes.iter().map(id).collect(),
            setup,
            nodes,
            cut: Mutex::default(),
        };
        this.join();
        block_until("the cluster serves all slots", || {
            this.is_complete().then_some(())
        });
        this
    }

    /// `redis-cli --cluster create` without its waits.
    fn join(&self) {
        let masters = self.setup.masters;
        for (n, node) in self.nodes[..masters].iter().enumerate() {
            let bound = |n| usize::from(SLOTS) * n / masters;
            let [first, last] = [bound(n), bound(n + 1) - 1].map(|slot| slot.to_string());
            // Different ones, or they would first have to find out who yields.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]);
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        for (n, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[n + 1..] {
                let bus = match other.front() {
                    Some(Front { bus: Some(bus), .. }) => bus.address().port(),
                    _ => other.port() + BUS,
                };
                let [port, bus] = [other.announced_port(), bus].map(|port| port.to_string());
                node.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
            }
        }
        for (n, node) in self.nodes.iter().enumerate().skip(masters) {
            let master = &self.ids[(n - masters) / self.setup.replicas_per_master];
            // Refused until it knows the master as one.
            block_until("a replica follows its master", || {
                let answer = node.try_command(&["CLUSTER", "REPLICATE", master]);
                (answer == ok()).then_some(())
            });
        }
    }

    fn is_complete(&self) -> bool {
        let in_sync = |node: &RedisServer| {
            node.ask_info("role").as_deref() == Some("master")
                || node.ask_info("master_link_status").as_deref() == Some("up")
        };
        let each = 1 + self.setup.replicas_per_master;
        self.map()
            .is_some_and(|map| map.iter().all(|range| range.nodes.len() == each))
            && self.nodes.iter().all(in_sync)
    }

    /// The nodes' addresses, as a URL lists them.
    pub fn hosts(&self) -> String {
        let hosts = self.nodes.iter().map(RedisServer::announced_port);
        let hosts = hosts.map(|port| format!("127.0.0.1:{port}"));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// The URL of all nodes, without a password.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", self.hosts())
    }

    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    pub fn node(&self, n: usize) -> &RedisServer {
        &self.nodes[n]
    }

    fn running(&self) -> impl Iterator<Item = (usize, &RedisServer)> {
        let cut = *self.cut.lock().unwrap();
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(move |(n, it)| it.runs() && cut != Some(*n))
    }

    /// The slot of a key, as a node says.
    pub fn slot_of(&self, key: &str) -> u16 {
        let (_, node) = self.running().next().expect("a node runs");
        let slot = node.command(&["CLUSTER", "KEYSLOT", key]).int();
        slot.try_into().expect("a slot")
    }

    /// The master of a slot, as all nodes that run say.
    pub fn node_of(&self, slot: u16) -> usize {
        self.agreed_owner(slot)
            .expect("the nodes do not agree: wait for `taken_over` or `ok`")
    }

    /// The master of a key.
    pub fn node_of_key(&self, key: &str) -> usize {
        self.node_of(self.slot_of(key))
    }

    /// The replicas of a master.
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let map = self.map().expect("the nodes do not agree: wait for `ok`");
        let range = map.into_iter().find(|range| range.nodes[0] == master);
        range.map_or_else(Vec::new, |range| range.nodes[1..].to_vec())
    }

    /// The masters that have slots, as all nodes that run say.
    pub fn masters(&self) -> Vec<usize> {
        let map = self.map().expect("the nodes do not agree: wait for `ok`");
        let mut masters: Vec<_> = map.iter().map(|range| range.nodes[0]).collect();
        masters.sort_unstable();
        masters.dedup();
        masters
    }

    /// What one node says.
    fn map_of(&self, node: &RedisServer) -> Option<Vec<Range>> {
        let Some(Reply::List(ranges)) = node.ask(&["CLUSTER", "SLOTS"]) else {
            return None;
        };
        let index = |node: &Reply| {
            let port = node.list()[1].int();
            self.nodes
                .iter()
                .position(|it| i64::from(it.announced_port()) == port)
        };
        let slot = |reply: &Reply| u16::try_from(reply.int()).ok();
        let mut map = ranges
            .iter()
            .map(|range| {
                let range = range.list();
                let mut nodes: Vec<_> = range[2..].iter().map(index).collect::<Option<_>>()?;
                nodes[1..].sort_unstable();
                let (first, last) = (slot(&range[0])?, slot(&range[1])?);
                Some(Range { first, last, nodes })
            })
            .collect::<Option<Vec<_>>>()?;
        map.sort_unstable_by_key(|range| range.first);
        Some(map)
    }

    /// What all nodes that run say, if they say the same, all slots are served, and each node is
    /// ready to do so.
    fn map(&self) -> Option<Vec<Range>> {
        let mut running = self.running();
        let map = self.map_of(running.next()?.1)?;
        let served: u16 = map.iter().map(|range| range.last - range.first + 1).sum();
        let runs = map.iter().all(|range| self.nodes[range.nodes[0]].runs());
        let agrees = |node: &RedisServer| {
            let state = node.ask(&["CLUSTER", "INFO"]);
            state.is_some_and(|state| state.field("cluster_state") == Some("ok"))
                && self.map_of(node).as_ref() == Some(&map)
        };
        let ready = served == SLOTS && runs && self.running().all(|(_, node)| agrees(node));
        ready.then_some(map)
    }

    fn agreed_owner(&self, slot: u16) -> Option<usize> {
        let mut owners = self.running().map(|(_, node)| {
            let map = self.map_of(node)?;
            let range = map
                .iter()
                .find(|range| (range.first..=range.last).contains(&slot))?;
            Some(range.nodes[0])
        });
        let owner = owners.next()??;
        owners.all(|other| other == Some(owner)).then_some(owner)
    }

    /// Waits until all nodes that run agree on the masters: the ports that they announce.
    pub async fn leaders(&self) -> Vec<u16> {
        let map = wait_until("the nodes agree", || self.map()).await;
        let masters = map.iter().map(|range| range.nodes[0]);
        masters.map(|n| self.nodes[n].announced_port()).collect()
    }

    /// Waits until all nodes that run agree, and serve all slots.
    pub async fn ok(&self) {
        wait_until("the cluster is well", || self.map().map(drop)).await;
    }

    /// Waits until each master that fails now would be replaced as well.
    pub async fn ready(&self) {
        wait_until("the cluster is well, and its replicas are", || {
            self.is_complete().then_some(())
        })
        .await;
    }

    /// Waits until the slots of `old` have another master, as all nodes that run say; with
    /// `cluster_state:ok` where they serve.
    pub async fn taken_over(&self, old: usize) {
        wait_until("the slots have another master", || {
            let map = self.map()?;
            map.iter().all(|range| range.nodes[0] != old).then_some(())
        })
        .await;
    }

    /// SIGKILL.
    pub fn kill(&self, n: usize) {
        self.nodes[n].kill();
    }

    /// Lets a replica take over from a master that runs, without loss, and waits until all nodes
    /// know. The new master.
    pub async fn failover(&self, master: usize) -> usize {
        let replicas = self.replicas_of(master);
        let &replica = replicas.first().expect("it has a replica");
        wait_until("a replica takes over", || {
            // An attempt may time out, which no answer says.
            let is_master = self.nodes[replica].info("role") == "master";
            if !is_master {
                self.nodes[replica].try_command(&["CLUSTER", "FAILOVER"]);
            }
            is_master.then_some(())
        })
        .await;
        self.taken_over(master).await;
        replica
    }

    /// From now on the replicas of this master get nothing of what is written.
    pub fn cut_off_replicas(&self, master: usize) {
        for replica in self.replicas_of(master) {
            let replica = &self.nodes[replica];
            replica.command(&["CONFIG", "SET", "masterauth", "not the password"]);
            replica.command(&["CLIENT", "KILL", "TYPE", "master"]);
        }
        block_until("no replica is connected", || {
            (self.nodes[master].info("connected_slaves") == "0").then_some(())
        });
    }

    /// [`RedisServer::keys_left`] of all masters that run.
    pub fn keys_left(&self, prefix: &str) -> Vec<String> {
        let masters = self
            .running()
            .filter(|(_, node)| node.info("role") == "master");
        masters
            .flat_map(|(_, master)| master.keys_left(prefix))
            .collect()
    }
}

fn ok() -> Reply {
    Reply::Text("OK".to_owned())
}

fn start_node(setup: &ClusterSetup) -> RedisServer {
    let timeout = setup.node_timeout.as_millis().to_string();
    let mut options = vec!["--cluster-enabled", "yes"];
    options.extend(["--cluster-node-timeout", &timeout]);
    options.extend(["--repl-diskless-sync-delay", "0"]);
    // Replicas count as such when they have got something.
    options.extend(["--repl-ping-replica-period", "1"]);
    if let Some(password) = &setup.password {
        options.extend(["--requirepass", password, "--masterauth", password]);
    }
    options.extend(setup.options.iter().map(String::as_str));
    for _ in 0..20 {
        let port = free_port_with_bus();
        let started = if setup.fronts {
            let front = Front::before(port, Some(port + BUS));
            RedisServer::try_start_behind(front, port, &options)
        } else {
            RedisServer::try_start_on(port, &options)
        };
        match started {
            Ok(node) => return node,
            Err(log) if log.contains("Address already in use") => {}
            Err(log) => panic!("redis-server did not start:\n{log}"),
        }
    }
    panic!("redis-server found no free ports");
}
