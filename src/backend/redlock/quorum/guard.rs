//! The restart guard: a node that may have forgotten what it granted does not vote.
//!
//! A member carries a marker with the number of its process (`run_id`). A process without its own
//! marker is new, was emptied, or was started from its disk: it may have granted keys that it does
//! not know of, and its counters may be too low. Any client makes it a member again:
//!
//! 1. It looks at all nodes. A node without its marker is marked by that as joining, under a name
//!    drawn for this one time.
//! 2. It watches the node until [`guard_time`] has passed on its own monotonic clock since it first
//!    heard this name. All that the node has forgotten was granted before, so nobody counts on it
//!    any more, and the node has granted nothing since. The clock of the node has no say in this:
//!    it may jump.
//! 3. It looks at all nodes once more, and they tell their counters. If [`step`] says so, it raises
//!    those of the node to the highest that any node told, and makes it a member. The node does
//!    this in one step, and only if it is still joining under this name: then it has not forgotten
//!    anything since.
//!
//! # Why no token is forgotten
//!
//! Let N nodes have majorities of m, and call a member low if its counters are below T, a token
//! that was granted. When T is granted at least m nodes have written it, so at most N - m nodes are
//! low, *or joining with counters told before the grant*: one of these is not among the m. (Had it
//! written T and forgotten it then, it was watched for longer than the ballot of T could last
//! before anybody told anything to it.) No other node becomes low: it would join by what was told
//! to it after the grant, by N - m + 1 members at least, and not all of these were low. This holds
//! for any number of nodes that join at once, and while others are granted keys.
//!
//! # When too many have forgotten
//!
//! With fewer than N - m + 1 members left, nodes join if *all* nodes answer, members or not: a new
//! deployment starts in this way, and one comes back that lost its memory. At most one holds as
//! before, since each node was watched. Of the tokens every one counts that any node still knows.
//! One that was forgotten by all that had written it is kept only by the clocks of the clients,
//! whose microseconds are proposed: nothing is granted for the guard time after such a loss, so
//! tokens grow if the clocks differ, and were set back, by less than that.

use std::time::Duration;

use super::Nodes;

/// What a node said of itself when all were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Member,
    /// `watched`: from when this client first heard the name of this joining to when it sent this
    /// look; zero if it hears it first.
    Joining {
        watched: Duration,
    },
    Silent,
}

/// What a client should do for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It votes, or is silent.
    Nothing,
    /// Look again, not before so long.
    Watch(Duration),
    /// It waits for other nodes: look again now and then.
    TooFew,
    /// Raise its counters to the highest that were told, and make it a member.
    Join,
}

/// `longest` is the longest ttl that any client of the deployment may ask for, and that any node
/// told that it granted.
pub(crate) fn step(states: &[State], node: usize, longest: Duration) -> Step {
    let State::Joining { watched } = states[node] else {
        return Step::Nothing;
    };
    let left = guard_time(longest).saturating_sub(watched);
    if !left.is_zero() {
        return Step::Watch(left);
    }
    let count = |state| states.iter().filter(|other| **other == state).count();
    if count(State::Member) >= teachers(Nodes(states.len())) || count(State::Silent) == 0 {
        Step::Join
    } else {
        Step::TooFew
    }
}

/// Longer than any lease on any client's clock.
pub(crate) fn guard_time(longest: Duration) -> Duration {
    longest + super::drift_margin(longest)
}

/// How many members have to tell their counters before another node is one: so many that they
/// share a node with what is left of any majority without that node.
pub(crate) fn teachers(nodes: Nodes) -> usize {
    nodes.0 - nodes.majority() + 1
}
