//! Everybody is answered, no wait outlives its time by more than a slack, and nobody is told before
//! that another holds.
//!
//! Time in which the process was stopped does not count, as its timers did not run, nor does time in
//! which the whole machine stood still (see [`Course::of`](super::Course::of) for why that hides
//! nothing).
//!
//! Without an answer: a process that was neither killed nor asked to end owes one to everybody, so
//! whoever has none at the history's end was forgotten. One that was killed or drained owes those
//! whose time, with the slack, was over by then.

use super::{
    Found, Kind, is_busy,
    view::{Key, Ms, View},
};
use crate::history::{Attempt, Nanos, Outcome};

pub(super) fn check(view: &View<'_>, key: &Key<'_>, found: &mut Found) {
    for attempt in &key.attempts {
        let (id, call) = (attempt.id, attempt.call);
        hasty(view, key, attempt, found);
        let bound = attempt.wait.saturating_add(view.rules.answer_slack);
        let answered = match &attempt.outcome {
            Outcome::Granted(grant) => Some((grant.at, "granted")),
            Outcome::Refused { at, .. } => Some((*at, "refused")),
            // Until it was cancelled, the same was owed.
            Outcome::Cancelled { at } => Some((*at, "still waiting when it was cancelled")),
            Outcome::Unknown => None,
        };
        let ends = view.course.ends(id.process);
        let until = answered.map_or(ends.unwrap_or(view.course.end), |(at, _)| at);
        let waited = view.course.awake(id.process, call, until);
        let (kind, what) = match answered {
            Some((_, what)) if waited > bound => (Kind::Overdue, what),
            None if ends.is_none() || waited > bound => (Kind::NeverAnswered, "never answered"),
            _ => continue,
        };
        found.add(
            kind,
            key.key,
            until,
            format!(
                "key {}: {id} called at {} ready to wait for {}, and after {} (until {}) was {what}",
                key.key,
                view.ms(call),
                Ms::span(attempt.wait),
                Ms::span(waited),
                view.ms(until),
            ),
        );
    }
}

/// So much is a matter of timers.
const EARLY: Nanos = 5_000_000;

fn hasty(view: &View<'_>, key: &Key<'_>, attempt: &Attempt, found: &mut Found) {
    let Outcome::Refused { at, why } = &attempt.outcome else {
        return;
    };
    if is_busy(why) && at + EARLY < attempt.call + attempt.wait {
        let text = format!(
            "key {}: {} called at {} ready to wait for {}, and was refused ({why}) at {}",
            key.key,
            attempt.id,
            view.ms(attempt.call),
            Ms::span(attempt.wait),
            view.ms(*at),
        );
        found.add(Kind::Hasty, key.key, *at, text);
    }
}
