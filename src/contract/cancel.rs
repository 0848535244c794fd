//! Musts 6 and 11: what a dropped or repeated acquire leaves.

use std::time::Duration;

use tokio::task::JoinSet;

use super::{
    Checked, ContractTarget, Verdict, Violation,
    context::{Context, a_moment, ensure, poll_once, request},
};
use crate::{backend::LockBackend, error::BackendErrorKind, lease::Lease};

/// No acquire has more await points than this.
const MOST_POLLS: usize = 40;

/// Polls an acquire k times, for k = 0, 1, 2, .., and drops it: of a free key, of a held key, and
/// of one that is released behind its back.
pub(super) async fn drop_at_every_await<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let mut ended = false;
    for polls in 0..MOST_POLLS {
        let key = context.key();
        let wish = context.patient(&key);
        let mut future = Box::pin(context.two.acquire(&wish));
        for _ in 0..polls {
            if let Some(result) = poll_once(future.as_mut()).await {
                result?.release().await?;
                ended = true;
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(future);
        context
            .until_free(
                &key,
                &format!("after an acquire was dropped at poll {polls}"),
            )
            .await?;
        if ended {
            break;
        }
    }
    ensure!(
        ended,
        4,
        "an acquire of a free key did not end within {MOST_POLLS} polls"
    );
    for polls in 0..6 {
        for released_first in [false, true] {
            let why = format!("after a wait was dropped at poll {polls}");
            let key = context.key();
            let held = context.one.acquire(&request(&key)).await?;
            let wish = context.patient(&key);
            let mut future = Box::pin(context.two.acquire(&wish));
            for _ in 0..polls {
                let early = poll_once(future.as_mut()).await;
                ensure!(early.is_none(), 1, "a held key was granted");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if released_first {
                // It may be granted now, and is dropped before it knows.
                held.release().await?;
                a_moment(3).await;
                drop(future);
            } else {
                drop(future);
                context.until_waiting(&key, 0).await?;
                held.release().await?;
            }
            context.until_free(&key, &why).await?;
        }
    }
    context.nothing_left(6).await?;
    Ok(Verdict::Passed)
}

/// Thousands of acquires on a few keys, aborted at random moments.
pub(super) async fn random_aborts<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    const TASKS: u32 = 64;
    let keys: Vec<_> = (0..8).map(|_| context.key()).collect();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let keys = keys.clone();
        let (one, two) = (context.one.clone(), context.two.clone());
        let mut aborts = context.options.aborts / TASKS + 1;
        let patient = context.patient(&keys[0]).wait;
        tasks.spawn(async move {
            while aborts > 0 {
                let key = &keys[fastrand::usize(..keys.len())];
                let backend = if fastrand::bool() { &one } else { &two };
                let wish = request(key).with_wait(patient);
                let acquired = tokio::select! {
                    acquired = backend.acquire(&wish) => acquired,
                    () = a_moment(20) => {
                        aborts -= 1;
                        continue;
                    }
                };
                let lease = acquired?;
                a_moment(2).await;
                lease.release().await?;
            }
            Ok::<_, Violation>(())
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.map_err(|panic| Violation::new(0, format!("a task panicked: {panic}")))??;
    }
    for key in &keys {
        context.until_free(key, "after random aborts").await?;
    }
    context.nothing_left(6).await?;
    Ok(Verdict::Passed)
}

/// An owner whose reply was lost asks again: the same grant, the same token, one holder.
pub(super) async fn reply_lost<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    let wish = context.patient(&key);
    let unheard = context.one.acquire(&wish).await?;
    let again =
        match tokio::time::timeout(context.options.slack * 4, context.one.acquire(&wish)).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(error)) => {
                return Err(Violation::new(
                    11,
                    format!("a holder that asked again was answered: {error}"),
                ));
            }
            Err(_) => {
                return Err(Violation::new(
                    11,
                    "a holder that asked again waits for itself",
                ));
            }
        };
    ensure!(
        unheard.fencing_token() == again.fencing_token(),
        11,
        "a holder that asked again got token {} after {}",
        again.fencing_token(),
        unheard.fencing_token()
    );
    let holders = context.one.inspect(&key).await?.holders.len();
    ensure!(
        holders == 1,
        11,
        "one owner is counted as {holders} holders"
    );
    context.held(&key, 1, "whose owner asked twice").await?;
    again.release().await?;
    drop(unheard);
    context
        .until_free(&key, "after the release of an owner that asked twice")
        .await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// A queued owner that asks again has one place in the queue, the old one.
pub(super) async fn queued_owner_keeps_its_place<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    if !context.capabilities.fifo {
        return Ok(Verdict::NotApplicable("the backend has no queue"));
    }
    let key = context.key();
    let held = context.one.acquire(&request(&key)).await?;
    let wish = context.patient(&key);
    let older = context.enqueue(wish.clone()).await?;
    let other = context.enqueue(context.patient(&key)).await?;
    let two = context.two.clone();
    let newer = tokio::spawn(async move { two.acquire(&wish).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let waiters = context.one.inspect(&key).await?.waiters;
    ensure!(
        waiters == 2,
        11,
        "two owners are counted as {waiters} waiters"
    );
    held.release().await?;
    let limit = context.options.hung_wait + context.options.slack;
    let lease = match tokio::time::timeout(limit, newer).await {
        Ok(Ok(Ok(lease))) => lease,
        Ok(Ok(Err(error))) => {
            return Err(Violation::new(
                11,
                format!("a queued owner that asked again was answered: {error}"),
            ));
        }
        _ => {
            return Err(Violation::new(
                11,
                "a queued owner that asked again was not served",
            ));
        }
    };
    ensure!(
        !other.is_finished(),
        11,
        "an owner that asked again lost its place, or holds beside another"
    );
    // The older wait ends: without the lock, or with the same grant.
    match tokio::time::timeout(limit, older).await {
        Ok(Ok(Ok(same))) => ensure!(
            same.fencing_token() == lease.fencing_token(),
            11,
            "one owner got two grants"
        ),
        Ok(Ok(Err(error))) => ensure!(
            matches!(
                error.kind(),
                BackendErrorKind::WaitTimedOut | BackendErrorKind::Contended
            ),
            11,
            "the older wait of an owner that asked again ended with: {error}"
        ),
        _ => ensure!(
            false,
            11,
            "the older wait of an owner that asked again did not end"
        ),
    }
    lease.release().await?;
    let lease = context.granted(other, limit, "the next owner").await?;
    lease.release().await?;
    context.until_free(&key, "after all").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}
