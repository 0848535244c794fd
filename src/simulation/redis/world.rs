//! The world: the server, the network, the processes, what befalls them, and what must be true of
//! it at each moment.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    rc::Rc,
    sync::{Arc, Mutex},
};

use super::{
    MS, SECOND, Settings, Time, WINDOW,
    log::{Belief, Log},
    net::Net,
    process::Process,
    server::{Does, Server},
};
use crate::{LockKey, simulation::History, sync::lock};

/// How long a key may be free while somebody waits: a look each second, and what it takes.
const FREE: Time = 1600 * MS;
/// How long what nobody has may stand there: an answer is waited for a second, then undone.
const ORPHAN: Time = 2500 * MS;
/// How long it takes until all is well after a fault.
const RECOVERY: Time = 5 * SECOND;
/// However slow, all that callers wait for ends long before.
const LONGEST: Time = 300 * SECOND;

pub(super) struct World {
    settings: Settings,
    random: fastrand::Rng,
    now: Time,
    net: Arc<Mutex<Net>>,
    server: Server,
    /// It executes nothing until then.
    pauses_until: Time,
    processes: Vec<Process>,
    keys: Rc<Vec<LockKey>>,
    log: Rc<RefCell<Log>>,
    /// How long it is from fault to fault, about.
    calm: Time,
    well_since: Time,
    free_since: Vec<Time>,
    orphan_since: Vec<(u64, Time)>,
    /// Who has the lock at the server, and the last places in its queue.
    owners: Vec<Option<String>>,
    places: BTreeMap<String, f64>,
    crashed: bool,
}

impl World {
    pub(super) fn run(settings: Settings, seed: u64) -> History {
        // For what the crate itself draws: jitter and owner tokens.
        fastrand::seed(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let takes = (WINDOW, WINDOW + random.u64(0..60) * MS);
        let mut net = Net::new(random.fork(), takes);
        if settings.troubles && random.u8(..3) == 0 {
            net.loses = 100;
        }
        net.loses = settings.loses.unwrap_or(net.loses);
        let keys: Vec<_> = (0..settings.keys).map(|n| LockKey::new("k", n)).collect();
        let mut world = Self {
            settings,
            now: 0,
            net: Arc::new(Mutex::new(net)),
            server: Server::new(settings.twist),
            pauses_until: 0,
            processes: Vec::new(),
            free_since: vec![0; keys.len()],
            orphan_since: vec![(0, 0); keys.len()],
            owners: vec![None; keys.len()],
            places: BTreeMap::new(),
            keys: Rc::new(keys),
            log: Rc::default(),
            calm: settings
                .every
                .unwrap_or([500, 1500, 4000][random.usize(..3)] * MS),
            well_since: 0,
            crashed: false,
            random,
        };
        super::twist::with(settings.twist, || world.live());
        world.log.take().history
    }

    fn live(&mut self) {
        for id in 0..self.settings.processes {
            let process = Process::start(
                id,
                self.now,
                self.settings,
                &self.net,
                &self.keys,
                &self.log,
                &mut self.random,
            );
            self.processes.push(process);
        }
        while !self.processes.iter().all(Process::has_ended) {
            if self.settings.troubles && self.now < self.settings.lasts {
                self.trouble();
            }
            self.step();
            if self.now > LONGEST {
                self.problem("somebody waits for ever");
                break;
            }
        }
        let began = self.now.max(self.well_since);
        for process in &mut self.processes {
            process.shut_down(&self.log);
        }
        let until = if self.crashed {
            // Leases of the dead run out, and queues.
            began + 16 * SECOND
        } else {
            began + ORPHAN
        };
        while self.now < until {
            self.step();
        }
        self.log.borrow_mut().check();
        let names = self.server.data.borrow_mut().names();
        for name in names {
            if !name.starts_with("sim:token:") && !name.contains("}:u") {
                self.problem(format_args!("left at the server: {name}"));
            }
        }
        let open = lock(&self.net);
        let lines = open.lines.values().map(|line| line.process);
        let left: Vec<_> = lines.collect();
        drop(open);
        for process in left {
            if self.processes.iter().any(|p| p.id == process) {
                self.problem(format_args!("process {process} leaves a connection"));
            }
        }
        for process in self.processes.drain(..) {
            process.crash();
        }
    }

    fn problem(&self, what: impl std::fmt::Display) {
        self.log.borrow_mut().problem(self.now, what);
    }

    fn event(&self, name: &'static str, what: impl std::fmt::Display) {
        self.log.borrow_mut().event(self.now, name, what);
    }

    fn step(&mut self) {
        let until = self.now + WINDOW;
        while self.pauses_until < until {
            let arrival = lock(&self.net).arrival(until);
            let Some(arrival) = arrival else {
                break;
            };
            let at = arrival.at.max(self.now);
            let Some(bytes) = arrival.bytes else {
                self.server.close(arrival.line);
                continue;
            };
            self.server.takes(arrival.line, &bytes);
            self.execute(at, arrival.line);
        }
        for process in &mut self.processes {
            process.run(until);
        }
        lock(&self.net).tidy();
        self.now = until;
        self.server.data.borrow_mut().now = until;
        self.look_at_keys();
    }

    fn execute(&mut self, at: Time, line: u64) {
        let mut forced = self.server.forced;
        while let Some(does) = self.server.executes(at, line) {
            if self.server.forced > forced {
                forced = self.server.forced;
                self.log.borrow_mut().amnesia.push(at);
            }
            let mut net = lock(&self.net);
            for each in does {
                match each {
                    Does::Sends(line, bytes) => net.send_down(line, at, Some(bytes)),
                    Does::Closes(line) => net.send_down(line, at, None),
                }
            }
            drop(net);
            self.look_at_queues();
        }
    }

    fn name(&self, key: usize) -> String {
        format!("sim:{}", self.keys[key].as_str())
    }

    /// After each command: every key has an end, and the first in line is next.
    fn look_at_queues(&mut self) {
        let mut data = self.server.data.borrow_mut();
        let mut problems = Vec::new();
        if let Some(name) = data.without_end() {
            problems.push(format!("{name} has no end"));
        }
        for key in 0..self.keys.len() {
            let name = self.name(key);
            let queue = data.members(format!("{{{name}}}:q").as_bytes());
            let value = data.text(name.as_bytes());
            let owner = value.as_deref().and_then(owner_of).map(str::to_owned);
            if owner != self.owners[key]
                && let Some(owner) = &owner
                && self.owners[key].as_ref() != Some(owner)
            {
                let mine = self.places.get(owner).copied().unwrap_or(f64::INFINITY);
                for (score, entry) in &queue {
                    let waits = *score < 4.2e15 && !entry.starts_with('!');
                    if waits && *score < mine && !entry.starts_with(owner.as_str()) {
                        let what = "the first in line is passed over";
                        problems.push(format!("key {key}: {what}: {owner} {mine}, {queue:?}"));
                    }
                }
            }
            self.owners[key] = owner;
            for (score, entry) in queue {
                let owner = entry.trim_start_matches('!').split(' ').next();
                self.places
                    .insert(owner.unwrap_or_default().to_owned(), score);
            }
        }
        drop(data);
        for problem in problems {
            self.problem(problem);
        }
    }

    /// In each window: nobody waits for a free key, and nothing stands for nobody.
    fn look_at_keys(&mut self) {
        let beliefs: Vec<_> = {
            let log = self.log.borrow();
            let live = log.beliefs.iter().filter(|b| !b.has_ended());
            live.cloned().collect()
        };
        for belief in &beliefs {
            let process = self.processes.iter().find(|p| p.id == belief.process);
            if let (Some(held), Some(process)) = (belief.held(), process)
                && !process.stands(self.now)
            {
                belief.knows(self.now, process.remaining(&held));
            }
        }
        for key in 0..self.keys.len() {
            let name = self.name(key);
            let value = self.server.data.borrow_mut().text(name.as_bytes());
            let waits = self.processes.iter().any(|process| {
                let waiting = process.waiting.borrow();
                let for_long = |since: Time| self.now > since + FREE;
                !process.stands(self.now)
                    && waiting.iter().any(|w| w.key == key && for_long(w.since))
            });
            if value.is_some() || !waits || self.now < self.well_since {
                self.free_since[key] = self.now;
            } else if self.now > self.free_since[key] + FREE {
                self.problem(format_args!("key {key} is free, and somebody waits"));
                self.free_since[key] = LONGEST;
            }
            let token = value.as_deref().and_then(|value| {
                let mut words = value.split(' ');
                let inbox = words.nth(2)?;
                let token = words.next()?.parse::<u64>().ok()?;
                let alive =
                    |p: &Process| inbox == format!("sim:inbox:{}", p.id) && !p.stands(self.now);
                self.processes.iter().any(alive).then_some(token)
            });
            let known = |token: u64| {
                let mut believed = beliefs.iter().filter(|b| b.key == key);
                believed.any(|b| b.may_stand_for(token))
            };
            match token.filter(|token| !known(*token)) {
                Some(token) if self.now >= self.well_since => {
                    let (before, since) = self.orphan_since[key];
                    if before != token {
                        self.orphan_since[key] = (token, self.now);
                    } else if self.now > since + ORPHAN {
                        self.problem(format_args!("key {key} is held for nobody"));
                        self.orphan_since[key].1 = LONGEST;
                    }
                }
                _ => self.orphan_since[key] = (0, self.now),
            }
        }
    }

    fn unwell(&mut self, until: Time) {
        self.well_since = self.well_since.max(until + RECOVERY);
    }

    fn lines_of(&self, process: usize) -> Vec<u64> {
        let net = lock(&self.net);
        let lines = net.lines.iter().filter(|(_, l)| l.process == process);
        lines.map(|(id, _)| *id).collect()
    }

    fn trouble(&mut self) {
        if self.random.u64(0..self.calm) >= WINDOW {
            return;
        }
        let now = self.now;
        let n = self.random.usize(..self.processes.len());
        let id = self.processes[n].id;
        let time = self.random.u64(0..3000) * MS;
        match self.random.u8(..24) {
            0..4 => {
                let later = now + time;
                self.event(
                    "resets",
                    format_args!("{id} is reset, the server hears in {time}"),
                );
                for line in self.lines_of(id) {
                    if self.random.u8(..3) > 0 {
                        lock(&self.net).break_client_side(line, later);
                    }
                }
                self.unwell(later);
            }
            4..6 => {
                self.event("resets", format_args!("{id} is reset"));
                for line in self.lines_of(id) {
                    self.server.close(line);
                    lock(&self.net).break_both(line);
                }
                self.unwell(now);
            }
            6..10 => {
                let (up, down) = match self.random.u8(..3) {
                    0 => (now + time, 0),
                    1 => (0, now + time),
                    _ => (now + time, now + time),
                };
                self.event("cuts", format_args!("{id} is cut off: {up} {down}"));
                lock(&self.net).cut(id, up, down);
                self.unwell(now + time);
            }
            10..13 => {
                self.event("pauses", format_args!("the server stands still for {time}"));
                self.pauses_until = now + time;
                self.unwell(now + time);
            }
            13..15 => {
                let empty = self.random.bool();
                let name = if empty { "losses of data" } else { "restarts" };
                self.event(name, format_args!("the server is restarted within {time}"));
                self.server.restart(empty);
                let mut net = lock(&self.net);
                net.down_until = now + time / 2;
                let lines: Vec<_> = net.lines.keys().copied().collect();
                for line in lines {
                    net.break_both(line);
                }
                drop(net);
                if empty {
                    self.log.borrow_mut().amnesia.push(now);
                }
                self.pauses_until = self.pauses_until.max(now + time / 2);
                self.unwell(now + time);
            }
            15..18 => {
                self.event("standstills", format_args!("{id} stands still for {time}"));
                self.processes[n].stands_until = now + time;
                self.unwell(now + time);
            }
            18 if self.processes.len() > 1 => {
                let vanishes = self.random.bool();
                self.event("crashes", format_args!("{id} ends, vanishes {vanishes}"));
                if vanishes {
                    lock(&self.net).cut(id, Time::MAX, Time::MAX);
                }
                for belief in &self.log.borrow().beliefs {
                    if belief.process == id {
                        belief.ends_at(now);
                    }
                }
                self.processes.remove(n).crash();
                self.crashed = true;
                self.unwell(now + 2 * SECOND);
            }
            19 => {
                self.event("scripts", "the server forgets its scripts");
                self.server.forget_scripts();
            }
            20 => {
                let key = self.random.usize(..self.keys.len());
                self.event("force releases", format_args!("{id} takes key {key} away"));
                let key = self.keys[key].clone();
                self.processes[n].force_release(key);
            }
            21 | 22 => {
                let key = self.random.usize(..self.keys.len());
                let ms = (time / MS).max(1).to_string();
                let name = self.name(key);
                let args = ["SET", &name, "another's", "NX", "PX", &ms];
                let args = args.map(|arg| arg.as_bytes().to_vec());
                let reply = self.server.data.borrow_mut().run(&args);
                if reply == super::keyspace::Reply::Status("OK") {
                    self.event("foreign", format_args!("another has key {key} for {ms} ms"));
                    let belief = Belief::foreign(key, now, now + time);
                    self.log.borrow_mut().beliefs.push(Rc::new(belief));
                }
            }
            _ => {
                let most = self.random.u64(1..200) * MS;
                self.event("slow", format_args!("messages take up to {most}"));
                lock(&self.net).takes.1 = WINDOW + most;
            }
        }
    }
}

fn owner_of(value: &str) -> Option<&str> {
    let mut words = value.split(' ');
    let owner = words.nth(1)?;
    (value.starts_with("1 ") && owner != "*").then_some(owner)
}
