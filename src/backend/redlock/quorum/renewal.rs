//! Renewals: what the answers of one round say about the lease.
//!
//! A round gives the key back to the owner also on nodes where nobody has it. Such a node counts
//! from the next round on, not in this one. That at most one holds would not need this: until the
//! round ends the old lease holds, and from then on a majority has the key, whoever had it before.
//! But that rests on clocks. Where one jumped, or the owner's own stood still, another may have
//! held in between, and an owner that finds its key gone on so many nodes must hear of it.

use std::time::Duration;

use super::{Moment, Nodes, valid_until};

/// What a node says to an owner that renews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It still had the key, and has it for the whole ttl again.
    Renewed,
    /// Nobody had it: it was given to the owner anew.
    Added,
    /// Somebody else has it, or it may not be added.
    Lost,
    /// It may have forgotten what it granted.
    Abstains,
    Silent,
}

/// What a round says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Wait,
    /// The lease goes on until then.
    Extended(Moment),
    /// The key was gone from so many nodes that another may have held it.
    Lost,
    /// Too few answered, or abstained, or have it only since now. The lease is as it was.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The owner did not have the key there, as far as it heard.
    New,
    /// It has it, or had it when what it asked at this moment was answered.
    Ours(Moment),
    /// It had it there and it was gone, after the lease was extended last.
    Gone,
}

/// Where an owner has its key, as far as it heard: handed from the ballot to the first round, and
/// from each round to the next.
#[derive(Clone, Debug)]
pub(crate) struct Places(Vec<Place>);

impl Places {
    /// `asked`: from before the requests were sent that these nodes granted.
    pub(crate) fn new(nodes: Nodes, ours: impl Iterator<Item = usize>, asked: Moment) -> Self {
        let mut places = vec![Place::New; nodes.0];
        for node in ours {
            places[node] = Place::Ours(asked);
        }
        Self(places)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    ttl: Duration,
    sent: Moment,
    places: Places,
    answers: Vec<Option<Answer>>,
}

impl Renewal {
    /// `sent` is from before the first request.
    pub(crate) fn new(places: Places, ttl: Duration, sent: Moment) -> Self {
        Self {
            ttl,
            sent,
            answers: vec![None; places.0.len()],
            places,
        }
    }

    pub(crate) fn answer(&mut self, node: usize, answer: Answer) {
        self.answers[node].get_or_insert(answer);
    }

    /// The time for answers is over: those that are missing do not come.
    pub(crate) fn close(&mut self) {
        for answer in &mut self.answers {
            answer.get_or_insert(Answer::Silent);
        }
    }

    /// The lease must still have been valid when the last of the answers was heard: one that has
    /// ended is lost, whatever they say.
    pub(crate) fn outcome(&self) -> Outcome {
        let majority = Nodes(self.answers.len()).majority();
        let (mut renewed, mut open, mut gone) = (0, 0, 0);
        for (place, answer) in self.places.0.iter().zip(&self.answers) {
            match (place, answer) {
                (Place::Gone, _) | (_, Some(Answer::Lost)) => gone += 1,
                (Place::Ours(_), Some(Answer::Added)) => gone += 1,
                (_, Some(Answer::Renewed)) => renewed += 1,
                (_, Some(_)) => {}
                (_, None) => open += 1,
            }
        }
        if renewed >= majority {
            Outcome::Extended(valid_until(self.sent, self.ttl))
        } else if self.answers.len() - gone < majority {
            Outcome::Lost
        } else if renewed + open >= majority || self.answers.len() - gone - open < majority {
            // Who does not hear that its key was gone takes it for renewed the next time.
            Outcome::Wait
        } else {
            Outcome::Unknown
        }
    }

    /// For the next round.
    pub(crate) fn into_places(mut self) -> Places {
        let extended = matches!(self.outcome(), Outcome::Extended(_));
        let (sent, ttl) = (self.sent, self.ttl);
        let has_ended = |place| matches!(place, Place::Ours(asked) if sent > asked + ttl);
        for (place, answer) in self.places.0.iter_mut().zip(&self.answers) {
            let was = *place;
            *place = match answer {
                Some(Answer::Renewed | Answer::Added) if extended => Place::Ours(sent),
                _ if extended && was == Place::Gone => Place::New,
                _ if was == Place::Gone => Place::Gone,
                Some(Answer::Renewed) => Place::Ours(sent),
                Some(Answer::Added | Answer::Lost) if was != Place::New && !extended => Place::Gone,
                Some(Answer::Added) => Place::Ours(sent),
                // What a node forgot by a restart says nothing of others: none had it there.
                Some(Answer::Lost | Answer::Abstains) => Place::New,
                // Its key has ended there by now, in silence: that it is gone will say nothing of
                // others, as long as a majority had it all the time.
                Some(Answer::Silent) | None if extended && has_ended(was) => Place::New,
                Some(Answer::Silent) | None => was,
            };
        }
        self.places
    }
}
