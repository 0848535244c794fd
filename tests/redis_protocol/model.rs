//! Processes as they are on bad days: requests and answers that are late or lost, news that are
//! late, inboxes that are down, processes that hang or crash, waiters that give up at any moment,
//! leases that run out. Each seed is another day. What must hold is in [`checks`](super::checks).

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{
    checks::Checks,
    scripts::{Inbox, Keys, OFFER, QUEUE_LIFE},
    servers::{RedisServer, Reply},
    world::{Ask, Owner, Process, Request, State},
};

/// How long a waiter waits before it asks again, and a process before it looks.
pub(crate) const CEILING: Duration = Duration::from_millis(100);
pub(crate) const LOOKS: Duration = Duration::from_millis(30);
pub(crate) struct Model<'a> {
    server: &'a RedisServer,
    rng: fastrand::Rng,
    keys: Keys,
    pub(crate) processes: Vec<Process>,
    pub(crate) owners: Vec<Owner>,
    pub(crate) checks: Checks,
    /// No more faults.
    calm: bool,
}

impl<'a> Model<'a> {
    pub(crate) fn new(server: &'a RedisServer, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let name = format!("model-{seed}-{:08x}", fastrand::u32(..));
        let processes = (0..3).map(|n| {
            let channel = format!("{name}:inbox:{n}");
            Process::new(server, channel, n != 2)
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
        let record = self.keys.record();
        self.checks
            .in_the_end(&self.server.command(&["GET", &record]), &self.owners);
        left.retain(|key| *key != record);
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
            99 if !self.calm => self.interfere(n),
            _ => self.deliver_late(n),
        }
    }

    pub(crate) fn runs(&self, n: usize) -> bool {
        self.processes[n].runs()
    }

    fn arrive(&mut self, n: usize) {
        let alive = self
            .owners
            .iter()
            .filter(|o| o.state != State::Gone)
            .count();
        // On some days there is mostly somebody who waits, on others nobody.
        let crowd = [14, 3, 1][self.checks.seed as usize % 3];
        if !self.runs(n) || alive > crowd {
            return;
        }
        self.owners.push(Owner::random(&mut self.rng, n));
        self.tick(n);
    }

    pub(crate) fn send(&mut self, by: usize, ask: Ask) {
        let owner = &self.owners[by];
        let process = &mut self.processes[owner.process];
        let command = owner.command(&ask, process, &self.keys);
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
                // Who asks for the record too confirms by asking again.
                Some(token) if !owner.shared && !owner.loads => {
                    self.send(by, Ask::Confirm(token));
                }
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
        let now = Instant::now();
        let mine = |o: &Owner| {
            o.process == n
                && matches!(o.state, State::Waits | State::Holds { .. })
                && (self.calm || o.paused_until <= now)
        };
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
                    3..8 if owner.loads => Ask::Save {
                        token,
                        keeps: self.rng.u32(..3) == 0,
                    },
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
        if matches!(request.ask, Ask::ForceRelease) {
            self.revoke_all();
        }
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
                // As a manager does, which repeats a save and goes on to release.
                Ask::Save { .. } if self.rng.bool() => self.send(by, ask),
                Ask::Save { .. } => self.send(by, Ask::Abandon),
                Ask::Look | Ask::ForceRelease | Ask::Gate => {}
            }
        }
    }

    /// What is done to the key by others than its holders and waiters.
    fn interfere(&mut self, n: usize) {
        let lock = self.keys.lock();
        match (self.rng.u32(..4), self.owners.len().checked_sub(1)) {
            (0, _) => {
                let sent = Instant::now();
                let set = ["SET", lock, "foreign", "NX", "PX", "20"];
                if !self.server.command(&set).is_nil() {
                    self.checks.foreign_until = sent + Duration::from_millis(18);
                }
            }
            (1, _) if self.server.command(&["GET", lock]).to_string() == "foreign" => {
                self.checks.foreign_until = Instant::now();
                self.server.command(&["DEL", lock]);
            }
            (2, Some(by)) if self.rng.u32(..4) == 0 => self.send(by, Ask::Gate),
            // Its ttl is over.
            (2, _) => self.checks.end_result(&self.keys),
            (3, Some(by)) if self.rng.u32(..3) == 0 && self.runs(n) => {
                self.send(by, Ask::ForceRelease);
            }
            _ => {}
        }
    }

    /// Whoever holds at the server right now is about to be told that it does not.
    fn revoke_all(&mut self) {
        // A foreign one is not told, and not counted on any more.
        self.checks.foreign_until = Instant::now();
        let lock = self.server.command(&["GET", self.keys.lock()]).to_string();
        let readers = self
            .server
            .command(&["ZRANGE", self.keys.readers(), "0", "-1"]);
        let words: Vec<_> = lock.split(' ').collect();
        let Some(token) = words.get(3).and_then(|token| token.parse().ok()) else {
            return;
        };
        let readers = readers.texts();
        for owner in &mut self.owners {
            let reads = readers.iter().any(|who| who.starts_with(&owner.name));
            if words[1] == owner.name || (words[1] == "*" && reads) {
                owner.revoked = Some(token);
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
                owner.crashed |= owner.state != State::Gone;
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
        grants > 20 * seeds.len(),
        "{grants} grants are too few to say anything"
    );
}
