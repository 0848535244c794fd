//! Undoing what nobody wants any more: attempts whose caller left or that got too few nodes, leases
//! that were released or dropped.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};

use super::{
    client::{ANSWER, Shared},
    gate::GateLeft,
    post::{Posts, Seat, patience},
    room::Asker,
};

/// For how many answers' time undoing goes on after the last backend and lease were dropped.
const AFTERWARDS: u32 = 10;

pub(super) enum Work {
    Owner(Undo),
    Gate(GateLeft),
}

pub(super) struct Undo {
    pub(super) seat: Seat,
    pub(super) posts: Posts,
    pub(super) asker: Asker,
    /// Told when the key is free.
    pub(super) done: Option<Arc<watch::Sender<bool>>>,
}

impl Undo {
    /// Done is what a majority of the nodes did, once the others had their time for it.
    async fn run(mut self, shared: Arc<Shared>) {
        let (undone, late) = (AtomicUsize::new(0), AtomicBool::new(false));
        let check = |all| {
            let enough = undone.load(Ordering::Relaxed) >= shared.majority();
            if let Some(done) = &self.done
                && (all || enough && late.load(Ordering::Relaxed))
            {
                done.send_replace(true);
            }
        };
        let mut on_time = false;
        {
            let heard = || {
                undone.fetch_add(1, Ordering::Relaxed);
                check(false);
            };
            let leaving = self
                .posts
                .leave(&shared, &self.seat, self.done.is_some(), heard);
            tokio::pin!(leaving);
            tokio::select! {
                biased;
                () = &mut leaving => on_time = true,
                () = patience(shared.node_timeout(shared.max_ttl)) => {}
            }
            if !on_time {
                late.store(true, Ordering::Relaxed);
                check(false);
                leaving.await;
            }
        }
        check(true);
        shared.room.left(&self.asker);
    }
}

/// Undoes what comes in, and ends the client when nothing can come any more.
pub(super) async fn undo_all(shared: Arc<Shared>, mut queue: mpsc::UnboundedReceiver<Work>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            work = queue.recv() => match work {
                Some(Work::Owner(undo)) => {
                    running.spawn(undo.run(shared.clone()));
                }
                Some(Work::Gate(gate)) => {
                    running.spawn(gate.take_out(shared.clone()));
                }
                None => break,
            },
            Some(_) = running.join_next() => {}
        }
    }
    let rest = async { while running.join_next().await.is_some() {} };
    let _ = timeout(ANSWER * AFTERWARDS, rest).await;
    shared.close();
}
