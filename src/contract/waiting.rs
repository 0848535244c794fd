//! Musts 4 and 5: who is next, and when.

use std::{pin::pin, time::Duration};

use tokio::time::Instant;

use super::{
    Checked, ContractTarget, Verdict,
    context::{Context, a_moment, ensure, poll_once, request},
};
use crate::{
    backend::{LockBackend, Scope, WaitBound},
    error::BackendErrorKind,
    lease::Lease,
};

/// The re-check of a waiter that missed its notification (must 4).
const RECHECK: Duration = Duration::from_secs(1);

/// Grants follow arrivals; nobody barges into a hand-off.
pub(super) async fn arrival_order<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    if !context.capabilities.fifo {
        return Ok(Verdict::NotApplicable("the backend has no arrival order"));
    }
    let key = context.key();
    let mut held = context.one.acquire(&request(&key)).await?;
    let mut waiting = Vec::new();
    for _ in 0..16 {
        waiting.push(context.enqueue(context.patient(&key)).await?);
    }
    let limit = RECHECK + context.options.slack;
    while !waiting.is_empty() {
        let next = waiting.remove(0);
        held.release().await?;
        context
            .held(&key, 5, "that was handed on to a waiter")
            .await?;
        held = context
            .granted(next, limit, "the head of the queue")
            .await?;
        if let Some(n) = waiting.iter().position(|task| task.is_finished()) {
            ensure!(
                false,
                5,
                "the waiter {} places behind was served too",
                n + 1
            );
        }
    }
    held.release().await?;
    context.until_free(&key, "after all waiters").await?;
    Ok(Verdict::Passed)
}

/// A try is answered at once, on a process-scope backend on the first poll.
pub(super) async fn try_is_immediate<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    let held = context.one.acquire(&request(&key)).await?;
    for _ in 0..20 {
        let start = Instant::now();
        context.held(&key, 1, "by a try").await?;
        ensure!(
            start.elapsed() <= context.options.slack,
            4,
            "a try took {:?}",
            start.elapsed()
        );
    }
    held.release().await?;
    if context.capabilities.scope == Scope::Process {
        let wish = request(&key);
        let lease = poll_once(pin!(context.two.acquire(&wish))).await;
        ensure!(
            lease.is_some(),
            4,
            "a process-scope try did not end on its first poll"
        );
        if let Some(lease) = lease.transpose()? {
            let released = poll_once(pin!(lease.release())).await;
            ensure!(
                released.is_some(),
                4,
                "a process-scope release did not end on its first poll"
            );
        }
    }
    context.until_free(&key, "after tries").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// A bounded wait ends at its deadline: not before, not much later, and leaves nothing.
pub(super) async fn timeout_is_precise<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    let held = context.one.acquire(&request(&key)).await?;
    for millis in [0, 20, 250, 1300] {
        let start = Instant::now();
        let wait = Duration::from_millis(millis);
        let wish = request(&key).with_wait(WaitBound::Until(start + wait));
        let limit = wait + context.options.slack;
        let kind = match tokio::time::timeout(limit, context.two.acquire(&wish)).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.kind()),
            Err(_) => {
                ensure!(false, 4, "a wait of {wait:?} did not end within {limit:?}");
                None
            }
        };
        ensure!(kind.is_some(), 1, "a held key was granted at a timeout");
        ensure!(
            kind == Some(BackendErrorKind::WaitTimedOut),
            4,
            "a wait that timed out ended with {kind:?}"
        );
        ensure!(
            start.elapsed() >= wait,
            4,
            "a wait of {wait:?} ended after {:?}",
            start.elapsed()
        );
    }
    context.until_waiting(&key, 0).await?;
    held.release().await?;
    context.until_free(&key, "after timeouts").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// A release that races the registration of a waiter is not missed.
pub(super) async fn no_lost_wakeups<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    const ROUNDS: usize = 150;
    let limit = RECHECK + context.options.slack;
    let mut late = 0;
    for round in 0..ROUNDS {
        let key = context.key();
        let held = context.one.acquire(&request(&key)).await?;
        let wish = context.patient(&key);
        let two = context.two.clone();
        let task = tokio::spawn(async move { two.acquire(&wish).await });
        // From before its first poll to well asleep.
        match round % 3 {
            0 => a_moment(6).await,
            1 => context.until_waiting(&key, 1).await.unwrap_or(()),
            _ => tokio::time::sleep(Duration::from_millis(2)).await,
        }
        let start = Instant::now();
        held.release().await?;
        let lease = context
            .granted(task, limit, "a waiter of a released key")
            .await?;
        if start.elapsed() > context.options.slack {
            late += 1;
        }
        lease.release().await?;
    }
    ensure!(
        late <= ROUNDS / 10,
        4,
        "{late} of {ROUNDS} waiters were not woken by the release, but by a timer"
    );
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// Ten waiters that are dropped at the head of the queue cost their successor nothing.
pub(super) async fn dropped_waiters_cost_nothing<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let key = context.key();
    let held = context.one.acquire(&request(&key)).await?;
    let mut gone = Vec::new();
    for _ in 0..10 {
        gone.push(context.enqueue(context.patient(&key)).await?);
    }
    let next = context.enqueue(context.patient(&key)).await?;
    for task in &gone {
        task.abort();
    }
    for task in gone {
        // Ended for sure, so that its future is dropped.
        let _ = task.await;
    }
    context.until_waiting(&key, 1).await?;
    held.release().await?;
    let lease = context
        .granted(
            next,
            RECHECK + context.options.slack,
            "the successor of ten dropped waiters",
        )
        .await?;
    lease.release().await?;
    context.until_free(&key, "after dropped waiters").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// Ten waiters that hang at the head of the queue: their successors wait once, not ten times.
pub(super) async fn dead_waiters_cost_one_wait<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    if !context.capabilities.fifo {
        return Ok(Verdict::NotApplicable("the backend has no queue"));
    }
    let key = context.key();
    let held = context.one.acquire(&request(&key)).await?;
    let wishes: Vec<_> = (0..10).map(|_| context.patient(&key)).collect();
    let mut hung = Vec::new();
    for (n, wish) in wishes.iter().enumerate() {
        let mut future = Box::pin(context.one.acquire(wish));
        while context.one.inspect(&key).await?.waiters <= n as u64 {
            let early = poll_once(future.as_mut()).await;
            ensure!(early.is_none(), 1, "a held key was granted");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        hung.push(future);
    }
    let first = context.enqueue(context.patient(&key)).await?;
    let second = context.enqueue(context.patient(&key)).await?;
    // From here on nobody polls the ten.
    let start = Instant::now();
    held.release().await?;
    let limit = context.options.hung_wait + context.options.slack;
    let lease = context
        .granted(first, limit, "the successor of ten hung waiters")
        .await?;
    lease.release().await?;
    let lease = context
        .granted(
            second,
            limit.saturating_sub(start.elapsed()).max(RECHECK),
            "the second successor of ten hung waiters",
        )
        .await?;
    lease.release().await?;
    drop(hung);
    context.until_free(&key, "after hung waiters").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}
