//! A client that acquires, renews, and gives back, again and again.

use std::time::Duration;

use super::super::{
    Nodes,
    ballot::{Ballot, Next, Raise, Vote},
    drift_margin,
    renewal::{Answer, Outcome, Places, Renewal},
};
use super::{
    Settings, Time, Twist,
    checker::Held,
    duration,
    net::{Event, Net},
    node::{Clock, Owner},
    watch::Watch,
};

#[derive(Clone, Copy)]
pub(super) enum Request {
    Ask { proposal: u64 },
    Raise { token: u64 },
    Renew,
    Back,
    Release,
}

pub(super) enum Reply {
    Vote(Vote),
    Raise(Raise),
    Renew(Answer),
}

pub(super) struct Client {
    pub(super) at: usize,
    /// Counts leases.
    pub(super) clock: Clock,
    /// What it takes for the time of day: proposals come from it.
    pub(super) day: Clock,
    pub(super) stands_until: Time,
    pub(super) watch: Watch,
    /// Nodes that it does not reach.
    cut: u32,
    acquires: u64,
    ballots: u64,
    /// Of what is under way: answers to what came before do not count.
    tag: u64,
    last: u64,
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Rests,
    Asks(Asking),
    Holds(Holding, Places),
    Renews(Holding, Renewal),
}

struct Asking {
    ballot: Ballot,
    asked: Time,
    raises: u32,
}

struct Holding {
    held: Held,
    /// By its own clock.
    valid_until: Time,
    /// When it means to give it back.
    done: Time,
    /// When the renewal under way was sent, by the world's clock, which does not stop.
    sent: Time,
}

impl Client {
    pub(super) fn new(at: usize, settings: &Settings, clock: Clock) -> Self {
        Self {
            at,
            day: clock.clone(),
            clock,
            stands_until: 0,
            watch: Watch::new(settings.nodes),
            cut: 0,
            acquires: 1,
            ballots: 0,
            tag: 0,
            last: 0,
            state: State::Rests,
        }
    }

    fn owner(&self, net: &Net) -> Owner {
        let ballot = match net.settings.twist {
            Twist::OneName => 1,
            _ => self.ballots,
        };
        Owner {
            client: self.at,
            acquire: self.acquires,
            ballot,
        }
    }

    fn wake_in(&mut self, net: &mut Net, delay: Time) {
        let (client, tag) = (self.at, self.tag);
        net.after(delay, Event::Wakes { client, tag });
    }

    fn send(&self, net: &mut Net, node: usize, request: Request) {
        if self.cut & (1 << node) != 0 {
            return;
        }
        let (owner, tag) = (self.owner(net), self.tag);
        net.send(Event::Arrives {
            owner,
            node,
            tag,
            request,
        });
    }

    fn to_all(&self, net: &mut Net, request: Request) {
        for node in 0..net.settings.nodes {
            self.send(net, node, request);
        }
    }

    pub(super) fn wakes(&mut self, net: &mut Net, tag: u64) {
        if tag != self.tag {
            return;
        }
        match std::mem::take(&mut self.state) {
            State::Rests => self.asks(net),
            State::Asks(mut asking) => {
                if asking.raises == 0 {
                    asking.ballot.close_votes();
                } else {
                    asking.ballot.close_raise();
                }
                self.goes_on(net, asking);
            }
            State::Holds(holding, places) => self.holds_on(net, holding, places),
            State::Renews(holding, mut renewal) => {
                renewal.close();
                self.after_renewal(net, holding, renewal);
            }
        }
    }

    pub(super) fn hears(&mut self, net: &mut Net, node: usize, tag: u64, reply: Reply) {
        if tag != self.tag {
            return;
        }
        match (std::mem::take(&mut self.state), reply) {
            (State::Asks(mut asking), Reply::Vote(vote)) => {
                asking.ballot.vote(node, vote);
                self.goes_on(net, asking);
            }
            (State::Asks(mut asking), Reply::Raise(answer)) => {
                asking.ballot.raised(node, answer);
                self.goes_on(net, asking);
            }
            (State::Renews(holding, mut renewal), Reply::Renew(answer)) => {
                net.seen.added += u64::from(answer == Answer::Added);
                let counts = net.settings.twist == Twist::CountsAdded && answer == Answer::Added;
                renewal.answer(node, if counts { Answer::Renewed } else { answer });
                self.after_renewal(net, holding, renewal);
            }
            (state, _) => self.state = state,
        }
    }

    fn asks(&mut self, net: &mut Net) {
        self.tag += 1;
        self.ballots += 1;
        self.cut = net.cut();
        let settings = &net.settings;
        let sent = duration(self.clock.at(net.now));
        // So coarse that two clients propose the same now and then.
        let proposal = (self.last + 1).max(self.day.at(net.now) / settings.tick);
        let ballot = Ballot::new(
            Nodes(settings.nodes),
            duration(settings.ttl),
            sent,
            proposal,
        );
        self.to_all(net, Request::Ask { proposal });
        self.state = State::Asks(Asking {
            ballot,
            asked: net.now,
            raises: 0,
        });
        self.wake_in(net, net.settings.patience * 1000);
    }

    fn goes_on(&mut self, net: &mut Net, mut asking: Asking) {
        let local = self.clock.at(net.now);
        let next = asking.ballot.next(duration(local));
        match self.twisted(net, &asking, next) {
            Next::Wait => self.state = State::Asks(asking),
            Next::Raise { token } if asking.raises < 6 => {
                self.tag += 1;
                for node in asking.ballot.holds() {
                    self.send(net, node, Request::Raise { token });
                }
                asking.raises += 1;
                self.state = State::Asks(asking);
                self.wake_in(net, net.settings.patience * 1000);
            }
            Next::Grant { token, valid_until } => {
                net.seen.grants += 1;
                net.seen.raised += u64::from(asking.raises > 0);
                self.last = self.last.max(token);
                let wants = [5, 20, 60, net.settings.holds][net.random.index(4)];
                let held = Held {
                    asked: asking.asked,
                    from: net.now,
                    until: net.now,
                    token,
                    extended: 0,
                };
                let holding = Holding {
                    held,
                    valid_until: valid_until.as_micros() as Time,
                    done: net.now + wants * 1000,
                    sent: net.now,
                };
                self.holds_on(net, holding, asking.ballot.places());
            }
            Next::Raise { .. } | Next::Refuse { .. } => {
                net.seen.refused += 1;
                self.last = self.last.max(asking.ballot.highest());
                // Most ask again.
                if net.random.chance(300) {
                    self.gives_up(net);
                } else {
                    self.gives_back(net, Request::Back);
                }
            }
        }
    }

    /// What a weaker rule makes of it.
    fn twisted(&self, net: &Net, asking: &Asking, next: Next) -> Next {
        let (ballot, nodes) = (&asking.ballot, net.settings.nodes);
        let (majority, holds) = (Nodes(nodes).majority(), ballot.holds().count());
        let grant = |token| Next::Grant {
            token,
            valid_until: ballot.valid_until(),
        };
        match (net.settings.twist, next) {
            (_, Next::Refuse { .. }) if net.settings.twist != Twist::Half => next,
            // The ballot counts what it raises to as seen.
            (Twist::Highest, Next::Raise { token }) => grant(token - 1),
            (Twist::Highest, _) if holds >= majority => grant(ballot.highest()),
            (Twist::Proposal, _) if holds >= majority => grant(ballot.proposal()),
            (Twist::RaiseNotAbove, Next::Raise { token }) => Next::Raise { token: token - 1 },
            (Twist::RaiseNotAbove, Next::Grant { token, .. }) if asking.raises > 0 => {
                grant(token - 1)
            }
            (Twist::Half, _) if holds >= nodes / 2 => grant(ballot.highest()),
            (Twist::FromReply, Next::Grant { token, .. }) => Next::Grant {
                token,
                valid_until: duration(self.clock.at(net.now) + net.settings.ttl),
            },
            (Twist::NoMargin, Next::Grant { token, valid_until }) => Next::Grant {
                token,
                valid_until: valid_until + margin(&net.settings),
            },
            _ => next,
        }
    }

    /// Renews at a third of the ttl, gives it back when it is done, stops when it has ended.
    fn holds_on(&mut self, net: &mut Net, mut holding: Holding, places: Places) {
        let local = self.clock.at(net.now);
        if local >= holding.valid_until || net.now >= holding.done {
            return self.ends_holding(net, holding);
        }
        self.tag += 1;
        let left = holding.valid_until - local;
        let two_thirds = net.settings.ttl / 3 * 2;
        if left <= two_thirds {
            if net.random.chance(200) {
                self.cut = net.cut();
            }
            let renewal = Renewal::new(places, duration(net.settings.ttl), duration(local));
            self.to_all(net, Request::Renew);
            holding.sent = net.now;
            self.state = State::Renews(holding, renewal);
            self.wake_in(net, left.min(net.settings.patience * 1000));
        } else {
            let until_done = holding.done - net.now;
            self.state = State::Holds(holding, places);
            self.wake_in(net, (left - two_thirds).min(until_done));
        }
    }

    fn after_renewal(&mut self, net: &mut Net, mut holding: Holding, renewal: Renewal) {
        let local = self.clock.at(net.now);
        if local >= holding.valid_until {
            return self.ends_holding(net, holding);
        }
        match renewal.outcome() {
            Outcome::Wait => self.state = State::Renews(holding, renewal),
            Outcome::Extended(mut until) => {
                net.seen.renewals += 1;
                if net.settings.twist == Twist::NoMargin {
                    until += margin(&net.settings);
                }
                let until = until.as_micros() as Time;
                holding.valid_until = holding.valid_until.max(until);
                holding.held.extended = holding.sent;
                self.holds_on(net, holding, renewal.into_places());
            }
            Outcome::Lost => {
                net.seen.lost += 1;
                self.ends_holding(net, holding);
            }
            Outcome::Unknown => {
                // Again soon, unless its end comes first.
                self.tag += 1;
                let left = holding.valid_until - local;
                self.state = State::Holds(holding, renewal.into_places());
                self.wake_in(net, left.min(net.settings.ttl / 12));
            }
        }
    }

    fn ends_holding(&mut self, net: &mut Net, holding: Holding) {
        self.notes(net, holding);
        self.gives_up(net);
    }

    /// It counted on it until it gave it back, or its end by its own clock, whichever was first:
    /// one that stands still does nothing, and looks at its clock before it goes on.
    fn notes(&mut self, net: &mut Net, mut holding: Holding) {
        let end = self.clock.when(holding.valid_until);
        holding.held.until = net.now.min(end).max(holding.held.from);
        net.history.push(holding.held);
    }

    fn gives_up(&mut self, net: &mut Net) {
        self.gives_back(net, Request::Release);
        self.acquires += 1;
    }

    fn gives_back(&mut self, net: &mut Net, request: Request) {
        self.tag += 1;
        self.to_all(net, request);
        self.state = State::Rests;
        let pause = net.random.millis(1, net.settings.rests);
        self.wake_in(net, pause);
    }

    pub(super) fn ends(&mut self, net: &mut Net) {
        match std::mem::take(&mut self.state) {
            State::Holds(holding, _) | State::Renews(holding, _) => self.notes(net, holding),
            _ => {}
        }
    }
}

fn margin(settings: &Settings) -> Duration {
    drift_margin(duration(settings.ttl))
}
