//! Tokens of a key grow in real time, and no two attempts have the same.
//!
//! Where one is known to have held before another called, its token is lower. The two need not have
//! been in order otherwise: grants that overlap in time may be written down in any order. Attempts
//! that died before they could write down their grant are known by their claims at the storage.

use super::{
    Found, Kind,
    view::{Held, Key, View},
};

pub(super) fn check(view: &View<'_>, key: &Key<'_>, found: &mut Found) {
    for pair in key.held.windows(2) {
        let (first, second) = if pair[0].at <= pair[1].at {
            (&pair[0], &pair[1])
        } else {
            (&pair[1], &pair[0])
        };
        if first.token == second.token {
            found.add(
                Kind::TokenRepeat,
                key.key,
                second.at,
                format!(
                    "key {}: token {} of {} ({}) is the token of {} ({}) again",
                    key.key,
                    second.token,
                    second.id,
                    view.ms(second.at),
                    first.id,
                    view.ms(first.at),
                ),
            );
        }
    }

    let mut calls: Vec<&Held<'_>> = key.held.iter().collect();
    calls.sort_by_key(|held| (held.call, held.id));
    let mut grants = calls.clone();
    grants.sort_by_key(|held| (held.at, held.id));
    let mut grants = grants.into_iter().peekable();
    let mut highest: Option<&Held<'_>> = None;
    for later in calls {
        while let Some(earlier) = grants.next_if(|earlier| earlier.at < later.call) {
            if highest.is_none_or(|highest| highest.token < earlier.token) {
                highest = Some(earlier);
            }
        }
        // Equal tokens are told of above.
        if let Some(earlier) = highest.filter(|earlier| later.token < earlier.token) {
            found.add(
                Kind::TokenInversion,
                key.key,
                later.at,
                format!(
                    "key {}: {} called at {} and has token {}, below token {} that {} had at {}",
                    key.key,
                    later.id,
                    view.ms(later.call),
                    later.token,
                    earlier.token,
                    earlier.id,
                    view.ms(earlier.at),
                ),
            );
        }
    }
}
