//! One question of an acquire to the server, and what follows from the answer.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    super::{
        lease::{EtcdLease, Grant, Inner, Reserved},
        nodes::{Look, Put},
        opening, put,
        session::Sessions,
        trouble::Trouble,
        waiter::{Stand, Waiter},
    },
    Attempt, Turn,
};
use crate::lease::Loss;

impl Attempt<'_> {
    /// Nobody may be there to take the answer, and it is before others by then.
    pub(super) fn expect_life(&self) {
        if self.waiter.asks() {
            self.shared().room.expect(&self.waiter);
        }
    }

    pub(super) async fn turn(&mut self) -> Result<Turn, Trouble> {
        match self.waiter.stand() {
            Ok(None) if self.loads.is_some() => self.first().await,
            Ok(None) => self.put(None).await,
            Ok(Some(stand)) => self.look(stand).await,
            Err(old) => self.put(Some(old)).await,
        }
    }

    /// Puts a node, in place of an `old` one that counts no more.
    pub(super) async fn put(&mut self, old: Option<i64>) -> Result<Turn, Trouble> {
        let shared = self.shared();
        let session = Sessions::get(shared, self.ttl).await?;
        if !self.waiter.puts(&session) {
            return Err(Trouble::replaced());
        }
        // Before it can be answered, which ends this.
        self.expect_life();
        // It goes on to its answer when this future does not.
        let put = shared.see_through(put::put(
            shared.clone(),
            self.wish.clone(),
            session.clone(),
            old,
            self.waiter.clone(),
        ));
        let put = put.await;
        let (put, seen, sent) = match put {
            Ok(Ok(put)) => put,
            // The next one has another lease.
            Ok(Err(trouble)) if trouble.lease_gone => return Ok(Turn::Again),
            Ok(Err(trouble)) => return Err(trouble),
            Err(_) => return Err(Trouble::unavailable("a put broke off")),
        };
        match put {
            Put::Stands(revision, blocker) => {
                let stand = Stand { revision, session };
                self.stands(stand, blocker, seen, sent).await
            }
            Put::Stood(..) => Ok(Turn::Again),
            Put::Contended => Ok(Turn::Contended),
        }
    }

    /// Looks at its node, and at who is before it: the grant rests on this, not on what was heard.
    pub(super) async fn look(&mut self, stand: Stand) -> Result<Turn, Trouble> {
        self.expect_life();
        let shared = self.shared();
        let sent = Instant::now();
        // Seen through: whether its caller is polled shows when there is an answer to be taken.
        let asked = shared.see_through({
            let (shared, txn) = (shared.clone(), self.wish.look(stand.revision));
            let answered = Answered(self.waiter.clone());
            async move {
                let _answered = answered;
                shared.txn(txn).await
            }
        });
        let answer = match asked.await {
            Ok(Ok(answer)) => answer,
            Err(_) => return Err(Trouble::unavailable("a look broke off")),
            Ok(Err(trouble)) if trouble.may_pass() => return Ok(Turn::Unsure(trouble)),
            Ok(Err(trouble)) => return Err(trouble),
        };
        let look = self
            .wish
            .was_seen(stand.revision, stand.session.id, &answer)?;
        match look {
            Look::Stands(blocker) => {
                let seen = self.wish.was_recorded(&answer)?;
                self.stands(stand, blocker, seen, sent).await
            }
            Look::Gone => {
                self.waiter.fell();
                Ok(Turn::Again)
            }
        }
    }

    pub(super) fn granted(
        &mut self,
        stand: Stand,
        sent: Instant,
        reserved: Option<Reserved>,
    ) -> Result<Turn, Trouble> {
        let token = opening::token(stand.revision)?;
        if !self.waiter.grant() {
            if self.waiter.is_replaced() {
                return Err(Trouble::replaced());
            }
            return Ok(Turn::Again);
        }
        let shared = self.shared();
        let session = stand.session;
        let inner = Arc::new(Inner::new(
            self.client.clone(),
            session.clone(),
            token,
            Grant {
                mode: self.wish.mode,
                asker: self.asker.clone(),
                node: self.wish.node.clone(),
                mark: self.wish.mark.clone(),
                revision: stand.revision,
                ttl: self.ttl,
                sent,
                tainted: self.waiter.is_tainted(),
                withdraw: self.withdraws(reserved.as_ref()),
                reserved,
            },
        ));
        if !shared.room.holds(&self.asker, &self.waiter, &inner) {
            // A newer acquire of this owner gets the same grant; this one must not free it.
            inner.disown();
            return Err(Trouble::replaced());
        }
        self.granted = true;
        // Entered first, then asked: the end of a session either sees this lock or is seen here.
        if !session.is_valid() {
            inner.lose(session.loss().unwrap_or(Loss::Expired));
            return Err(Trouble::unavailable(
                "the lease at the server ended while the key was granted",
            ));
        }
        shared.agenda.granted(&inner);
        Ok(Turn::Granted(EtcdLease { inner }))
    }
}

/// Tells a waiter that its question is over, however that ends.
struct Answered(Arc<Waiter>);

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.answered();
    }
}
