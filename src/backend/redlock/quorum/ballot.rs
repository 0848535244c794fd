//! An acquire: votes of the nodes, and the token.

use std::time::Duration;

use super::{Moment, Nodes, renewal::Places, valid_until};

/// What a node says to an owner that asks for a key and proposes a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The owner has the key here. `took`: the proposal was above the node's counter, and is the
    /// counter now; `seen` is the counter after that.
    Granted { took: bool, seen: u64 },
    /// Somebody else has it, for so long still.
    Held {
        remaining: Option<Duration>,
        seen: u64,
    },
    /// It may have forgotten what it granted.
    Abstains,
    /// No answer in time, an error, or no connection. What was asked may still be done.
    Silent,
}

/// What a node says to an owner that wants to raise its counter to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Raise {
    /// Done: the counter was below it, and the owner has the key.
    Took,
    /// The owner has the key, and the counter was not below the token.
    TooLow {
        seen: u64,
    },
    /// The owner does not have the key there, or the node abstains.
    NotHeld,
    Silent,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait for more answers.
    Wait,
    /// The key is held, under this token.
    Grant { token: u64, valid_until: Moment },
    /// A majority has the key, and too few took the token: have this one written by all of these
    /// nodes, and no other.
    Raise { token: u64 },
    /// Give it back everywhere, also where no answer came. It may be worth trying again after so
    /// long, if anybody said how long it is held.
    Refuse { after: Option<Duration> },
}

/// The highest token: Lua counts in doubles, which are exact so far. Microseconds reach it in 2255.
pub(crate) const HIGHEST: u64 = (1 << 53) - 1;

/// How much of a lease must be left when it is granted.
pub(crate) const FLOOR: Duration = Duration::from_millis(1);

/// One acquire by one owner.
#[derive(Clone, Debug)]
pub(crate) struct Ballot {
    nodes: Nodes,
    ttl: Duration,
    sent: Moment,
    votes: Vec<Option<Vote>>,
    raising: Option<Raising>,
    proposal: u64,
    highest: u64,
}

#[derive(Clone, Debug)]
struct Raising {
    token: u64,
    answers: Vec<Option<Raise>>,
}

impl Ballot {
    /// The proposal is a guess at a token above all before: the highest that this client has seen
    /// plus one, or its clock in microseconds, whichever is higher. `sent` is from before the first
    /// request.
    pub(crate) fn new(nodes: Nodes, ttl: Duration, sent: Moment, proposal: u64) -> Self {
        Self {
            nodes,
            ttl,
            sent,
            votes: vec![None; nodes.0],
            raising: None,
            proposal,
            highest: proposal,
        }
    }

    pub(crate) fn valid_until(&self) -> Moment {
        valid_until(self.sent, self.ttl)
    }

    #[cfg(test)]
    pub(crate) fn proposal(&self) -> u64 {
        self.proposal
    }

    /// The highest token that any node has named, or that was proposed.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    /// Nodes where the owner has the key, as far as is known.
    pub(crate) fn holds(&self) -> impl Iterator<Item = usize> + '_ {
        let granted = |vote: &Option<Vote>| matches!(vote, Some(Vote::Granted { .. }));
        (0..self.nodes.0).filter(move |&node| granted(&self.votes[node]))
    }

    /// Nodes that the raise under way is to be sent to, and that have not answered.
    pub(crate) fn raises(&self) -> impl Iterator<Item = usize> + '_ {
        let answers = self.raising.iter().flat_map(|raising| &raising.answers);
        let open = answers.enumerate().filter(|(_, answer)| answer.is_none());
        open.map(|(node, _)| node)
    }

    /// For the first renewal.
    pub(crate) fn places(&self) -> Places {
        Places::new(self.nodes, self.holds(), self.sent)
    }

    /// A node's answer. The first counts.
    pub(crate) fn vote(&mut self, node: usize, vote: Vote) {
        let slot = &mut self.votes[node];
        if slot.is_none() {
            *slot = Some(vote);
            if let Vote::Granted { seen, .. } | Vote::Held { seen, .. } = vote {
                self.highest = self.highest.max(seen);
            }
        }
    }

    /// The time for answers is over: those that are missing do not come.
    pub(crate) fn close_votes(&mut self) {
        for vote in &mut self.votes {
            vote.get_or_insert(Vote::Silent);
        }
    }

    /// A node's answer to the raise under way; one to an earlier raise is not to be told.
    pub(crate) fn raised(&mut self, node: usize, answer: Raise) {
        if let Raise::TooLow { seen } = answer {
            self.highest = self.highest.max(seen);
        }
        if let Some(raising) = &mut self.raising {
            raising.answers[node].get_or_insert(answer);
        }
    }

    /// The same as [`close_votes`](Self::close_votes), for the raise under way.
    pub(crate) fn close_raise(&mut self) {
        if let Some(raising) = &mut self.raising {
            for answer in &mut raising.answers {
                answer.get_or_insert(Raise::Silent);
            }
        }
    }

    /// What to do, at this moment, with what is known. After [`Next::Raise`] the raise is under way.
    pub(crate) fn next(&mut self, now: Moment) -> Next {
        if now + FLOOR > self.valid_until() {
            return self.refuse();
        }
        if self.raising.is_some() {
            return self.after_raise();
        }
        let majority = self.nodes.majority();
        let (mut granted, mut took, mut open) = (0, 0, 0);
        for vote in &self.votes {
            match vote {
                Some(Vote::Granted { took: new, .. }) => {
                    granted += 1;
                    took += usize::from(*new);
                }
                Some(_) => {}
                None => open += 1,
            }
        }
        if took >= majority {
            self.grant(self.proposal)
        } else if granted + open < majority {
            self.refuse()
        } else if granted < majority || (took + open >= majority && open > 0) {
            Next::Wait
        } else {
            self.raise()
        }
    }

    fn after_raise(&mut self) -> Next {
        let Some(raising) = &self.raising else {
            return Next::Wait;
        };
        let majority = self.nodes.majority();
        let count = |wanted: fn(&Raise) -> bool| {
            let answers = raising.answers.iter().flatten();
            answers.filter(|answer| wanted(answer)).count()
        };
        let took = count(|answer| *answer == Raise::Took);
        let held = took + count(|answer| matches!(answer, Raise::TooLow { .. }));
        let open = raising.answers.iter().filter(|a| a.is_none()).count();
        if took >= majority {
            self.grant(raising.token)
        } else if took + open >= majority {
            Next::Wait
        } else if held + open >= majority {
            self.raise()
        } else {
            // Too few have the key by now, or answer.
            self.refuse()
        }
    }

    fn raise(&mut self) -> Next {
        if self.highest >= HIGHEST {
            return self.refuse();
        }
        // Above the highest: one that stands somewhere may be another grant's.
        let token = self.highest + 1;
        self.highest = token;
        let holds: Vec<_> = self.holds().collect();
        let mut answers = vec![Some(Raise::NotHeld); self.nodes.0];
        for node in holds {
            answers[node] = None;
        }
        self.raising = Some(Raising { token, answers });
        Next::Raise { token }
    }

    fn grant(&self, token: u64) -> Next {
        Next::Grant {
            token,
            valid_until: self.valid_until(),
        }
    }

    fn refuse(&self) -> Next {
        // A majority is free when enough of them are.
        let mut held: Vec<_> = self
            .votes
            .iter()
            .filter_map(|vote| match vote {
                Some(Vote::Held { remaining, .. }) => *remaining,
                _ => None,
            })
            .collect();
        held.sort_unstable();
        let unheld = self.nodes.0 - held.len();
        let after = match self.nodes.majority().checked_sub(unheld) {
            None | Some(0) => held.first().copied(),
            Some(needed) => held.get(needed - 1).copied(),
        };
        Next::Refuse { after }
    }
}
