//! An acquire: it sits at a place, where a task stands for it, until it holds, has found a record
//! that will do, or has to leave.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout};

use super::{
    client::Client,
    lease::{Inner, Renewal, ZooKeeperLease},
    place::{Loads, Place, Seen},
    room::Entered,
    trouble::Trouble,
};
use crate::{
    backend::{AcquireRequest, Found, WaitBound},
    error::{BackendError, BackendErrorKind},
    record::{Opening, Record},
};

/// For how long one who has its result waits at most until it has left the queue: a write.
const LEAVES: Duration = Duration::from_secs(1);

pub(super) async fn acquire(
    client: &Arc<Client>,
    request: &AcquireRequest,
) -> Result<ZooKeeperLease, BackendError> {
    match ask(client, request, None).await? {
        Found::Lease { lease, .. } => Ok(lease),
        // It asked for no record.
        _ => Err(BackendError::new(BackendErrorKind::WaitTimedOut, "")),
    }
}

pub(super) async fn acquire_or_load(
    client: &Arc<Client>,
    request: &AcquireRequest,
    open: Option<&Opening>,
) -> Result<Found<ZooKeeperLease>, BackendError> {
    ask(client, request, Some(open)).await
}

async fn ask(
    client: &Arc<Client>,
    request: &AcquireRequest,
    loads: Option<Option<&Opening>>,
) -> Result<Found<ZooKeeperLease>, BackendError> {
    // What to say where there is no time to wait.
    let at_once = match request.wait {
        WaitBound::Fail => Some(BackendErrorKind::Contended),
        WaitBound::Until(end) if end <= Instant::now() => Some(BackendErrorKind::WaitTimedOut),
        _ => None,
    };
    loop {
        let with = loads.map(|open| Loads {
            open: open.cloned(),
        });
        let place = match client.enter(request, at_once.is_none(), with) {
            Entered::New(place) | Entered::Joined(place) => {
                let seat = Seat {
                    client,
                    place,
                    loads: loads.is_some(),
                };
                match seat.wait(request.wait, at_once).await {
                    Ok(Some(Ended::Holds(inner))) => return Ok(granted(inner)),
                    Ok(Some(Ended::Found(record))) => {
                        // Its node goes, so that the next who comes finds the key free.
                        let _ = timeout(LEAVES, seat.place.over()).await;
                        return Ok(Found::Record(record));
                    }
                    Ok(None) => {}
                    Err(error) if seat.loads && keeps_out(&error) => {
                        return Ok(Found::Held {
                            open: seat.place.seen(),
                            remaining: None,
                        });
                    }
                    Err(error) => return Err(error),
                }
                seat.place.clone()
            }
            Entered::Holds(inner) => return again(inner).await.map(granted),
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

pub(super) fn keeps_out(error: &BackendError) -> bool {
    matches!(
        error.kind(),
        BackendErrorKind::Contended | BackendErrorKind::WaitTimedOut
    )
}

fn granted(inner: Arc<Inner>) -> Found<ZooKeeperLease> {
    Found::Lease {
        previous: inner.previous.clone(),
        lease: ZooKeeperLease { inner },
    }
}

/// How a wait at a place ended.
enum Ended {
    Holds(Arc<Inner>),
    Found(Record),
}

/// For an owner that holds: the same lease.
async fn again(inner: Arc<Inner>) -> Result<Arc<Inner>, BackendError> {
    match inner.renew().await {
        Ok(()) => Ok(inner),
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
    /// Whether a record will do.
    loads: bool,
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
    ) -> Result<Option<Ended>, BackendError> {
        loop {
            let changed = self.place.changed();
            tokio::pin!(changed);
            // Registered before it looks.
            changed.as_mut().enable();
            match self.place.look(self.client) {
                Seen::Held(inner) => return Ok(Some(Ended::Holds(inner))),
                // An acquire that shares the place of one that loads asks anew.
                Seen::Found(record) => {
                    return Ok(Some(Ended::Found(record)).filter(|_| self.loads));
                }
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
