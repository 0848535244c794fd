//! Whether some order of what happened to a key explains its history: linearizability of a lock
//! with fencing tokens and leases.
//!
//! The lock of a key is a holder or none, and the last token. `acquire` takes effect at one moment
//! between its call and its grant; it needs that nobody holds and that its token is above the last.
//! `end` takes effect at one moment and needs that its own attempt holds. When it may:
//!
//! - given back, or its caller gone: any time after that line, as a release is sent after it and may
//!   arrive late;
//! - never given back: any time after the last `valid_until` that its holder counted on, which also
//!   bounds the case before (a release after the bound need not have been what ended it);
//! - lost: any time after the `acquire`. The server may have ended it early and told later, or the
//!   holder was told early; that the loss was told in time is a check of its own.
//! - known by a claim at the storage only: any time after the `acquire`, as its bound is unknown.
//!
//! Attempts that were refused, cancelled while waiting, or whose outcome is unknown may have held or
//! not, with a token that nobody knows. Leaving them out is always allowed, and never makes an order
//! impossible: so they are left out.
//!
//! No search is needed. Tokens must grow, so the `acquire`s are in the order of tokens, and since a
//! holder keeps the others out, each `end` but the last lies between its `acquire` and the next: one
//! order is left. Moments for it are chosen as early as they may be, `acquire` at its call or at the
//! `end` before it, `end` at its `acquire` or at its bound. By induction no other choice has any
//! moment earlier, so where an `acquire` is too late for its grant it is too late in every choice.
//! A search over all orders in the tests agrees.
//!
//! Crates: todc-utils has a general WGL search (exponential, and last released in 2023), stateright's
//! `LinearizabilityTester` records threads with one operation in flight each and has no operations
//! without an end, lincheck drives code under loom and reads no histories, and the crate porcupine is
//! another thing of the same name; so none is used.

use super::{
    Found, Kind,
    view::{Held, Key, View},
};
use crate::history::{AttemptId, End, Grant, Nanos};

/// An `acquire` and its `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) id: AttemptId,
    pub(super) token: u64,
    pub(super) call: Nanos,
    pub(super) granted: Nanos,
    /// Not before then, and not before the `acquire`.
    pub(super) ends: Nanos,
}

/// Why no order explains the history.
#[derive(Debug)]
pub(super) enum Contradiction {
    /// Two with one token.
    Repeat(Hold, Hold),
    /// The second had to be granted at a time when somebody before it held: from there on until the
    /// given moment at least.
    Held(Hold, Hold, Nanos),
}

pub(super) fn check(view: &View<'_>, key: &Key<'_>, found: &mut Found) {
    let holds: Vec<_> = key.held.iter().map(hold).collect();
    let (at, text) = match linearize(&holds) {
        Ok(()) => return,
        Err(Contradiction::Repeat(first, second)) => (
            second.granted,
            format!("{} and {} have token {}", first.id, second.id, first.token),
        ),
        Err(Contradiction::Held(first, second, until)) => (
            second.granted,
            format!(
                "{} (token {}) holds until {} at least, and {} (token {}, called at {}) was granted by {}",
                first.id,
                first.token,
                view.ms(until),
                second.id,
                second.token,
                view.ms(second.call),
                view.ms(second.granted),
            ),
        ),
    };
    let text = format!("key {}: no order explains it: {text}", key.key);
    found.add(Kind::NotLinearizable, key.key, at, text);
}

fn hold(held: &Held<'_>) -> Hold {
    Hold {
        id: held.id,
        token: held.token,
        call: held.call,
        granted: held.at,
        ends: held.grant.map_or(held.call, |grant| ends(grant, held.call)),
    }
}

fn ends(grant: &Grant, call: Nanos) -> Nanos {
    match grant.ended {
        Some(ended) if ended.how == End::Lost => call,
        _ => grant.until(),
    }
}

/// Chooses the earliest moments. `holds` are in the order of tokens.
pub(super) fn linearize(holds: &[Hold]) -> Result<(), Contradiction> {
    // Who held last, and until when at least.
    let mut last: Option<(&Hold, Nanos)> = None;
    for hold in holds {
        let mut moment = hold.call;
        if let Some((earlier, until)) = last {
            if earlier.token == hold.token {
                return Err(Contradiction::Repeat(*earlier, *hold));
            }
            moment = moment.max(until);
            if moment > hold.granted {
                return Err(Contradiction::Held(*earlier, *hold, until));
            }
        }
        last = Some((hold, moment.max(hold.ends)));
    }
    Ok(())
}
