//! A lock that is given back goes to the next waiter soon.
//!
//! Measured where nothing else explains a delay: from every end of a hold that was given back while
//! its lease was good, by its release or as its caller had gone, and from every beginning of a wait
//! for a key that was given back before; until the key's next grant. A release that does nothing
//! leaves the key to the end of its lease: it is found where the lease is longer than the bound, as
//! in the runs without a fault.
//!
//! A holder that was told of its loss, or whose lease had run out, gives nothing back: its key is
//! free when the servers say so. Somebody else who holds is in the way by right. Waiters that come
//! and go in turn are one wait, as for [recovery](super::recovery): who leaves, or was granted the
//! key and no longer wants it, costs a request, for which the bound has room. Time in which the whole
//! machine stood still does not count.
//!
//! Not measured is what begins while anything befalls anybody, or within the bound of recovery after
//! it: the next in the queue may be one that was stopped, is dead or cut off, whose turn passes with
//! its lease; and who is told that the backend is away, or of a loss, has been cut off, if only by a busy machine.
//! Faults under which the order is kept do nothing like that. What was measured until the
//! next blow counts all the same.

use super::{
    Found, Kind,
    course::Spans,
    turns::{Holds, Turn, waits},
    view::{Key, Ms, View},
};
use crate::history::Nanos;

pub(super) fn check(view: &View<'_>, found: &mut Found) {
    let blows = view
        .course
        .befell(&view.rules.order_kept_under, view.rules.reconnects);
    for key in &view.keys {
        let holds = Holds::of(key);
        let back = holds.iter().filter(|hold| hold.given_back);
        let mut back: Vec<_> = back.map(|hold| hold.until).collect();
        back.sort_unstable();
        for (from, over) in waits(view, key).iter() {
            if holds.last(from).is_none_or(|last| last.given_back) {
                measure(view, key, &holds, &blows, (from, over), found);
            }
            let first = back.partition_point(|at| *at <= from);
            for at in back[first..].iter().take_while(|at| **at < over) {
                measure(view, key, &holds, &blows, (*at, over), found);
            }
        }
    }
}

/// From when on the key is waited for, and was given back; and until when it is waited for.
fn measure(
    view: &View<'_>,
    key: &Key<'_>,
    holds: &Holds,
    blows: &Spans,
    (from, over): (Nanos, Nanos),
    found: &mut Found,
) {
    let quiet = from.saturating_sub(view.rules.recovery);
    if holds.over_by(view.course, from) > from || blows.touches(quiet, from) {
        return;
    }
    let blow = blows.next(from).unwrap_or(Nanos::MAX);
    let Turn { until, took, end } = Turn::of(view, holds, from, over.min(blow));
    found.figures.hand_offs += 1;
    found.figures.longest_hand_off = found.figures.longest_hand_off.max(took);
    if took > view.rules.hand_off {
        let text = format!(
            "key {}: free and waited for at {}, and {end} until {}, after {}",
            key.key,
            view.ms(from),
            view.ms(until),
            Ms::span(took),
        );
        found.add(Kind::SlowHandOff, key.key, until, text);
    }
}
