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
//! majorities share a node, and a node keeps a key for one owner at a time. A renewal puts another
//! majority in the place of the first while that one still has the key. This needs that a node
//! forgets no vote while it may count, which is what the [guard] sees to, and that clocks run at
//! about the same rate and do not jump by more than the margin.
//!
//! # Why tokens grow
//!
//! Every node has a counter. A grant's token was written by a majority of nodes, each of which had
//! the owner's key at that moment and a counter below the token. Any two grants share a node that
//! wrote both tokens, the lower one first. So, whatever the clocks of nodes do:
//!
//! - no two grants have the same token;
//! - who asks after another was granted has the higher token.
//!
//! Now let G be granted before H, and both had asked by then. If H's owner was the first to write
//! its token on a node of both, its time on that node was over before G's owner voted there: it had
//! not given the key back, so its ttl had passed, its lease too, and it was not granted after G. So
//! tokens grow in the order of grants, as long as clocks do not jump. Where a node's does, one whose
//! answers are under way while another asks, holds and gives back may be granted late, with the
//! lower token. It lost the key on that node before the other had it; storage that has seen the
//! other's token refuses it, and nothing is harmed but its own request.
//!
//! A counter that was forgotten is learned again: see the [guard].
//!
//! # What a node keeps
//!
//! - The key, with the owner and the number of its ballot as its value, and a ttl. **The number
//!   matters**: who was refused asks again in another ballot, and what gives back the first, if it
//!   comes late, would otherwise take a vote of the second away after it was counted.
//! - One hash, without an end: the marker of a member (`run_id`), that of joining (`run_id` and a
//!   name), the counters, a fixed number of them for all keys, and the longest ttl that was granted.
//!   In one hash, since the counters must not be lost without the marker. A server that evicts is
//!   refused.
//! - Tombstones of owners, where a request may come later than its undo.
//!
//! # What its scripts do
//!
//! Each is one step. `run_id` is that of the process that runs the script, asked in the script
//! (`INFO server`): a connection through a proxy may outlive the process. "Member" means that the
//! marker is there, with this `run_id`.
//!
//! - **ask** (owner, ballot, ttl, proposal). No member: `Abstains`, and nothing is written.
//!   Tombstone, or a key of another, or of a later ballot of this owner: `Held`, with its remaining
//!   time and the counter; the counter is not raised. Else the key is set to this ballot with the
//!   whole ttl, also if the owner had it; *then* `took` = proposal > counter, strictly, and if so
//!   counter = proposal. Answer `Granted` with `took` and the counter as it is now. Asked twice, the
//!   second says that it did not take: a counter equal to the proposal may be another's.
//! - **raise** (owner, ballot, token), sent to the nodes of [`ballot::Ballot::raises`] alone. No
//!   member, or the key is not of this ballot: `NotHeld`, nothing is written. Token > counter,
//!   strictly: counter = token, `Took`. Else `TooLow` with the counter. The ttl stays as it is.
//! - **renew** (owner, ballot, ttl). No member: `Abstains`. Tombstone, a key of another, or of a later
//!   ballot of this owner: `Lost`. The key of this ballot: the whole ttl again, `Renewed`. No key, or
//!   one of an earlier ballot: set with the whole ttl, `Added`. Counters are left alone.
//! - **back** (owner, ballot), to all nodes but those that said that they did not grant, members or
//!   not: deletes the key if it is of this ballot. **release** (owner), only when nothing more is
//!   asked for it: if it is of this owner. Between two ballots it would take a vote of the second
//!   away, if it came late.
//! - **look** (name). No marker of this `run_id`, neither of a member nor of joining: joining is set
//!   to `run_id` and this name, a new random one. Answer: member, or joining with the name that
//!   stands there; and all numbers, whichever it is.
//! - **join** (name, numbers). Only if joining is `run_id` and this name: every number = the higher
//!   of its own and the one given, member = `run_id`, joining goes. Else nothing.
//!
//! Who reserves several tokens at once has the counter raised to the last of them.
//!
//! An ask or a renewal gives the key to an owner that may be gone by then. It harms nobody's lock,
//! but keeps others waiting for a ttl. So it must not come after its release: the same connection
//! while that lives; else the old connection killed at the server before the release, or a tombstone
//! of the owner set by the release, for longer than a request may be under way.
//!
//! A ttl above the client's longest is refused before anything is sent. Clients may differ about it:
//! the longest ttl that a node granted is told like its counters, and the guard waits for whichever
//! is longer, the client's or what it was told. Where all nodes have forgotten it, the client's is
//! all there is.
//!
//! # What is not caught
//!
//! A process whose memory is set back under the same `run_id`, marker and all: a virtual machine
//! that goes on from an old snapshot, or `DEBUG RELOAD NOSAVE`. Keys deleted by hand. Clients of
//! other makes, which vote with nodes that may have forgotten.

pub(crate) mod ballot;
pub(crate) mod guard;
#[cfg(test)]
mod properties;
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
