//! A node is put, and put again where there was no answer, until it is known what became of it.

use std::sync::Arc;

use etcd_client::TxnResponse;
use tokio::time::{Instant, timeout};

use super::{
    client::Shared,
    nodes::{self, Put, Wish},
    session::Session,
    steps::Seen,
    trouble::Trouble,
    waiter::{Stand, Waiter},
};
use crate::lease::Loss;

/// Puts a node, and tries again where there was no answer: by the owner token that is harmless.
pub(super) async fn put(
    shared: Arc<Shared>,
    wish: Wish,
    session: Arc<Session>,
    mut old: Option<i64>,
    waiter: Arc<Waiter>,
) -> Result<(Put, Option<Seen>, Instant), Trouble> {
    let mut settles = Settles::new(&waiter);
    let line = wish.queues.then(|| shared.room.line_up(wish.names.id()));
    let started = Instant::now();
    let _turn = match &line {
        // Where those before get no answer, neither would this one.
        Some(line) => Some(
            timeout(shared.budget, line.turn.lock())
                .await
                .map_err(|_| Trouble::no_answer())?,
        ),
        // Nobody stands behind a try.
        None => None,
    };
    if !waiter.is_wanted() {
        return Err(Trouble::replaced());
    }
    loop {
        if let Some(revision) = old.take() {
            shared.txn(nodes::delete(&wish.node, revision)).await?;
        }
        // Where there is none, the link has waited for as long as it should.
        let connection = shared.link.connection().await?;
        let sent = Instant::now();
        let (put, seen) = match connection.txn(wish.put(session.id)).await {
            Ok(answer) => match read(&wish, &answer) {
                Ok(read) => read,
                Err(trouble) => {
                    // It may stand, whatever that answer means.
                    waiter.taint();
                    return Err(trouble);
                }
            },
            Err(trouble) => {
                if trouble.lease_gone {
                    session.end(&shared, Loss::Revoked);
                }
                if !trouble.answered {
                    waiter.taint();
                }
                let again = trouble.elsewhere || !trouble.answered;
                if again && started.elapsed() < shared.budget {
                    continue;
                }
                return Err(trouble);
            }
        };
        let revision = match put {
            // By a lease from before, which ends without asking anybody; or one that is about to be
            // deleted, as it is not what came of an unanswered try of this owner's.
            Put::Stood(revision, lease) if lease != session.id || !waiter.is_tainted() => {
                if started.elapsed() >= shared.budget {
                    return Err(Trouble::unavailable("an older node of this owner stays"));
                }
                old = Some(revision);
                continue;
            }
            Put::Stands(revision, _) | Put::Stood(revision, _) => revision,
            Put::Contended => return Ok((put, None, sent)),
        };
        settles.stand = Some(Stand { revision, session });
        return Ok((put, seen, sent));
    }
}

fn read(wish: &Wish, answer: &TxnResponse) -> Result<(Put, Option<Seen>), Trouble> {
    let put = wish.was_put(answer)?;
    let seen = match answer.succeeded() {
        true => wish.was_recorded(answer)?,
        false => None,
    };
    Ok((put, seen))
}

/// Tells where a waiter stands when its put is over, however that ends.
pub(super) struct Settles {
    waiter: Arc<Waiter>,
    pub(super) stand: Option<Stand>,
}

impl Settles {
    pub(super) fn new(waiter: &Arc<Waiter>) -> Self {
        let waiter = waiter.clone();
        Self {
            waiter,
            stand: None,
        }
    }
}

impl Drop for Settles {
    fn drop(&mut self) {
        self.waiter.settle(self.stand.take());
    }
}
