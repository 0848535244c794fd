//! Where to send something, while what it is for may be moving: to another node of a Cluster, or
//! with the role of the master.
//!
//! A server that sends us elsewhere did nothing, so what was asked may be asked again.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    client::{Shared, Via},
    connection::Connection,
    names::Names,
    trouble::{Elsewhere, Trouble},
    url::Address,
};
use crate::clock::jittered;

/// How long the move of a slot is waited for, by whoever can wait.
const MOVE: Duration = Duration::from_secs(10);
/// How soon a slot that is being moved is asked for again, at first.
const SOON: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Course {
    /// For what passes at once or not at all: a role or slot that has moved.
    until: Instant,
    /// For a slot that is being moved.
    moved_until: Instant,
    pause: Duration,
    /// A node to ask just now, whoever has the slot.
    ask_at: Option<Address>,
}

impl Course {
    pub(super) fn new(shared: &Shared) -> Self {
        let now = Instant::now();
        let until = now + shared.timeout;
        Self {
            until,
            moved_until: until.max(now + MOVE),
            pause: SOON,
            ask_at: None,
        }
    }

    /// For who waits no longer than this.
    pub(super) fn waits_until(mut self, deadline: Instant) -> Self {
        self.moved_until = self.moved_until.min(deadline).max(self.until);
        self
    }

    /// The node that this one question is for, out of turn.
    pub(super) async fn detour(
        &mut self,
        shared: &Arc<Shared>,
    ) -> Result<Option<Arc<Connection>>, Trouble> {
        match self.ask_at.take() {
            None => Ok(None),
            Some(address) => {
                let place = shared.place_at(&address)?;
                place.lock_link.connection().await.map(Some)
            }
        }
    }

    /// A connection, and whether the question is out of turn there.
    pub(super) async fn connection(
        &mut self,
        shared: &Arc<Shared>,
        names: &Names,
        via: Via,
    ) -> Result<(Arc<Connection>, bool), Trouble> {
        if let Some(connection) = self.detour(shared).await? {
            return Ok((connection, true));
        }
        let connection = match via {
            Via::Near => shared.connection(names).await?,
            Via::Lock => shared.place(names)?.lock_link.connection().await?,
        };
        Ok((connection, false))
    }

    /// Returns when it is worth asking again.
    pub(super) async fn after(
        &mut self,
        shared: &Arc<Shared>,
        trouble: Trouble,
    ) -> Result<(), Trouble> {
        let Some(elsewhere) = trouble.elsewhere() else {
            return Err(trouble);
        };
        let now = Instant::now();
        let limit = match elsewhere {
            Elsewhere::BeingMoved | Elsewhere::AskAt(_) => self.moved_until,
            _ => self.until,
        };
        if now >= limit {
            return Err(trouble);
        }
        match elsewhere {
            Elsewhere::OtherMaster => {}
            Elsewhere::Moved(slot, address) => match address {
                Some(address) if self.pause == SOON => shared.moved(*slot, address),
                // Two nodes that send us to each other, or one that does not say where.
                _ => {
                    shared.look_again();
                    sleep(jittered(self.pause)).await;
                }
            },
            Elsewhere::AskAt(address) => self.ask_at = Some(address.clone()),
            Elsewhere::BeingMoved | Elsewhere::Nowhere => {
                shared.look_again();
                sleep(jittered(self.pause)).await;
            }
        }
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
