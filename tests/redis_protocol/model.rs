//! Processes as they are on bad days: requests and answers that are late or lost, news that are
//! late, inboxes that are down, processes that hang or crash, waiters that give up at any moment,
//! leases that run out. Each seed is another day. What must hold is in [`checks`](super::checks).

use std::{
    collections::VecDeque,
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    checks::Checks,
    scripts::{
        ABANDON, CONFIRM, Inbox, Keys, LOOK, OFFER, QUEUE_LIFE, RELEASE, RENEW, RENEW_SHARED, STEP,
    },
    servers::{RedisServer, Reply},
};

/// How long a waiter waits before it asks again, and a process before it looks.
const CEILING: Duration = Duration::from_millis(100);
const LOOKS: Duration = Duration::from_millis(30);
/// How long a late packet may be on its way.
const TOMBSTONE: &str = "5000";

#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Step { queues: bool },
    Confirm(String),
    Renew(String),
    Release(String),
    Abandon,
    Look,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    ask: Ask,
    by: usize,
    sent: Instant,
    command: Vec<String>,
}

pub(crate) struct Process {
    pub(crate) channel: String,
    pub(crate) inbox: Option<Inbox>,
    pub(crate) is_alive: bool,
    hangs_until: Instant,
    /// Whether it may end its connections at the server.
    kills: bool,
    requests: VecDeque<Request>,
    answers: VecDeque<(Request, Reply)>,
    /// Of connections that are gone.
    late: Vec<Request>,
    news: VecDeque<String>,
    look_at: Instant,
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
    pub(crate) ticket: String,
    pub(crate) tokens: u64,
    pub(crate) state: State,
    ttl: u64,
    queues: bool,
    /// An ask or confirmation is on its way.
    open: bool,
    renews: bool,
    offer: Option<String>,
    asks: bool,
    ask_at: Instant,
    tainted: bool,
}

pub(crate) struct Model<'a> {
    server: &'a RedisServer,
    rng: fastrand::Rng,
    keys: Keys,
    pub(crate) processes: Vec<Process>,
    pub(crate) owners: Vec<Owner>,
    checks: Checks,
    /// No more faults.
    calm: bool,
}

impl<'a> Model<'a> {
    pub(crate) fn new(server: &'a RedisServer, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let name = format!("model-{seed}-{:08x}", fastrand::u32(..));
        let now = Instant::now();
        let processes = (0..3).map(|n| {
            let channel = format!("{name}:inbox:{n}");
            Process {
                inbox: Some(Inbox::open(server, &channel)),
                channel,
                is_alive: true,
                hangs_until: now,
                kills: n != 2,
                requests: VecDeque::new(),
                answers: VecDeque::new(),
                late: Vec::new(),
                news: VecDeque::new(),
                look_at: now,
            }
        });
        let keys = Keys::new(&name);
        Self {
            processes: processes.collect(),
            checks: Checks::new(server.client(), seed),
            rng: rng.fork(),
            server,
            keys,
            owners: Vec::new(),
            calm: false,
        }
    }

    /// A day of faults, and an evening without, by whose end nothing is left.
    pub(crate) fn run(mut self, steps: usize) -> usize {
        for _ in 0..steps {
            self.act();
            self.checks.holders(&self.owners);
        }
        self.calm = true;
        for process in &mut self.processes {
            process.hangs_until = Instant::now();
            if process.is_alive && process.inbox.is_none() {
                process.inbox = Some(Inbox::open(self.server, &process.channel));
            }
        }
        for owner in &mut self.owners {
            owner.asks = true;
        }
        let start = Instant::now();
        while !self.is_over() {
            self.act();
            self.checks.holders(&self.owners);
            let waits = || {
                self.owners
                    .iter()
                    .filter(|owner| owner.state != State::Gone)
            };
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "seed {}: these wait for ever: {:#?}",
                self.checks.seed,
                waits().collect::<Vec<_>>()
            );
        }
        sleep(Duration::from_millis(OFFER + QUEUE_LIFE + 1200));
        let left = self
            .server
            .command(&["KEYS", &format!("*{}*", self.keys.lock())]);
        let mut left = left.texts();
        left.retain(|key| !key.starts_with("token:") && !key.contains("}:u:"));
        assert!(left.is_empty(), "seed {}: left: {left:?}", self.checks.seed);
        self.checks.grants()
    }

    fn is_over(&self) -> bool {
        let idle = |p: &Process| {
            p.requests.is_empty() && p.answers.is_empty() && p.late.is_empty() || !p.is_alive
        };
        self.owners.iter().all(|owner| owner.state == State::Gone)
            && self.processes.iter().all(idle)
    }

    fn act(&mut self) {
        let n = self.rng.usize(..self.processes.len());
        match self.rng.u32(..100) {
            0..5 if !self.calm => self.arrive(n),
            5..30 => self.deliver_request(n),
            30..50 => self.deliver_answer(n),
            50..65 => self.deliver_news(n),
            65..83 => self.tick(n),
            83..92 => self.end_something(n),
            92..95 => sleep(Duration::from_micros(self.rng.u64(..4000))),
            95 if !self.calm => self.reset(n),
            96 if !self.calm && self.rng.u32(..3) == 0 => {
                let hangs = Duration::from_millis(self.rng.u64(..3 * OFFER));
                self.processes[n].hangs_until = Instant::now() + hangs;
            }
            97 if !self.calm => self.lose_inbox(n),
            98 => self.open_inbox(n),
            99 if !self.calm && self.rng.u32(..60) == 0 => self.crash(n),
            _ => self.deliver_late(n),
        }
    }

    fn runs(&self, n: usize) -> bool {
        let process = &self.processes[n];
        process.is_alive && process.hangs_until <= Instant::now()
    }

    fn arrive(&mut self, n: usize) {
        let alive = self
            .owners
            .iter()
            .filter(|o| o.state != State::Gone)
            .count();
        if !self.runs(n) || alive > 14 {
            return;
        }
        let shared = self.rng.u32(..10) < 4;
        self.owners.push(Owner {
            name: format!("{:032x}", self.rng.u128(..)),
            process: n,
            shared,
            unfair: self.rng.u32(..10) < 2,
            ticket: String::new(),
            // Readers share one, and reserve none.
            tokens: if shared { 1 } else { self.rng.u64(1..4) },
            state: State::Waits,
            ttl: self.rng.u64(10..150),
            queues: self.rng.u32(..10) > 0,
            open: false,
            renews: false,
            offer: None,
            asks: true,
            ask_at: Instant::now(),
            tainted: false,
        });
        self.tick(n);
    }

    fn send(&mut self, by: usize, ask: Ask) {
        let (owner, keys) = (&self.owners[by], &self.keys);
        let process = &mut self.processes[owner.process];
        let (ttl, inbox) = (owner.ttl.to_string(), process.channel.as_str());
        let mode = if owner.shared { "s" } else { "x" };
        let who = format!("{} {inbox}", owner.name);
        let me = format!("{who} {mode} {ttl} {}", owner.tokens);
        let value = |token: &str| format!("1 {who} {token}");
        let looks = (!process.kills).then_some(owner.name.as_str());
        let command = match &ask {
            Ask::Step { queues } => {
                let order = match (owner.unfair, *queues) {
                    (false, true) => "fq",
                    (false, false) => "f-",
                    (true, true) => "uq",
                    (true, false) => "u-",
                };
                let tokens = owner.tokens.to_string();
                let mut args = vec![&*who, mode, &ttl, order];
                if owner.tokens > 1 || !owner.ticket.is_empty() {
                    args.push(&tokens);
                }
                if !owner.ticket.is_empty() {
                    args.push(&owner.ticket);
                }
                keys.eval(&STEP, looks, &args)
            }
            Ask::Confirm(token) => {
                keys.eval(&CONFIRM, None, &[&value(token), &ttl, &format!("!{me}")])
            }
            Ask::Renew(_) if owner.shared => keys.eval(&RENEW_SHARED, None, &[&who, &ttl]),
            Ask::Renew(token) => keys.eval(&RENEW, None, &[&value(token), &ttl]),
            Ask::Release(token) => keys.eval(&RELEASE, None, &[&value(token)]),
            Ask::Abandon => {
                let tombstone = owner.tainted.then_some(owner.name.as_str());
                let mut args = vec![&*who, &*me];
                args.extend(tombstone.map(|_| TOMBSTONE));
                keys.eval(&ABANDON, tombstone, &args)
            }
            Ask::Look => keys.eval(&LOOK, None, &[inbox]),
        };
        let sent = Instant::now();
        process.requests.push_back(Request {
            ask,
            by,
            sent,
            command,
        });
    }

    /// Whatever the process would do now by itself.
    fn tick(&mut self, n: usize) {
        if !self.runs(n) {
            return;
        }
        let now = Instant::now();
        for by in 0..self.owners.len() {
            let owner = &mut self.owners[by];
            if owner.process != n || owner.state != State::Waits || owner.open {
                continue;
            }
            let offer = owner.offer.take();
            if offer.is_none() && !std::mem::take(&mut owner.asks) && now < owner.ask_at {
                continue;
            }
            owner.open = true;
            match offer {
                Some(token) if !owner.shared => self.send(by, Ask::Confirm(token)),
                _ => {
                    let queues = owner.queues;
                    self.send(by, Ask::Step { queues });
                }
            }
        }
        let waiter = |o: &Owner| o.process == n && o.state == State::Waits && o.queues;
        if now >= self.processes[n].look_at
            && let Some(by) = self.owners.iter().position(waiter)
        {
            self.processes[n].look_at = now + LOOKS;
            self.send(by, Ask::Look);
        }
    }

    /// A holder is done or renews, or a waiter gives up.
    fn end_something(&mut self, n: usize) {
        let mine =
            |o: &Owner| o.process == n && matches!(o.state, State::Waits | State::Holds { .. });
        let candidates: Vec<_> = (0..self.owners.len())
            .filter(|&o| mine(&self.owners[o]))
            .collect();
        if candidates.is_empty() || !self.runs(n) {
            return;
        }
        let holds = |&by: &usize| self.owners[by].state != State::Waits;
        let holder = candidates.iter().copied().find(holds);
        let by = match holder {
            Some(holder) if self.rng.u32(..4) > 0 => holder,
            _ => candidates[self.rng.usize(..candidates.len())],
        };
        let owner = &mut self.owners[by];
        let ask = match owner.state {
            State::Holds { token, until } => {
                let token = token.to_string();
                match self.rng.u32(..10) {
                    0..3 if !owner.renews && Instant::now() < until && !self.calm => {
                        owner.renews = true;
                        Ask::Renew(token)
                    }
                    3..6 if !owner.shared && !owner.tainted => Ask::Release(token),
                    _ => Ask::Abandon,
                }
            }
            // In the evening everybody who waits is served.
            _ if self.calm || self.rng.u32(..6) > 0 => return,
            _ => Ask::Abandon,
        };
        if !matches!(ask, Ask::Renew(_)) {
            owner.state = State::Leaves;
        }
        self.send(by, ask);
    }

    fn run_request(&mut self, request: &Request) -> Reply {
        self.checks.run(
            &self.keys,
            &self.processes,
            &self.owners,
            request.by,
            &request.command,
        )
    }

    fn deliver_request(&mut self, n: usize) {
        // A server reads what a process sent that hangs now, or is gone.
        if let Some(request) = self.processes[n].requests.pop_front() {
            let answer = self.run_request(&request);
            for process in &mut self.processes {
                if let Some(inbox) = &mut process.inbox {
                    process.news.extend(inbox.messages());
                }
            }
            self.processes[n].answers.push_back((request, answer));
        }
    }

    fn deliver_late(&mut self, n: usize) {
        if !self.processes[n].late.is_empty() {
            let at = self.rng.usize(..self.processes[n].late.len());
            let request = self.processes[n].late.remove(at);
            self.run_request(&request);
        }
    }

    fn deliver_answer(&mut self, n: usize) {
        if !self.runs(n) {
            return;
        }
        let Some((Request { ask, by, sent, .. }, answer)) = self.processes[n].answers.pop_front()
        else {
            return;
        };
        if let Reply::Error(error) = &answer {
            panic!("seed {}: {ask:?}: {error}", self.checks.seed);
        }
        let owner = &mut self.owners[by];
        // What is left of the ttl when a hundredth and 2 ms are taken from it.
        let until = sent + Duration::from_micros((owner.ttl * 990).saturating_sub(2000));
        match ask {
            Ask::Step { queues } => {
                owner.open = false;
                if owner.state != State::Waits {
                    return;
                }
                let Reply::List(answer) = answer else {
                    let token = answer.int() as u64;
                    owner.state = State::Holds { token, until };
                    self.checks.granted(&self.owners[by], token, until);
                    return;
                };
                match (answer[0].int(), queues) {
                    (0, true) => {
                        owner.ticket = answer[2].text().to_owned();
                        owner.ask_at = Instant::now() + CEILING;
                    }
                    (0, false) => {
                        owner.state = State::Leaves;
                        self.send(by, Ask::Abandon);
                    }
                    _ => panic!("seed {}: undone while it waits", self.checks.seed),
                }
            }
            Ask::Confirm(token) => {
                owner.open = false;
                if owner.state != State::Waits {
                    return;
                }
                if answer.int() == 1 {
                    let token = token.parse().expect("a number");
                    owner.state = State::Holds { token, until };
                    self.checks.granted(&self.owners[by], token, until);
                } else {
                    owner.asks = true;
                }
            }
            Ask::Renew(_) => {
                owner.renews = false;
                if let State::Holds {
                    token,
                    until: before,
                } = owner.state
                {
                    let held = match answer {
                        Reply::List(each) => each[0].int(),
                        one => one.int(),
                    };
                    let until = if held == 1 { until.max(before) } else { before };
                    owner.state = State::Holds { token, until };
                }
            }
            Ask::Release(_) | Ask::Abandon => owner.state = State::Gone,
            Ask::Look => {
                let Reply::List(answer) = answer else {
                    panic!("a list");
                };
                let ms = answer[0].int();
                let soon = Duration::from_millis(if ms < 0 { 10 } else { ms as u64 + 2 });
                self.processes[n].look_at = Instant::now() + soon.min(LOOKS);
                if answer[3].int() == 0 {
                    self.all_ask(n);
                }
            }
        }
    }

    fn all_ask(&mut self, n: usize) {
        for owner in &mut self.owners {
            owner.asks |= owner.process == n;
        }
    }

    fn deliver_news(&mut self, n: usize) {
        if !self.runs(n) {
            return;
        }
        let Some(news) = self.processes[n].news.pop_front() else {
            return;
        };
        let words: Vec<_> = news.split(' ').collect();
        let owner = self
            .owners
            .iter_mut()
            .find(|o| words.len() > 1 && o.name == words[1]);
        match (words[0], owner) {
            ("g", Some(owner)) => owner.offer = words.last().map(|&token| token.to_owned()),
            ("w", Some(owner)) => owner.asks = true,
            ("x", None) => self.all_ask(n),
            ("n" | "f", None) => {}
            other => panic!("seed {}: news {other:?}", self.checks.seed),
        }
    }

    /// The connection for commands breaks.
    fn reset(&mut self, n: usize) {
        if !self.runs(n) {
            return;
        }
        let process = &mut self.processes[n];
        let unrun: Vec<_> = process.requests.drain(..).collect();
        let lost = unrun
            .iter()
            .chain(process.answers.iter().map(|(request, _)| request));
        let lost: Vec<_> = lost.cloned().collect();
        process.answers.clear();
        if !process.kills {
            process.late.extend(unrun);
        }
        let may_come_late = !process.kills;
        for Request { ask, by, .. } in lost {
            let owner = &mut self.owners[by];
            owner.tainted |= may_come_late;
            match ask {
                Ask::Step { .. } | Ask::Confirm(_) => {
                    owner.open = false;
                    owner.asks = true;
                }
                Ask::Renew(_) => owner.renews = false,
                Ask::Release(_) | Ask::Abandon => self.send(by, Ask::Abandon),
                Ask::Look => {}
            }
        }
    }

    fn lose_inbox(&mut self, n: usize) {
        if self.runs(n) {
            self.processes[n].inbox = None;
            self.processes[n].news.clear();
        }
    }

    fn open_inbox(&mut self, n: usize) {
        if self.runs(n) && self.processes[n].inbox.is_none() {
            let channel = self.processes[n].channel.clone();
            self.processes[n].inbox = Some(Inbox::open(self.server, &channel));
            self.all_ask(n);
        }
    }

    fn crash(&mut self, n: usize) {
        if self.processes.iter().filter(|p| p.is_alive).count() == 1 {
            return;
        }
        self.lose_inbox(n);
        let process = &mut self.processes[n];
        process.is_alive = false;
        process.answers.clear();
        process.requests.clear();
        process.late.clear();
        for owner in &mut self.owners {
            if owner.process == n {
                owner.state = State::Gone;
            }
        }
    }
}

#[test]
fn the_scripts_hold_on_bad_days() {
    let server = RedisServer::start();
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => (0..12).collect(),
    };
    let run = &|&seed: &u64| {
        let grants = Model::new(&server, seed).run(10_000);
        println!("seed {seed}: {grants} grants");
        grants
    };
    // In threads: most of the time of each is waited.
    let grants: usize = std::thread::scope(|scope| {
        let days: Vec<_> = seeds
            .iter()
            .map(|seed| scope.spawn(move || run(seed)))
            .collect();
        days.into_iter()
            .map(|day| day.join().expect("a good day"))
            .sum()
    });
    assert!(
        grants > 50 * seeds.len(),
        "{grants} grants are too few to say anything"
    );
}
