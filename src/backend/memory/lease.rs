//! The grant of a key and its handle.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::table::Table;
use crate::{
    backend::{AcquireRequest, Mode},
    clock,
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::{self, FencingToken, Lease, Loss, LossSignal, OwnerToken},
};

/// A grant: shared by the table, while it holds, and its handles. Times are nanoseconds of the
/// table's clock.
pub(super) struct Grant {
    pub(super) table: Arc<Table>,
    pub(super) key: LockKey,
    pub(super) owner: OwnerToken,
    pub(super) token: FencingToken,
    pub(super) lost: LossSignal,
    ttl: u64,
    renewed_at: AtomicU64,
    pub(super) tokens: u32,
    /// How many leases there are; changes upwards under the shard's lock only.
    handles: AtomicU32,
    pub(super) mode: Mode,
    /// Not in the table any more; set under the shard's lock.
    ended: AtomicBool,
}

impl Grant {
    pub(super) fn new(
        table: &Arc<Table>,
        key: &LockKey,
        wish: &Wish,
        token: FencingToken,
        now: u64,
    ) -> Self {
        Self {
            table: table.clone(),
            key: key.clone(),
            owner: wish.owner,
            token,
            lost: LossSignal::new(),
            ttl: wish.ttl,
            renewed_at: AtomicU64::new(now),
            tokens: wish.tokens,
            handles: AtomicU32::new(0),
            mode: wish.mode,
            ended: AtomicBool::new(false),
        }
    }

    /// When the table may give the key to another.
    pub(super) fn expiry(&self) -> u64 {
        self.renewed_at
            .load(Ordering::Acquire)
            .saturating_add(self.ttl)
    }

    /// When an offer was made: it is not renewed before it is claimed.
    pub(super) fn offered_at(&self) -> u64 {
        self.renewed_at.load(Ordering::Acquire)
    }

    pub(super) fn renewed(&self, now: u64) {
        self.renewed_at.store(now, Ordering::Release);
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether all leases of it were dropped (a drop that races a new handle loses).
    pub(super) fn is_orphan(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    /// A handle. The caller has the shard's lock.
    pub(super) fn lease(self: &Arc<Self>) -> MemoryLease {
        self.handles.fetch_add(1, Ordering::AcqRel);
        MemoryLease {
            grant: self.clone(),
        }
    }
}

/// What is wished for, in the table's units.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) owner: OwnerToken,
    pub(super) ttl: u64,
    pub(super) tokens: u32,
    pub(super) mode: Mode,
}

impl Wish {
    pub(super) fn of(request: &AcquireRequest) -> Self {
        Self {
            owner: request.owner,
            ttl: nanos(request.ttl),
            tokens: request.tokens.max(1),
            mode: request.mode,
        }
    }
}

/// 292 years are for ever.
pub(super) fn nanos(duration: Duration) -> u64 {
    clock::nanos(duration).min(u64::MAX / 2)
}

/// A key held in a [`MemoryBackend`](super::MemoryBackend). Dropping it frees the key at once.
pub struct MemoryLease {
    grant: Arc<Grant>,
}

impl Lease for MemoryLease {
    fn fencing_token(&self) -> FencingToken {
        self.grant.token
    }

    fn reserved_tokens(&self) -> u32 {
        self.grant.tokens
    }

    fn valid_until(&self) -> Instant {
        let grant = &self.grant;
        let sent = grant
            .table
            .instant(grant.renewed_at.load(Ordering::Acquire));
        lease::valid_until(sent, Duration::from_nanos(grant.ttl))
    }

    async fn renew(&self) -> Result<(), BackendError> {
        if self.grant.table.renew(&self.grant) {
            return Ok(());
        }
        // Unless the table knew a reason.
        self.grant.lost.fire(Loss::Revoked);
        Err(BackendError::new(BackendErrorKind::Lost, ""))
    }

    fn lost(&self) -> &LossSignal {
        &self.grant.lost
    }

    async fn release(&self) -> Result<(), BackendError> {
        if !self.grant.has_ended() {
            self.grant.table.release(&self.grant, false);
        }
        Ok(())
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        let last = self.grant.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && !self.grant.has_ended() {
            self.grant.table.release(&self.grant, true);
        }
    }
}

impl fmt::Debug for MemoryLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLease")
            .field("key", &self.grant.key)
            .field("mode", &self.grant.mode)
            .field("fencing_token", &self.grant.token)
            .field("ended", &self.grant.has_ended())
            .finish_non_exhaustive()
    }
}
