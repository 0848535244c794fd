//! Undoing what nobody waits for any more: attempts whose caller left or got no answer, leases that
//! were dropped, waiters that nobody polls.
//!
//! An undo must not be overtaken by its attempt. A put is sent by a task that awaits its answer,
//! whoever asked for it, and the undo waits for that task: what was answered is deleted, and that
//! is all in most cases. A put without an answer may take effect late, over another member or when
//! the network heals. Then the undo deletes the node and *marks* the owner, in one transaction, and
//! every put compares that there is no mark: before the undo, the put is undone by it; after it, it
//! has no effect. The mark has the lease of the put, so it cannot be gone while the put still could
//! take effect, and nothing of it is left when the process is.
//!
//! Leases are shared and kept alive, so a node that is not deleted stays: an undo goes on until it
//! succeeds or the lease has ended.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    client::Shared,
    nodes,
    room::Asker,
    session::Session,
    trouble::Trouble,
    waiter::{Traces, Waiter},
};
use crate::clock::jittered;

/// For how long undoing goes on after the last backend and lease were dropped.
const AFTERWARDS: Duration = Duration::from_secs(10);

pub(super) struct Undo {
    /// Who must not ask again before this is done.
    asker: Option<Asker>,
    node: String,
    what: What,
}

enum What {
    /// An acquire, which may have a put under way.
    Attempt {
        waiter: Arc<Waiter>,
        mark: String,
    },
    Node(Grave),
}

/// What is to be deleted.
#[derive(Clone, Debug)]
pub(super) struct Grave {
    /// Of the node, where it is known.
    pub(super) revision: Option<i64>,
    /// The lease of the node, or of a put that may come late. Not kept alive for this.
    pub(super) session: Weak<Session>,
    pub(super) lease: i64,
    /// Where such a put may come.
    pub(super) mark: Option<String>,
}

impl Undo {
    pub(super) fn attempt(asker: Asker, waiter: Arc<Waiter>, mark: String) -> Self {
        Self {
            asker: Some(asker),
            node: waiter.node.clone(),
            what: What::Attempt { waiter, mark },
        }
    }

    pub(super) fn grant(asker: Asker, node: String, grave: Grave) -> Self {
        Self {
            asker: Some(asker),
            node,
            what: What::Node(grave),
        }
    }

    /// A node, of an owner who may ask again meanwhile: its next one has another revision.
    pub(super) fn node(node: String, grave: Grave) -> Self {
        Self {
            asker: None,
            node,
            what: What::Node(grave),
        }
    }

    async fn run(self, shared: Arc<Shared>) {
        let grave = match self.what {
            What::Node(grave) => Some(grave),
            What::Attempt { waiter, mark } => {
                waiter.settled().await;
                Grave::of(waiter.traces(), mark)
            }
        };
        let mut pause = Duration::from_millis(20);
        while let Some(grave) = &grave {
            match grave.dig(&shared, &self.node).await {
                Ok(()) => break,
                Err(_) if grave.has_ended() => break,
                Err(trouble) => {
                    sleep(jittered(pause)).await;
                    // A right that is missing may be given back.
                    let longest = if trouble.may_pass() { 1 } else { 30 };
                    pause = (pause * 2).min(Duration::from_secs(longest));
                }
            }
        }
        if let Some(asker) = &self.asker {
            shared.room.left(asker);
        }
    }
}

impl Grave {
    /// Nothing, where nothing was put.
    fn of(traces: Traces, mark: String) -> Option<Self> {
        let revision = traces.stand.as_ref().map(|stand| stand.revision);
        let session = traces
            .session
            .or_else(|| traces.stand.map(|stand| stand.session))?;
        Some(Self {
            revision,
            session: Arc::downgrade(&session),
            lease: session.id,
            mark: traces.tainted.then_some(mark),
        })
    }

    /// Whether the lease has, and with it all that could be deleted.
    fn has_ended(&self) -> bool {
        let session = self.session.upgrade();
        session.is_none_or(|session| session.loss().is_some())
    }

    /// Leaves nothing of the node, but a mark if a put of it may come late.
    pub(super) async fn dig(&self, shared: &Shared, node: &str) -> Result<(), Trouble> {
        // First, as a server without space refuses marks.
        if let Some(revision) = self.revision {
            shared.txn(nodes::delete(node, revision)).await?;
        }
        if let Some(mark) = &self.mark {
            match shared.txn(nodes::bury(node, mark, self.lease)).await {
                Ok(_) => shared.agenda.marked(mark.clone()),
                // No put can use it any more.
                Err(trouble) if trouble.lease_gone => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(())
    }
}

/// A waiter was not polled for so long that it must not stand before others.
pub(super) fn evict(shared: &Shared, waiter: &Waiter) {
    if let Some(stand) = waiter.evict() {
        let grave = Grave {
            revision: Some(stand.revision),
            session: Arc::downgrade(&stand.session),
            lease: stand.session.id,
            mark: None,
        };
        shared.undo(Undo::node(waiter.node.clone(), grave));
    }
}

/// Removes marks that have had their time.
pub(super) async fn unmark(shared: Arc<Shared>, marks: Vec<String>) {
    for mark in marks {
        let deleted = match shared.link.connection().await {
            Ok(connection) => connection.delete(&mark).await,
            Err(trouble) => Err(trouble),
        };
        if deleted.is_err() {
            // Later; it ends with its lease in any case.
            shared.agenda.marked(mark);
        }
    }
}

/// Undoes what comes in, and ends the client when nothing can come any more.
pub(super) async fn undo_all(shared: Arc<Shared>, mut queue: mpsc::UnboundedReceiver<Undo>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            undo = queue.recv() => match undo {
                Some(undo) => {
                    running.spawn(undo.run(shared.clone()));
                }
                None => break,
            },
            Some(_) = running.join_next() => {}
        }
    }
    let rest = async { while running.join_next().await.is_some() {} };
    let _ = timeout(AFTERWARDS, rest).await;
    shared.close().await;
}
