//! One of the servers, and the connections to it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redis::{PushInfo, PushKind};
use tokio::sync::{Semaphore, mpsc, watch};

use super::{
    client::{ANSWER, Run, Shared},
    scripts::{self, PROBE},
};
use crate::{
    backend::redis::{
        connection::{Connection, text},
        link::Link,
        trouble::Trouble,
    },
    sync::lock,
};

/// How many undos a node is asked for at once of which nobody waits for the end. All waiters that leave
/// at the same time would together take longer than an answer may, and be asked again; or all wait
/// for the node to come back, and wake each other.
const UNDOS: usize = 64;

pub(super) struct Node {
    /// Its place in the list.
    pub(super) at: usize,
    redis: redis::Client,
    /// Votes, renewals, undo: whatever is asked.
    pub(super) lock_link: Link,
    pub(super) inbox_link: Link,
    /// How connecting went first.
    pub(super) first: watch::Sender<Option<Result<(), Trouble>>>,
    votes: AtomicBool,
    /// Such an undo keeps one until it is done.
    pub(super) undos: Semaphore,
}

impl Node {
    pub(super) fn new(at: usize, redis: redis::Client) -> Self {
        Self {
            at,
            redis,
            lock_link: Link::new(ANSWER),
            inbox_link: Link::new(ANSWER),
            first: watch::Sender::new(None),
            votes: AtomicBool::new(false),
            undos: Semaphore::new(UNDOS),
        }
    }

    /// Whether it is a member, as far as is known, and can be asked.
    pub(super) fn votes(&self) -> bool {
        self.votes.load(Ordering::Relaxed) && self.lock_link.ready().is_some()
    }

    pub(super) fn set_votes(&self, shared: &Shared, votes: bool) {
        if self.votes.swap(votes, Ordering::Relaxed) != votes && votes {
            shared.votes.send_replace(());
        }
    }

    /// It may have forgotten what it granted.
    pub(super) fn abstained(&self, shared: &Shared) {
        // Who watches over it need not be told twice.
        if self.votes.swap(false, Ordering::Relaxed) {
            shared.look_again.notify_one();
        }
    }

    /// It has not answered for as long as a node may take.
    pub(super) fn doubt(&self) {
        if let Some(connection) = self.lock_link.ready() {
            connection.doubt();
        }
    }

    /// Keeps the connection up over which it is asked.
    pub(super) async fn connect(&self, shared: &Arc<Shared>) {
        let told = AtomicBool::new(false);
        let open = || async {
            let opened = self.open_checked(shared).await;
            if let Err(trouble) = &opened {
                self.first.send_if_modified(|first| {
                    let is_first = first.is_none();
                    first.get_or_insert_with(|| Err(trouble.clone()));
                    is_first
                });
                if !trouble.may_pass() && !told.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        target: "tower_lock",
                        "a node of RedLock cannot take part: {}",
                        crate::error::BackendError::from(trouble.clone())
                    );
                }
            }
            opened
        };
        let opened = || async {
            told.store(false, Ordering::Relaxed);
            self.first.send_replace(Some(Ok(())));
            shared.look_again.notify_one();
        };
        self.lock_link.supervise(open, opened).await;
    }

    async fn open_checked(&self, shared: &Shared) -> Result<Connection, Trouble> {
        let check = async {
            let connection = Connection::open(&self.redis, ANSWER, |_| {}).await?;
            if self.is_new(shared, &connection)? {
                self.try_everything(shared).await?;
                if let Some(run) = &mut lock(&shared.runs)[self.at] {
                    run.tried = true;
                }
            }
            Ok(connection)
        };
        check.await.map_err(|trouble: Trouble| {
            lock(&shared.runs)[self.at] = None;
            trouble.of_node(self.at + 1)
        })
    }

    pub(super) async fn open(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Connection, Trouble> {
        Connection::open(&self.redis, ANSWER, on_push).await
    }

    /// Whether this process of the server is still to be tried; it may be one that cannot be a node.
    fn is_new(&self, shared: &Shared, connection: &Connection) -> Result<bool, Trouble> {
        let server = connection.server();
        match server.mode.as_deref() {
            Some("cluster") => {
                return Err(Trouble::misconfigured(
                    "this server is a node of a Redis Cluster, whose nodes are not independent of \
                     each other: RedLock needs single servers",
                ));
            }
            Some("sentinel") => {
                return Err(Trouble::misconfigured(
                    "this server is a Redis Sentinel: RedLock needs servers that hold locks",
                ));
            }
            _ => {}
        }
        if server.is_replica {
            return Err(Trouble::misconfigured(
                "this server is a read-only replica: RedLock needs masters that know nothing of \
                 each other",
            ));
        }
        let Some(run) = &server.run_id else {
            return Err(Trouble::misconfigured(
                "the Redis user may not run INFO (give it `+info`): RedLock has to know which \
                 process of a server it speaks to",
            ));
        };
        let mut runs = lock(&shared.runs);
        let is_it = |other: &Option<Run>| other.as_ref().is_some_and(|other| other.id == *run);
        match runs.iter().position(is_it) {
            Some(at) if at == self.at => {
                return Ok(runs[at].as_ref().is_none_or(|run| !run.tried));
            }
            Some(at) => {
                return Err(Trouble::misconfigured(format!(
                    "node {} of the list is the same server: RedLock needs independent ones",
                    at + 1
                )));
            }
            None => {}
        }
        if server.evicts {
            return Err(Trouble::misconfigured(
                "this server evicts keys when its memory is full (maxmemory-policy), locks \
                 included: RedLock needs `noeviction`",
            ));
        }
        let id = run.clone();
        runs[self.at] = Some(Run { id, tried: false });
        Ok(true)
    }

    /// Whatever the backend will do, once, on keys and over a connection of its own.
    async fn try_everything(&self, shared: &Shared) -> Result<(), Trouble> {
        let (heard, mut messages) = mpsc::unbounded_channel();
        let hear = move |push: PushInfo| {
            let _ = heard.send(push.kind);
        };
        let connection = self.open(hear).await?;
        // A channel of its own: the inbox is not there yet, and is not to be told.
        let channel = format!("{}:{}", shared.inbox, self.at);
        connection.subscribe(&channel).await?;
        let one = format!("{}probe:{channel}", shared.prefix);
        let two = format!("{{{one}}}:w");
        let three = format!("{one}:node");
        // A server that forgets its scripts is asked in both ways.
        for by_code in [true, false] {
            let mut cmd = PROBE.call(by_code, &[&one, &two, &three]);
            cmd.arg(&channel);
            let answer = connection.ask(&cmd).await?;
            match text(&answer) {
                Some("") => {}
                refusal => return Err(Trouble::refused_command(refusal.unwrap_or_default())),
            }
        }
        // One that does not know a script is slower than the others when it is asked first, and is
        // not waited for. Where the user may not do this, that is all.
        for script in scripts::all() {
            let _ = connection.ask(&script.load()).await;
        }
        // The pong follows the message.
        connection.ping().await?;
        let mut delivered = false;
        while let Ok(kind) = messages.try_recv() {
            delivered |= kind == PushKind::Message;
        }
        connection.end();
        if delivered {
            Ok(())
        } else {
            Err(Trouble::misconfigured(
                "Redis does not deliver published messages: is there a proxy in between?",
            ))
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("at", &self.at)
            .field("votes", &self.votes())
            .finish_non_exhaustive()
    }
}
