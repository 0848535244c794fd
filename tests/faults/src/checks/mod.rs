//! What is checked of a history. Each check says at its top what it looks for and why it is right.
//!
//! All of them rest on one thing: every line is written on the safe side by the one clock that all
//! processes share. A grant is written after it was made, an end of holding before anybody else can
//! learn of it. So what a check claims has happened, and a late line can only hide.

mod batched;
mod course;
mod drains;
mod exclusion;
mod fifo;
mod handoff;
mod linear;
mod liveness;
mod losses;
mod recovery;
mod served;
mod storage;
mod tokens;
mod turns;
mod view;

#[cfg(test)]
mod tests;

use serde::Serialize;

use self::{course::Course, view::View};
use crate::history::{History, Nanos};

/// What a lock is allowed. Times are nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// How much later than another process's attempt one must have called to stand behind it: the
    /// way of a first request to the server.
    pub(crate) order_slack: Nanos,
    /// The same within one process: tasks may be scheduled between their line and their asking.
    pub(crate) own_order_slack: Nanos,
    /// How long after a fault those whom it covered may need to be connected again, and so to stand
    /// in the queue.
    pub(crate) reconnects: Nanos,
    /// The names of faults under which the order is kept, so that they exclude no waiter.
    pub(crate) order_kept_under: Vec<String>,
    /// The names of faults under which a process can do nothing, as if it were stopped: its threads
    /// are blocked.
    pub(crate) stopped_by: Vec<String>,
    /// How much later than its wait an attempt may be answered.
    pub(crate) answer_slack: Nanos,
    /// How late a holder may be told of a loss, when its own `valid_until` has passed already: who
    /// looks at the clock knows.
    pub(crate) told_slack: Nanos,
    /// The longest time to the next grant of a key that is waited for, once nothing stands in the
    /// way: a ttl, and what a backend needs on top.
    pub(crate) recovery: Nanos,
    /// How long a process may take to end that is asked to.
    pub(crate) drain: Nanos,
    /// The longest time to the next grant of a key that was given back and is waited for, where
    /// nothing befell anybody.
    pub(crate) hand_off: Nanos,
    /// When nobody writes a line for longer, the whole machine stood still.
    pub(crate) stall: Nanos,
}

/// What the tests begin with.
#[cfg(test)]
impl Default for Rules {
    fn default() -> Self {
        const MS: Nanos = 1_000_000;
        Self {
            order_slack: 250 * MS,
            own_order_slack: 50 * MS,
            reconnects: 2_000 * MS,
            order_kept_under: Vec::new(),
            stopped_by: Vec::new(),
            answer_slack: 1_000 * MS,
            told_slack: 500 * MS,
            recovery: 10_000 * MS,
            drain: 10_000 * MS,
            hand_off: 3_000 * MS,
            stall: 300 * MS,
        }
    }
}

/// What is wrong with a history. Which kinds a fault may show is up to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// Two holders, both inside what they counted on.
    DoubleHold,
    /// A token below one that was granted before it was asked for.
    TokenInversion,
    /// Two attempts with one token.
    TokenRepeat,
    /// The storage accepted what its fence should have refused.
    Corrupt,
    /// A write under the fence that was accepted and is gone.
    LostUpdate,
    /// The fence refused who held the lock.
    WrongRefusal,
    /// A holder was told of its loss after the next one had been granted.
    LossLate,
    /// A waiter was overtaken.
    Overtaken,
    /// A process handed its lock on for longer than it may, while another one waited.
    HandedOn,
    /// An answer came after the wait and its slack.
    Overdue,
    /// A refusal because another holds came before the wait was over.
    Hasty,
    /// No answer came at all.
    NeverAnswered,
    /// A process that was asked to end did not in time.
    SlowDrain,
    /// Waiters, nothing in the way, and no grant within the bound.
    SlowRecovery,
    /// A process was turned away again and again when nothing stood in the way any more.
    NotServed,
    /// A lock that was given back did not go on to the next waiter.
    SlowHandOff,
    /// No order of what happened to a key explains its history.
    NotLinearizable,
    /// The lines contradict each other: the harness is wrong.
    Torn,
}

impl Kind {
    pub(crate) const ALL: [Self; 18] = [
        Self::DoubleHold,
        Self::TokenInversion,
        Self::TokenRepeat,
        Self::Corrupt,
        Self::LostUpdate,
        Self::WrongRefusal,
        Self::LossLate,
        Self::Overtaken,
        Self::HandedOn,
        Self::Overdue,
        Self::Hasty,
        Self::NeverAnswered,
        Self::SlowDrain,
        Self::SlowRecovery,
        Self::NotServed,
        Self::SlowHandOff,
        Self::NotLinearizable,
        Self::Torn,
    ];

    /// In words, for those who read the table.
    pub(crate) fn says(self) -> &'static str {
        match self {
            Self::DoubleHold => "two held",
            Self::TokenInversion => "lower tokens",
            Self::TokenRepeat => "tokens twice",
            Self::Corrupt => "stale writes accepted",
            Self::LostUpdate => "updates lost",
            Self::WrongRefusal => "holders refused by the fence",
            Self::LossLate => "told late",
            Self::Overtaken => "overtaken",
            Self::HandedOn => "handed on too often",
            Self::Overdue => "answered late",
            Self::Hasty => "refused early",
            Self::NeverAnswered => "never answered",
            Self::SlowDrain => "slow drains",
            Self::SlowRecovery => "slow recoveries",
            Self::NotServed => "turned away for good",
            Self::SlowHandOff => "slow hand-offs",
            Self::NotLinearizable => "not linearizable",
            Self::Torn => "torn",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Violation {
    pub(crate) kind: Kind,
    pub(crate) key: u32,
    /// When, by the machine's monotonic clock.
    pub(crate) at: Nanos,
    /// One line, with times in milliseconds since the history's start.
    pub(crate) text: String,
}

/// Numbers of a history that are no violations by themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Figures {
    pub(crate) attempts: u64,
    pub(crate) grants: u64,
    pub(crate) refused: u64,
    pub(crate) cancelled: u64,
    /// Without an outcome: their process died or ended.
    pub(crate) unknown: u64,
    pub(crate) renewals: u64,
    /// Writes that the storage accepted under its fence.
    pub(crate) writes: u64,
    pub(crate) stale_claims_refused: u64,
    pub(crate) stale_writes_refused: u64,
    /// Accepted writes that the fenced value has not.
    pub(crate) fenced_lost: u64,
    /// Writes that the value without a fence has not: what a lock alone would have cost.
    pub(crate) unfenced_lost: u64,
    /// Holders that were told of a loss.
    pub(crate) losses: u64,
    /// Holders that were told after the next grant, when their own bound had passed and within the
    /// slack: late, and no violation.
    pub(crate) losses_within_slack: u64,
    /// Successions after a holder that could not be told, as it was stopped or dead.
    pub(crate) losses_excluded: u64,
    /// From the loss to the next grant, at least. Negative: told too late.
    pub(crate) smallest_margin: Option<i64>,
    /// Waiters whom somebody could have overtaken: one who called later by more than the slack,
    /// while they waited.
    pub(crate) places: u64,
    /// Pairs of an overtaken waiter and who overtook it, up to a bound for each waiter.
    pub(crate) overtakings: u64,
    /// Waiters that were overtaken while a stop or a fault covered them.
    pub(crate) overtaken_excluded: u64,
    /// Times that a key was waited for when a fault was healed or a process fell out.
    pub(crate) recoveries: u64,
    pub(crate) longest_recovery: Nanos,
    /// Processes that were looked at once a fault was over and they could be connected again.
    pub(crate) looked_at: u64,
    /// Those of them that were granted something.
    pub(crate) served: u64,
    /// Processes that were not looked at, as the machine stood still for long meanwhile.
    pub(crate) stood_still: u64,
    /// Times that a key was given back and waited for while nothing befell anybody.
    pub(crate) hand_offs: u64,
    pub(crate) longest_hand_off: Nanos,
    /// How long the whole machine stood still, together.
    pub(crate) stalled: Nanos,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Found {
    pub(crate) figures: Figures,
    /// In the order of time.
    pub(crate) violations: Vec<Violation>,
}

impl Found {
    /// How many violations of a kind there are.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.of(kind).count()
    }

    /// The violations of a kind.
    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = &Violation> {
        self.violations
            .iter()
            .filter(move |violation| violation.kind == kind)
    }

    fn add(&mut self, kind: Kind, key: u32, at: Nanos, text: String) {
        self.violations.push(Violation {
            kind,
            key,
            at,
            text,
        });
    }
}

/// Checks a history.
pub(crate) fn check(history: &History, rules: &Rules) -> Found {
    let course = Course::of(history, rules.stall, &rules.stopped_by);
    let view = View::of(history, rules, &course);
    let mut found = Found {
        figures: view.figures(),
        violations: Vec::new(),
    };
    for key in &view.keys {
        exclusion::check(&view, key, &mut found);
        tokens::check(&view, key, &mut found);
        losses::check(&view, key, &mut found);
        fifo::check(&view, key, &mut found);
        batched::check(&view, key, &mut found);
        liveness::check(&view, key, &mut found);
        linear::check(&view, key, &mut found);
    }
    drains::check(&view, &mut found);
    recovery::check(&view, &mut found);
    served::check(&view, &mut found);
    handoff::check(&view, &mut found);
    storage::check(&view, &mut found);
    found.violations.sort_by_key(|violation| violation.at);
    found
}

/// Whether a refusal says that another holds: as an error of the manager, or as the status of a
/// response. Everything else is about the backend or the process.
pub(crate) fn is_busy(why: &str) -> bool {
    matches!(why, "contended" | "wait_timed_out" | "409")
}
