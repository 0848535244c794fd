//! One line of a history.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Nanoseconds of the machine's monotonic clock.
pub(crate) type Nanos = u64;

/// The monotonic clock now. Unlike `Instant`, it can be compared between processes.
pub(crate) fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// One attempt to get a key, of all processes that ever ran: a process that is started again has
/// another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct AttemptId {
    pub(crate) process: u32,
    pub(crate) number: u64,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.process, self.number)
    }
}

/// Whether its place in the queue is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    Fifo,
    /// Handed on within a process, so often at the most.
    Batched(u32),
    Unfair,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) at: Nanos,
    #[serde(flatten)]
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub(crate) enum What {
    /// Written before the acquire is begun.
    Call {
        id: AttemptId,
        key: u32,
        order: Order,
        /// How long it is ready to wait, in nanoseconds. Zero for a try.
        wait: Nanos,
    },
    /// Written after the acquire has returned. The lease is valid until then at least, by what the
    /// holder itself counts on.
    Granted {
        id: AttemptId,
        token: u64,
        valid_until: Nanos,
    },
    /// The holder looked, and counts on a later end.
    Renewed {
        id: AttemptId,
        valid_until: Nanos,
    },
    /// The holder's work is over, and it gives the lock back: written before it is sent.
    Releases {
        id: AttemptId,
    },
    /// The holder was told, or dropped by its layer.
    Lost {
        id: AttemptId,
    },
    /// The acquire failed, or ended without a grant.
    Refused {
        id: AttemptId,
        why: String,
    },
    /// Who called has gone away, waiting or holding.
    Cancelled {
        id: AttemptId,
    },

    /// The storage was shown this token, for the first time in this attempt.
    Claim {
        id: AttemptId,
        key: u32,
        token: u64,
        accepted: bool,
    },
    /// A write under a token that was claimed before.
    Write {
        id: AttemptId,
        key: u32,
        token: u64,
        accepted: bool,
    },
    /// At the end: what the storage has, beside the number of writes that it accepted.
    Sum {
        key: u32,
        accepted: u64,
        fenced: u64,
        written: u64,
        unfenced: u64,
    },

    /// A process came up, is stopped, runs again, is gone. Written before it is stopped and after
    /// it runs again or is dead, so that these spans are never too short.
    Started {
        process: u32,
    },
    Stopped {
        process: u32,
    },
    Continued {
        process: u32,
    },
    Killed {
        process: u32,
    },
    /// It was asked to end, with what it held.
    Drains {
        process: u32,
    },
    Drained {
        process: u32,
    },

    /// A task or a thread of a process panicked.
    Panicked {
        process: u32,
        text: String,
    },

    /// The fault's name; of one process, or of all that use the servers.
    Fault {
        name: String,
        process: Option<u32>,
    },
    Healed {
        name: String,
        process: Option<u32>,
    },

    /// Somebody who asks for no lock and waits for no server was awake: written all the time, about
    /// every 50 ms. Where these stop too, the machine stood still.
    Beat,
}
