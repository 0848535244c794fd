//! `Batched(n)`: one contender per process and key; up to n holders in a row get one grant, each
//! with its own token of the range that was reserved with it.
//!
//! The contender, then the holder, then whoever it is handed to has the key's [`Role`] in this
//! process. What a waiter was given and does not take for a second, because nobody polls it,
//! another one takes.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    AcquireError, AcquireErrorKind, Hold, ReleaseFuture, Shared,
    acquire::{Granted, Wish},
    seat::Seat,
    turns::{self, Turns},
};
use crate::backend::{DynLease, WaitBound};

/// How long a waiter has to take its turn before another may.
const OFFER: Duration = Duration::from_secs(1);

pub(super) type Batches = Turns<Handed>;
type Role = turns::Role<Handed>;
type Turn = turns::Turn<Handed>;

/// A lease on its way to the next holder. Dropped, it goes on to the next, or back.
#[derive(Debug)]
pub(super) struct Handed(Option<(Arc<dyn DynLease>, Box<Lineage>)>);

/// Which holder of a grant this is.
#[derive(Debug)]
pub(crate) struct Lineage {
    role: Role,
    shared: Arc<Shared>,
    used: u32,
    limit: u32,
    /// The lease's, which is the contender's: another route may have another.
    pub(super) ttl: Duration,
    /// Keeps shutdown waiting for a lease that is on its way to a holder.
    _token: TaskTrackerToken,
    /// As in [`Hold::suspended_before`]: it belongs to the lease, not to one of its holders.
    pub(super) suspended_before: Duration,
}

impl Shared {
    /// Acquires under `Batched`: from the holder before, or from the backend.
    pub(super) async fn acquire_batched(
        self: &Arc<Self>,
        wish: &Wish,
    ) -> Result<Granted, AcquireError> {
        loop {
            let turn = match Batches::join(&self.batches, &wish.key) {
                Ok(role) => Turn::Contend(role),
                Err(_) if wish.wait == WaitBound::Fail => {
                    return Err(AcquireError::new(AcquireErrorKind::Contended));
                }
                Err(seat) => match self.wait_for_turn(wish, &seat).await? {
                    Some(turn) => turn,
                    // Another took it meanwhile: this one was not there.
                    None => continue,
                },
            };
            let (lease, lineage) = match turn {
                Turn::Handed(mut handed) => match handed.0.take() {
                    Some(parts) => parts,
                    None => continue,
                },
                Turn::Contend(role) => {
                    let request = wish
                        .plan
                        .request(wish.key.clone(), wish.mode, wish.wait)
                        .with_tokens(wish.plan.batch);
                    let suspended_before = self.suspended();
                    let lease = self.ask_backend(&request).await?;
                    let limit = wish.plan.batch.min(lease.dyn_reserved_tokens());
                    (
                        lease,
                        Box::new(Lineage {
                            shared: self.clone(),
                            role,
                            used: 0,
                            limit,
                            ttl: wish.plan.ttl,
                            _token: self.releases.token(),
                            suspended_before,
                        }),
                    )
                }
            };
            let mut lineage = lineage;
            let token = lease.dyn_fencing_token().offset(u64::from(lineage.used));
            lineage.used += 1;
            let Some(token) = token else {
                // Beyond i64::MAX there is no token; the backend says so at the next acquire.
                self.discard(Granted {
                    token: lease.dyn_fencing_token(),
                    lease,
                    lineage: Some(lineage),
                });
                continue;
            };
            return Ok(Granted {
                lease,
                token,
                lineage: Some(lineage),
            });
        }
    }

    async fn wait_for_turn(
        &self,
        wish: &Wish,
        seat: &Seat<Turn>,
    ) -> Result<Option<Turn>, AcquireError> {
        loop {
            let look = Instant::now() + OFFER.mul_f64(1.0 + fastrand::f64() / 4.0);
            let until = match wish.wait {
                WaitBound::Until(deadline) => deadline.min(look),
                WaitBound::Fail | WaitBound::Forever => look,
            };
            if let Ok(turn) = timeout_at(until, seat.taken()).await {
                return Ok(turn);
            }
            if let Some(turn) = self.batches.take_back(&wish.key, OFFER) {
                return Ok(Some(turn));
            }
            if matches!(wish.wait, WaitBound::Until(deadline) if deadline <= until) {
                return Err(AcquireError::new(AcquireErrorKind::WaitTimedOut));
            }
        }
    }

    /// Passes the lock of an ended hold to the next waiter of this process, if its grant still
    /// has a token and time; else returns the release.
    pub(super) fn end_lineage(
        &self,
        hold: &Hold,
        mut lineage: Box<Lineage>,
    ) -> Option<ReleaseFuture> {
        let lease = hold.lease.clone();
        let slept = self.suspended().saturating_sub(hold.suspended_before());
        let healthy = lease.dyn_lost().get().is_none()
            && Instant::now() + hold.ttl() / 4 + slept < lease.dyn_valid_until();
        if healthy {
            lineage.suspended_before = hold.suspended_before();
            lineage = hand_on(lease.clone(), lineage)?;
        }
        self.release_then(lease, lineage)
    }

    /// Releases to the backend, then lets the next waiter contend.
    fn release_then(
        &self,
        lease: Arc<dyn DynLease>,
        lineage: Box<Lineage>,
    ) -> Option<ReleaseFuture> {
        let release = self.release(lease)?;
        Some(Box::pin(async move {
            let result = release.await;
            drop(lineage);
            result
        }))
    }

    /// Gives a grant back that nobody will use.
    pub(super) fn discard(self: &Arc<Self>, granted: Granted) {
        let release = match granted.lineage {
            Some(lineage) => self.release_then(granted.lease, lineage),
            None => self.release(granted.lease),
        };
        if let Some(release) = release {
            self.reap_release(release);
        }
    }
}

/// Hands the lease to the next waiter; without one, or without a token for it, gives the lineage
/// back.
fn hand_on(lease: Arc<dyn DynLease>, lineage: Box<Lineage>) -> Option<Box<Lineage>> {
    if lineage.used >= lineage.limit {
        return Some(lineage);
    }
    let batches = lineage.shared.batches.clone();
    let key = lineage.role.key().clone();
    let mut handed = match batches.hand_on(&key, Handed(Some((lease, lineage)))) {
        Ok(()) => return None,
        Err(back) => back,
    };
    handed.0.take().map(|(_, lineage)| lineage)
}

impl Drop for Handed {
    fn drop(&mut self) {
        let Some((lease, lineage)) = self.0.take() else {
            return;
        };
        let shared = lineage.shared.clone();
        let Some(lineage) = hand_on(lease.clone(), lineage) else {
            return;
        };
        if let Some(release) = shared.release_then(lease, lineage) {
            shared.reap_release(release);
        }
    }
}
