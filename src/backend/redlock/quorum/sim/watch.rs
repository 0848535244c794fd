//! What a client does for nodes that are no members: rounds of looks.

use super::super::{
    Nodes,
    guard::{State, Step, step, teachers},
};
use super::{
    Time, Twist, duration,
    net::{Event, Net},
    node::{Clock, Looked},
};

pub(super) struct Watch {
    round: u64,
    /// By its own clock.
    sent: Time,
    /// The name of each node's joining, and when it was first heard.
    heard: Vec<Option<(u64, Time)>>,
    looked: Vec<Option<Looked>>,
}

impl Watch {
    pub(super) fn new(nodes: usize) -> Self {
        Self {
            round: 0,
            sent: 0,
            heard: vec![None; nodes],
            looked: vec![None; nodes],
        }
    }

    pub(super) fn looks(&mut self, net: &mut Net, client: usize, clock: &Clock) {
        self.round += 1;
        self.sent = clock.at(net.now);
        self.looked.fill(None);
        let round = self.round;
        let cut = net.cut();
        for node in (0..net.settings.nodes).filter(|node| cut & (1 << node) == 0) {
            let name = net.random.below(u64::MAX);
            net.send(Event::LookArrives {
                client,
                node,
                round,
                name,
            });
        }
        net.after(
            net.settings.patience * 1000,
            Event::LookEnds { client, round },
        );
    }

    pub(super) fn hears(
        &mut self,
        net: &mut Net,
        clock: &Clock,
        (node, round): (usize, u64),
        looked: Looked,
    ) {
        let nameless = net.settings.twist == Twist::Nameless;
        let name = looked
            .joining
            .map(|name| if nameless { looked.run } else { name });
        // Of whichever round: the name was there.
        let is_news = name.is_some() || !nameless;
        if is_news && self.heard[node].map(|(heard, _)| heard) != name {
            self.heard[node] = name.map(|name| (name, clock.at(net.now)));
        }
        if round == self.round {
            self.looked[node] = Some(looked);
            if self.looked.iter().all(Option::is_some) {
                self.ends(net, round);
            }
        }
    }

    pub(super) fn ends(&mut self, net: &mut Net, round: u64) {
        if round != self.round {
            return;
        }
        self.round += 1;
        let longest = match net.settings.twist {
            Twist::Impatient => duration(0),
            _ => duration(net.settings.ttl),
        };
        let states: Vec<_> = (0..self.looked.len())
            .map(|node| self.state(node))
            .collect();
        let told = self.looked.iter().flatten();
        let counter = told.map(|looked| looked.counter).max().unwrap_or(0);
        let members = states
            .iter()
            .filter(|state| **state == State::Member)
            .count();
        let founds = members < teachers(Nodes(states.len()));
        let few = net.settings.twist == Twist::FewTeachers;
        for (node, looked) in self.looked.iter().enumerate() {
            let Some(name) = looked.and_then(|looked| looked.joining) else {
                continue;
            };
            match step(&states, node, longest) {
                Step::TooFew if !few => net.seen.too_few += 1,
                Step::Join | Step::TooFew => {
                    net.seen.founded += u64::from(founds);
                    net.send(Event::JoinArrives {
                        node,
                        name,
                        counter,
                    });
                }
                Step::Watch(_) => net.seen.guarded += 1,
                Step::Nothing => {}
            }
        }
    }

    fn state(&self, node: usize) -> State {
        match (self.looked[node], self.heard[node]) {
            (None, _) => State::Silent,
            (Some(Looked { joining: None, .. }), _) => State::Member,
            (Some(_), heard) => {
                let first = heard.map_or(self.sent, |(_, first)| first);
                let watched = duration(self.sent.saturating_sub(first));
                State::Joining { watched }
            }
        }
    }
}
