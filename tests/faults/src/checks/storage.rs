//! The fence: what the storage accepted and refused, in its own order.
//!
//! A storage that compares tokens accepts a claim only if no higher one was accepted before, and a
//! write only under the last claim that it accepted: then updates under the fence are never lost,
//! whatever the lock does. It must not refuse more than that either. A refusal is stale, and what
//! fencing is for, if a higher token was accepted before by somebody who may have come later. It is
//! wrong if there was no higher one, or if that one was in use before the refused attempt called:
//! then the new holder is locked out by its predecessor.
//!
//! The storage writes its lines under the mutex that guards its values, so that their order is the
//! order of what it did. An equal token of another attempt is a repeat of the lock, which the check
//! of tokens names; a write under it is corrupt here.

use std::collections::BTreeMap;

use super::{Found, Kind, view::View};
use crate::history::{AttemptId, Nanos, What};

/// One key in the storage.
#[derive(Default)]
struct Fence {
    /// The last claim that was accepted.
    last: Option<Claim>,
    /// The highest of them.
    highest: Option<Claim>,
    writes: u64,
}

#[derive(Clone, Copy)]
struct Claim {
    id: AttemptId,
    token: u64,
    at: Nanos,
}

pub(super) fn check(view: &View<'_>, found: &mut Found) {
    let mut fences: BTreeMap<u32, Fence> = BTreeMap::new();
    for event in &view.history.events {
        match event.what {
            What::Claim {
                id,
                key,
                token,
                accepted,
            } => {
                let at = event.at;
                let fence = fences.entry(key).or_default();
                claim(view, key, fence, Claim { id, token, at }, accepted, found);
            }
            What::Write {
                id,
                key,
                token,
                accepted,
            } => {
                let at = event.at;
                let fence = fences.entry(key).or_default();
                write(view, key, fence, Claim { id, token, at }, accepted, found);
            }
            What::Sum {
                key,
                accepted,
                fenced,
                written,
                unfenced,
            } => {
                let writes = fences.entry(key).or_default().writes;
                found.figures.unfenced_lost += written.saturating_sub(unfenced);
                if writes != accepted {
                    let text = format!(
                        "key {key}: the storage says that it accepted {accepted} writes, its lines \
                         tell of {writes}"
                    );
                    found.add(Kind::Torn, key, event.at, text);
                }
                if fenced != accepted {
                    found.figures.fenced_lost += accepted.abs_diff(fenced);
                    let text = format!(
                        "key {key}: {accepted} writes were accepted under the fence, and the value \
                         has {fenced}"
                    );
                    found.add(Kind::LostUpdate, key, event.at, text);
                }
            }
            _ => {}
        }
    }
}

fn claim(
    view: &View<'_>,
    key: u32,
    fence: &mut Fence,
    claim: Claim,
    accepted: bool,
    found: &mut Found,
) {
    let Claim { id, token, at } = claim;
    let higher = fence.highest.filter(|highest| highest.token > token);
    match (accepted, higher) {
        (true, Some(higher)) => {
            let text = format!(
                "key {key}: the storage accepted token {token} of {id} at {} after token {} of {}",
                view.ms(at),
                higher.token,
                higher.id,
            );
            found.add(Kind::Corrupt, key, at, text);
        }
        (false, Some(higher)) if !was_before(view, &higher, id) => {
            found.figures.stale_claims_refused += 1;
        }
        (false, higher) => wrong(view, key, "claim", &claim, higher, found),
        (true, None) => {}
    }
    if accepted {
        fence.last = Some(claim);
        if higher.is_none() {
            fence.highest = Some(claim);
        }
    }
}

fn write(
    view: &View<'_>,
    key: u32,
    fence: &mut Fence,
    claim: Claim,
    accepted: bool,
    found: &mut Found,
) {
    let Claim { id, token, at } = claim;
    let own = fence
        .last
        .is_some_and(|last| last.id == id && last.token == token);
    fence.writes += u64::from(accepted);
    found.figures.writes += u64::from(accepted);
    match (accepted, own) {
        (true, false) => {
            let over = match fence.last {
                Some(last) => format!("over token {} of {}", last.token, last.id),
                None => "and nobody had claimed".to_owned(),
            };
            let text = format!(
                "key {key}: the storage accepted a write of {id} (token {token}) at {}, {over}",
                view.ms(at),
            );
            found.add(Kind::Corrupt, key, at, text);
        }
        (false, true) => wrong(view, key, "write", &claim, None, found),
        (false, false) => found.figures.stale_writes_refused += 1,
        (true, true) => {}
    }
}

/// Whether who has the higher token held before the other called.
fn was_before(view: &View<'_>, higher: &Claim, id: AttemptId) -> bool {
    let attempts = &view.history.attempts;
    let by = attempts
        .get(&higher.id)
        .and_then(|attempt| attempt.grant())
        .map_or(higher.at, |grant| grant.at.min(higher.at));
    attempts.get(&id).is_some_and(|refused| by < refused.call)
}

fn wrong(
    view: &View<'_>,
    key: u32,
    what: &str,
    claim: &Claim,
    higher: Option<Claim>,
    found: &mut Found,
) {
    let why = match higher {
        Some(higher) => format!(
            "for token {} of {}, which held before it called",
            higher.token, higher.id
        ),
        None => "though no higher token was accepted".to_owned(),
    };
    let text = format!(
        "key {key}: the storage refused the {what} of {} (token {}) at {}, {why}",
        claim.id,
        claim.token,
        view.ms(claim.at),
    );
    found.add(Kind::WrongRefusal, key, claim.at, text);
}
