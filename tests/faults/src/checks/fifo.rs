//! Waiters of a key with [`Order::Fifo`] are served in the order in which they came.
//!
//! A waiter is overtaken by one that called later, by more than a slack, and was granted before it:
//! written down earlier, and with a lower token or with its hold over by then. The last is for tokens
//! that come from places in the queue; the two together keep late lines from making an inversion. A
//! waiter that ran out of time is overtaken too, by everybody granted while it waited. A try counts
//! as overtaking: nobody jumps a queue.
//!
//! The slack is there because arrival at the server counts, not the line of the call: between two
//! processes the way of a request; within one process only the time until a task runs on. When the
//! machine stood still between the two calls, that time is no evidence of an order. Who calls right
//! after a fault stands in the queue when its process can reach the servers again.
//!
//! Excluded and counted are waiters that did not stay connected: their process was stopped or dead,
//! or a fault covered it or everybody, or its process was told that the backend is away, or of a loss, at any moment
//! between call and answer; such a place in the queue may be lost. So are those whose servers hung, as
//! one tells that no fault covers. Faults under which a backend keeps the order are named in the rules.
//!
//! One violation for each waiter overtaken, with its number of overtakers up to a bound.

use std::collections::BTreeSet;

use super::{
    Found, Kind,
    view::{Key, View},
};
use crate::history::{Attempt, AttemptId, Nanos, Order, Outcome};

/// More overtakers of one waiter are not looked at.
const MOST: usize = 64;

struct Waiter<'h> {
    attempt: &'h Attempt,
    /// Granted before then, somebody was granted while it waited.
    until: Nanos,
    /// The token that it was granted then, and whether it held at that time still.
    granted: Option<(u64, bool)>,
}

struct Granted {
    id: AttemptId,
    call: Nanos,
    at: Nanos,
    /// When its hold was over.
    over: Nanos,
    token: u64,
}

pub(super) fn check(view: &View<'_>, key: &Key<'_>, found: &mut Found) {
    let fifo = || {
        let attempts = key.attempts.iter().copied();
        attempts.filter(|attempt| attempt.order == Order::Fifo)
    };
    let mut granted: Vec<_> = fifo()
        .filter_map(|attempt| {
            let grant = attempt.grant()?;
            Some(Granted {
                id: attempt.id,
                call: attempt.call,
                at: grant.at,
                over: grant.until(),
                token: grant.token,
            })
        })
        .collect();
    granted.sort_by_key(|granted| granted.at);
    let mut waiters: Vec<_> = fifo().filter_map(|attempt| waiter(view, attempt)).collect();
    waiters.sort_by_key(|waiter| waiter.until);

    let least = view.rules.order_slack.min(view.rules.own_order_slack);
    let most = view.rules.order_slack.max(view.rules.own_order_slack);
    let mut calls: Vec<_> = fifo().map(|attempt| attempt.call).collect();
    calls.sort_unstable();
    // Everybody granted so far, by the time of the call.
    let mut before = BTreeSet::new();
    let mut next = 0;
    for waiter in &waiters {
        while let Some(one) = granted.get(next).filter(|one| one.at < waiter.until) {
            before.insert((one.call, next));
            next += 1;
        }
        let behind = waiter.attempt.call.saturating_add(most);
        let first = calls.partition_point(|call| *call <= behind);
        found.figures.places += u64::from(calls.get(first).is_some_and(|it| *it < waiter.until));
        let behind = waiter.attempt.call.saturating_add(least);
        let mut later = before.range((behind, 0)..).rev().take(MOST).peekable();
        if later.peek().is_none() {
            continue;
        }
        let stood = stood(view, waiter.attempt);
        let overtakers: Vec<_> = later
            .map(|(_, index)| &granted[*index])
            .filter(|one| overtook(view, waiter, stood, one))
            .collect();
        if !overtakers.is_empty() {
            overtaken(view, key, waiter, &overtakers, found);
        }
    }
}

fn waiter<'h>(view: &View<'_>, attempt: &'h Attempt) -> Option<Waiter<'h>> {
    let over = attempt.call.saturating_add(attempt.wait);
    let (until, granted) = match attempt.outcome {
        Outcome::Granted(grant) => {
            let held = grant.at < grant.valid_until;
            (grant.at, Some((grant.token, held)))
        }
        // It was in the queue until its time was over, but for what its last words took.
        Outcome::Refused { at, .. } if at >= over => {
            (over.saturating_sub(view.rules.order_slack), None)
        }
        _ => return None,
    };
    (attempt.wait > 0).then_some(Waiter {
        attempt,
        until,
        granted,
    })
}

/// When it stood in the queue, but for the slack.
fn stood(view: &View<'_>, attempt: &Attempt) -> Nanos {
    let rules = view.rules;
    view.course.reached(
        attempt.id.process,
        attempt.call,
        rules.reconnects,
        &rules.order_kept_under,
    )
}

fn overtook(view: &View<'_>, waiter: &Waiter<'_>, stood: Nanos, one: &Granted) -> bool {
    let slack = if one.id.process == waiter.attempt.id.process {
        view.rules.own_order_slack
    } else {
        view.rules.order_slack
    };
    one.id != waiter.attempt.id
        && view.course.ran(stood, one.call) > slack
        && waiter.granted.is_none_or(|(token, held)| {
            // A line so late that its lease was over may have been granted before.
            one.token < token || (held && one.over <= waiter.until)
        })
}

fn overtaken(
    view: &View<'_>,
    key: &Key<'_>,
    waiter: &Waiter<'_>,
    overtakers: &[&Granted],
    found: &mut Found,
) {
    let (id, call) = (waiter.attempt.id, waiter.attempt.call);
    let kept = &view.rules.order_kept_under;
    if view.course.away(id.process, call, waiter.until)
        || view.course.disturbed(id.process, call, waiter.until, kept)
        || view.course.was_cut_off(id.process, call, waiter.until)
        || (view.course).hung(call, waiter.until, view.rules.reconnects, kept)
    {
        found.figures.overtaken_excluded += 1;
        return;
    }
    found.figures.overtakings += overtakers.len() as u64;
    let Some(one) = overtakers.first() else {
        return;
    };
    let end = match waiter.granted {
        Some((token, _)) => format!("granted token {token} at {}", view.ms(waiter.until)),
        None => "refused when its time was over".to_owned(),
    };
    found.add(
        Kind::Overtaken,
        key.key,
        one.at,
        format!(
            "key {}: {id} waited from {} and was {end}; {} called at {} and was granted token {} at {} \
             ({} overtook it)",
            key.key,
            view.ms(call),
            one.id,
            view.ms(one.call),
            one.token,
            view.ms(one.at),
            overtakers.len(),
        ),
    );
}
