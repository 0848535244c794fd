//! A key that is held.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use etcd_client::{GetOptions, Txn, TxnOp, TxnOpResponse};
use tokio::time::{Instant, sleep};

use super::{
    client::{Client, Shared},
    hub::Watching,
    nodes,
    room::Asker,
    session::Session,
    steps::Seen,
    trouble::Trouble,
    undo::{Grave, Undo, Withdraw},
    watches::Target,
};
use crate::{
    backend::Mode,
    clock::jittered,
    error::{BackendError, BackendErrorKind},
    lease::{self, FencingToken, Lease, Loss, LossSignal},
    record::Record,
    sync::lock,
};

/// A key held in etcd. If it is dropped without [`release`](Lease::release), or not renewed, the
/// key is released in the background.
pub struct EtcdLease {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    client: Arc<Client>,
    pub(super) session: Arc<Session>,
    grant: Grant,
    token: FencingToken,
    /// The end of this lock, unless the session's is earlier.
    ends: Mutex<Instant>,
    lost: LossSignal,
    released: AtomicBool,
    /// A release is under way: that its node goes is no loss.
    releasing: AtomicBool,
    /// Its caller has it, and may begin.
    returned: AtomicBool,
    watching: Mutex<Option<Watching>>,
}

/// A grant, as the acquire knows it.
pub(super) struct Grant {
    pub(super) mode: Mode,
    pub(super) asker: Asker,
    pub(super) node: String,
    pub(super) mark: String,
    /// Of the creation of the node.
    pub(super) revision: i64,
    pub(super) ttl: Duration,
    /// When the request was sent whose answer granted it.
    pub(super) sent: Instant,
    /// Whether a put of this owner may come late: see [`undo`](super::undo).
    pub(super) tainted: bool,
    /// Where it was asked for with the record.
    pub(super) reserved: Option<Reserved>,
    /// What else is to be undone where its caller does not get it.
    pub(super) withdraw: Option<Withdraw>,
}

/// What a grant knows of the record beside its lock.
#[derive(Clone)]
pub(super) struct Reserved {
    /// As the grant left it.
    pub(super) seen: Seen,
    /// Whether it opened it.
    pub(super) opens: bool,
    /// The orphan whose place it took.
    pub(super) previous: Option<Record>,
}

impl Inner {
    pub(super) fn new(
        client: Arc<Client>,
        session: Arc<Session>,
        token: FencingToken,
        grant: Grant,
    ) -> Self {
        Self {
            client,
            session,
            token,
            ends: Mutex::new(lease::valid_until(grant.sent, grant.ttl)),
            grant,
            lost: LossSignal::new(),
            released: AtomicBool::new(false),
            releasing: AtomicBool::new(false),
            returned: AtomicBool::new(false),
            watching: Mutex::default(),
        }
    }

    /// Whether it is this lease's to free: also when it is lost, as far as anybody says.
    pub(super) fn is_open(&self) -> bool {
        !self.released.load(Ordering::Acquire)
    }

    fn is_held(&self) -> bool {
        self.is_open() && self.lost.get().is_none()
    }

    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    /// What the grant knew of the record.
    pub(super) fn granted(&self) -> Option<&Reserved> {
        self.grant.reserved.as_ref()
    }

    /// The same, while nobody says that it has lost the key.
    pub(super) fn reserved(&self) -> Option<&Reserved> {
        self.granted().filter(|_| self.is_held())
    }

    /// The orphan whose place it took, or an error for who asks with another kind of opening.
    pub(super) fn returns(&self, opens: bool) -> Result<Option<Record>, BackendError> {
        let reserved = self.granted();
        if reserved.is_some_and(|reserved| reserved.opens) != opens {
            return Err(BackendError::new(
                BackendErrorKind::Unsupported,
                "this owner holds the key by an acquire of another kind",
            ));
        }
        self.returned.store(true, Ordering::Release);
        Ok(reserved.and_then(|reserved| reserved.previous.clone()))
    }

    /// With which lease a mark is to be left when it is released.
    pub(super) fn buries(&self) -> Option<i64> {
        self.grant.tainted.then_some(self.session.id)
    }

    /// It is about to be released.
    pub(super) fn leaves(&self) {
        self.releasing.store(true, Ordering::Release);
        self.watch_no_more();
    }

    /// It was, or not.
    pub(super) fn has_left(&self, left: bool) {
        if left {
            self.released.store(true, Ordering::Release);
        }
        self.releasing.store(false, Ordering::Release);
    }

    /// Until when it is held, unless renewed: both ends only move to later.
    pub(super) fn end(&self) -> Instant {
        (*lock(&self.ends)).min(self.session.ends())
    }

    pub(super) fn lose(&self, loss: Loss) {
        self.lost.fire(loss);
        self.watch_no_more();
    }

    /// Another handle of the same grant frees it.
    pub(super) fn disown(&self) {
        self.released.store(true, Ordering::Release);
    }

    /// Ends it if its time is over: nobody else would, while the process lives. Also one that was
    /// lost for another reason, and whose holder runs on.
    pub(super) fn expires(&self, now: Instant) -> bool {
        if self.end() > now {
            return false;
        }
        self.lose(self.session.loss().unwrap_or(Loss::Expired));
        if !self.released.swap(true, Ordering::AcqRel) {
            let asker = &self.grant.asker;
            // This owner may ask again when its node is deleted, and not before: it would be given
            // the same one.
            if self.client.shared.room.forget(asker, self, true) {
                let node = self.grant.node.clone();
                self.client
                    .undo(Undo::grant(asker.clone(), node, self.grave()));
            }
        }
        true
    }

    fn is_watched(&self) -> bool {
        self.is_held() && !self.releasing.load(Ordering::Acquire)
    }

    /// Has its own node watched, from the grant on.
    pub(super) fn watch(self: &Arc<Self>, shared: &Shared) {
        self.watch_from(shared, self.grant.revision + 1);
    }

    fn watch_from(self: &Arc<Self>, shared: &Shared, from: i64) {
        let target = Target::Holder(Arc::downgrade(self));
        let watching = shared
            .hub
            .watch(self.grant.node.as_str().into(), from, target);
        *lock(&self.watching) = Some(watching);
        if !self.is_watched() {
            // Released or lost at this moment.
            self.watch_no_more();
        }
    }

    fn watch_no_more(&self) {
        let watching = lock(&self.watching).take();
        drop(watching);
    }

    /// Its node was written: only [`force_release`](super::operate::force_release) does that.
    pub(super) fn was_taken(&self) {
        if self.is_watched() {
            self.lose(Loss::ForceReleased);
        }
    }

    /// Its node was deleted, by itself or with all of its session.
    pub(super) async fn was_deleted(&self, shared: &Arc<Shared>) {
        if self.is_watched() {
            self.lose(Loss::Revoked);
            // If it was the session, the others hear of it now.
            let _ = self.session.refresh(shared, Instant::now()).await;
        }
    }

    /// Its node is not watched any more, and may have been deleted: finds out.
    pub(super) async fn look(self: &Arc<Self>, shared: &Arc<Shared>) {
        while self.is_watched() && Instant::now() < self.end() {
            match self.stands(shared).await {
                Ok((true, revision)) => return self.watch_from(shared, revision + 1),
                Ok((false, _)) => return self.was_deleted(shared).await,
                Err(_) => sleep(jittered(Duration::from_millis(250))).await,
            }
        }
    }

    /// Whether its node is there, at which revision of the store.
    async fn stands(&self, shared: &Shared) -> Result<(bool, i64), Trouble> {
        let options = GetOptions::new().with_keys_only();
        let read = Txn::new().and_then([TxnOp::get(&*self.grant.node, Some(options))]);
        let answer = shared.txn(read).await?;
        let stands = match answer.op_responses().first() {
            Some(TxnOpResponse::Get(node)) => node
                .kvs()
                .first()
                .is_some_and(|kv| kv.create_revision() == self.grant.revision),
            _ => return Err(Trouble::strange()),
        };
        Ok((stands, nodes::revision(&answer)?))
    }

    async fn renew(&self) -> Result<(), Trouble> {
        let shared = &self.client.shared;
        let sent = Instant::now();
        // Renewals at nearly the same time share a keep-alive.
        let since = sent.checked_sub(self.grant.ttl / 10).unwrap_or(sent);
        let (stands, kept) = tokio::join!(self.stands(shared), self.session.refresh(shared, since));
        let gone = kept.as_ref().is_err_and(|trouble| trouble.lease_gone);
        if gone || !stands?.0 {
            // By a release or a save of this moment, it is no loss.
            if self.is_watched() {
                self.lose(self.session.loss().unwrap_or(Loss::Revoked));
            }
            return Ok(());
        }
        kept?;
        let mut ends = lock(&self.ends);
        *ends = (*ends).max(lease::valid_until(sent, self.grant.ttl));
        Ok(())
    }

    fn grave(&self) -> Grave {
        Grave {
            revision: Some(self.grant.revision),
            session: Arc::downgrade(&self.session),
            lease: self.session.id,
            mark: self.grant.tainted.then(|| self.grant.mark.clone()),
            withdraw: match self.returned.load(Ordering::Acquire) {
                true => None,
                false => self.grant.withdraw.clone(),
            },
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let held = !*self.released.get_mut();
        let room = &self.client.shared.room;
        if room.forget(&self.grant.asker, self, held) {
            let asker = self.grant.asker.clone();
            let node = std::mem::take(&mut self.grant.node);
            self.client.undo(Undo::grant(asker, node, self.grave()));
        }
    }
}

impl Lease for EtcdLease {
    fn fencing_token(&self) -> FencingToken {
        self.inner.token
    }

    /// Always 1: tokens are revisions, of which nobody can have several at once.
    fn reserved_tokens(&self) -> u32 {
        1
    }

    fn valid_until(&self) -> Instant {
        self.inner.end()
    }

    /// Dropping the future stops nothing that others share, and changes nothing.
    async fn renew(&self) -> Result<(), BackendError> {
        let inner = &self.inner;
        if inner.is_held() && !inner.expires(Instant::now()) {
            inner.renew().await?;
        }
        if inner.is_held() {
            return Ok(());
        }
        Err(BackendError::new(BackendErrorKind::Lost, ""))
    }

    fn lost(&self) -> &LossSignal {
        &self.inner.lost
    }

    async fn release(&self) -> Result<(), BackendError> {
        let inner = &self.inner;
        inner.leaves();
        let shared = &inner.client.shared;
        let released = inner.grave().dig(shared, &inner.grant.node).await;
        inner.has_left(released.is_ok());
        Ok(released?)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

impl fmt::Debug for EtcdLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLease")
            .field("mode", &self.inner.grant.mode)
            .field("fencing_token", &self.inner.token)
            .field("lost", &self.inner.lost.get())
            .finish_non_exhaustive()
    }
}
