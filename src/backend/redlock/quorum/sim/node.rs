//! What a node's scripts do: the list in the module above, in Rust.

use super::super::{
    ballot::{Raise, Vote},
    renewal::Answer,
};
use super::{Time, Twist};

/// One acquire of a client, in one of its ballots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) client: usize,
    pub(super) acquire: u64,
    pub(super) ballot: u64,
}

impl Owner {
    fn is_same_acquire(self, other: Self) -> bool {
        (self.client, self.acquire) == (other.client, other.acquire)
    }
}

/// A clock that runs at a rate of its own, and may be set.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// Parts in a million that it is fast.
    pub(super) fast: i64,
    pub(super) offset: i64,
}

impl Clock {
    pub(super) fn at(&self, now: Time) -> Time {
        let now = now as i64;
        (now + now * self.fast / 1_000_000 + self.offset) as Time
    }

    /// The time of the world when it shows this.
    pub(super) fn when(&self, local: Time) -> Time {
        let since = local as i64 - self.offset;
        (since * 1_000_000 / (1_000_000 + self.fast)) as Time
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) clock: Clock,
    pub(super) up: bool,
    /// Which process runs.
    pub(super) run: u64,
    pub(super) data: Data,
    /// What is on its disk.
    pub(super) snapshot: Data,
    /// Of each client the last acquire that was undone.
    pub(super) tombstones: Option<Vec<u64>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    holder: Option<(Owner, Time)>,
    counter: u64,
    /// Of this process.
    pub(super) member: Option<u64>,
    /// This process, and the name of the joining.
    pub(super) joining: Option<(u64, u64)>,
}

/// What a look hears.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looked {
    pub(super) run: u64,
    /// None of a member.
    pub(super) joining: Option<u64>,
    pub(super) counter: u64,
}

impl Node {
    pub(super) fn with_counter(counter: u64) -> Self {
        let mut node = Self::default();
        node.data.counter = counter;
        node.starts_as_member();
        node
    }

    pub(super) fn is_member(&self) -> bool {
        self.data.member == Some(self.run)
    }

    fn votes(&self, twist: Twist) -> bool {
        self.is_member() || twist == Twist::NoGuard
    }

    fn holder(&self, now: Time) -> Option<(Owner, Time)> {
        let (owner, ends) = self.data.holder?;
        let left = ends.saturating_sub(self.clock.at(now));
        (left > 0).then_some((owner, left))
    }

    fn is_undone(&self, owner: Owner) -> bool {
        let undone = self.tombstones.as_ref();
        undone.is_some_and(|undone| undone[owner.client] >= owner.acquire)
    }

    fn hold(&mut self, now: Time, owner: Owner, ttl: Time) {
        self.data.holder = Some((owner, self.clock.at(now) + ttl));
    }

    pub(super) fn ask(
        &mut self,
        now: Time,
        twist: Twist,
        owner: Owner,
        ttl: Time,
        proposal: u64,
    ) -> Vote {
        if !self.votes(twist) {
            return Vote::Abstains;
        }
        let bars = |holder: Owner| !holder.is_same_acquire(owner) || holder.ballot > owner.ballot;
        let other = self.holder(now).filter(|(holder, _)| bars(*holder));
        if other.is_some() || self.is_undone(owner) {
            return Vote::Held {
                remaining: other.map(|(_, left)| super::duration(left)),
                seen: self.data.counter,
            };
        }
        self.hold(now, owner, ttl);
        let took = proposal > self.data.counter;
        if took {
            self.data.counter = proposal;
        }
        Vote::Granted {
            took,
            seen: self.data.counter,
        }
    }

    pub(super) fn raise(&mut self, now: Time, twist: Twist, owner: Owner, token: u64) -> Raise {
        let holds = self.holder(now).is_some_and(|(holder, _)| holder == owner);
        if !self.votes(twist) || !(holds || twist == Twist::RaiseUnowned) {
            return Raise::NotHeld;
        }
        let counter = self.data.counter;
        if token > counter || (token == counter && twist == Twist::RaiseNotAbove) {
            self.data.counter = token;
            Raise::Took
        } else {
            Raise::TooLow { seen: counter }
        }
    }

    pub(super) fn renew(&mut self, now: Time, twist: Twist, owner: Owner, ttl: Time) -> Answer {
        if !self.votes(twist) {
            return Answer::Abstains;
        }
        let earlier = |of: Owner| of.is_same_acquire(owner) && of.ballot < owner.ballot;
        let answer = match self.holder(now) {
            Some((holder, _)) if holder == owner => Answer::Renewed,
            Some((holder, _)) if !earlier(holder) => return Answer::Lost,
            _ if self.is_undone(owner) => return Answer::Lost,
            _ => Answer::Added,
        };
        self.hold(now, owner, ttl);
        answer
    }

    pub(super) fn back(&mut self, owner: Owner) {
        self.data.holder = self.data.holder.filter(|(holder, _)| *holder != owner);
    }

    pub(super) fn release(&mut self, owner: Owner) {
        if let Some(undone) = &mut self.tombstones {
            undone[owner.client] = undone[owner.client].max(owner.acquire);
        }
        let holder = self.data.holder;
        self.data.holder = holder.filter(|(holder, _)| !holder.is_same_acquire(owner));
    }

    pub(super) fn look(&mut self, name: u64) -> Looked {
        let joining = (!self.is_member()).then(|| match self.data.joining {
            Some((run, name)) if run == self.run => name,
            _ => {
                self.data.joining = Some((self.run, name));
                name
            }
        });
        Looked {
            run: self.run,
            joining,
            counter: self.data.counter,
        }
    }

    /// Whether it did.
    pub(super) fn join(&mut self, twist: Twist, name: u64, counter: u64) -> bool {
        let by_name = self.data.joining == Some((self.run, name));
        let anyhow = twist == Twist::Nameless && self.data.joining.is_some();
        if self.is_member() || !(by_name || anyhow) {
            return false;
        }
        if twist != Twist::NotLearned {
            self.data.counter = self.data.counter.max(counter);
        }
        self.data.joining = None;
        self.data.member = Some(self.run);
        true
    }

    pub(super) fn starts_as_member(&mut self) {
        self.data.member = Some(self.run);
    }

    /// Forgets where it is, in the same process. Its disk was written by an earlier one: markers
    /// of this process are not on it.
    pub(super) fn is_emptied(&mut self, from_disk: bool) {
        self.data = match from_disk {
            true => self.snapshot.clone(),
            false => Data::default(),
        };
        let run = self.run;
        self.data.member = self.data.member.filter(|of| *of != run);
        self.data.joining = self.data.joining.filter(|(of, _)| *of != run);
    }
}
