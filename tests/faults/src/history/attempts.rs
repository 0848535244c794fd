//! From events to attempts.

use std::collections::BTreeMap;

use super::{AttemptId, Event, Nanos, Order, What};

/// One attempt, as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attempt {
    pub(crate) id: AttemptId,
    pub(crate) key: u32,
    pub(crate) order: Order,
    pub(crate) call: Nanos,
    /// How long it was ready to wait.
    pub(crate) wait: Nanos,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Granted(Grant),
    Refused {
        at: Nanos,
        why: String,
    },
    /// Dropped while it waited. It may have been granted by a server all the same.
    Cancelled {
        at: Nanos,
    },
    /// Nothing more is known: the process died, or the history ends.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grant {
    pub(crate) at: Nanos,
    pub(crate) token: u64,
    /// The latest end that its holder counted on.
    pub(crate) valid_until: Nanos,
    /// How it ended before that, if it did.
    pub(crate) ended: Option<Ended>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ended {
    pub(crate) at: Nanos,
    pub(crate) how: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost,
    Cancelled,
}

impl Grant {
    /// Until when its holder believed that it held.
    pub(crate) fn until(&self) -> Nanos {
        self.ended
            .map_or(self.valid_until, |ended| ended.at.min(self.valid_until))
    }
}

impl Attempt {
    pub(crate) fn grant(&self) -> Option<&Grant> {
        match &self.outcome {
            Outcome::Granted(grant) => Some(grant),
            _ => None,
        }
    }
}

/// All that happened, in the order of time, and the attempts by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    pub(crate) attempts: BTreeMap<AttemptId, Attempt>,
}

impl History {
    /// Puts the events of several processes together.
    ///
    /// # Errors
    ///
    /// Says what cannot have happened, such as a grant of an attempt that nobody made: then the
    /// harness is wrong.
    pub(crate) fn of(mut events: Vec<Event>) -> Result<Self, String> {
        // Stable: what one process wrote at the same moment keeps its order.
        events.sort_by_key(|event| event.at);
        let mut attempts = BTreeMap::new();
        for event in &events {
            add(&mut attempts, event)?;
        }
        Ok(Self { events, attempts })
    }
}

fn add(attempts: &mut BTreeMap<AttemptId, Attempt>, event: &Event) -> Result<(), String> {
    let at = event.at;
    if let What::Call {
        id,
        key,
        order,
        wait,
    } = event.what
    {
        let attempt = Attempt {
            id,
            key,
            order,
            call: at,
            wait,
            outcome: Outcome::Unknown,
        };
        return match attempts.insert(id, attempt) {
            None => Ok(()),
            Some(_) => Err(format!("{id} was called twice")),
        };
    }
    let id = match event.what {
        What::Granted { id, .. }
        | What::Renewed { id, .. }
        | What::Releases { id }
        | What::Lost { id }
        | What::Refused { id, .. }
        | What::Cancelled { id } => id,
        _ => return Ok(()),
    };
    let Some(attempt) = attempts.get_mut(&id) else {
        return Err(format!("{id} was never called: {event:?}"));
    };
    match (&event.what, &mut attempt.outcome) {
        (
            &What::Granted {
                token, valid_until, ..
            },
            outcome @ Outcome::Unknown,
        ) => {
            *outcome = Outcome::Granted(Grant {
                at,
                token,
                valid_until,
                ended: None,
            });
        }
        (What::Refused { why, .. }, outcome @ Outcome::Unknown) => {
            *outcome = Outcome::Refused {
                at,
                why: why.clone(),
            };
        }
        (What::Cancelled { .. }, outcome @ Outcome::Unknown) => {
            *outcome = Outcome::Cancelled { at };
        }
        (&What::Renewed { valid_until, .. }, Outcome::Granted(grant)) => {
            grant.valid_until = grant.valid_until.max(valid_until);
        }
        (
            What::Releases { .. } | What::Lost { .. } | What::Cancelled { .. },
            Outcome::Granted(grant),
        ) => {
            let how = match event.what {
                What::Releases { .. } => End::Released,
                What::Lost { .. } => End::Lost,
                _ => End::Cancelled,
            };
            // The first end counts: who has lost it may give it back all the same.
            grant.ended.get_or_insert(Ended { at, how });
        }
        (what, outcome) => return Err(format!("{id}: {what:?} after {outcome:?}")),
    }
    Ok(())
}
