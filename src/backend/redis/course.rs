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
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How many nodes in a row may send us on before we wait for them to agree.
const HOPS: u32 = 3;

pub(super) struct Course {
    timeout: Duration,
    /// For what passes at once or not at all: a role or slot that has moved.
    until: Instant,
    /// For a slot that is being moved.
    moved_until: Instant,
    pause: Duration,
    hops: u32,
    /// A node to ask just now, whoever has the slot.
    ask_at: Option<Address>,
}

impl Course {
    pub(super) fn new(shared: &Shared) -> Self {
        let now = Instant::now();
        let until = now + shared.timeout;
        Self {
            timeout: shared.timeout,
            until,
            moved_until: until.max(now + MOVE),
            pause: FIRST_PAUSE,
            hops: 0,
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

    /// A connection, and whether the question is out of turn there. Where there is none, this has
    /// waited for one as long as it should.
    pub(super) async fn connection(
        &mut self,
        shared: &Arc<Shared>,
        names: &Names,
        via: Via,
    ) -> Result<(Arc<Connection>, bool), Trouble> {
        loop {
            let found = match self.detour(shared).await {
                Ok(Some(connection)) => return Ok((connection, true)),
                Ok(None) => match via {
                    Via::Near => shared.connection(names).await,
                    Via::Lock => match shared.place(names) {
                        Ok(place) => place.lock_link.connection().await,
                        Err(trouble) => Err(trouble),
                    },
                },
                Err(trouble) => Err(trouble),
            };
            match found {
                Ok(connection) => return Ok((connection, false)),
                Err(trouble) => self.after(shared, trouble).await?,
            }
        }
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
        shared.learn(elsewhere);
        let now = Instant::now();
        let is_moving = matches!(elsewhere, Elsewhere::BeingMoved | Elsewhere::AskAt(_));
        if now
            >= if is_moving {
                self.moved_until
            } else {
                self.until
            }
        {
            return Err(trouble);
        }
        if is_moving {
            // What comes after the move is news.
            self.until = self.until.max(now + self.timeout);
            self.hops = 0;
        }
        match elsewhere {
            Elsewhere::AskAt(address) => {
                self.ask_at = Some(address.clone());
                return Ok(());
            }
            Elsewhere::Moved(_, Some(_)) | Elsewhere::OtherMaster if self.hops < HOPS => {
                self.hops += 1;
                return Ok(());
            }
            _ => {}
        }
        sleep(jittered(self.pause)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
