//! Once nothing stands in the way, a key that is waited for is granted again within a bound.
//!
//! Measured from every healed fault, and from every process that is stopped, runs again or is
//! killed (what it held is free after its lease at the latest), for every key that has a live waiter
//! at that moment: until the key's next grant. Two things end the measuring earlier: the key is
//! waited for by nobody any more, as nobody could be served then; or the next fault, which is
//! measured by itself. What was measured until then counts all the same, as it was time without a
//! grant. Waiters that come and go in turn are one wait of the key: a dead lock is not hidden by
//! callers that give up and come again. So a schedule must leave gaps, and after its last fault it
//! is measured in full.
//!
//! Where somebody holds and its process runs, measuring begins when that is over.
//!
//! Not measured is what heals while another fault of everybody goes on: that one's end is measured.
//! Time in which the whole machine stood still does not count.

use super::{
    Found, Kind,
    course::Spans,
    view::{Key, Ms, View},
};
use crate::history::{Attempt, Nanos, Outcome, What};

pub(super) fn check(view: &View<'_>, found: &mut Found) {
    let origins = origins(view);
    for key in &view.keys {
        let waits = Spans::of(
            key.attempts
                .iter()
                .flat_map(|attempt| waits(view, attempt))
                .collect(),
        );
        let grants = key.attempts.iter().filter_map(|attempt| attempt.grant());
        let mut grants: Vec<_> = grants.map(|grant| grant.at).collect();
        grants.sort_unstable();
        for (from, what) in &origins {
            measure(view, key, &waits, (*from, what), &grants, found);
        }
    }
}

fn measure(
    view: &View<'_>,
    key: &Key<'_>,
    waits: &Spans,
    (from, what): (Nanos, &str),
    grants: &[Nanos],
    found: &mut Found,
) {
    // Who holds and works is in nobody's way but by its right.
    let holds = key.attempts.iter().filter_map(|attempt| {
        let grant = attempt.grant()?;
        let there = view.course.is_there(attempt.id.process, from);
        (grant.at <= from && there).then(|| grant.until())
    });
    let from = holds.max().unwrap_or(from).max(from);
    let Some((_, over)) = waits.at(from).filter(|span| from < span.1) else {
        return;
    };
    let blow = view.course.next_blow(from).unwrap_or(Nanos::MAX);
    let next = grants.partition_point(|at| *at <= from);
    let granted = grants.get(next).copied().unwrap_or(Nanos::MAX);
    let until = granted.min(over).min(blow);
    let took = view.course.ran(from, until);
    found.figures.recoveries += 1;
    found.figures.longest_recovery = found.figures.longest_recovery.max(took);
    if took > view.rules.recovery {
        let end = if until == granted {
            "was granted"
        } else {
            "was not granted"
        };
        let text = format!(
            "key {}: waited for when {what} at {}, and {end} until {}, {} later",
            key.key,
            view.ms(from),
            view.ms(until),
            Ms::span(took),
        );
        found.add(Kind::SlowRecovery, key.key, until, text);
    }
}

/// When to begin measuring, and why.
fn origins(view: &View<'_>) -> Vec<(Nanos, String)> {
    let events = view.history.events.iter();
    events
        .filter_map(|event| {
            let what = match &event.what {
                What::Healed { name, .. } => format!("{name} was healed"),
                What::Killed { process } => format!("process {process} was killed"),
                What::Stopped { process } => format!("process {process} was stopped"),
                What::Continued { process } => format!("process {process} ran again"),
                _ => return None,
            };
            (!view.course.is_disturbed(event.at)).then_some((event.at, what))
        })
        .collect()
}

/// When the attempt waited and its process ran.
fn waits(view: &View<'_>, attempt: &Attempt) -> Vec<(Nanos, Nanos)> {
    if attempt.wait == 0 {
        return Vec::new();
    }
    let process = attempt.id.process;
    let until = match &attempt.outcome {
        Outcome::Granted(grant) => grant.at,
        Outcome::Refused { at, .. } | Outcome::Cancelled { at } => *at,
        Outcome::Unknown => view.course.ends(process).unwrap_or(view.course.end),
    };
    view.course.alive(process, attempt.call, until)
}
