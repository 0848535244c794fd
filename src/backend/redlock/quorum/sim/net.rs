//! Time and the network: what happens when, and what is lost.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::super::Nodes;
use super::{
    Coverage, Settings, Time,
    checker::Held,
    client::{Reply, Request},
    node::{Looked, Owner},
    random::Random,
};

pub(super) struct Net {
    pub(super) settings: Settings,
    pub(super) random: Random,
    pub(super) now: Time,
    /// Time and number of each event, in one for speed.
    queue: BinaryHeap<Reverse<u64>>,
    events: Vec<Option<Event>>,
    pub(super) history: Vec<Held>,
    pub(super) seen: Coverage,
}

pub(super) enum Event {
    Arrives {
        owner: Owner,
        node: usize,
        tag: u64,
        request: Request,
    },
    Answers {
        client: usize,
        node: usize,
        tag: u64,
        reply: Reply,
    },
    Wakes {
        client: usize,
        tag: u64,
    },
    Looks,
    LookArrives {
        client: usize,
        node: usize,
        round: u64,
        name: u64,
    },
    LookAnswers {
        client: usize,
        node: usize,
        round: u64,
        looked: Looked,
    },
    LookEnds {
        client: usize,
        round: u64,
    },
    JoinArrives {
        node: usize,
        name: u64,
        counter: u64,
    },
    Crash,
    Restart {
        node: usize,
        how: u64,
    },
    Jump,
    Pause,
    Snapshot,
}

const NUMBER: u32 = 20;

impl Net {
    pub(super) fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            random: Random::new(seed),
            now: 0,
            queue: BinaryHeap::with_capacity(128),
            events: Vec::with_capacity(1024),
            history: Vec::with_capacity(32),
            seen: Coverage::default(),
        }
    }

    pub(super) fn after(&mut self, delay: Time, event: Event) {
        let at = self.now + delay;
        if at < self.settings.lasts {
            let number = self.events.len() as u64;
            assert!(number < 1 << NUMBER, "more events than numbers");
            self.queue.push(Reverse((at << NUMBER) | number));
            self.events.push(Some(event));
        }
    }

    pub(super) fn plan(&mut self, event: Event, from: u64, to: u64) {
        let delay = self.random.millis(from, to);
        self.after(delay, event);
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        let Reverse(key) = self.queue.pop()?;
        self.now = key >> NUMBER;
        let number = key & ((1 << NUMBER) - 1);
        self.events[number as usize].take()
    }

    /// Nodes that a client does not reach for now; it reaches a majority at least.
    pub(super) fn cut(&mut self) -> u32 {
        let nodes = self.settings.nodes;
        let minority = nodes - Nodes(nodes).majority();
        let mut cut = 0;
        if self.random.chance(self.settings.cuts) {
            for _ in 0..self.random.index(minority + 1) {
                cut |= 1 << self.random.index(nodes);
            }
        }
        cut
    }

    /// Messages are late, lost, and overtake each other.
    pub(super) fn send(&mut self, message: Event) {
        if self.random.chance(self.settings.loss) {
            return;
        }
        let slow = self.settings.slow;
        let delay = match self.random.below(20) {
            0 => self.random.millis(1, 30.min(slow)),
            1 => self.random.millis(1, slow),
            _ => self.random.millis(1, 4),
        };
        self.after(delay, message);
    }
}
