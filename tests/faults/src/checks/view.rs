//! A history by keys, as the checks read it.

use std::{collections::BTreeMap, fmt};

use super::{Course, Figures, Rules};
use crate::history::{Attempt, AttemptId, Grant, History, Nanos, Outcome, What};

pub(super) struct View<'h> {
    pub(super) history: &'h History,
    pub(super) rules: &'h Rules,
    pub(super) course: &'h Course<'h>,
    pub(super) keys: Vec<Key<'h>>,
}

/// All that was asked of one key.
pub(super) struct Key<'h> {
    pub(super) key: u32,
    pub(super) attempts: Vec<&'h Attempt>,
    /// Everybody who is known to have held it, in the order of tokens.
    pub(super) held: Vec<Held<'h>>,
}

/// One that is known to have held: by its grant, or by a claim at the storage where it died before
/// it could write down its grant.
#[derive(Clone, Copy)]
pub(super) struct Held<'h> {
    pub(super) id: AttemptId,
    pub(super) call: Nanos,
    /// It held by then.
    pub(super) at: Nanos,
    pub(super) token: u64,
    pub(super) grant: Option<&'h Grant>,
}

impl<'h> View<'h> {
    pub(super) fn of(history: &'h History, rules: &'h Rules, course: &'h Course<'h>) -> Self {
        let mut keys: BTreeMap<u32, Key<'h>> = BTreeMap::new();
        for attempt in history.attempts.values() {
            let key = keys.entry(attempt.key).or_insert_with(|| Key {
                key: attempt.key,
                attempts: Vec::new(),
                held: Vec::new(),
            });
            key.attempts.push(attempt);
            if let Some(grant) = attempt.grant() {
                key.held.push(Held {
                    id: attempt.id,
                    call: attempt.call,
                    at: grant.at,
                    token: grant.token,
                    grant: Some(grant),
                });
            }
        }
        for event in &history.events {
            let What::Claim { id, token, .. } = event.what else {
                continue;
            };
            let Some(attempt) = history.attempts.get(&id) else {
                continue;
            };
            let known = attempt.grant().is_some_and(|grant| grant.token == token);
            if !known && let Some(key) = keys.get_mut(&attempt.key) {
                key.held.push(Held {
                    id,
                    call: attempt.call,
                    at: event.at,
                    token,
                    grant: None,
                });
            }
        }
        let mut keys: Vec<_> = keys.into_values().collect();
        for key in &mut keys {
            // A token that one attempt claims twice is held once.
            key.held.sort_by_key(|held| (held.token, held.id, held.at));
            key.held.dedup_by_key(|held| (held.token, held.id));
        }
        Self {
            history,
            rules,
            course,
            keys,
        }
    }

    pub(super) fn figures(&self) -> Figures {
        let mut figures = Figures {
            stalled: self.course.stalled(),
            ..Figures::default()
        };
        for attempt in self.history.attempts.values() {
            figures.attempts += 1;
            *match attempt.outcome {
                Outcome::Granted(_) => &mut figures.grants,
                Outcome::Refused { .. } => &mut figures.refused,
                Outcome::Cancelled { .. } => &mut figures.cancelled,
                Outcome::Unknown => &mut figures.unknown,
            } += 1;
        }
        let renewed = |what: &What| matches!(what, What::Renewed { .. });
        let events = self.history.events.iter();
        figures.renewals = events.filter(|event| renewed(&event.what)).count() as u64;
        figures
    }

    /// A time as violations show it.
    pub(super) fn ms(&self, at: Nanos) -> Ms {
        Ms(at as i128 - i128::from(self.course.start))
    }
}

/// A time or a span for people.
pub(super) struct Ms(i128);

impl Ms {
    pub(super) fn span(span: Nanos) -> Self {
        Self(i128::from(span))
    }
}

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.0 as f64 / 1e6)
    }
}
