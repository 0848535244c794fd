//! What a node's scripts do.

use std::time::Duration;

use crate::quorum::{
    ballot::{Raise, Vote},
    guard::{self, Marker, Step},
    renewal::Answer,
};

pub(crate) type Owner = (usize, u64);

/// A clock that runs at a rate of its own, and may be set.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    pub(crate) rate: f64,
    pub(crate) offset: Duration,
}

impl Clock {
    pub(crate) fn at(&self, now: Duration) -> Duration {
        now.mul_f64(self.rate) + self.offset
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) clock: Clock,
    pub(crate) up: bool,
    /// Which process runs.
    pub(crate) run: u64,
    pub(crate) data: Data,
    /// What a restart from an old snapshot would find.
    pub(crate) snapshot: Data,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Data {
    holder: Option<(Owner, Duration)>,
    counter: u64,
    member: Option<u64>,
    joining: Option<(u64, Duration)>,
}

impl Node {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            up: true,
            run: 0,
            // A deployment that has been set up.
            data: Data {
                member: Some(0),
                ..Data::default()
            },
            snapshot: Data::default(),
        }
    }

    fn votes(&self, guarded: bool) -> bool {
        !guarded || self.data.member == Some(self.run)
    }

    pub(crate) fn is_member(&self) -> bool {
        self.up && self.data.member == Some(self.run)
    }

    pub(crate) fn counter(&self) -> u64 {
        self.data.counter
    }

    fn holder(&self, now: Duration) -> Option<(Owner, Duration)> {
        let local = self.clock.at(now);
        self.data.holder.filter(|(_, ends)| *ends > local)
    }

    pub(crate) fn ask(
        &mut self,
        now: Duration,
        guarded: bool,
        owner: Owner,
        ttl: Duration,
        proposal: u64,
    ) -> Vote {
        if !self.votes(guarded) {
            return Vote::Abstains;
        }
        if let Some((holder, ends)) = self.holder(now)
            && holder != owner
        {
            return Vote::Held {
                remaining: Some(ends - self.clock.at(now)),
                seen: self.data.counter,
            };
        }
        self.data.holder = Some((owner, self.clock.at(now) + ttl));
        let took = proposal > self.data.counter;
        if took {
            self.data.counter = proposal;
        }
        Vote::Granted {
            took,
            seen: self.data.counter,
        }
    }

    pub(crate) fn raise(&mut self, now: Duration, guarded: bool, owner: Owner, token: u64) -> Raise {
        if !self.votes(guarded) || self.holder(now).is_none_or(|(holder, _)| holder != owner) {
            return Raise::NotHeld;
        }
        if token > self.data.counter {
            self.data.counter = token;
            Raise::Took
        } else {
            Raise::TooLow {
                seen: self.data.counter,
            }
        }
    }

    pub(crate) fn renew(
        &mut self,
        now: Duration,
        guarded: bool,
        owner: Owner,
        ttl: Duration,
    ) -> Answer {
        if !self.votes(guarded) {
            return Answer::Abstains;
        }
        let answer = match self.holder(now) {
            Some((holder, _)) if holder == owner => Answer::Renewed,
            Some(_) => return Answer::Lost,
            None => Answer::Added,
        };
        self.data.holder = Some((owner, self.clock.at(now) + ttl));
        answer
    }

    pub(crate) fn release(&mut self, owner: Owner) {
        if self.data.holder.is_some_and(|(holder, _)| holder == owner) {
            self.data.holder = None;
        }
    }

    /// What any client does for it. `taught`: the highest counter of enough others, asked now.
    pub(crate) fn join(&mut self, now: Duration, longest: Duration, taught: Option<u64>) {
        let local = self.clock.at(now);
        let marker = match (self.data.member, self.data.joining) {
            (Some(run), _) if run == self.run => Marker::Member,
            (_, Some((run, since))) if run == self.run => Marker::Joining {
                since: local.saturating_sub(since),
            },
            _ => Marker::None,
        };
        match (guard::step(marker, longest), taught) {
            (Step::MarkJoining, _) => self.data.joining = Some((self.run, local)),
            (Step::Learn, Some(counter)) => {
                self.data.counter = self.data.counter.max(counter);
                self.data.joining = None;
                self.data.member = Some(self.run);
            }
            _ => {}
        }
    }
}
