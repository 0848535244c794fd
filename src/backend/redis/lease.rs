//! A key that is held.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    client::{Client, Via},
    connection::Connection,
    names::{Names, Words},
    renewals::Renewal,
    room::Asker,
    scripts::RELEASE,
    trouble::Trouble,
    undo::{self, Undo},
};
use crate::{
    backend::Mode,
    error::{BackendError, BackendErrorKind},
    lease::{self, FencingToken, Lease, Loss, LossSignal},
    record::Record,
    sync::lock,
};

/// A key held in Redis. If it is dropped without [`release`](Lease::release), the key is released
/// in the background.
pub struct RedisLease {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) client: Arc<Client>,
    pub(super) names: Arc<Names>,
    pub(super) words: Words,
    pub(super) mode: Mode,
    /// What stands in the lock while it is held exclusively.
    pub(super) value: String,
    asker: Asker,
    token: FencingToken,
    ttl: Duration,
    ends: Mutex<Instant>,
    lost: LossSignal,
    /// Over which it was granted.
    connection: Arc<Connection>,
    /// An attempt of this owner may still be on its way: see [`undo`](super::undo).
    tainted: bool,
    released: AtomicBool,
    /// The caller of the acquire has it, and may have begun.
    returned: AtomicBool,
    /// It is being released together with a save.
    leaves: AtomicBool,
    /// The record whose place that of this grant took.
    previous: Option<Box<Record>>,
}

/// A grant, as the acquire knows it.
pub(super) struct Grant {
    pub(super) names: Arc<Names>,
    pub(super) words: Words,
    pub(super) mode: Mode,
    pub(super) asker: Asker,
    pub(super) token: FencingToken,
    pub(super) ttl: Duration,
    pub(super) sent: Instant,
    pub(super) connection: Arc<Connection>,
    pub(super) tainted: bool,
    pub(super) previous: Option<Record>,
}

impl Inner {
    pub(super) fn new(client: Arc<Client>, grant: Grant) -> Self {
        Self {
            value: grant.words.value(grant.token.get()),
            client,
            names: grant.names,
            words: grant.words,
            mode: grant.mode,
            asker: grant.asker,
            token: grant.token,
            ttl: grant.ttl,
            ends: Mutex::new(lease::valid_until(grant.sent, grant.ttl)),
            lost: LossSignal::new(),
            connection: grant.connection,
            tainted: grant.tainted,
            released: AtomicBool::new(false),
            returned: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            previous: grant.previous.map(Box::new),
        }
    }

    /// The server has heard of a request that was sent then.
    pub(super) fn extend(&self, sent: Instant) {
        let mut ends = lock(&self.ends);
        *ends = (*ends).max(lease::valid_until(sent, self.ttl));
    }

    pub(super) fn has_ended(&self) -> bool {
        *lock(&self.ends) <= Instant::now()
    }

    /// Another handle of the same grant frees it.
    pub(super) fn disown(&self) {
        self.released.store(true, Ordering::Release);
    }

    pub(super) fn lose(&self, loss: Loss) {
        self.lost.fire(loss);
    }

    /// A renewal found another owner, or none.
    pub(super) fn is_not_held(&self) {
        if !self.leaves.load(Ordering::Acquire) {
            self.lose(Loss::Revoked);
        }
    }

    /// The acquire is over.
    pub(super) fn is_returned(&self) {
        self.returned.store(true, Ordering::Release);
    }

    pub(super) fn opens(&self) -> bool {
        self.words.opens
    }

    pub(super) fn previous(&self) -> Option<Record> {
        self.previous.as_deref().cloned()
    }

    /// Whether an attempt of this owner may still be on its way.
    pub(super) fn is_tainted(&self) -> bool {
        self.tainted
    }

    /// Until the end of what comes back it is not lost, whatever its renewals find.
    pub(super) fn leaves(self: Arc<Self>) -> Leaving {
        self.leaves.store(true, Ordering::Release);
        Leaving(self)
    }

    async fn release(&self) -> Result<(), Trouble> {
        let shared = &self.client.shared;
        if self.leaves.load(Ordering::Acquire) && self.released.load(Ordering::Acquire) {
            // With a save.
            return Ok(());
        }
        // Nobody has begun by a grant that was not returned, so its record goes with it.
        let takes_back = self.words.opens && !self.returned.load(Ordering::Acquire);
        if self.mode == Mode::Shared || self.tainted || takes_back {
            let mut words = self.words.clone();
            words.opens = takes_back;
            return undo::abandon(shared, Via::Near, &self.names, &words, self.tainted).await;
        }
        shared
            .run(Via::Near, &self.names, &RELEASE, |script, by_code| {
                let mut cmd = script.call_lock(by_code, &self.names, None);
                cmd.arg(&self.value);
                cmd
            })
            .await?;
        Ok(())
    }
}

/// A lease that is being released together with a save.
pub(super) struct Leaving(Arc<Inner>);

impl Leaving {
    /// It has been.
    pub(super) fn has_left(self) {
        self.0.released.store(true, Ordering::Release);
    }

    /// Another has the key.
    pub(super) fn another_has_it(self) {
        self.0.lose(Loss::Revoked);
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        // Renewals of one that has left may still be on their way.
        if !self.0.released.load(Ordering::Acquire) {
            self.0.leaves.store(false, Ordering::Release);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let held = !*self.released.get_mut();
        if self.client.shared.room.forget(&self.asker, self, held) {
            let mut words = std::mem::take(&mut self.words);
            words.opens &= !*self.returned.get_mut();
            self.client.undo(Undo::owner(
                self.connection.clone(),
                self.names.clone(),
                self.asker.clone(),
                words,
                self.tainted,
            ));
        }
    }
}

impl Lease for RedisLease {
    fn fencing_token(&self) -> FencingToken {
        self.inner.token
    }

    fn reserved_tokens(&self) -> u32 {
        self.inner.words.tokens
    }

    fn valid_until(&self) -> Instant {
        *lock(&self.inner.ends)
    }

    /// Sent together with other renewals of the process that are due. Dropping the future stops
    /// nothing.
    async fn renew(&self) -> Result<(), BackendError> {
        let (done, result) = oneshot::channel();
        let renewal = Renewal::new(self.inner.clone(), done);
        self.inner.client.shared.renew(renewal);
        let held = match result.await {
            Ok(result) => result?,
            // The task that renews has ended, which it does after all leases.
            Err(_) => return Err(Trouble::unavailable("the client is closed").into()),
        };
        if held {
            return Ok(());
        }
        Err(BackendError::new(BackendErrorKind::Lost, ""))
    }

    fn lost(&self) -> &LossSignal {
        &self.inner.lost
    }

    async fn release(&self) -> Result<(), BackendError> {
        self.inner.release().await?;
        self.inner.released.store(true, Ordering::Release);
        Ok(())
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

impl fmt::Debug for RedisLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLease")
            .field("mode", &self.inner.mode)
            .field("fencing_token", &self.inner.token)
            .field("lost", &self.inner.lost.get())
            .finish_non_exhaustive()
    }
}
