//! No two holders of a key, both inside what they counted on.
//!
//! A holder believes in its lock from its grant to the earliest of its release, its loss, the end of
//! its caller and the latest `valid_until` that it knew. Two such spans of one key that overlap are
//! a double hold. Grants are written after the fact and ends before it, so a span is never longer
//! than the belief was, and no double hold is claimed that was none. A stopped holder believes in
//! nothing beyond its `valid_until`: what it does after that is the fence's matter.
//!
//! Counted is every grant that begins inside an earlier one; the earlier one that lasts longest is
//! named.

use super::{
    Found, Kind,
    view::{Key, View},
};
use crate::history::{AttemptId, Grant};

pub(super) fn check(view: &View<'_>, key: &Key<'_>, found: &mut Found) {
    let mut grants: Vec<(AttemptId, &Grant)> = key
        .held
        .iter()
        .filter_map(|held| Some((held.id, held.grant?)))
        // Written down when it was over already: nobody believed in it.
        .filter(|(_, grant)| grant.at < grant.until())
        .collect();
    grants.sort_by_key(|(id, grant)| (grant.at, *id));
    let mut longest: Option<(AttemptId, &Grant)> = None;
    for (id, grant) in grants {
        if let Some((first, earlier)) = longest
            && grant.at < earlier.until()
        {
            found.add(
                Kind::DoubleHold,
                key.key,
                grant.at,
                format!(
                    "key {}: {id} (token {}) was granted at {} while {first} (token {}, granted at {}) \
                     held until {}",
                    key.key,
                    grant.token,
                    view.ms(grant.at),
                    earlier.token,
                    view.ms(earlier.at),
                    view.ms(earlier.until()),
                ),
            );
        }
        if longest.is_none_or(|(_, earlier)| earlier.until() < grant.until()) {
            longest = Some((id, grant));
        }
    }
}
