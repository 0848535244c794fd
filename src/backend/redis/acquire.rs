//! From a request to a lease: ask, wait for an offer, confirm.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    attempt::{Attempt, Begun, Step},
    client::Client,
    lease::{Inner, RedisLease},
    room::Outlook,
    trouble::Trouble,
    waiter::News,
};
use crate::{
    backend::{AcquireRequest, WaitBound},
    clock::jittered,
    error::{BackendError, BackendErrorKind},
    lease::{Lease as _, Loss},
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
    let mut attempt = match Attempt::begin(client, request).await? {
        Begun::Attempt(attempt) => attempt,
        Begun::Holds(inner) => return again(inner).await,
    };
    let lease = grant(client, request, &mut attempt).await?;
    drop(attempt);
    if !client.shared.acks.are_on() {
        return Ok(lease);
    }
    acknowledged(client, lease).await
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
    attempt: &mut Attempt<'_>,
) -> Result<RedisLease, BackendError> {
    let fails_at_once = match request.wait {
        WaitBound::Fail => Some(BackendErrorKind::Contended),
        WaitBound::Until(deadline) if deadline <= Instant::now() => {
            Some(BackendErrorKind::WaitTimedOut)
        }
        _ => None,
    };
    if let Some(kind) = fails_at_once {
        return match attempt.ask_patiently(false).await? {
            Step::Granted(lease) => Ok(lease),
            Step::Wait(outlook) => {
                Err(BackendError::new(kind, "").with_remaining(outlook.remaining()))
            }
        };
    }
    let outlook = match attempt.ask_patiently(true).await? {
        Step::Granted(lease) => return Ok(lease),
        Step::Wait(outlook) => outlook,
    };
    let mut told = Told {
        outlook,
        at: Instant::now(),
        away: None,
    };
    let granted = until_granted(attempt, &mut told, client.shared.fails_over());
    match request.wait {
        WaitBound::Until(deadline) => timeout_at(deadline, granted).await.unwrap_or_else(|_| {
            if let Some((_, trouble)) = told.away {
                return Err(trouble.into());
            }
            let remaining = told.outlook.remaining();
            let remaining = remaining.map(|r| r.saturating_sub(told.at.elapsed()));
            Err(BackendError::new(BackendErrorKind::WaitTimedOut, "").with_remaining(remaining))
        }),
        WaitBound::Fail | WaitBound::Forever => granted.await,
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
) -> Result<RedisLease, BackendError> {
    loop {
        attempt.queue(told.outlook);
        let waiter = attempt.waiter.clone();
        match timeout(jittered(CEILING), waiter.news()).await {
            Ok(News::Offer(token)) => {
                if let Some(lease) = attempt.confirm(&token).await {
                    return Ok(lease);
                }
            }
            Ok(News::Ask) | Err(_) => {}
            Ok(News::Replaced) => return Err(Trouble::replaced().into()),
        }
        told.outlook = loop {
            match attempt.ask_patiently(true).await {
                Ok(Step::Granted(lease)) => return Ok(lease),
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
