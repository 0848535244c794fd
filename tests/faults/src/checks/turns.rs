//! When a key was held and when it was waited for, as recovery and hand-offs are measured.

use super::{
    Course,
    course::Spans,
    view::{Key, View},
};
use crate::history::{Attempt, End, Nanos, Outcome};

/// Who held a key, in the order of grants.
pub(super) struct Holds {
    holds: Vec<Hold>,
    /// The latest end of each and all before it.
    latest: Vec<Nanos>,
}

pub(super) struct Hold {
    pub(super) at: Nanos,
    pub(super) until: Nanos,
    process: u32,
    /// Given back, or its caller gone, while its lease was good: then it is free at once.
    pub(super) given_back: bool,
}

impl Holds {
    pub(super) fn of(key: &Key<'_>) -> Self {
        let known = key.held.iter();
        let mut holds: Vec<_> = known
            .filter_map(|held| {
                let grant = held.grant?;
                let given_back = grant
                    .ended
                    .is_some_and(|it| it.how != End::Lost && it.at < grant.valid_until);
                Some(Hold {
                    at: held.at,
                    until: held.until,
                    process: held.id.process,
                    given_back,
                })
            })
            .collect();
        holds.sort_by_key(|hold| hold.at);
        let latest = holds.iter().scan(0, |latest: &mut Nanos, hold| {
            *latest = hold.until.max(*latest);
            Some(*latest)
        });
        let latest = latest.collect();
        Self { holds, latest }
    }

    /// When those who hold at that time, and whose processes run, hold no more.
    pub(super) fn over_by(&self, course: &Course<'_>, at: Nanos) -> Nanos {
        let known = self.holds.partition_point(|hold| hold.at <= at);
        let held = self.holds[..known].iter().zip(&self.latest).rev();
        let held = held.take_while(|(_, latest)| **latest > at);
        let there = held.filter(|(hold, _)| course.is_there(hold.process, at));
        let until = there.map(|(hold, _)| hold.until).max();
        until.map_or(at, |until| until.max(at))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter()
    }

    /// The last one that was granted by then.
    pub(super) fn last(&self, by: Nanos) -> Option<&Hold> {
        let known = self.holds.partition_point(|hold| hold.at <= by);
        self.holds[..known].last()
    }

    /// The next grant.
    pub(super) fn next(&self, after: Nanos) -> Option<Nanos> {
        let next = self.holds.partition_point(|hold| hold.at <= after);
        self.holds.get(next).map(|hold| hold.at)
    }
}

/// A time in which a key was free and waited for.
pub(super) struct Turn {
    pub(super) until: Nanos,
    /// How long the machine ran meanwhile.
    pub(super) took: Nanos,
    /// How it ended, in words.
    pub(super) end: &'static str,
}

impl Turn {
    /// Until the next grant, or until something ends the wait.
    pub(super) fn of(view: &View<'_>, holds: &Holds, from: Nanos, over: Nanos) -> Self {
        let granted = holds.next(from).unwrap_or(Nanos::MAX);
        let until = granted.min(over);
        Self {
            until,
            took: view.course.ran(from, until),
            end: if until == granted {
                "was granted"
            } else {
                "was not granted"
            },
        }
    }
}

/// When the key was waited for by somebody who could be served. Waiters that come and go in turn are
/// one wait.
pub(super) fn waits(view: &View<'_>, key: &Key<'_>) -> Spans {
    let attempts = key.attempts.iter();
    Spans::of(attempts.flat_map(|one| waited(view, one)).collect())
}

/// When the attempt waited and could be served.
fn waited(view: &View<'_>, attempt: &Attempt) -> Vec<(Nanos, Nanos)> {
    if attempt.wait == 0 {
        return Vec::new();
    }
    let process = attempt.id.process;
    let until = match &attempt.outcome {
        Outcome::Granted(grant) => grant.at,
        Outcome::Refused { at, .. } | Outcome::Cancelled { at } => *at,
        Outcome::Unknown => view.course.ends(process).unwrap_or(view.course.end),
    };
    view.course.well(process, attempt.call, until)
}
