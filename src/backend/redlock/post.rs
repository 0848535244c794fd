//! What one owner has asked of the nodes, and over what.
//!
//! # Why nothing is left
//!
//! An ask that is not answered may still be executed, so an undo must not be overtaken by it. It is
//! sent over the same connection while that lives, and a server executes what comes over one
//! connection in order; nothing is sent twice. Else the connection was ended at the server before
//! another was handed out ([`Link::supervise`](crate::backend::redis::link::Link::supervise)), and
//! where the user may not do that, the owner is *tainted*: its undo leaves a tombstone, for which
//! its asks look.
//!
//! A future that asks may be dropped at any time: what it noted before it sent says that the answer
//! is open. It sends a second time only to a server that did not know the script, and not after
//! it was dropped.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};

use super::{
    client::Shared,
    names::Names,
    node::Node,
    scripts::{BACK, RELEASE},
};
use crate::{
    backend::redis::{connection::Connection, scripts::Script, trouble::Trouble},
    clock::jittered,
};

/// How long a tombstone stands: as long as a packet may be on its way, 15 minutes
/// (`tcp_retries2` in the manual page tcp(7)).
const TOMBSTONE_MS: u32 = 900_000;

/// How long something may take to be sent: dropped before, it is not.
const TO_SEND: Duration = Duration::from_millis(10);

/// Who asks, and for what.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) names: Arc<Names>,
    pub(super) owner: String,
    /// By which it hears.
    pub(super) inbox: Arc<str>,
    pub(super) began: Instant,
}

impl Seat {
    pub(super) fn tombstone(&self) -> String {
        self.names.tombstone(&self.owner)
    }

    pub(super) fn waited_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// One node, as one owner sees it.
#[derive(Debug, Default)]
pub(super) struct Post {
    /// Over which it asked last.
    over: Option<Arc<Connection>>,
    /// Whether that is not answered.
    open: bool,
    /// An ask may still come late, over a connection that could not be ended.
    tainted: bool,
    /// Something of it may be there.
    pub(super) left: bool,
}

/// How a command goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Whether an undo has to leave a tombstone.
    pub(super) buries: bool,
    /// Whether to look for one.
    pub(super) looks: bool,
}

impl Post {
    /// Asks over the connection that there is, for as long as it is polled; or (`patiently`) over
    /// one that there is soon, for as long as an answer may take.
    pub(super) async fn ask(
        &mut self,
        node: &Node,
        script: &Script,
        patiently: bool,
        call: impl Fn(&Script, bool, Way) -> Cmd,
    ) -> Result<Value, Trouble> {
        let connection = match node.lock_link.ready() {
            Some(connection) => connection,
            None if patiently => node.lock_link.connection().await?,
            None => return Err(Trouble::unavailable("there is no connection to Redis")),
        };
        if self.open
            && let Some(before) = &self.over
            && !Arc::ptr_eq(before, &connection)
            && !before.retire(&connection).await?
        {
            self.tainted = true;
        }
        self.over = Some(connection.clone());
        (self.open, self.left) = (true, true);
        let way = Way {
            buries: self.tainted,
            looks: self.tainted || !connection.can_be_ended(),
        };
        let call = |script: &Script, by_code| call(script, by_code, way);
        let answer = if patiently {
            connection.run(false, script, &call).await
        } else {
            connection.run_unlimited(script, &call).await
        };
        if answer.as_ref().map_or_else(|t| t.answered, |_| true) {
            self.open = false;
        }
        answer
    }

    async fn release(&mut self, node: &Node, seat: &Seat) -> Result<(), Trouble> {
        let Names { lock, waiters, .. } = &*seat.names;
        self.ask(node, &RELEASE, true, |script, by_code, way| {
            let tombstone = way.buries.then(|| seat.tombstone());
            let mut keys = vec![&**lock, waiters];
            keys.extend(tombstone.as_deref());
            let mut cmd = script.call(by_code, &keys);
            cmd.arg(&seat.owner).arg(&*seat.inbox).arg(TOMBSTONE_MS);
            cmd
        })
        .await?;
        self.left = false;
        Ok(())
    }

    /// Until it is done, or never will be.
    async fn leave(&mut self, node: &Node, seat: &Seat, urgent: bool) {
        if !self.left {
            return;
        }
        let _turn = match urgent {
            true => None,
            // It is never closed.
            false => node.undos.acquire().await.ok(),
        };
        let mut pause = Duration::from_millis(20);
        while self.left {
            match self.release(node, seat).await {
                Ok(()) => {}
                // It was heard: asking again would be answered the same.
                Err(trouble) if trouble.answered && !trouble.may_pass() => {
                    tracing::debug!(
                        target: "tower_lock",
                        "a node refused to undo an attempt; it ends by its ttl"
                    );
                    return;
                }
                Err(_) => {
                    sleep(jittered(pause)).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    async fn step_back(&mut self, node: &Node, seat: &Seat, ballot: u32, waits: bool) {
        let Names { lock, waiters, .. } = &*seat.names;
        // Without an answer it stays as open as it was.
        let _ = self
            .ask(node, &BACK, false, |script, by_code, way| {
                let tombstone = way.looks.then(|| seat.tombstone());
                let mut keys = vec![&**lock, waiters];
                keys.extend(tombstone.as_deref());
                let mut cmd = script.call(by_code, &keys);
                cmd.arg(&seat.owner).arg(&*seat.inbox).arg(ballot);
                if waits {
                    cmd.arg(seat.waited_ms());
                } else {
                    cmd.arg("");
                }
                cmd
            })
            .await;
    }
}

/// What a ballot got, as far as it heard: a bit for each node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Got {
    /// Nodes that said so.
    pub(super) granted: u64,
    /// Nodes that said that they did not.
    pub(super) refused: u64,
}

impl Got {
    fn is(self, node: usize) -> bool {
        self.granted & (1 << node) != 0
    }

    fn may_be(self, node: usize) -> bool {
        self.refused & (1 << node) == 0
    }
}

/// All nodes, as one owner sees them.
#[derive(Debug)]
pub(super) struct Posts(Vec<Post>);

impl Posts {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Post::default()).collect())
    }

    pub(super) fn is_anything_left(&self) -> bool {
        self.0.iter().any(|post| post.left)
    }

    /// Asks all nodes at once, and hears their answers until it says that it has heard enough, or
    /// for so long. Which of them did not answer is doubted then.
    pub(super) async fn round<'a, T, F>(
        &'a mut self,
        shared: &'a Shared,
        limit: Duration,
        ask: impl Fn(&'a mut Post, &'a Node) -> F,
        mut heard: impl FnMut(usize, T) -> bool,
    ) where
        F: Future<Output = T> + Send + 'a,
    {
        let mut silent: Vec<_> = shared.nodes.iter().collect();
        let asks = self.0.iter_mut().zip(&shared.nodes);
        let round = each(asks.map(|(post, node)| ask(post, node)), |at, answer| {
            silent.retain(|node| node.at != at);
            heard(at, answer)
        });
        if !within(limit, round).await {
            for node in silent {
                node.doubt();
            }
        }
    }

    /// Gives back what a ballot got, wherever it may have got anything, and waits on there. Done
    /// when the nodes have done it that said that they gave it: what is sent to the others is
    /// not waited for, and comes before whatever is asked of them next.
    pub(super) async fn step_back(
        &mut self,
        shared: &Shared,
        limit: Duration,
        seat: &Seat,
        ballot: u32,
        waits: bool,
        got: Got,
    ) {
        let asks = self.0.iter_mut().zip(&shared.nodes);
        let asks = asks.filter(|(post, node)| post.left && got.may_be(node.at));
        let mut known = Vec::new();
        let asks = asks.map(|(post, node)| {
            known.push(got.is(node.at) && node.lock_link.ready().is_some());
            post.step_back(node, seat, ballot, waits)
        });
        let asks: Vec<_> = asks.collect();
        let mut open = known.iter().filter(|known| **known).count();
        let limit = if open == 0 { limit.min(TO_SEND) } else { limit };
        let asks = each(asks.into_iter(), |n, ()| {
            open -= usize::from(known[n]);
            known[n] && open == 0
        });
        let _ = within(limit, asks).await;
    }

    /// Leaves nothing anywhere, however long that takes; `heard` is told of each node. A lease is
    /// `urgent`: attempts go in turns.
    pub(super) async fn leave(
        &mut self,
        shared: &Shared,
        seat: &Seat,
        urgent: bool,
        mut heard: impl FnMut(),
    ) {
        let asks = self.0.iter_mut().zip(&shared.nodes);
        let asks = asks.map(|(post, node)| post.leave(node, seat, urgent));
        each(asks, |_, ()| {
            heard();
            false
        })
        .await;
    }
}

/// Polls all until `heard` says that it is enough, or until all have ended. It is told of all that
/// have ended by then.
pub(super) async fn each<'a, T>(
    asks: impl Iterator<Item = impl Future<Output = T> + Send + 'a>,
    mut heard: impl FnMut(usize, T) -> bool,
) {
    let mut asks: Vec<_> = asks.map(|ask| Some(Box::pin(ask))).collect();
    poll_fn(|cx| {
        let (mut open, mut enough) = (false, false);
        for (n, slot) in asks.iter_mut().enumerate() {
            let Some(ask) = slot else { continue };
            match Pin::as_mut(ask).poll(cx) {
                Poll::Pending => open = true,
                Poll::Ready(answer) => {
                    *slot = None;
                    enough |= heard(n, answer);
                }
            }
        }
        if open && !enough {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
}

/// Whether it ended in time.
pub(super) async fn within(limit: Duration, round: impl Future<Output = ()>) -> bool {
    tokio::select! {
        biased;
        () = round => true,
        () = patience(limit) => false,
    }
}

/// So long, and longer if this process was not running: the answers may be here by then.
pub(super) async fn patience(limit: Duration) {
    for _ in 0..2 {
        sleep(limit / 2).await;
    }
    for _ in 0..2 {
        yield_now().await;
    }
}
