//! Mistakes that the simulation has to find.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Twist {
    None,
    /// A release does not compare the owner.
    ReleasesOthers,
    /// Tokens are counted, without the clock.
    CountsTokens,
    /// What is to end at the server before an undo goes on.
    KillsNothing,
    /// Whoever came last is first.
    LastFirst,
    /// An undo leaves the lease.
    LeavesLease,
    /// Nobody looks at a key whose holder has ended, or whose message was lost.
    NobodyLooks,
    /// A queue has no end.
    Endless,
    /// A lease counts from the answer.
    FromReply,
}

thread_local! {
    static NOW: Cell<Twist> = const { Cell::new(Twist::None) };
}

/// Whether leases count from the answer: see `lease::valid_until`.
pub(super) fn counts_from_reply() -> bool {
    NOW.get() == Twist::FromReply
}

pub(super) fn with(twist: Twist, work: impl FnOnce()) {
    NOW.set(twist);
    work();
    NOW.set(Twist::None);
}

impl Twist {
    /// The code with the mistake in it. A script that it is not for stays as it is.
    pub(super) fn of(self, code: &str) -> String {
        let (wherever, from, to) = match self {
            Self::ReleasesOthers => (
                "-- Gives an exclusive lease back",
                "if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end",
                "",
            ),
            Self::CountsTokens => ("", "local first = time[1] .. us", "local first = '0'"),
            Self::LastFirst => (
                "",
                "call('ZRANGE', Q, at, at, 'WITHSCORES')",
                "call('ZRANGE', Q, -1 - at, -1 - at, 'WITHSCORES')",
            ),
            Self::LeavesLease => (
                "-- Leaves nothing of an owner",
                "  call('DEL', K)\n  serve(nil)\n  return 1",
                "  return 1",
            ),
            Self::NobodyLooks => (
                "-- On behalf of a process that waits",
                "if call('EXISTS', Q) == 1 then serve(nil) end",
                "",
            ),
            Self::Endless => (
                "",
                "call('PEXPIRE', Q, QUEUE_LIFE)\n  return added",
                "return added",
            ),
            Self::None | Self::KillsNothing | Self::FromReply => return code.to_owned(),
        };
        if !code.starts_with(wherever) {
            return code.to_owned();
        }
        code.replace(from, to)
    }
}
