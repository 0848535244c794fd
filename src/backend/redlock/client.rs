//! What one process has of the nodes: its connections, and the tasks that live with them.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    runtime::Handle,
    sync::{Notify, Semaphore, mpsc, watch},
};
use tokio_util::sync::CancellationToken;

use super::{
    gate::GateLeft,
    inbox, member, names,
    node::Node,
    quorum::{Nodes, ballot::HIGHEST},
    room::Room,
    undo::{self, Undo, Work},
};

/// How long an answer may take that is not a vote: more than that is a broken connection.
pub(super) const ANSWER: Duration = Duration::from_secs(1);

/// The longest that a node may take to vote, unless the builder says otherwise.
const VOTE: Duration = Duration::from_millis(50);

/// How many rounds of votes this process has under way. What waits at a node has little time to be
/// answered, and is asked again where it was not: a burst would be sent many times over, and end
/// with connections that are taken for dead.
const ROUNDS: usize = 64;
/// How many more of those who were told that their key is free: it stands idle while they wait.
const TOLD: usize = 16;

/// What backends and leases hold on to. With the last of them the tasks end, after what is to be
/// undone has been undone.
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
    undos: mpsc::UnboundedSender<Work>,
}

/// What the tasks have in common.
pub(super) struct Shared {
    pub(super) nodes: Vec<Node>,
    pub(super) prefix: Box<str>,
    /// The channel of this process, on each node.
    pub(super) inbox: Arc<str>,
    /// What a node's knowledge of itself is called.
    pub(super) node_name: Box<str>,
    node_timeout: Option<Duration>,
    pub(super) max_ttl: Duration,
    /// The highest token that was seen or proposed here.
    highest: AtomicU64,
    pub(super) room: Room,
    /// A round of votes takes one, in the order of asking.
    pub(super) rounds: Semaphore,
    /// And whose key is free, as far as is known, one of these, if there is one.
    pub(super) told: Semaphore,
    /// Which process of a server each node is now, and whether it can do what is needed.
    pub(super) runs: Mutex<Vec<Option<Run>>>,
    /// Told when a node may vote that did not.
    pub(super) votes: watch::Sender<()>,
    /// Whether nodes are members is to be looked at.
    pub(super) look_again: Notify,
    pub(super) lock_runtime: Handle,
    closed: CancellationToken,
}

/// A process of a server.
pub(super) struct Run {
    pub(super) id: String,
    pub(super) tried: bool,
}

/// What the builder knows.
pub(super) struct Settings {
    pub(super) prefix: Box<str>,
    pub(super) node_timeout: Option<Duration>,
    pub(super) max_ttl: Duration,
}

impl Client {
    /// Starts the tasks on the lock runtime; they connect by themselves.
    pub(super) fn start(
        servers: Vec<redis::Client>,
        settings: Settings,
        lock_runtime: Handle,
    ) -> Arc<Self> {
        let prefix = settings.prefix;
        let servers = servers.into_iter().enumerate();
        let nodes: Vec<_> = servers.map(|(at, server)| Node::new(at, server)).collect();
        let shared = Arc::new(Shared {
            runs: Mutex::new(nodes.iter().map(|_| None).collect()),
            nodes,
            inbox: format!("{prefix}inbox:{:016x}", fastrand::u64(..)).into(),
            node_name: names::node(&prefix),
            prefix,
            node_timeout: settings.node_timeout,
            max_ttl: settings.max_ttl,
            highest: AtomicU64::new(0),
            room: Room::default(),
            rounds: Semaphore::new(ROUNDS),
            told: Semaphore::new(TOLD),
            votes: watch::Sender::new(()),
            look_again: Notify::new(),
            lock_runtime: lock_runtime.clone(),
            closed: CancellationToken::new(),
        });
        for at in 0..shared.nodes.len() {
            let of = || shared.clone();
            let (one, two) = (of(), of());
            shared.spawn(async move { one.nodes[at].connect(&one).await });
            shared.spawn(async move { inbox::listen(&two, at).await });
        }
        let of = shared.clone();
        shared.spawn(async move { member::watch_over(&of).await });
        let (undos, undo_queue) = mpsc::unbounded_channel();
        // Not cut off at the end: it ends the others.
        lock_runtime.spawn(undo::undo_all(shared.clone(), undo_queue));
        Arc::new(Self { shared, undos })
    }

    /// Hands over what has to be undone, from anywhere: it neither waits nor fails.
    pub(super) fn undo(&self, undo: Undo) {
        // The other end outlives every sender.
        let _ = self.undos.send(Work::Owner(undo));
    }

    /// The same for a gate.
    pub(super) fn close_gate(&self, gate: GateLeft) {
        let _ = self.undos.send(Work::Gate(gate));
    }
}

impl Shared {
    /// Spawns what ends with the client.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let closed = self.closed.clone();
        self.lock_runtime.spawn(async move {
            closed.run_until_cancelled(task).await;
        });
    }

    /// Ends all tasks and connections.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    pub(super) fn count(&self) -> Nodes {
        Nodes(self.nodes.len())
    }

    pub(super) fn majority(&self) -> usize {
        self.count().majority()
    }

    /// How long a node may take, for a lease of this ttl.
    pub(super) fn node_timeout(&self, ttl: Duration) -> Duration {
        self.node_timeout.unwrap_or((ttl / 10).min(VOTE))
    }

    /// How many nodes there is a connection to, or has been until a moment ago.
    pub(super) fn reachable(&self) -> usize {
        let there = |node: &&Node| !node.lock_link.is_given_up();
        self.nodes.iter().filter(there).count()
    }

    /// A token that is probably above all before it, and the first of so many that are nobody
    /// else's here: the clock, unless that was behind.
    pub(super) fn propose(&self, tokens: u32) -> u64 {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH);
        let clock = clock.map_or(1, |since| since.as_micros() as u64);
        // Beyond, nobody takes it, and the ballot says so.
        let most = HIGHEST - u64::from(tokens);
        let first = |highest: u64| clock.max(highest.saturating_add(1)).min(most);
        let last = |highest| Some(first(highest) + u64::from(tokens) - 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        match self.highest.fetch_update(set, fetch, last) {
            Ok(before) | Err(before) => first(before),
        }
    }

    pub(super) fn saw(&self, token: u64) {
        self.highest.fetch_max(token, Ordering::Relaxed);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
