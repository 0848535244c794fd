//! The scripts, each a moment of one node in which nobody else acts.
//!
//! # Invariants of a node
//!
//! `K` is the lock, `W` its waiters, `F` the counter that it shares with other locks, `M` the
//! member marker.
//!
//! 1. *A plain lock.* `K` is what other clients of the algorithm make of it, a string that is set
//!    where there was none and deleted by whoever knows its value. Ours has the owner in it.
//! 2. *Only a member grants.* `K` is written, and `F` raised, where the same script found in `M` the
//!    number of the server's process that the connection leads to.
//! 3. *A token is taken with the key.* `F` grows only for an owner that has `K`, to a token that was
//!    above it. It has no end: a token must never be given twice, and there are few counters.
//! 4. *Told or in line.* A refused waiter stands in `W` since the script that refused it, and every
//!    script that leaves `K` absent takes the first out of `W` and tells its process. Who is told
//!    asks again, or is undone, which tells the next.
//! 5. *Undo is final.* `release` leaves neither place nor key of its owner. It runs after whatever
//!    its owner asked here: see [`post`](super::post).

use std::sync::LazyLock;

use crate::backend::redis::scripts::Script;

const WAKE: (&str, &str) = ("--- wake\n", include_str!("scripts/wake.lua"));

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            let code = include_str!(concat!("scripts/", $file, ".lua"));
            Script::new(&code.replace(WAKE.0, WAKE.1))
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
    JOIN = "join";
    TEACH = "teach";
    ADMIT = "admit";
    FOUND = "found";
    PROBE = "probe";
}
