//! The scripts, each a moment of one node in which nobody else acts.
//!
//! # Invariants of a node
//!
//! `K` is the lock, `W` its waiters, `N` what the node knows of itself.
//!
//! 1. *A plain lock.* `K` is what other clients of the algorithm make of it, a string that is set
//!    where there was none and deleted by whoever knows its value. Ours has the owner in it.
//! 2. *Only a member grants.* `K` is given, and a counter raised, where the same script found in `N`
//!    the number of the process that runs it.
//! 3. *A token is taken with the key.* A counter in `N` grows only for an owner that has `K`, to a
//!    token that was above it, or to what other nodes have when the node becomes a member. `N` has
//!    no end: a token must never be given twice, and there are few counters.
//! 4. *Told or in line.* A refused waiter stands in `W` since the script that refused it, and every
//!    script that leaves `K` absent takes the first out of `W` and tells its process. Who is told
//!    asks again, or is undone, which tells the next. A process that was told and is silent since is
//!    passed over, so that one that hangs costs its successors one wake-up and not one for each of
//!    its waiters; whatever one of its waiters asks ends that.
//! 5. *Undo is final.* `release` leaves neither place nor key of its owner. It runs after whatever
//!    its owner asked here: see [`post`](super::post). While the owner may ask again, `back` takes
//!    the place of `release`: it names the ballot, so that it cannot harm a later one.

use std::sync::LazyLock;

use crate::backend::redis::scripts::Script;

/// These stand in the scripts where what they name is needed.
const PARTS: [(&str, &str); 2] = [
    ("--- wake\n", include_str!("scripts/wake.lua")),
    ("--- member\n", include_str!("scripts/member.lua")),
];

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        /// All of them.
        pub(super) fn all() -> impl Iterator<Item = &'static Script> {
            [$(&$name),*].into_iter().map(|script| &**script)
        }

        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            let code = include_str!(concat!("scripts/", $file, ".lua")).to_owned();
            Script::new(&PARTS.iter().fold(code, |code, (name, part)| code.replace(name, part)))
        });)*
    };
}

scripts! {
    VOTE = "vote";
    RAISE = "raise";
    RENEW = "renew";
    RELEASE = "release";
    BACK = "back";
    LOOK = "look";
    FORCE_RELEASE = "force_release";
    SURVEY = "survey";
    JOIN = "join";
    FOUND = "found";
    PROBE = "probe";
}
