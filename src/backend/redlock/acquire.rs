//! From a request to a lease.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{
    attempt::Wish,
    campaign::Campaign,
    client::{ANSWER, Client},
    lease::{Inner, RedLockLease},
    names::{Names, hex},
    post::Seat,
    room::{Asker, Known},
    waiter::Waiter,
};
use crate::{
    backend::{AcquireRequest, Mode, WaitBound},
    error::{BackendError, BackendErrorKind},
    lease::Lease as _,
};

pub(super) async fn acquire(
    client: &Arc<Client>,
    request: &AcquireRequest,
) -> Result<RedLockLease, BackendError> {
    let shared = &client.shared;
    if request.mode == Mode::Shared {
        return Err(BackendError::new(
            BackendErrorKind::Unsupported,
            "RedLock has exclusive locks only",
        ));
    }
    if request.ttl > shared.max_ttl {
        return Err(BackendError::new(
            BackendErrorKind::Unsupported,
            format!(
                "a ttl of {:?} is longer than the longest of this deployment, {:?}: see \
                 `RedLockBuilder::with_max_ttl`",
                request.ttl, shared.max_ttl
            ),
        ));
    }
    let names = Arc::new(Names::new(&shared.prefix, &request.key));
    let asker = Asker::new(request.owner, names.lock.clone());
    let waiter = Arc::default();
    let entered = timeout(ANSWER, enter(client, &asker, &waiter));
    match entered.await {
        Ok(None) => {}
        Ok(Some(inner)) => return again(inner).await,
        Err(_) => {
            return Err(BackendError::new(
                BackendErrorKind::Unavailable,
                "what this owner asked for before is not undone yet",
            ));
        }
    }
    // No await between entering and this: it is the campaign that leaves.
    let (answer, lease) = oneshot::channel();
    let ttl = request.ttl.max(Duration::from_millis(1));
    let campaign = Campaign {
        client: client.clone(),
        asker,
        waiter,
        seat: Seat {
            names,
            owner: hex(&request.owner),
            inbox: shared.inbox.clone(),
            began: Instant::now(),
        },
        wish: Wish {
            ttl,
            ttl_ms: millis(ttl),
            tokens: request.tokens.max(1),
            waits: match request.wait {
                WaitBound::Fail => false,
                WaitBound::Until(deadline) => deadline > Instant::now(),
                WaitBound::Forever => true,
            },
        },
        wait: request.wait,
    };
    shared.lock_runtime.spawn(campaign.run(answer));
    match lease.await {
        Ok(lease) => lease,
        Err(_) => Err(BackendError::new(
            BackendErrorKind::Unavailable,
            "the lock runtime is not there",
        )),
    }
}

/// Rounded up, so that no node ends a lease before we do.
fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Enters this owner when nothing older of it is there; or what it holds.
async fn enter(client: &Client, asker: &Asker, waiter: &Arc<Waiter>) -> Option<Arc<Inner>> {
    loop {
        match client.shared.room.enter(asker, waiter) {
            Known::Waits => return None,
            Known::Holds(inner) => return Some(inner),
            Known::Leaves(gone) => gone.cancelled().await,
        }
    }
}

/// For an owner that holds: the same lease, if the nodes agree.
async fn again(inner: Arc<Inner>) -> Result<RedLockLease, BackendError> {
    let lease = RedLockLease { inner };
    match lease.renew().await {
        Ok(()) => Ok(lease),
        Err(error) if error.kind() == BackendErrorKind::Lost => Err(BackendError::new(
            BackendErrorKind::Contended,
            "this owner has lost its lease",
        )),
        Err(error) => Err(error),
    }
}
