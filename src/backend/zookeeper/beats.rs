//! Until when a session is valid: pure, from the heartbeats that were acknowledged.
//!
//! # Why a session lives so long
//!
//! The leader ends a session when it has not heard of it for the session timeout T. It hears of a
//! client that is connected to a follower by the answers to the pings that it sends its followers
//! twice a tick: they tell which sessions were active. A request that a follower passes on does not
//! count by itself. So an acknowledged heartbeat proves that the follower *had* a link to the
//! leader, not that the leader has heard of the session since the heartbeat was sent. And pings and
//! reads prove nothing: a follower that is cut off goes on answering them (measured: two holders
//! for 1.9 s at a session timeout of 1 s).
//!
//! Three acknowledged writes a, x and b prove more, if x was sent at least a gap g after a was
//! acknowledged, b after x was, and the leader pings in every g. What the leader sends a follower
//! arrives in order, and so does what that one sends back. Between a and x the leader queued a
//! ping, so the follower had answered it, after it knew of a, before it could acknowledge x. That
//! answer told the leader of the session, and the leader had it before it agreed to b. So the leader
//! heard of the session after a was *sent*, and ends it no earlier than T after that. (With a and b
//! alone the ping may still be on its way when b is agreed to by others.) Where they went by
//! different servers, the session was moved between them, which the leader agrees to and counts as
//! activity. A new leader counts from its own start.
//!
//! With g = T / 4 the leader pings in every g: T is at least two ticks, unless the servers'
//! `minSessionTimeout` says otherwise, and it pings every half tick.
//!
//! The session's creation is a write that the leader itself counts from, so it needs no second
//! write.
//!
//! Heartbeats are sent every T / 8, so that the newest a is little older than g and one more: a
//! lease is valid for T / 2 to 5 T / 8 at any time, and a connection that is found dead (after T / 5) and opened
//! again elsewhere costs no lock.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use crate::{clock, lease};

/// A moment, and how long the machine had been suspended by then: time that the monotonic clock
/// does not count and the server does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    pub(super) at: Instant,
    suspended: Duration,
}

impl Stamp {
    pub(super) fn now() -> Self {
        // In this order: a suspend in between is counted once more than it was.
        let suspended = clock::suspended();
        Self {
            at: Instant::now(),
            suspended,
        }
    }

    /// The end of what was asked for at this moment, on the monotonic clock as it stands with so
    /// much time suspended.
    pub(super) fn end(self, after: Duration, suspended: Duration) -> Instant {
        let end = lease::valid_until(self.at, after);
        end.checked_sub(self.slept(suspended)).unwrap_or(self.at)
    }

    /// Whether the machine has been suspended since, given how long it was in all.
    pub(super) fn has_slept(self, suspended: Duration) -> bool {
        !self.slept(suspended).is_zero()
    }

    /// For how long. The two clocks are not read at one moment, so less than the margin's least is
    /// nothing: an end moves only to later.
    fn slept(self, suspended: Duration) -> Duration {
        let slept = suspended.saturating_sub(self.suspended);
        if slept < Duration::from_millis(1) {
            return Duration::ZERO;
        }
        slept
    }
}

#[derive(Debug)]
pub(super) struct Beats {
    timeout: Duration,
    /// From what the validity counts.
    basis: Stamp,
    /// When they were sent and acknowledged: those that are not proven yet.
    acknowledged: VecDeque<(Stamp, Instant)>,
    newest: Instant,
}

impl Beats {
    /// Of a session whose creation began then.
    pub(super) fn new(created: Stamp, timeout: Duration) -> Self {
        Self {
            timeout,
            basis: created,
            acknowledged: VecDeque::new(),
            newest: created.at,
        }
    }

    /// How often to send one.
    pub(super) fn period(timeout: Duration) -> Duration {
        timeout / 8
    }

    /// In which the leader pings its followers.
    fn gap(&self) -> Duration {
        self.timeout / 4
    }

    /// A heartbeat that was sent then is acknowledged now.
    pub(super) fn acknowledge(&mut self, sent: Stamp, now: Instant) {
        let newest = |until: Instant| {
            let before = |(_, by): &(Stamp, Instant)| *by <= until;
            self.acknowledged.iter().rposition(before)
        };
        let proof = newest(sent.at).map(|x| self.acknowledged[x].0.at);
        let proven = proof
            .and_then(|x| x.checked_sub(self.gap()))
            .and_then(newest);
        if let Some(proven) = proven {
            self.basis = self.acknowledged[proven].0;
            self.acknowledged.drain(..proven);
        }
        self.acknowledged.push_back((sent, now));
        self.newest = self.newest.max(sent.at);
    }

    pub(super) fn valid_until(&self, suspended: Duration) -> Instant {
        self.basis.end(self.timeout, suspended)
    }

    /// Whether an acknowledged heartbeat was sent at that moment or later, and none that counts
    /// was sent before a suspend.
    pub(super) fn is_fresh(&self, since: Instant, suspended: Duration) -> bool {
        self.newest >= since && !self.basis.has_slept(suspended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(8);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn stamp(at: Instant) -> Stamp {
        Stamp {
            at,
            suspended: Duration::ZERO,
        }
    }

    fn valid_for(beats: &Beats, start: Instant) -> Duration {
        // The margin is rounded away.
        let valid = beats.valid_until(Duration::ZERO) + lease::drift_margin(T);
        Duration::from_millis((valid - start).as_millis() as u64)
    }

    #[test]
    fn a_heartbeat_counts_when_two_later_ones_prove_it() {
        let start = Instant::now();
        let mut beats = Beats::new(stamp(start), T);
        assert_eq!(valid_for(&beats, start), T);
        let rtt = Duration::from_millis(100);
        for n in 1..=4 {
            beats.acknowledge(stamp(start + secs(n)), start + secs(n) + rtt);
            // The third was sent less than two seconds after the first was acknowledged.
            assert_eq!(valid_for(&beats, start), T);
        }
        // The fourth was not, and this one was sent after that was acknowledged.
        let sent = start + secs(4) + rtt;
        beats.acknowledge(stamp(sent), sent + rtt);
        assert_eq!(valid_for(&beats, start), T + secs(1));
        beats.acknowledge(stamp(start + secs(20)), start + secs(20) + rtt);
        assert_eq!(valid_for(&beats, start), T + secs(2));
    }

    #[test]
    fn an_acknowledgement_that_is_late_proves_nothing_early() {
        let start = Instant::now();
        let mut beats = Beats::new(stamp(start), T);
        // Sent at 1, acknowledged at 4: the one sent at 5 is only a second behind it.
        beats.acknowledge(stamp(start + secs(1)), start + secs(4));
        beats.acknowledge(stamp(start + secs(5)), start + secs(5));
        beats.acknowledge(stamp(start + secs(6)), start + secs(6));
        assert_eq!(valid_for(&beats, start), T);
        beats.acknowledge(stamp(start + secs(7)), start + secs(7));
        assert_eq!(valid_for(&beats, start), T + secs(1));
    }

    #[test]
    fn suspends_count() {
        let start = Instant::now();
        let mut beats = Beats::new(stamp(start), T);
        let awake = beats.valid_until(Duration::ZERO);
        assert_eq!(beats.valid_until(secs(2)), awake - secs(2));
        assert_eq!(beats.valid_until(Duration::from_micros(900)), awake);
        assert!(beats.is_fresh(start, Duration::ZERO));
        assert!(!beats.is_fresh(start, secs(2)));
        assert!(!beats.is_fresh(start + secs(1), Duration::ZERO));
        beats.acknowledge(stamp(start + secs(1)), start + secs(1));
        assert!(beats.is_fresh(start + secs(1), Duration::ZERO));
    }
}
