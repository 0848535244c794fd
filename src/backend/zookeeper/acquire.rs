//! An acquire: it sits at a place, where a task stands for it, until it holds or has to leave.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    client::Client,
    lease::{Inner, Renewal, ZooKeeperLease},
    place::{Place, Seen},
    room::Entered,
    trouble::Trouble,
};
use crate::{
    backend::{AcquireRequest, WaitBound},
    error::{BackendError, BackendErrorKind},
};

pub(super) async fn acquire(
    client: &Arc<Client>,
    request: &AcquireRequest,
) -> Result<ZooKeeperLease, BackendError> {
    // What to say where there is no time to wait.
    let at_once = match request.wait {
        WaitBound::Fail => Some(BackendErrorKind::Contended),
        WaitBound::Until(end) if end <= Instant::now() => Some(BackendErrorKind::WaitTimedOut),
        _ => None,
    };
    loop {
        let place = match client.enter(request, at_once.is_none()) {
            Entered::New(place) | Entered::Joined(place) => {
                let seat = Seat { client, place };
                if let Some(inner) = seat.wait(request.wait, at_once).await? {
                    return Ok(ZooKeeperLease { inner });
                }
                seat.place.clone()
            }
            Entered::Holds(inner) => {
                if let Some(lease) = again(inner).await? {
                    return Ok(lease);
                }
                continue;
            }
            Entered::Leaves(place) => place,
        };
        // What this owner had goes first: undoing it would undo what it gets now.
        let mut limit = Instant::now() + client.shared.config.timeout;
        if let WaitBound::Until(end) = request.wait
            && at_once.is_none()
        {
            limit = limit.max(end);
        }
        tokio::select! {
            () = place.over() => {}
            () = sleep_until(limit) => {
                return Err(Trouble::unavailable(
                    "what this owner asked for before is not undone yet",
                )
                .into());
            }
        }
    }
}

/// For an owner that holds: the same lease; `None` if it is on its way to be lost.
async fn again(inner: Arc<Inner>) -> Result<Option<ZooKeeperLease>, BackendError> {
    match inner.renew().await {
        Ok(()) => Ok(Some(ZooKeeperLease { inner })),
        Err(Renewal::Lost) => Err(BackendError::new(
            BackendErrorKind::Contended,
            "this owner has lost its lease",
        )),
        Err(Renewal::Trouble(trouble)) => Err(trouble.into()),
    }
}

/// An acquire at a place. When the last has left, the task leaves too.
struct Seat<'a> {
    client: &'a Arc<Client>,
    place: Arc<Place>,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.place.leave();
    }
}

impl Seat<'_> {
    /// `None` if the place was withdrawn, and it may ask anew.
    async fn wait(
        &self,
        wait: WaitBound,
        at_once: Option<BackendErrorKind>,
    ) -> Result<Option<Arc<Inner>>, BackendError> {
        loop {
            let changed = self.place.changed();
            tokio::pin!(changed);
            // Registered before it looks.
            changed.as_mut().enable();
            match self.place.look(self.client) {
                Seen::Held(inner) => return Ok(Some(inner)),
                Seen::Refused(trouble) if trouble.is_contended() => {
                    return match at_once {
                        Some(kind) => Err(BackendError::new(kind, "")),
                        // Another acquire of this owner did not want to wait.
                        None => Ok(None),
                    };
                }
                Seen::Refused(trouble) => return Err(trouble.into()),
                Seen::Leaves => return Ok(None),
                Seen::Waits => {
                    if let Some(kind) = at_once {
                        return Err(BackendError::new(kind, ""));
                    }
                }
                Seen::Nothing => {}
            }
            match wait {
                WaitBound::Until(end) if at_once.is_none() => {
                    if timeout(end.saturating_duration_since(Instant::now()), changed)
                        .await
                        .is_err()
                    {
                        return Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""));
                    }
                }
                // Each request has its time, but a connection that comes and goes makes many.
                _ if at_once.is_some() => {
                    let limit = self.client.shared.config.timeout * 2;
                    if timeout(limit, changed).await.is_err() {
                        return Err(Trouble::no_answer().into());
                    }
                }
                _ => changed.await,
            }
        }
    }
}
