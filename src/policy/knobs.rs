//! The settings of a policy that are a choice.

use std::{num::NonZeroU32, time::Duration};

/// How long a request waits for its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: a held key is refused at once. `For(Duration::ZERO)` is the same.
    Fail,
    /// At most this long.
    For(Duration),
    /// Until it is granted or the caller leaves. A backend over a network that hangs without a
    /// word keeps the request as well: a finite wait does not.
    Forever,
}

impl From<Duration> for Wait {
    fn from(wait: Duration) -> Self {
        if wait.is_zero() {
            Self::Fail
        } else {
            Self::For(wait)
        }
    }
}

/// Who is next.
///
/// Fairness has a price: a queue in arrival order hands the key to the longest waiter, who may be
/// in another instance, so each hand-off costs round trips. `Batched` keeps it in the process for
/// a while, `Unfair` gives it to whoever is fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    /// The fairest that the backend has: `Fifo`, else `Unfair`.
    #[default]
    BestAvailable,
    /// Grants follow arrivals across all instances. A [`ConfigError`](crate::ConfigError) where the backend cannot.
    Fifo,
    /// One contender per process and key; up to this many local hand-offs before the key goes
    /// back to the backend's queue, each with its own fencing token from a range reserved with
    /// the acquire. Many times the throughput on a hot key, for fairness between instances. A
    /// [`ConfigError`](crate::ConfigError) where the backend cannot reserve tokens.
    Batched(NonZeroU32),
    /// Whoever comes first; fastest.
    Unfair,
}

/// When a lock is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseOn {
    /// Sent before the response head, not awaited. A streamed body goes on without the lock.
    #[default]
    Head,
    /// Awaited before the response head goes out: the client's next request finds the key free.
    /// Costs the backend's round trip; a release that fails is the reaper's, and the head goes out.
    HeadConfirmed,
    /// At the end of the response body, for streams: its last frame, an error, or its drop; at
    /// most this long after the head. A lock that is lost before ends the body with an error
    /// under [`OnLost::Abort`].
    BodyEnd {
        /// The longest time between the response head and the release.
        max: Duration,
    },
}

/// What happens to the handler when its caller leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDisconnect {
    /// It is dropped, as everywhere in hyper, and the lock is released.
    #[default]
    Cancel,
    /// It finishes under its locks, those of outer layers included, on the application's runtime.
    /// A timeout layer outside counts as a caller that leaves. Costs a box per locked request.
    Detach,
}

/// What happens to the handler when its lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLost {
    /// It is dropped at its next `.await` before the lease can end, and the client gets a 500
    /// `lock-lost`. A handler that blocks its thread cannot be dropped.
    #[default]
    Abort,
    /// [`HeldLock::lost`](crate::HeldLock::lost) resolves and the handler decides.
    Signal,
}

/// What a route needs its lock for.
///
/// A declaration that is checked against the backend when the layer is built, so that a route
/// does not stand on a backend that cannot carry it. Changes nothing at request time. The two
/// kinds of correctness also need a backend that reaches all instances, or
/// [`LockManager::single_instance`](crate::LockManager::single_instance), and exclude
/// [`with_insecure_fail_open`](crate::LockPolicy::with_insecure_fail_open). See
/// [`guide::guarantees`](crate::guide::guarantees).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guarantee {
    /// Not to do work twice: a rare double hold costs work, not data.
    #[default]
    Efficiency,
    /// Never to do it at the same time: needs a backend that agrees among its nodes, and so does
    /// not forget a grant. Even so a paused process can overlap with the next holder.
    Correctness,
    /// Never a stale write: the storage compares fencing tokens, so the backend may forget a
    /// grant, but must have tokens that grow.
    CorrectnessFencedByStorage,
}
