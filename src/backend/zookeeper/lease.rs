//! A key that is held.

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{
    answer::readable,
    beats::Stamp,
    client::Client,
    place::{Grant, Place, Saved},
    session::Session,
    stand::PAUSE,
    trouble::Trouble,
};
use crate::{
    clock,
    error::{BackendError, BackendErrorKind},
    lease::{FencingToken, Lease, Loss, LossSignal},
    record::{Record, Save},
    sync::lock,
};

/// A key held in ZooKeeper. If it is dropped without [`release`](Lease::release), the key is released
/// in the background.
pub struct ZooKeeperLease {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    client: Arc<Client>,
    place: Arc<Place>,
    session: Arc<Session>,
    path: String,
    token: FencingToken,
    /// When its holder last asked for it.
    asked: Mutex<Stamp>,
    lost: LossSignal,
    /// The orphan whose place it took.
    pub(super) previous: Option<Record>,
}

impl Inner {
    pub(super) fn new(client: Arc<Client>, place: Arc<Place>, grant: Grant) -> Self {
        Self {
            client,
            place,
            session: grant.session,
            path: grant.path,
            token: grant.token,
            asked: Mutex::new(grant.asked),
            lost: LossSignal::new(),
            previous: grant.previous,
        }
    }

    pub(super) fn lose(&self, loss: Loss) {
        // Under this lock no renewal moves the end of a lease that is lost.
        let _asked = lock(&self.asked);
        self.lost.fire(loss);
    }

    /// Whether nobody asked for it in time; then it is lost.
    pub(super) fn ends_by_now(&self) -> bool {
        let asked = lock(&self.asked);
        let has_ended = asked.end(self.place.ttl, clock::suspended()) <= Instant::now();
        if has_ended {
            self.lost.fire(Loss::Expired);
        }
        has_ended
    }

    /// Has the holder's task save; `None` if it does not hold any more.
    pub(super) fn save(&self, save: &Save) -> Option<oneshot::Receiver<Saved>> {
        self.place.save(save.clone(), true)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// When it ends unless its holder asks again, whatever the session does.
    pub(super) fn ends(&self, suspended: std::time::Duration) -> Instant {
        lock(&self.asked).end(self.place.ttl, suspended)
    }

    fn valid_until(&self) -> Instant {
        let suspended = clock::suspended();
        let session = self.session.valid_until(suspended);
        session.min(self.ends(suspended))
    }

    /// The session keeps the lease, and the watch on its node tells of its loss. What is asked
    /// here is what neither can say: that the holder is still there, that the end counts from after
    /// a suspend, and, should a notification have been lost, that the node is.
    pub(super) async fn renew(&self) -> Result<(), Renewal> {
        if self.is_lost() || self.place.is_let_go() {
            return Err(Renewal::Lost);
        }
        if self.session.is_over() {
            self.lose(Loss::Expired);
            return Err(Renewal::Lost);
        }
        let limit = self.client.shared.config.timeout;
        let now = Stamp::now();
        let client = self.session.client()?;
        // A connection that breaks meanwhile is not the end of the question.
        let look = async {
            loop {
                match readable(client.check_stat(&self.path))
                    .await
                    .map_err(Trouble::from)
                {
                    Err(trouble) if !trouble.answered && !self.session.is_over() => {
                        sleep(PAUSE).await;
                    }
                    result => return result,
                }
            }
        };
        let (node, heard) = tokio::join!(timeout(limit, look), self.session.hear(now.at, limit));
        let stat = node.unwrap_or_else(|_| Err(Trouble::no_answer()))?;
        if stat.is_none_or(|stat| stat.ephemeral_owner != self.session.id) {
            // Who saves and releases loses nothing.
            if !self.place.is_leaving() {
                self.lose(Loss::ForceReleased);
            }
            return Err(Renewal::Lost);
        }
        heard?;
        let mut asked = lock(&self.asked);
        if self.is_lost() {
            return Err(Renewal::Lost);
        }
        if asked.at < now.at {
            *asked = now;
        }
        Ok(())
    }
}

pub(super) enum Renewal {
    Lost,
    Trouble(Trouble),
}

impl From<Trouble> for Renewal {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.place.let_go();
    }
}

impl Lease for ZooKeeperLease {
    fn fencing_token(&self) -> FencingToken {
        self.inner.token
    }

    fn reserved_tokens(&self) -> u32 {
        1
    }

    fn valid_until(&self) -> Instant {
        self.inner.valid_until()
    }

    /// Asks whether the node is there, and waits for a heartbeat of the session, which others that
    /// renew share. Cancel safe.
    async fn renew(&self) -> Result<(), BackendError> {
        match self.inner.renew().await {
            Ok(()) => Ok(()),
            Err(Renewal::Lost) => Err(BackendError::new(BackendErrorKind::Lost, "")),
            Err(Renewal::Trouble(trouble)) => Err(trouble.into()),
        }
    }

    fn lost(&self) -> &LossSignal {
        &self.inner.lost
    }

    async fn release(&self) -> Result<(), BackendError> {
        let Some(released) = self.inner.place.release() else {
            return Ok(());
        };
        match released.await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Trouble::unavailable("the release broke off").into()),
        }
    }
}

impl fmt::Debug for ZooKeeperLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperLease")
            .field("mode", &self.inner.place.mode)
            .field("fencing_token", &self.inner.token)
            .field("lost", &self.inner.lost.get())
            .finish_non_exhaustive()
    }
}
