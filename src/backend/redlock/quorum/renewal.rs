//! Renewals: what the answers of one round say about the lease.

use std::time::Duration;

use super::{Moment, Nodes, valid_until};

/// What a node says to an owner that renews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It still had the key, and has it for the whole ttl again.
    Renewed,
    /// Nobody had it: it was given to the owner anew. It says nothing about the time before, so it
    /// counts from the next renewal on.
    Added,
    /// Somebody else has it, or it may not be added.
    Lost,
    Abstains,
    Silent,
}

/// What a round says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Wait,
    /// The lease goes on until then.
    Extended(Moment),
    /// A majority cannot be had any more: another may have one.
    Lost,
    /// Too few answered. The lease is as it was.
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    nodes: Nodes,
    ttl: Duration,
    sent: Moment,
    answers: Vec<Option<Answer>>,
}

impl Renewal {
    /// `sent` is from before the first request.
    pub(crate) fn new(nodes: Nodes, ttl: Duration, sent: Moment) -> Self {
        Self {
            nodes,
            ttl,
            sent,
            answers: vec![None; nodes.0],
        }
    }

    pub(crate) fn answer(&mut self, node: usize, answer: Answer) {
        self.answers[node].get_or_insert(answer);
    }

    pub(crate) fn close(&mut self) {
        for answer in &mut self.answers {
            answer.get_or_insert(Answer::Silent);
        }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        let count = |wanted: Answer| {
            let answers = self.answers.iter().flatten();
            answers.filter(|answer| **answer == wanted).count()
        };
        let majority = self.nodes.majority();
        let open = self.answers.iter().filter(|a| a.is_none()).count();
        let renewed = count(Answer::Renewed);
        // Of these nodes nobody can say that they had the key for this owner all the time.
        let gone = count(Answer::Lost) + count(Answer::Added) + count(Answer::Abstains);
        if renewed >= majority {
            Outcome::Extended(valid_until(self.sent, self.ttl))
        } else if self.nodes.0 - gone < majority {
            Outcome::Lost
        } else if renewed + open >= majority {
            Outcome::Wait
        } else {
            Outcome::Unknown
        }
    }
}
