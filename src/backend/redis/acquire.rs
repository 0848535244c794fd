//! From a request to a lease: ask, wait for an offer, confirm.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    attempt::{Asks, Attempt, Begun, Step},
    client::Client,
    lease::{Inner, RedisLease},
    room::Outlook,
    trouble::Trouble,
    waiter::News,
};
use crate::{
    backend::{AcquireRequest, Found, WaitBound},
    clock::jittered,
    error::{BackendError, BackendErrorKind},
    lease::{Lease as _, Loss},
    record::{Opening, Record},
};

/// A waiter asks again after this time, whatever it has heard.
const CEILING: Duration = Duration::from_secs(5);

/// For how long a waiter stays when no server answers, where another one may take over.
const FAIL_OVER: Duration = Duration::from_secs(30);
/// How soon it asks again meanwhile.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn acquire(
    client: &Arc<Client>,
    request: &AcquireRequest,
) -> Result<RedisLease, BackendError> {
    match ask_for(client, request, Asks::Lock).await? {
        End::Granted(lease) => Ok(lease),
        End::Refused {
            kind, remaining, ..
        } => Err(BackendError::new(kind, "").with_remaining(remaining)),
        // No step finds one.
        End::Found(_) => Err(Trouble::strange().into()),
    }
}

pub(super) async fn acquire_or_load(
    client: &Arc<Client>,
    request: &AcquireRequest,
    open: Option<&Opening>,
) -> Result<Found<RedisLease>, BackendError> {
    Ok(match ask_for(client, request, Asks::Record(open)).await? {
        End::Granted(lease) => {
            if lease.inner.opens() != open.is_some() {
                return Err(BackendError::new(
                    BackendErrorKind::Unsupported,
                    "this owner holds the key by an acquire of another kind",
                ));
            }
            // From here on its caller may begin.
            lease.inner.is_returned();
            let previous = lease.inner.previous();
            Found::Lease { lease, previous }
        }
        End::Found(record) => Found::Record(record),
        End::Refused {
            remaining, seen, ..
        } => Found::Held {
            open: seen,
            remaining,
        },
    })
}

/// How an acquire ended.
enum End {
    Granted(RedisLease),
    Found(Record),
    /// Another holds the key.
    Refused {
        kind: BackendErrorKind,
        remaining: Option<Duration>,
        seen: Option<Record>,
    },
}

impl End {
    fn refused(
        kind: BackendErrorKind,
        remaining: Option<Duration>,
        mut attempt: Attempt<'_>,
    ) -> Self {
        let loads = attempt.loads.as_mut();
        let seen = loads.and_then(|loads| loads.seen.take());
        if attempt.loads.is_some() {
            attempt.is_refused();
        }
        Self::Refused {
            kind,
            remaining,
            seen,
        }
    }
}

async fn ask_for(
    client: &Arc<Client>,
    request: &AcquireRequest,
    asks: Asks<'_>,
) -> Result<End, BackendError> {
    let attempt = match Attempt::begin(client, request, asks).await? {
        Begun::Attempt(attempt) => attempt,
        Begun::Holds(inner) => return again(inner).await.map(End::Granted),
    };
    match grant(client, request, attempt).await? {
        End::Granted(lease) if client.shared.acks.are_on() => {
            acknowledged(client, lease).await.map(End::Granted)
        }
        end => Ok(end),
    }
}

/// A grant counts when replicas have it.
async fn acknowledged(client: &Arc<Client>, lease: RedisLease) -> Result<RedisLease, BackendError> {
    let shared = &client.shared;
    // A round that is under way, and its own.
    let limit = (shared.timeout + shared.acks.within) * 2;
    let error = match timeout(limit, lease.renew()).await {
        Ok(Ok(())) if !lease.inner.has_ended() => return Ok(lease),
        Ok(Ok(())) | Err(_) => Trouble::not_replicated().into(),
        Ok(Err(error)) if error.kind() == BackendErrorKind::Lost => {
            Trouble::undone("the grant was gone before replicas had it").into()
        }
        Ok(Err(error)) => error,
    };
    // Whoever else has it by this owner hears of it first.
    lease.inner.lose(Loss::Revoked);
    // Dropped without success, it is undone all the same.
    let _ = timeout(shared.timeout, lease.release()).await;
    Err(error)
}

async fn grant(
    client: &Arc<Client>,
    request: &AcquireRequest,
    mut attempt: Attempt<'_>,
) -> Result<End, BackendError> {
    let fails_at_once = match request.wait {
        WaitBound::Fail => Some(BackendErrorKind::Contended),
        WaitBound::Until(deadline) if deadline <= Instant::now() => {
            Some(BackendErrorKind::WaitTimedOut)
        }
        _ => None,
    };
    let outlook = match attempt.ask_patiently(fails_at_once.is_none()).await? {
        Step::Granted(lease) => return Ok(End::Granted(lease)),
        Step::Found(record) => return Ok(End::Found(record)),
        Step::Wait(outlook) => outlook,
    };
    if let Some(kind) = fails_at_once {
        return Ok(End::refused(kind, outlook.remaining(), attempt));
    }
    let mut told = Told {
        outlook,
        at: Instant::now(),
        away: None,
    };
    let granted = until_granted(&mut attempt, &mut told, client.shared.fails_over());
    let WaitBound::Until(deadline) = request.wait else {
        return granted.await;
    };
    match timeout_at(deadline, granted).await {
        Ok(end) => end,
        Err(_) => {
            if let Some((_, trouble)) = told.away {
                return Err(trouble.into());
            }
            let remaining = told.outlook.remaining();
            let remaining = remaining.map(|r| r.saturating_sub(told.at.elapsed()));
            let kind = BackendErrorKind::WaitTimedOut;
            Ok(End::refused(kind, remaining, attempt))
        }
    }
}

/// What the server said last.
struct Told {
    outlook: Outlook,
    at: Instant,
    /// Since when it says nothing, and why.
    away: Option<(Instant, Trouble)>,
}

/// Cancel safe, as the attempt undoes what is left of it.
async fn until_granted(
    attempt: &mut Attempt<'_>,
    told: &mut Told,
    fails_over: bool,
) -> Result<End, BackendError> {
    loop {
        attempt.queue(told.outlook);
        let waiter = attempt.waiter.clone();
        match timeout(jittered(CEILING), waiter.news()).await {
            Ok(News::Offer(token)) => {
                if let Some(lease) = attempt.confirm(&token).await {
                    return Ok(End::Granted(lease));
                }
            }
            Ok(News::Recorded(together)) => {
                if let Some(record) = attempt.load(&together).await {
                    return Ok(End::Found(record));
                }
            }
            Ok(News::Ask) | Err(_) => {}
            Ok(News::Replaced) => return Err(Trouble::replaced().into()),
        }
        told.outlook = loop {
            match attempt.ask_patiently(true).await {
                Ok(Step::Granted(lease)) => return Ok(End::Granted(lease)),
                Ok(Step::Found(record)) => return Ok(End::Found(record)),
                Ok(Step::Wait(outlook)) => break outlook,
                // Another server will take over.
                Err(trouble) if fails_over && (!trouble.answered || trouble.is_elsewhere()) => {
                    let since = told
                        .away
                        .as_ref()
                        .map_or(Instant::now(), |(since, _)| *since);
                    if since.elapsed() >= FAIL_OVER {
                        return Err(trouble.into());
                    }
                    told.away = Some((since, trouble));
                    sleep(jittered(PAUSE)).await;
                }
                Err(trouble) => return Err(trouble.into()),
            }
        };
        told.at = Instant::now();
        told.away = None;
    }
}

/// For an owner that holds: the same lease, if the server agrees.
async fn again(inner: Arc<Inner>) -> Result<RedisLease, BackendError> {
    let lease = RedisLease { inner };
    match lease.renew().await {
        Ok(()) => Ok(lease),
        Err(error) if error.kind() == BackendErrorKind::Lost => Err(BackendError::new(
            BackendErrorKind::Contended,
            "this owner has lost its lease",
        )),
        Err(error) => Err(error),
    }
}
