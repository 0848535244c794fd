//! The restart guard: a node that may have forgotten what it granted does not vote.
//!
//! A member carries a marker with the number of its process (`run_id`). A process without its own
//! marker is new, was emptied, or was started from an old snapshot: it may have granted keys that
//! it does not know of, and its counters may be too low. It becomes a member in three steps, which
//! any client takes on its behalf:
//!
//! 1. it is marked as joining, by this process, at this moment of its own clock;
//! 2. once the longest ttl of the deployment has passed since, nothing that it has forgotten can
//!    still be held. Nothing is granted in between;
//! 3. its counters are raised to the highest of a majority of the *other* members, asked after
//!    that, and it is marked as a member in the same step as the last of them.
//!
//! The majority is of all nodes but this one, rounded up: with any majority that wrote a token
//! while this node was away it shares a node.

use std::time::Duration;

use super::Nodes;

/// What a node's markers say, by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// Of this process.
    Member,
    /// Of this process, which was seen first so long ago.
    Joining { since: Duration },
    /// None, or another process's.
    None,
}

/// What a client should do for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Vote,
    MarkJoining,
    /// Nothing before so long.
    Wait(Duration),
    Learn,
}

/// `longest` is the longest ttl that any client of the deployment may ask for.
pub(crate) fn step(marker: Marker, longest: Duration) -> Step {
    match marker {
        Marker::Member => Step::Vote,
        Marker::None => Step::MarkJoining,
        Marker::Joining { since } => match guard_time(longest).checked_sub(since) {
            None | Some(Duration::ZERO) => Step::Learn,
            Some(left) => Step::Wait(left),
        },
    }
}

/// Longer than any lease on any node's clock.
pub(crate) fn guard_time(longest: Duration) -> Duration {
    longest + super::drift_margin(longest)
}

/// How many of the other members have to tell their counters before this one is a member.
pub(crate) fn teachers(nodes: Nodes) -> usize {
    nodes.majority().min(nodes.0 - 1)
}
