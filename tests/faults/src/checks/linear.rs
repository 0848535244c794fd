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
//! - its process killed or ended: any time after that, as a server may see a connection end;
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
//! Every contradiction is told, so that each has its own time. After one, both bounds are true by
//! themselves: that of those before, as if the second had not been, and that of the second, as if
//! those before had not been. Leaving some out never makes an order impossible, so what contradicts
//! either of them contradicts the whole; the later bound goes on.
//!
//! Crates: todc-utils has a general WGL search (exponential, and last released in 2023), stateright's
//! `LinearizabilityTester` records threads with one operation in flight each and has no operations
//! without an end, lincheck drives code under loom and reads no histories, and the crate porcupine is
//! another thing of the same name; so none is used.

use super::{
    Found, Kind,
    view::{Held, Key, View},
};
use crate::history::{AttemptId, End, Nanos};

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
    for contradiction in linearize(&holds) {
        let (at, text) = match contradiction {
            Contradiction::Repeat(first, second) => (
                second.granted,
                format!("{} and {} have token {}", first.id, second.id, first.token),
            ),
            Contradiction::Held(first, second, until) => (
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
}

fn hold(held: &Held<'_>) -> Hold {
    Hold {
        id: held.id,
        token: held.token,
        call: held.call,
        granted: held.at,
        ends: ends(held),
    }
}

fn ends(held: &Held<'_>) -> Nanos {
    match held.grant {
        Some(grant) if grant.ended.is_none_or(|ended| ended.how != End::Lost) => held.until,
        _ => held.call,
    }
}

/// Chooses the earliest moments; what contradicts them. `holds` are in the order of tokens.
pub(super) fn linearize(holds: &[Hold]) -> Vec<Contradiction> {
    let mut contradictions = Vec::new();
    // Who holds for the longest, and until when at least.
    let mut last: Option<(&Hold, Nanos)> = None;
    let mut before: Option<&Hold> = None;
    for hold in holds {
        let moment = match (before, last) {
            (Some(before), _) if before.token == hold.token => {
                contradictions.push(Contradiction::Repeat(*before, *hold));
                None
            }
            (_, Some((earlier, until))) if hold.call.max(until) > hold.granted => {
                contradictions.push(Contradiction::Held(*earlier, *hold, until));
                None
            }
            (_, Some((_, until))) => Some(hold.call.max(until)),
            (_, None) => Some(hold.call),
        };
        let until = moment.unwrap_or(hold.call).max(hold.ends);
        // After a contradiction it need not be the later one.
        if last.is_none_or(|(_, known)| known <= until) {
            last = Some((hold, until));
        }
        before = Some(hold);
    }
    contradictions
}
