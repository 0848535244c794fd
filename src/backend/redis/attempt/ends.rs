//! How an attempt ends: with a lease, with a record, or with nothing that is left.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Attempt, Grant, Inner, RedisLease, Together, Trouble, Undo};
use crate::{
    backend::redis::record,
    lease::{FencingToken, Loss},
    record::Record,
};

impl Attempt<'_> {
    /// The server has nothing of this attempt, so there is nothing to undo.
    pub(super) fn settles(&mut self) {
        self.unqueue();
        // What may come late has to be buried.
        if !self.tainted && !self.open && self.words.take().is_some() {
            let room = &self.client.shared.room;
            room.leave(&self.asker, &self.waiter, false);
        }
    }

    /// The wait was refused. Who never stood in the queue has nothing there.
    pub(in crate::backend::redis) fn is_refused(&mut self) {
        if self.ticket.is_empty() && !self.continues {
            self.settles();
        }
    }

    /// The result, which took this one out of the queue and is loaded once for all who wait here.
    pub(in crate::backend::redis) async fn load(&mut self, together: &Together) -> Option<Record> {
        let load = async || record::load_of(&self.client.shared, &self.names).await.ok();
        let stands = together.get_or_init(load).await;
        let result = self.loads.as_ref()?.result(stands.as_ref()?)?;
        self.settles();
        Some(result)
    }

    pub(super) fn granted(
        &mut self,
        token: i64,
        sent: Instant,
        previous: Option<Record>,
    ) -> Result<RedisLease, Trouble> {
        let token = u64::try_from(token)
            .ok()
            .and_then(FencingToken::new)
            .ok_or_else(Trouble::strange)?;
        let (Some(connection), Some(words)) = (self.connection.clone(), self.words.take()) else {
            return Err(Trouble::strange());
        };
        self.unqueue();
        let inner = Arc::new(Inner::new(
            self.client.clone(),
            Grant {
                names: self.names.clone(),
                words,
                mode: self.request.mode,
                asker: self.asker.clone(),
                token,
                ttl: self.ttl,
                sent,
                connection,
                tainted: self.tainted,
                previous,
            },
        ));
        let room = &self.client.shared.room;
        if let Err(is_replaced) = room.holds(&self.asker, &self.waiter, &inner) {
            if is_replaced {
                // A newer acquire of this owner gets the same grant; this one must not free it.
                inner.disown();
            }
            return Err(Trouble::replaced());
        }
        if self.waiter.was_revoked(token.get()) {
            inner.lose(Loss::ForceReleased);
        }
        Ok(RedisLease { inner })
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.unqueue();
        let Some(words) = self.words.take() else {
            // It ended with a lease.
            return;
        };
        let room = &self.client.shared.room;
        let asked = self.connection.take();
        if room.leave(&self.asker, &self.waiter, asked.is_some())
            && let Some(connection) = asked
        {
            self.client.undo(Undo::owner(
                connection,
                self.names.clone(),
                self.asker.clone(),
                words,
                self.tainted,
            ));
        }
    }
}
