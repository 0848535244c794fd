//! No two holders of a key, both inside what they counted on.
//!
//! A holder believes in its lock from its grant to the earliest of its release, its loss, the end of
//! its caller or its process and the latest `valid_until` that it knew. Two such spans of one key that overlap are
//! a double hold. Grants are written after the fact and ends before it, so a span is never longer
//! than the belief was, and no double hold is claimed that was none. A stopped holder believes in
//! nothing beyond its `valid_until`: what it does after that is the fence's matter.
//!
//! Counted is every grant that begins inside an earlier one; the earlier one that lasts longest is
//! named.

use super::{
    Found, Kind,
    view::{Held, Key, View},
};

pub(super) fn check(view: &View<'_>, key: &Key<'_>, found: &mut Found) {
    // Otherwise it was written down when it was over already: nobody believed in it.
    let believed = |held: &&Held<'_>| held.at < held.until;
    let mut grants: Vec<&Held<'_>> = key.held.iter().filter(believed).collect();
    grants.sort_by_key(|held| (held.at, held.id));
    let mut longest: Option<&Held<'_>> = None;
    for held in grants {
        if let Some(earlier) = longest
            && held.at < earlier.until
        {
            found.add(
                Kind::DoubleHold,
                key.key,
                held.at,
                format!(
                    "key {}: {} (token {}) was granted at {} while {} (token {}, granted at {}) \
                     held until {}",
                    key.key,
                    held.id,
                    held.token,
                    view.ms(held.at),
                    earlier.id,
                    earlier.token,
                    view.ms(earlier.at),
                    view.ms(earlier.until),
                ),
            );
        }
        if longest.is_none_or(|earlier| earlier.until < held.until) {
            longest = Some(held);
        }
    }
}
