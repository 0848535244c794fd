//! A key with [`Order::Batched`] is handed on within a process for a bounded number of times, and
//! then goes to the one that waits in the queue.
//!
//! Each process has one contender in the queue, which is in the order of arrival. So where a process
//! stood in it before the first of several holders of another one, all that these have of their own
//! hand-ons is one batch: whatever that process asks for after the first of them comes behind. Found
//! is a run of holders of one process, in the order of tokens, that is longer than a batch may be,
//! while another process waited from before its first to after its last.
//!
//! The contender of a process is whoever waits there for the longest. Those who ask at nearly the same
//! time may be either way around. So nothing is said of a waiter where another one left that was there
//! before it, or nearly so, as the next one has to queue anew then, or where the process held itself
//! shortly before; a try is none, where others wait. Slack and exclusions are those of
//! [`Order::Fifo`](super::fifo).

use std::collections::BTreeMap;

use super::{
    Found, Kind,
    view::{Held, Key, View},
};
use crate::history::{Attempt, Nanos, Order, Outcome};

pub(super) fn check(view: &View<'_>, key: &Key<'_>, found: &mut Found) {
    let batch = |attempt: &Attempt| match attempt.order {
        Order::Batched(most) => Some(most as usize),
        _ => None,
    };
    let Some(most) = key.attempts.iter().filter_map(|one| batch(one)).max() else {
        return;
    };
    // Those who wait, by their process.
    let mut waiters: BTreeMap<u32, Vec<&Attempt>> = BTreeMap::new();
    for attempt in key.attempts.iter().filter(|attempt| attempt.wait > 0) {
        let of = waiters.entry(attempt.id.process).or_default();
        of.push(attempt);
    }
    let slack = view.rules.order_slack;
    for pair in key.held.windows(2) {
        let waited = |attempt: &&&Attempt| attempt.id == pair[1].id && attempt.wait > 0;
        let waiter = key.attempts.iter().find(waited);
        let other = pair[0].id.process != pair[1].id.process;
        let behind = waiter.is_some_and(|it| it.call.saturating_add(slack) < pair[0].at);
        found.figures.places += u64::from(other && behind);
    }
    let runs = key
        .held
        .chunk_by(|one, next| one.id.process == next.id.process);
    for run in runs {
        // Who holds first, and as many hand-ons as there may be.
        for part in run.windows(most + 2) {
            let (first, last) = (&part[0], &part[most + 1]);
            let others = waiters.iter().filter(|(of, _)| **of != first.id.process);
            for (process, attempts) in others {
                if let Some(waiter) = passed_over(view, key, (*process, attempts), first, last) {
                    let text = format!(
                        "key {}: {} of process {} in a row, from {} ({}) to {} ({}), while {} waited from {}",
                        key.key,
                        part.len(),
                        first.id.process,
                        first.id,
                        view.ms(first.at),
                        last.id,
                        view.ms(last.at),
                        waiter.id,
                        view.ms(waiter.call),
                    );
                    found.add(Kind::HandedOn, key.key, last.at, text);
                }
            }
        }
    }
}

/// One that waited in that process all the time.
fn passed_over<'h>(
    view: &View<'_>,
    key: &Key<'_>,
    (process, attempts): (u32, &[&'h Attempt]),
    first: &Held<'_>,
    last: &Held<'_>,
) -> Option<&'h Attempt> {
    let (slack, kept) = (view.rules.order_slack, &view.rules.order_kept_under);
    let own_slack = view.rules.own_order_slack;
    let from = first.at.saturating_sub(slack);
    let left = |attempt: &Attempt| match attempt.outcome {
        Outcome::Refused { at, .. } | Outcome::Cancelled { at } => at,
        Outcome::Granted(_) | Outcome::Unknown => Nanos::MAX,
    };
    // It may have left before its line: when its time was over, or a moment before.
    let leaves = |attempt: &&&Attempt| match attempt.outcome {
        Outcome::Refused { at, .. } | Outcome::Cancelled { at } => {
            let over = attempt.call.saturating_add(attempt.wait);
            from <= at && over.min(at.saturating_sub(own_slack)) <= last.at
        }
        Outcome::Granted(_) | Outcome::Unknown => false,
    };
    // Who called after that may have stood behind one that left.
    let leavers = attempts.iter().filter(leaves).map(|one| one.call);
    let alone = leavers
        .min()
        .map_or(Nanos::MAX, |call| call.saturating_sub(own_slack));
    let holds =
        |held: &Held<'_>| held.id.process == process && held.at <= last.at && from <= held.until;
    if last.at < first.at || key.held.iter().any(holds) {
        return None;
    }
    let waits = |attempt: &&&'h Attempt| {
        let answered = attempt.grant().map_or(left(attempt), |grant| grant.at);
        let call = attempt.call;
        answered > last.at
            && call < alone
            && view.course.ran(
                view.course
                    .reached(process, call, view.rules.reconnects, kept),
                first.at,
            ) > slack
            && !view.course.away(process, call, last.at)
            && !view.course.disturbed(process, call, last.at, kept)
            && !view.course.was_cut_off(process, call, last.at)
    };
    attempts.iter().find(waits).copied()
}
