//! The verbs beside the lock: `wait_free`, `force_release`, `inspect`.

use std::{pin::pin, time::Duration};

use tokio::time::{Instant, timeout};

use super::{
    Checked, ContractTarget, Verdict, Violation,
    context::{Context, ensure, poll_once, request},
};
use crate::{
    backend::{AcquireRequest, LockBackend, Mode, WaitBound},
    error::BackendErrorKind,
    lease::{Lease, Loss},
};

/// Returns when nobody holds the key, without holding it.
pub(super) async fn wait_free<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    let limit = Duration::from_secs(1) + context.options.slack;
    context.two.wait_free(&key, WaitBound::Fail).await?;

    let held = context.one.acquire(&request(&key)).await?;
    let kind = context.two.wait_free(&key, WaitBound::Fail).await;
    let kind = kind.map_err(|error| error.kind());
    ensure!(
        kind == Err(BackendErrorKind::Contended),
        4,
        "wait_free of a held key, without waiting, was answered {kind:?}"
    );
    let wait = Duration::from_millis(100);
    let start = Instant::now();
    let bound = WaitBound::Until(start + wait);
    let kind = match timeout(
        wait + context.options.slack,
        context.two.wait_free(&key, bound),
    )
    .await
    {
        Ok(result) => result.map_err(|error| error.kind()),
        Err(_) => return Err(Violation::new(4, "wait_free did not end at its deadline")),
    };
    ensure!(
        kind == Err(BackendErrorKind::WaitTimedOut) && start.elapsed() >= wait,
        4,
        "wait_free of a held key was answered {kind:?} after {:?}",
        start.elapsed()
    );
    // Dropped at its await, it leaves nothing.
    {
        let mut gone = pin!(context.two.wait_free(&key, WaitBound::Forever));
        let early = poll_once(gone.as_mut()).await;
        ensure!(early.is_none(), 4, "wait_free returned on a held key");
    }
    let gate = {
        let (two, key) = (context.two.clone(), key.clone());
        tokio::spawn(async move { two.wait_free(&key, WaitBound::Forever).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    ensure!(!gate.is_finished(), 4, "wait_free returned on a held key");
    held.release().await?;
    match timeout(limit, gate).await {
        Ok(Ok(result)) => result?,
        _ => {
            return Err(Violation::new(
                4,
                format!("wait_free did not return within {limit:?} of the release"),
            ));
        }
    }
    let free = context.one.acquire(&request(&key)).await;
    ensure!(
        free.is_ok(),
        6,
        "wait_free holds the key that it waited for"
    );
    free?.release().await?;

    // A holder that runs out holds nothing.
    let ttl = context.short_ttl();
    let lease = context
        .one
        .acquire(&AcquireRequest::new(key.clone(), ttl))
        .await?;
    if timeout(ttl + limit, context.two.wait_free(&key, WaitBound::Forever))
        .await
        .is_err()
    {
        return Err(Violation::new(4, "wait_free does not see a lease run out"));
    }
    ensure!(
        lease.valid_until() <= Instant::now(),
        1,
        "wait_free returned before the holder's lease had ended"
    );
    drop(lease);
    context.until_free(&key, "after wait_free").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// Takes the key away, tells the holder, and serves the waiters.
pub(super) async fn force_release<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    ensure!(
        !context.two.force_release(&key).await?,
        1,
        "force_release says that a free key was held"
    );
    let held = context.one.acquire(&request(&key)).await?;
    let waiter = context.enqueue(context.patient(&key)).await?;
    ensure!(
        context.two.force_release(&key).await?,
        1,
        "force_release says that a held key was free"
    );
    let limit = Duration::from_secs(1) + context.options.slack;
    let next = context
        .granted(waiter, limit, "the waiter behind a forced release")
        .await?;
    if timeout(context.options.slack, held.lost().wait())
        .await
        .is_err()
    {
        // Where the backend cannot reach the holder it hears it at the next renewal.
        let _ = held.renew().await;
    }
    let loss = held.lost().get();
    ensure!(
        matches!(loss, Some(Loss::ForceReleased | Loss::Revoked)),
        8,
        "a holder whose key was taken away was told {loss:?}"
    );
    let renewed = held.renew().await.map_err(|error| error.kind());
    ensure!(
        renewed == Err(BackendErrorKind::Lost),
        7,
        "a renewal after a forced release was answered {renewed:?}"
    );
    held.release().await?;
    drop(held);
    context
        .held(&key, 7, "after its earlier owner released it")
        .await?;
    next.renew().await?;
    next.release().await?;
    context.until_free(&key, "after a forced release").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// Tells who holds and how many wait.
pub(super) async fn inspect<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    let state = context.two.inspect(&key).await?;
    ensure!(
        state.holders.is_empty() && state.waiters == 0,
        9,
        "a free key has holders or waiters"
    );
    ensure!(!state.name.is_empty(), 13, "a key has no name");
    let ttl = Duration::from_secs(60);
    let held = context
        .one
        .acquire(&AcquireRequest::new(key.clone(), ttl))
        .await?;
    let first = context.enqueue(context.patient(&key)).await?;
    let second = context.enqueue(context.patient(&key)).await?;
    let state = context.two.inspect(&key).await?;
    ensure!(
        state.holders.len() == 1 && state.waiters == 2,
        1,
        "one holder and two waiters are counted as {} and {}",
        state.holders.len(),
        state.waiters
    );
    let holder = &state.holders[0];
    ensure!(
        holder.mode == Mode::Exclusive,
        1,
        "an exclusive holder is shown as shared"
    );
    ensure!(
        holder
            .fencing_token
            .is_none_or(|token| token == held.fencing_token()),
        3,
        "inspect shows another token than the holder's"
    );
    ensure!(
        holder
            .remaining
            .is_none_or(|left| left <= ttl && left > ttl / 2),
        10,
        "inspect shows {:?} of a new lease of {ttl:?}",
        holder.remaining
    );
    first.abort();
    second.abort();
    context.until_waiting(&key, 0).await?;
    held.release().await?;
    context.until_free(&key, "after inspect").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}
