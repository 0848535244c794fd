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
//! Where an acquire has [opened a record](super::steps), that is withdrawn in the same transaction.
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
    time::{Instant, sleep, timeout},
};

use super::{
    client::Shared,
    lends, nodes,
    record::{Change, Kept},
    room::Asker,
    session::Session,
    steps,
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
        opens: Option<Opens>,
    },
    Node(Grave),
    /// A record's lease that nothing needs any more.
    Lease(i64),
}

/// What an acquire may have opened.
#[derive(Clone, Debug)]
pub(super) struct Opens {
    pub(super) record: String,
    /// In hexadecimal digits.
    pub(super) owner: String,
    pub(super) ttl: Duration,
}

/// An open record that is to go.
#[derive(Clone, Debug)]
pub(super) struct Withdraw {
    opens: Opens,
    lease: i64,
    /// By then it has ended.
    until: Instant,
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
    pub(super) withdraw: Option<Withdraw>,
}

impl Undo {
    pub(super) fn attempt(
        asker: Asker,
        waiter: Arc<Waiter>,
        mark: String,
        opens: Option<Opens>,
    ) -> Self {
        Self {
            asker: Some(asker),
            node: waiter.node.clone(),
            what: What::Attempt {
                waiter,
                mark,
                opens,
            },
        }
    }

    pub(super) fn lease(id: i64) -> Self {
        Self {
            asker: None,
            node: String::new(),
            what: What::Lease(id),
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
            What::Lease(id) => return lends::insist(&shared, id).await,
            What::Attempt {
                waiter,
                mark,
                opens,
            } => {
                waiter.settled().await;
                Grave::of(waiter.traces(), mark, opens)
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
    fn of(traces: Traces, mark: String, opens: Option<Opens>) -> Option<Self> {
        let revision = traces.stand.as_ref().map(|stand| stand.revision);
        let session = traces
            .session
            .or_else(|| traces.stand.map(|stand| stand.session))?;
        Some(Self {
            revision,
            session: Arc::downgrade(&session),
            lease: session.id,
            mark: traces.tainted.then_some(mark),
            withdraw: opens.and_then(|opens| Some(Withdraw::new(opens, traces.opening?))),
        })
    }

    /// Whether the lease has, and with it all that could be deleted.
    fn has_ended(&self) -> bool {
        if let Some(withdraw) = &self.withdraw {
            return withdraw.until <= Instant::now();
        }
        let session = self.session.upgrade();
        session.is_none_or(|session| session.loss().is_some())
    }

    /// Leaves nothing of the node, but a mark if a put of it may come late.
    pub(super) async fn dig(&self, shared: &Shared, node: &str) -> Result<(), Trouble> {
        if let Some(withdraw) = &self.withdraw {
            return withdraw.run(shared, node, self).await;
        }
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

impl Withdraw {
    /// Of what this lease was asked for.
    pub(super) fn new(opens: Opens, lease: i64) -> Self {
        // Rounded up at the server, and ended up to a second late.
        let until = Instant::now() + opens.ttl + Duration::from_secs(3);
        Self {
            opens,
            lease,
            until,
        }
    }

    /// Takes the open record back with its lock, or what it took the place of comes back.
    async fn run(&self, shared: &Shared, node: &str, grave: &Grave) -> Result<(), Trouble> {
        let Opens { record, owner, .. } = &self.opens;
        let mut mark = grave.mark.as_deref();
        let mut has_end = true;
        loop {
            let seen = steps::was_loaded(&shared.txn(steps::load(record)).await?)?;
            let kept = seen.kept.as_ref();
            let change = match kept.and_then(|kept: &Kept| kept.withdrawn(owner)) {
                // Its own time is over.
                Some(Change::PutBack(..)) if !has_end => Some(Change::Delete),
                change => change,
            };
            let is_put_back = matches!(change, Some(Change::PutBack(..)));
            let ends = is_put_back || matches!(change, Some(Change::Delete));
            let marks = mark.map(|mark| (mark, grave.lease));
            let step = steps::withdraw(record, &seen, change, node, marks);
            match shared.txn(step).await {
                Ok(answer) if answer.succeeded() => {}
                // The record has changed.
                Ok(_) => continue,
                Err(trouble) if trouble.lease_gone && is_put_back => {
                    has_end = false;
                    continue;
                }
                // No put can use it any more.
                Err(trouble) if trouble.lease_gone && mark.is_some() => {
                    mark = None;
                    continue;
                }
                Err(trouble) => {
                    if let Some(revision) = grave.revision.filter(|_| trouble.answered) {
                        // A server without space takes nothing but this.
                        shared.txn(nodes::delete(node, revision)).await?;
                    }
                    return Err(trouble);
                }
            }
            if let Some(mark) = mark {
                shared.agenda.marked(mark.into());
            }
            if ends {
                lends::give_back(shared, seen.lease).await;
            }
            if !seen.leases().contains(&self.lease) {
                lends::give_back(shared, self.lease).await;
            }
            return Ok(());
        }
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
            withdraw: None,
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
