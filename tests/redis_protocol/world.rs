//! What the [`model`](super::model) is about: processes, owners, and what they ask of the server.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::{
    scripts::{
        ABANDON, CONFIRM, FORCE_RELEASE, GATE, Inbox, Keys, LOOK, OPEN, RELEASE, RENEW,
        RENEW_SHARED, SAVE, STEP, WITHDRAW,
    },
    servers::{RedisServer, Reply},
};

/// How long a late packet may be on its way: longer than a day of the model, however slow.
const TOMBSTONE: &str = "600000";
/// Longer than a day of the model.
const RECORD_TTL: &str = "600000";

#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Step {
        queues: bool,
    },
    Confirm(String),
    Renew(String),
    Release(String),
    /// The same with a result, or with the word that there is none.
    Save {
        token: String,
        keeps: bool,
    },
    Abandon,
    Look,
    /// Not as this owner: an operator, and somebody who waits until nobody holds.
    ForceRelease,
    Gate,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) ask: Ask,
    pub(crate) by: usize,
    pub(crate) sent: Instant,
    pub(crate) command: Vec<String>,
}

pub(crate) struct Process {
    pub(crate) channel: String,
    pub(crate) inbox: Option<Inbox>,
    pub(crate) is_alive: bool,
    pub(crate) hangs_until: Instant,
    /// Whether it may end its connections at the server.
    pub(crate) kills: bool,
    pub(crate) requests: VecDeque<Request>,
    pub(crate) answers: VecDeque<(Request, Reply)>,
    /// Of connections that are gone.
    pub(crate) late: Vec<Request>,
    pub(crate) news: VecDeque<String>,
    pub(crate) look_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum State {
    Waits,
    Holds {
        token: u64,
        until: Instant,
    },
    /// Gave it back, or gave up.
    Leaves,
    Gone,
}

#[derive(Debug)]
pub(crate) struct Owner {
    pub(crate) name: String,
    pub(crate) process: usize,
    pub(crate) shared: bool,
    pub(crate) unfair: bool,
    /// It asks for the record too, and opens it.
    pub(crate) loads: bool,
    /// How long it is paused as soon as it holds, and until when.
    pub(crate) pause: u64,
    pub(crate) paused_until: Instant,
    /// It has heard that it holds, and may have begun.
    pub(crate) told: bool,
    /// Its process did.
    pub(crate) crashed: bool,
    pub(crate) ticket: String,
    pub(crate) tokens: u64,
    pub(crate) state: State,
    pub(crate) ttl: u64,
    pub(crate) queues: bool,
    /// An ask or confirmation is on its way.
    pub(crate) open: bool,
    pub(crate) renews: bool,
    pub(crate) offer: Option<String>,
    pub(crate) asks: bool,
    pub(crate) ask_at: Instant,
    pub(crate) tainted: bool,
    /// The token of a grant that an operator took from it.
    pub(crate) revoked: Option<u64>,
}

impl Process {
    pub(crate) fn new(server: &RedisServer, channel: String, kills: bool) -> Self {
        let now = Instant::now();
        Self {
            inbox: Some(Inbox::open(server, &channel)),
            channel,
            is_alive: true,
            hangs_until: now,
            kills,
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            late: Vec::new(),
            news: VecDeque::new(),
            look_at: now,
        }
    }

    pub(crate) fn runs(&self) -> bool {
        self.is_alive && self.hangs_until <= Instant::now()
    }
}

impl Owner {
    pub(crate) fn random(rng: &mut fastrand::Rng, process: usize) -> Self {
        let shared = rng.u32(..10) < 4;
        let ttl = rng.u64(10..150);
        Self {
            pause: if rng.u32(..3) == 0 {
                ttl * rng.u64(2..5)
            } else {
                0
            },
            paused_until: Instant::now(),
            name: format!("{:032x}", rng.u128(..)),
            process,
            shared,
            unfair: rng.u32(..10) < 2,
            loads: !shared && rng.u32(..10) < 5,
            told: false,
            crashed: false,
            ticket: String::new(),
            tokens: if shared { 1 } else { rng.u64(1..4) },
            state: State::Waits,
            ttl,
            queues: rng.u32(..10) > 0,
            open: false,
            renews: false,
            offer: None,
            asks: true,
            ask_at: Instant::now(),
            tainted: false,
            revoked: None,
        }
    }

    /// Until when it may count on a lease that it asked for at this moment: the ttl, less a
    /// hundredth and 2 ms.
    pub(crate) fn counts_on(&self, sent: Instant) -> Instant {
        sent + Duration::from_micros((self.ttl * 990).saturating_sub(2000))
    }

    pub(crate) fn command(&self, ask: &Ask, process: &Process, keys: &Keys) -> Vec<String> {
        let (ttl, inbox) = (self.ttl.to_string(), process.channel.as_str());
        let mode = if self.shared { "s" } else { "x" };
        let who = format!("{} {inbox}", self.name);
        let record = if self.loads { " r" } else { "" };
        let me = format!("{who} {mode} {ttl} {}{record}", self.tokens);
        let value = |token: &str| format!("1 {who} {token}");
        let looks = (!process.kills).then_some(self.name.as_str());
        match ask {
            Ask::Step { queues } => {
                let order = match (self.unfair, *queues) {
                    (false, true) => "fq",
                    (false, false) => "f-",
                    (true, true) => "uq",
                    (true, false) => "u-",
                };
                let tokens = self.tokens.to_string();
                let mut args = vec![&*who, mode, &ttl, order];
                if self.tokens > 1 || !self.ticket.is_empty() || self.loads {
                    args.push(&tokens);
                }
                if !self.ticket.is_empty() || self.loads {
                    args.push(&self.ticket);
                }
                if !self.loads {
                    return keys.eval(&STEP, looks, &args);
                }
                args.extend(["r", RECORD_TTL, "begun"]);
                keys.eval(&OPEN, looks, &args)
            }
            Ask::Confirm(token) => {
                keys.eval(&CONFIRM, None, &[&value(token), &ttl, &format!("!{me}")])
            }
            Ask::Renew(_) if self.shared => keys.eval(&RENEW_SHARED, None, &[&who, &ttl]),
            Ask::Renew(token) => keys.eval(&RENEW, None, &[&value(token), &ttl]),
            Ask::Release(token) => keys.eval(&RELEASE, None, &[&value(token)]),
            Ask::Save { token, keeps } => {
                let tombstone = self.tainted.then_some(self.name.as_str());
                let verb = if *keeps { "k" } else { "f" };
                let mut args = vec![&*self.name, token, verb, "1", RECORD_TTL, "done"];
                args.extend(tombstone.map(|_| TOMBSTONE));
                keys.eval(&SAVE, tombstone, &args)
            }
            Ask::Abandon => {
                let tombstone = self.tainted.then_some(self.name.as_str());
                let mut args = vec![&*who, &*me];
                args.extend(tombstone.map(|_| TOMBSTONE));
                let takes_back = self.loads && !self.told;
                let script = if takes_back { &WITHDRAW } else { &ABANDON };
                keys.eval(script, tombstone, &args)
            }
            Ask::Look => keys.eval(&LOOK, None, &[inbox]),
            Ask::ForceRelease => keys.eval(&FORCE_RELEASE, None, &[]),
            Ask::Gate => keys.eval(&GATE, None, &[&format!("gate {inbox} 1")]),
        }
    }
}
