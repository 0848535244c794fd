//! Once nothing stands in the way, no process is turned away for good.
//!
//! [Recovery](super::recovery) is measured while somebody waits. A backend that answers at once that it
//! is away, for ever, lets nobody wait. So from every moment from which recovery is measured, and as
//! long after it as it may take to be connected again, each process that runs is looked at until the
//! next blow: it must not be turned away again and again and be granted nothing.
//!
//! Turned away is who is refused, and not because another holds. Such an answer takes an operation
//! timeout at the most, which is less than it may take to be connected: so what is answered then was
//! asked after the fault. Where the whole machine stood still meanwhile, answers that were on their way
//! time out together: nothing is said.

use super::{
    Found, Kind, is_busy, recovery,
    view::{Ms, View},
};
use crate::history::{Attempt, Nanos, Outcome};

/// Fewer may be those of a moment.
const AGAIN_AND_AGAIN: usize = 5;

/// The machine may stand still for so long, together.
const STILL: Nanos = 500_000_000;

pub(super) fn check(view: &View<'_>, found: &mut Found) {
    let rules = view.rules;
    let mut attempts: Vec<_> = view.history.attempts.values().collect();
    attempts.sort_by_key(|attempt| (attempt.id.process, attempt.call));
    for (at, what) in recovery::origins(view) {
        let from = at.saturating_add(rules.reconnects);
        let until = view.course.next_blow(at).unwrap_or(Nanos::MAX);
        for of in attempts.chunk_by(|one, next| one.id.process == next.id.process) {
            let process = of[0].id.process;
            let ends = view.course.ends(process).unwrap_or(Nanos::MAX);
            let until = until.min(ends).min(view.course.end);
            let is_well = || view.course.well(process, from, until) == [(from, until)];
            if from >= until || !is_well() {
                continue;
            }
            if until - at > view.course.ran(at, until) + STILL {
                found.figures.stood_still += 1;
                continue;
            }
            found.figures.looked_at += 1;
            let within = |at: Nanos| (from..until).contains(&at);
            let mut grants = of.iter().filter_map(|one| one.grant());
            if grants.any(|grant| within(grant.at)) {
                found.figures.served += 1;
                continue;
            }
            let turned_away = of
                .iter()
                .filter_map(|one| turned_away(one).map(|at| (one, at)));
            let mut turned_away: Vec<_> = turned_away.filter(|(_, at)| within(*at)).collect();
            turned_away.sort_by_key(|(_, at)| *at);
            if let Some((one, at)) = turned_away.get(AGAIN_AND_AGAIN - 1) {
                let text = format!(
                    "process {process}: granted nothing and turned away {AGAIN_AND_AGAIN} times and \
                     more by {} ({}), {} after {what}",
                    view.ms(*at),
                    one.id,
                    Ms::span(at - from + rules.reconnects),
                );
                found.add(Kind::NotServed, one.key, *at, text);
            }
        }
    }
}

/// When it was, if it was.
fn turned_away(attempt: &Attempt) -> Option<Nanos> {
    match &attempt.outcome {
        Outcome::Refused { at, why } if !is_busy(why) => Some(*at),
        _ => None,
    }
}
