//! Musts 2, 7 and 8: the life and the end of a lease.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Checked, ContractTarget, Verdict, Violation,
    context::{Context, LeaseOf, ensure, request},
};
use crate::{
    backend::{AcquireRequest, LockBackend},
    error::BackendErrorKind,
    key::LockKey,
    lease::{self, Lease},
};

/// Two leases: one that ran out, and that of the owner who took over.
async fn taken_over<T: ContractTarget>(
    context: &Context<'_, T>,
    key: &LockKey,
) -> Result<(LeaseOf<T>, LeaseOf<T>), Violation> {
    let old = context
        .one
        .acquire(&AcquireRequest::new(key.clone(), context.short_ttl()))
        .await?;
    let limit = context.short_ttl() + Duration::from_secs(1) + context.options.slack;
    let wish = context.patient(key);
    match tokio::time::timeout(limit, context.two.acquire(&wish)).await {
        Ok(Ok(new)) => {
            let (before, after) = (old.fencing_token(), new.fencing_token());
            ensure!(
                after > before || !context.capabilities.fencing,
                3,
                "a takeover got token {after} after {before}"
            );
            Ok((old, new))
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Violation::new(
            4,
            format!("a lease that ran out was not taken over within {limit:?}"),
        )),
    }
}

/// Whoever lost the key cannot free it for others.
pub(super) async fn late_release_is_harmless<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let key = context.key();
    let (old, new) = taken_over(context, &key).await?;
    old.release().await?;
    context
        .held(&key, 7, "after an earlier owner released it late")
        .await?;
    drop(old);
    context
        .held(&key, 7, "after an earlier owner dropped its lease")
        .await?;
    if let Err(error) = new.renew().await {
        return Err(Violation::new(
            7,
            format!("an earlier owner's release ended a successor's lease: {error}"),
        ));
    }
    new.release().await?;
    context.until_free(&key, "after a late release").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// Whoever lost the key is told when it renews, and extends nobody's lease.
pub(super) async fn late_renew_is_lost<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    let (old, new) = taken_over(context, &key).await?;
    let kind = old.renew().await.map_err(|error| error.kind());
    ensure!(
        kind == Err(BackendErrorKind::Lost),
        7,
        "a renewal by an owner that lost the key was answered {kind:?}"
    );
    ensure!(
        old.lost().get().is_some(),
        8,
        "an owner that was told `Lost` has no signal of it"
    );
    ensure!(
        old.valid_until() <= Instant::now(),
        7,
        "a renewal that failed moved the end of the lease"
    );
    new.renew().await?;
    ensure!(
        new.lost().get().is_none(),
        8,
        "a holder was told that it lost a key that it holds"
    );
    new.release().await?;
    context.until_free(&key, "after a late renewal").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// A second release never touches the next owner's lock.
pub(super) async fn double_release_is_harmless<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    let key = context.key();
    let first = context.one.acquire(&request(&key)).await?;
    first.release().await?;
    first.release().await?;
    let next = context.two.acquire(&request(&key)).await?;
    first.release().await?;
    context
        .held(&key, 7, "after an earlier owner released it twice")
        .await?;
    let renewed = first.renew().await.map_err(|error| error.kind());
    ensure!(
        renewed == Err(BackendErrorKind::Lost),
        7,
        "a renewal after the release was answered {renewed:?}"
    );
    drop(first);
    next.renew().await?;
    next.release().await?;
    context.until_free(&key, "after double releases").await?;
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// When a second owner gets the key, the first one's `valid_until` has passed, and it is told.
pub(super) async fn loss_before_the_end<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    let key = context.key();
    for _ in 0..2 {
        let (old, new) = taken_over(context, &key).await?;
        let now = Instant::now();
        ensure!(
            old.valid_until() <= now,
            1,
            "a second owner got the key {:?} before the first one's lease ended",
            old.valid_until() - now
        );
        // Whoever has no channel to be told hears it at the next renewal.
        if old.lost().get().is_none() {
            let _ = old.renew().await;
        }
        ensure!(
            old.lost().get().is_some(),
            8,
            "a holder was not told that its lease has ended"
        );
        new.release().await?;
    }
    context.until_free(&key, "after losses").await?;
    Ok(Verdict::Passed)
}

/// A lease ends by the send time of its request, whatever the reply took.
pub(super) async fn valid_until_counts_from_the_request<T: ContractTarget>(
    context: &Context<'_, T>,
) -> Checked {
    const DELAY: Duration = Duration::from_millis(60);
    let slow = context.target.slow_replies(DELAY).await;
    // Time before the sending is the machine's, and differs; time after it is the reply's.
    let tolerance = if slow { DELAY / 4 } else { DELAY / 20 };
    let client = context.target.connect().await?;
    let ttl = Duration::from_secs(60);
    // A session ends its leases whatever their ttl, and has not been heard of just now.
    let session = context.capabilities.min_ttl;
    let least = session.map_or(ttl / 2, |session| session.min(ttl) / 4);
    let (mut acquired, mut renewed) = (Duration::MAX, Duration::MAX);
    for _ in 0..10 {
        let wish = AcquireRequest::new(context.key(), ttl);
        let start = Instant::now();
        let lease = client.acquire(&wish).await?;
        let end = lease.valid_until();
        acquired = acquired.min(end.saturating_duration_since(lease::valid_until(start, ttl)));
        ensure!(
            end > start + least,
            2,
            "a new lease of {ttl:?} is valid for less than {least:?}"
        );
        let start = Instant::now();
        lease.renew().await?;
        let end = lease.valid_until();
        renewed = renewed.min(end.saturating_duration_since(lease::valid_until(start, ttl)));
        lease.release().await?;
    }
    if slow {
        context.target.slow_replies(Duration::ZERO).await;
    }
    for (what, beyond) in [("acquire", acquired), ("renewal", renewed)] {
        ensure!(
            beyond <= tolerance,
            2,
            "after each {what}, the lease was valid for at least {beyond:?} more than the ttl, \
             less the margin, from its call on"
        );
    }
    context.nothing_left(9).await?;
    Ok(Verdict::Passed)
}

/// Who renews keeps the key, for longer than its ttl and in front of a waiter.
pub(super) async fn renewal_keeps_the_key<T: ContractTarget>(context: &Context<'_, T>) -> Checked {
    // A machine that sleeps through a short one shows nothing.
    for times in [1, 4] {
        if renewals_keep_the_key(context, context.short_ttl() * times).await? {
            return Ok(Verdict::Passed);
        }
    }
    Err(Violation::new(
        0,
        "the machine is too slow for the short ttl",
    ))
}

/// `false`: a renewal came when the lease was over.
async fn renewals_keep_the_key<T: ContractTarget>(
    context: &Context<'_, T>,
    ttl: Duration,
) -> Result<bool, Violation> {
    let key = context.key();
    let held = context
        .one
        .acquire(&AcquireRequest::new(key.clone(), ttl))
        .await?;
    let waiter = context.enqueue(context.patient(&key)).await?;
    let start = Instant::now();
    let first = held.valid_until();
    let mut end = first;
    let mut slept = false;
    while start.elapsed() < ttl * 3 && !slept {
        tokio::time::sleep(ttl / 5).await;
        let renewed = held.renew().await;
        let late = Instant::now() > end;
        match renewed {
            Ok(()) => {}
            Err(error) if late && error.kind() == BackendErrorKind::Lost => {
                slept = true;
                continue;
            }
            Err(error) => {
                return Err(Violation::new(8, format!("a holder cannot renew: {error}")));
            }
        }
        // A session's heartbeats move the end, in steps of their own.
        let moved = match context.capabilities.min_ttl {
            Some(_) => held.valid_until() >= end,
            None => held.valid_until() > end,
        };
        ensure!(moved, 2, "a renewal did not move the end of the lease");
        end = held.valid_until();
        ensure!(!waiter.is_finished(), 1, "a renewed lease was taken over");
    }
    if !slept {
        ensure!(
            end >= first + ttl,
            2,
            "renewals for three ttls moved the end by {:?}",
            end - first
        );
        ensure!(held.lost().get().is_none(), 8, "a renewed lease was lost");
    }
    held.release().await?;
    let limit = Duration::from_secs(1) + context.options.slack;
    let lease = context.granted(waiter, limit, "the waiter").await?;
    lease.release().await?;
    context.until_free(&key, "after renewals").await?;
    context.nothing_left(9).await?;
    Ok(!slept)
}
