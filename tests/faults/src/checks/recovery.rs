//! Once nothing stands in the way, a key that is waited for is granted again within a bound.
//!
//! Measured from every healed fault, and from every process that is stopped, runs again, is killed
//! (what it held is free after its lease at the latest) or has ended, for every key that has a live waiter
//! at that moment: until the key's next grant. Two things end the measuring earlier: the key is
//! waited for by nobody any more, as nobody could be served then; or the next fault, which is
//! measured by itself. What was measured until then counts all the same, as it was time without a
//! grant. Waiters that come and go in turn are one wait of the key: a dead lock is not hidden by
//! callers that give up and come again. So a schedule must leave gaps, and after its last fault it
//! is measured in full.
//!
//! Where somebody holds and its process runs, measuring begins when that is over: it is in the way by
//! its right, and who is granted the key beside it is so too (that two hold is found elsewhere).
//!
//! A waiter whose process is stopped, or covered by a fault of its own, is not live: it could not be
//! served. Not measured is what heals while another fault of everybody goes on: that one's end is measured.
//! Time in which the whole machine stood still does not count.

use super::{
    Found, Kind,
    turns::{Holds, Turn, waits},
    view::{Key, Ms, View},
};
use crate::history::{Nanos, What};

pub(super) fn check(view: &View<'_>, found: &mut Found) {
    let origins = origins(view);
    for key in &view.keys {
        let waits = waits(view, key);
        let holds = Holds::of(key);
        for (from, over) in waits.iter() {
            let first = origins.partition_point(|origin| origin.0 < from);
            let met = origins[first..].iter();
            for (at, what) in met.take_while(|origin| origin.0 < over) {
                measure(view, key, &holds, (*at, over), what, found);
            }
        }
    }
}

/// `over`: when the key is waited for no more.
fn measure(
    view: &View<'_>,
    key: &Key<'_>,
    holds: &Holds,
    (at, over): (Nanos, Nanos),
    what: &str,
    found: &mut Found,
) {
    let mut from = holds.over_by(view.course, at);
    // Where two held, the other one is in the way for longer.
    while let later = holds.over_by(view.course, from)
        && later > from
    {
        from = later;
    }
    // What comes next is measured by itself, also where somebody held until after it.
    let blow = view.course.next_blow(at).unwrap_or(Nanos::MAX);
    if from >= over.min(blow) {
        return;
    }
    let Turn { until, took, end } = Turn::of(view, holds, from, over.min(blow));
    found.figures.recoveries += 1;
    found.figures.longest_recovery = found.figures.longest_recovery.max(took);
    if took > view.rules.recovery {
        let text = format!(
            "key {}: waited for when {what} at {}, and {end} until {}, {} after the last that stood in its way",
            key.key,
            view.ms(at),
            view.ms(until),
            Ms::span(took),
        );
        found.add(Kind::SlowRecovery, key.key, until, text);
    }
}

/// When to begin measuring, in order, and why.
pub(super) fn origins(view: &View<'_>) -> Vec<(Nanos, String)> {
    let events = view.history.events.iter();
    events
        .filter_map(|event| {
            let what = match &event.what {
                What::Healed { name, .. } => format!("{name} was healed"),
                What::Killed { process } => format!("process {process} was killed"),
                What::Drained { process } => format!("process {process} had ended"),
                What::Stopped { process } => format!("process {process} was stopped"),
                What::Continued { process } => format!("process {process} ran again"),
                _ => return None,
            };
            (!view.course.is_disturbed(event.at)).then_some((event.at, what))
        })
        .collect()
}
