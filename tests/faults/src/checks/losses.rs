//! A holder that loses its lock is told before the next one is granted.
//!
//! Looked at is every holder and the next grant in the order of tokens. Who has given the lock back,
//! or whose caller had gone, before that grant has lost nothing. Everybody else must have been told
//! by then; the time from the loss to the next grant is the margin.
//!
//! Two ways to be late. While its own `valid_until` had not passed, the holder worked under a lock
//! of somebody else: told later, by however little, is too late. Once it had passed, who looks at
//! the clock knows, and the line of the loss may be a little late on a busy machine: too late is
//! what comes after a slack.
//!
//! Excluded and counted is a holder whose process was stopped, dead or starved by the machine when
//! it should have been told, from the moment that its own bound passed or the next was granted: no
//! lock can tell a process that does not run. What such a holder does when it wakes is refused by
//! the fence. One that woke just before has as long as the slack to be told. Being cut off excludes
//! nobody: a holder's own clock tells it.

use super::{
    Found, Kind,
    view::{Held, Key, Ms, View},
};
use crate::history::{End, Grant};

pub(super) fn check(view: &View<'_>, key: &Key<'_>, found: &mut Found) {
    let granted = |held: &Held<'_>| Some((held.id, *held.grant?));
    let grants: Vec<_> = key.held.iter().filter_map(granted).collect();
    for (_, grant) in &grants {
        let lost = grant.ended.is_some_and(|ended| ended.how == End::Lost);
        found.figures.losses += u64::from(lost);
    }
    for pair in grants.windows(2) {
        let [(id, holder), (next_id, next)] = [pair[0], pair[1]];
        if holder.at >= next.at || gave_back(&holder, &next) {
            continue;
        }
        let slack = view.rules.told_slack;
        let told = holder.ended.map(|ended| ended.at);
        let in_time = told.is_some_and(|told| told <= next.at);
        let due = holder.valid_until.min(next.at);
        let until = next.at.saturating_add(slack);
        let until = told.map_or(until, |told| told.min(until));
        let from = due.saturating_sub(slack);
        if !in_time && view.course.away(id.process, from, until) {
            found.figures.losses_excluded += 1;
            continue;
        }
        // Who was never told has the margin of the history's end.
        let told_at = told.unwrap_or(view.course.end.max(next.at));
        let margin = next.at as i64 - told_at as i64;
        let smallest = found.figures.smallest_margin.get_or_insert(margin);
        *smallest = margin.min(*smallest);
        let excused = holder.valid_until <= next.at && told_at <= next.at.saturating_add(slack);
        if in_time || excused {
            continue;
        }
        let text = format!(
            "key {}: {id} (token {}, valid until {}) {}, {} after {next_id} (token {}) was granted at {}",
            key.key,
            holder.token,
            view.ms(holder.valid_until),
            match holder.ended {
                Some(ended) if ended.how == End::Lost =>
                    format!("was told of its loss at {}", view.ms(ended.at)),
                Some(ended) => format!("held until {} and was told nothing", view.ms(ended.at)),
                None => "was never told of its loss".to_owned(),
            },
            Ms::span(told_at - next.at),
            next.token,
            view.ms(next.at),
        );
        found.add(Kind::LossLate, key.key, next.at, text);
    }
}

fn gave_back(holder: &Grant, next: &Grant) -> bool {
    holder
        .ended
        .is_some_and(|ended| ended.how != End::Lost && ended.at <= next.at)
}
