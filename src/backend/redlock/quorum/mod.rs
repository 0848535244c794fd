//! The algorithm of RedLock, without input and output: votes in, decisions out.
//!
//! Source: the Redis documentation's "Distributed Locks with Redis", with a restart guard and
//! fencing tokens beyond it.
//!
//! # Why at most one holds
//!
//! A grant rests on a majority of nodes, each of which keeps the key for its owner from when it
//! voted until its ttl has passed. A holder counts its lease from before its first request was
//! sent, less a margin for clocks that drift, so it ends before it ends on any of these nodes. Two
//! majorities share a node, and a node keeps a key for one owner at a time. This needs that a node
//! forgets no vote while it may count, which is what the [guard](guard) sees to, and that clocks
//! run at about the same rate and do not jump by more than the margin.
//!
//! # Why tokens grow
//!
//! Every node has a counter. A grant's token was written by a majority of nodes, each of which had
//! the owner's key at that moment and a counter below the token. Let G be granted before H, both
//! exclusive. On a node that wrote both tokens the owners had the key one after the other. If H's
//! owner had it first, its time on that node was over before G's owner voted there, and so was its
//! lease, and H was granted before G: it was not. So G's token was written first, and H's is above
//! it. A counter that was lost is learned again from a majority of the others before the node
//! writes any token.

pub(crate) mod ballot;
pub(crate) mod guard;
pub(crate) mod renewal;
#[cfg(test)]
mod sim;

use std::time::Duration;

/// A moment on the monotonic clock of whoever counts.
pub(crate) type Moment = Duration;

/// How many nodes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nodes(pub(crate) usize);

impl Nodes {
    pub(crate) fn majority(self) -> usize {
        self.0 / 2 + 1
    }
}

/// Until when a holder may count on what a majority granted to requests that were sent at this
/// moment or later.
pub(crate) fn valid_until(sent: Moment, ttl: Duration) -> Moment {
    (sent + ttl).saturating_sub(drift_margin(ttl))
}

/// 1 % and 2 ms, as the Redis documentation's clients have it.
pub(crate) fn drift_margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}
