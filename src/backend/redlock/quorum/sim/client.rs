//! A client that acquires, renews, and gives back, again and again.

use std::time::Duration;

use super::{
    Rule,
    checker::Held,
    node::Clock,
    world::{Event, World},
};
use crate::quorum::{
    Nodes,
    ballot::{Ballot, Next, Raise, Vote},
    renewal::{Answer, Outcome, Renewal},
};

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_millis(50);

pub(crate) enum Request {
    Ask { nonce: u64, ttl: Duration, proposal: u64 },
    Raise { nonce: u64, token: u64 },
    Renew { nonce: u64, ttl: Duration },
    Release { nonce: u64 },
}

pub(crate) enum Reply {
    Vote(Vote),
    Raise(Raise),
    Renew(Answer),
}

#[derive(Default)]
pub(crate) struct Client {
    at: usize,
    clock: Clock,
    pub(crate) stands_until: Duration,
    nonce: u64,
    /// Of what is under way: answers to what came before do not count.
    tag: u64,
    last: u64,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Rests,
    Asks { ballot: Ballot, raises: u32 },
    Holds(Holding),
    Renews(Holding, Renewal),
}

struct Holding {
    held: Held,
    /// By its own clock.
    valid_until: Duration,
    /// When it means to give it back.
    done: Duration,
}

impl Default for Clock {
    fn default() -> Self {
        Self { rate: 1.0, offset: Duration::ZERO }
    }
}

impl Client {
    pub(crate) fn new(at: usize, clock: Clock) -> Self {
        Self { at, clock, ..Self::default() }
    }

    fn local(&self, world: &World) -> Duration {
        self.clock.at(world.now)
    }

    /// When its clock shows this, in the world's time.
    fn in_world(&self, local: Duration) -> Duration {
        local.saturating_sub(self.clock.offset).div_f64(self.clock.rate)
    }

    fn wake_in(&mut self, world: &mut World, delay: Duration) {
        world.after(delay, Event::Wakes { client: self.at, tag: self.tag });
    }

    fn to_all(&mut self, world: &mut World, request: impl Fn() -> Request) {
        for node in 0..world.settings.nodes {
            world.send(self.at, node, self.tag, request());
        }
    }

    pub(crate) fn wakes(&mut self, world: &mut World, tag: u64) {
        if tag != self.tag {
            return;
        }
        match std::mem::take(&mut self.state) {
            State::Rests => self.asks(world),
            State::Asks { mut ballot, raises } => {
                if raises == 0 {
                    ballot.close_votes();
                } else {
                    ballot.close_raise();
                }
                self.goes_on(world, ballot, raises);
            }
            State::Holds(holding) => self.holds_on(world, holding),
            State::Renews(holding, mut renewal) => {
                renewal.close();
                self.after_renewal(world, holding, renewal);
            }
        }
    }

    pub(crate) fn hears(&mut self, world: &mut World, node: usize, tag: u64, reply: Reply) {
        if tag != self.tag {
            return;
        }
        match (std::mem::take(&mut self.state), reply) {
            (State::Asks { mut ballot, raises: 0 }, Reply::Vote(vote)) => {
                ballot.vote(node, vote);
                self.goes_on(world, ballot, 0);
            }
            (State::Asks { mut ballot, raises }, Reply::Raise(answer)) => {
                ballot.raised(node, answer);
                self.goes_on(world, ballot, raises);
            }
            (State::Renews(holding, mut renewal), Reply::Renew(answer)) => {
                renewal.answer(node, answer);
                self.after_renewal(world, holding, renewal);
            }
            (state, _) => self.state = state,
        }
    }

    fn asks(&mut self, world: &mut World) {
        self.tag += 1;
        self.nonce += 1;
        let (nonce, ttl) = (self.nonce, world.settings.ttl);
        let sent = self.local(world);
        // Coarse, so that two clients propose the same now and then.
        let proposal = (self.last + 1).max(sent.as_millis() as u64 / 100 + 1_000_000);
        let ballot = Ballot::new(Nodes(world.settings.nodes), ttl, sent, proposal);
        self.to_all(world, || Request::Ask { nonce, ttl, proposal });
        self.state = State::Asks { ballot, raises: 0 };
        self.wake_in(world, PATIENCE);
    }

    fn goes_on(&mut self, world: &mut World, mut ballot: Ballot, raises: u32) {
        let mut next = ballot.next(self.local(world));
        if world.settings.rule != Rule::Ours {
            let holds = ballot.holds().count();
            if holds >= Nodes(world.settings.nodes).majority() && !matches!(next, Next::Refuse { .. }) {
                let token = match world.settings.rule {
                    Rule::Highest => ballot.highest().max(1) - u64::from(matches!(next, Next::Raise { .. })),
                    _ => ballot.proposal(),
                };
                next = Next::Grant { token, valid_until: ballot.valid_until() };
            }
        }
        match next {
            Next::Wait => self.state = State::Asks { ballot, raises },
            Next::Raise { token } if raises < 6 => {
                self.tag += 1;
                let nonce = self.nonce;
                for node in ballot.holds() {
                    world.send(self.at, node, self.tag, Request::Raise { nonce, token });
                }
                self.state = State::Asks { ballot, raises: raises + 1 };
                self.wake_in(world, PATIENCE);
            }
            Next::Grant { token, valid_until } => {
                self.last = self.last.max(token);
                let wants = [5, 20, 60, 2000][world.random.below(4) as usize];
                let held = Held {
                    from: world.now,
                    until: world.now,
                    token,
                    raised: raises > 0,
                    renewals: 0,
                };
                let done = world.now + Duration::from_millis(wants);
                self.holds_on(world, Holding { held, valid_until, done });
            }
            Next::Raise { .. } | Next::Refuse { .. } => {
                self.last = self.last.max(ballot.highest());
                self.gives_back(world);
            }
        }
    }

    /// Renews at a third of the ttl, gives it back when it is done, stops when it has ended.
    fn holds_on(&mut self, world: &mut World, holding: Holding) {
        let local = self.local(world);
        if local >= holding.valid_until || world.now >= holding.done {
            return self.ends_holding(world, holding);
        }
        let left = holding.valid_until - local;
        let third = world.settings.ttl / 3;
        if left <= third * 2 {
            self.tag += 1;
            let (nonce, ttl) = (self.nonce, world.settings.ttl);
            let renewal = Renewal::new(Nodes(world.settings.nodes), ttl, local);
            self.to_all(world, || Request::Renew { nonce, ttl });
            self.state = State::Renews(holding, renewal);
            self.wake_in(world, PATIENCE.min(left));
        } else {
            self.tag += 1;
            let until_done = holding.done - world.now;
            self.state = State::Holds(holding);
            self.wake_in(world, (left - third * 2).min(until_done));
        }
    }

    fn after_renewal(&mut self, world: &mut World, mut holding: Holding, renewal: Renewal) {
        let local = self.local(world);
        if local >= holding.valid_until {
            return self.ends_holding(world, holding);
        }
        match renewal.outcome() {
            Outcome::Wait => self.state = State::Renews(holding, renewal),
            Outcome::Extended(until) => {
                holding.valid_until = holding.valid_until.max(until);
                holding.held.renewals += 1;
                self.holds_on(world, holding);
            }
            Outcome::Lost => self.ends_holding(world, holding),
            Outcome::Unknown => {
                // Again soon, unless its end comes first.
                self.tag += 1;
                let left = holding.valid_until - local;
                self.state = State::Holds(holding);
                self.wake_in(world, left.min(world.settings.ttl / 12));
            }
        }
    }

    fn ends_holding(&mut self, world: &mut World, holding: Holding) {
        self.notes(world, holding);
        self.gives_back(world);
    }

    /// It counted on it until it gave it back, or its end by its own clock, whichever was first:
    /// one that stands still does nothing, and looks at its clock before it goes on.
    fn notes(&mut self, world: &mut World, mut holding: Holding) {
        let end = self.in_world(holding.valid_until);
        holding.held.until = world.now.min(end).max(holding.held.from);
        world.history.push(holding.held);
    }

    fn gives_back(&mut self, world: &mut World) {
        self.tag += 1;
        let nonce = self.nonce;
        self.to_all(world, || Request::Release { nonce });
        self.state = State::Rests;
        let pause = world.random.millis(1, 400);
        self.wake_in(world, pause);
    }

    pub(crate) fn ends(&mut self, world: &mut World) {
        match std::mem::take(&mut self.state) {
            State::Holds(holding) | State::Renews(holding, _) => self.notes(world, holding),
            _ => {}
        }
    }
}
