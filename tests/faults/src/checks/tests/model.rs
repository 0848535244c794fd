//! A lock in virtual time, right or with one flaw, and processes that stop, die and are cut off.
//!
//! The lock is a server that offers a key to the head of its queue, and clients that confirm before
//! they count on it, from when they sent. A storage compares tokens.

use std::collections::{BTreeMap, VecDeque};

use super::script::MS;
use crate::{
    checks::Rules,
    history::{AttemptId, Event, History, Nanos, Order, What},
};

const KEYS: usize = 2;
const PROCESSES: u32 = 3;
const TASKS: u32 = 3;
const TTL: Nanos = 400 * MS;
/// How long an offer stands.
const OFFER: Nanos = 150 * MS;
/// What a holder takes off, so that it is told before the server can know.
const EARLY: Nanos = 2 * MS;
const ENDS: Nanos = 20_000 * MS;

/// What is wrong with a lock, or with its storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// A release frees whoever holds.
    NoOwnerCheck,
    /// The storage takes everything.
    NoFence,
    /// Tokens are not compared when the storage is read.
    FenceOnWritesOnly,
    /// The storage refuses the token that it has.
    RefusesHolder,
    /// A restarted server counts from one.
    CounterLost,
    /// Who follows on a lease that ran out has its token.
    TokenKeptAtExpiry,
    /// A restarted server knows no holders.
    HoldersLost,
    /// The last of the queue is woken now and then.
    LastFirst,
    /// A lease is counted from the reply.
    FromReply,
    /// A waiter drops out of the queue, and waits on.
    ForgetsWaiter,
    /// Who runs out of time hears of it late.
    AnswersLate,
    /// Who loses its lock hears of it late.
    TellsLate,
    /// After a fault nobody is woken for long.
    SleepsAfterFault,
    /// After a fault everybody is told at once that the server is away.
    RefusesAfterFault,
    /// A release leaves the key to the end of its lease, now and then.
    ReleaseDoesNothing,
}

pub(super) fn rules() -> Rules {
    Rules {
        // Requests take up to 40 ms.
        order_slack: 60 * MS,
        own_order_slack: 5 * MS,
        reconnects: 0,
        order_kept_under: Vec::new(),
        stopped_by: Vec::new(),
        answer_slack: 100 * MS,
        told_slack: 100 * MS,
        recovery: 2500 * MS,
        drain: 3000 * MS,
        // Less than a lease; two who leave when it is their turn take 320 ms.
        hand_off: 350 * MS,
        stall: 300 * MS,
    }
}

/// A whole history.
pub(super) fn run(seed: u64, flaw: Option<Flaw>) -> History {
    let mut world = World {
        rng: fastrand::Rng::with_seed(seed),
        flaw,
        now: 1_000 * MS,
        agenda: BTreeMap::new(),
        number: 0,
        events: Vec::new(),
        processes: BTreeMap::new(),
        attempts: BTreeMap::new(),
        keys: (0..KEYS).map(|_| Queue::new()).collect(),
        rows: (0..KEYS).map(|_| Row::default()).collect(),
        asleep_until: 0,
        refuses: false,
    };
    for process in 0..PROCESSES {
        world.start(process);
    }
    let first = world.between(500, 1500);
    world.after(first, Do::Strike);
    while let Some(((at, _), next)) = world.agenda.pop_first() {
        world.now = at;
        world.take(next);
    }
    for (key, row) in world.rows.clone().into_iter().enumerate() {
        world.write(What::Sum {
            key: key as u32,
            accepted: row.accepted,
            fenced: row.fenced,
            written: row.written,
            unfenced: row.unfenced,
        });
    }
    History::of(world.events).expect("a history")
}

struct World {
    rng: fastrand::Rng,
    flaw: Option<Flaw>,
    now: Nanos,
    agenda: BTreeMap<(Nanos, u64), Do>,
    number: u64,
    events: Vec<Event>,
    processes: BTreeMap<u32, Process>,
    attempts: BTreeMap<AttemptId, Client>,
    keys: Vec<Queue>,
    rows: Vec<Row>,
    /// The flaw: nobody is woken before.
    asleep_until: Nanos,
    /// The flaw: everybody is refused.
    refuses: bool,
}

#[derive(Default)]
struct Process {
    stopped_until: Nanos,
    cut_until: Nanos,
    dead: bool,
    /// When the last message of each direction arrives: a connection keeps the order.
    up: Nanos,
    down: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Holding,
    Over,
}

struct Client {
    key: usize,
    state: State,
    token: u64,
    valid_until: Nanos,
    /// It works on after it was told.
    stubborn: bool,
    forgotten: bool,
    /// What it read.
    row: Option<Row>,
}

/// A key at the server.
struct Queue {
    holder: Option<(AttemptId, Nanos)>,
    waiters: VecDeque<AttemptId>,
    /// The next one, or the one that is held.
    token: u64,
}

impl Queue {
    fn new() -> Self {
        Self {
            holder: None,
            waiters: VecDeque::new(),
            token: 1,
        }
    }
}

/// A key at the storage.
#[derive(Clone, Copy, Default)]
struct Row {
    highest: u64,
    accepted: u64,
    fenced: u64,
    written: u64,
    unfenced: u64,
}

enum Do {
    /// By a process, unless it is stopped or dead.
    Here(u32, Here),
    /// By the server.
    There(AttemptId, There),
    /// The lease that ends then has ended, if it is still the one.
    Expired(usize, Nanos),
    Strike,
    Continued(u32),
    Healed(Option<u32>),
}

#[derive(Clone, Copy)]
enum Here {
    Begin,
    Offered(AttemptId, u64),
    Confirmed(AttemptId, Nanos),
    Foreign(AttemptId),
    TimeUp(AttemptId),
    AskAgain(AttemptId),
    Leave(AttemptId),
    Claim(AttemptId),
    Write(AttemptId),
    Release(AttemptId),
    Renew(AttemptId),
    Deadline(AttemptId),
}

#[derive(Clone, Copy)]
enum There {
    Acquire,
    Confirm(Nanos),
    Release,
}

impl World {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Milliseconds, at random.
    fn between(&mut self, from: u64, to: u64) -> Nanos {
        self.rng.u64(from * MS..to * MS)
    }

    fn write(&mut self, what: What) {
        let at = self.now;
        self.events.push(Event { at, what });
    }

    fn at(&mut self, at: Nanos, what: Do) {
        self.number += 1;
        self.agenda.insert((at, self.number), what);
    }

    fn after(&mut self, time: Nanos, what: Do) {
        self.at(self.now + time, what);
    }

    fn here(&mut self, process: u32, time: Nanos, here: Here) {
        self.after(time, Do::Here(process, here));
    }

    fn start(&mut self, process: u32) {
        self.processes.insert(process, Process::default());
        self.write(What::Started { process });
        for _ in 0..TASKS {
            let time = self.between(0, 50);
            self.here(process, time, Here::Begin);
        }
    }

    fn take(&mut self, next: Do) {
        match next {
            Do::Here(process, here) => {
                let Process {
                    stopped_until,
                    dead,
                    ..
                } = self.processes[&process];
                if dead {
                } else if self.now < stopped_until {
                    // All of them in the order in which they were due.
                    self.at(stopped_until, Do::Here(process, here));
                } else {
                    self.act(process, here);
                }
            }
            Do::There(id, there) => self.serve(id, there),
            Do::Expired(key, at) => {
                let expired = |holder: &(_, Nanos)| holder.1 == at;
                if self.keys[key].holder.as_ref().is_some_and(expired) {
                    self.keys[key].holder = None;
                    if !self.is(Flaw::TokenKeptAtExpiry) {
                        self.keys[key].token += 1;
                    }
                    self.wake(key);
                }
            }
            Do::Strike => self.strike(),
            Do::Continued(process) => {
                if !self.processes[&process].dead {
                    self.write(What::Continued { process });
                }
            }
            Do::Healed(process) => {
                self.healed("cut", process);
            }
        }
    }

    fn latency(&mut self) -> Nanos {
        match self.rng.u8(0..6) {
            0 => self.between(5, 40),
            _ => self.between(1, 3),
        }
    }

    fn is_cut(&self, process: u32) -> bool {
        let process = &self.processes[&process];
        process.dead || self.now < process.cut_until
    }

    /// To the server.
    fn send(&mut self, id: AttemptId, there: There) {
        if self.is_cut(id.process) {
            return;
        }
        let arrives = self.now + self.latency();
        let process = self.processes.get_mut(&id.process).expect("it runs");
        process.up = process.up.max(arrives);
        let arrives = process.up;
        self.at(arrives, Do::There(id, there));
    }

    /// To a process.
    fn reply(&mut self, to: u32, here: Here) {
        if self.is_cut(to) {
            return;
        }
        let arrives = self.now + self.latency();
        let process = self.processes.get_mut(&to).expect("it runs");
        process.down = process.down.max(arrives);
        let arrives = process.down;
        self.at(arrives, Do::Here(to, here));
    }

    // The server.

    fn serve(&mut self, id: AttemptId, there: There) {
        if self.is_cut(id.process) {
            return;
        }
        let key = self.attempts[&id].key;
        let no_owner_check = self.is(Flaw::NoOwnerCheck);
        let does_nothing = self.is(Flaw::ReleaseDoesNothing) && self.rng.u8(0..20) == 0;
        let queue = &mut self.keys[key];
        let holds = queue.holder.is_some_and(|holder| holder.0 == id);
        match there {
            There::Acquire if holds => {
                let token = queue.token;
                self.reply(id.process, Here::Offered(id, token));
            }
            There::Acquire => {
                if !queue.waiters.contains(&id) {
                    queue.waiters.push_back(id);
                }
                self.wake(key);
            }
            There::Confirm(sent) if holds => {
                let until = self.now + TTL;
                queue.holder = Some((id, until));
                self.at(until, Do::Expired(key, until));
                self.reply(id.process, Here::Confirmed(id, sent));
            }
            There::Confirm(_) => self.reply(id.process, Here::Foreign(id)),
            There::Release => {
                queue.waiters.retain(|waiter| *waiter != id);
                if (holds && !does_nothing) || no_owner_check {
                    queue.holder = None;
                    queue.token += 1;
                }
                self.wake(key);
            }
        }
    }

    /// Offers a free key to the head of its queue.
    fn wake(&mut self, key: usize) {
        if self.now < self.asleep_until || self.keys[key].holder.is_some() {
            return;
        }
        let last_first = self.is(Flaw::LastFirst) && self.rng.u8(0..4) == 0;
        let forgets = self.is(Flaw::ForgetsWaiter) && self.rng.u8(0..20) == 0;
        let queue = &mut self.keys[key];
        let next = if last_first {
            queue.waiters.pop_back()
        } else {
            queue.waiters.pop_front()
        };
        let Some(id) = next else { return };
        if forgets {
            self.attempts.get_mut(&id).expect("it asked").forgotten = true;
            return self.wake(key);
        }
        let until = self.now + OFFER;
        queue.holder = Some((id, until));
        let token = queue.token;
        self.at(until, Do::Expired(key, until));
        self.reply(id.process, Here::Offered(id, token));
    }

    // The clients.

    fn act(&mut self, process: u32, here: Here) {
        let (id, state) = match here {
            Here::Begin => return self.begin(process),
            Here::Offered(id, _)
            | Here::Confirmed(id, _)
            | Here::Foreign(id)
            | Here::TimeUp(id)
            | Here::AskAgain(id)
            | Here::Leave(id)
            | Here::Claim(id)
            | Here::Write(id)
            | Here::Release(id)
            | Here::Renew(id)
            | Here::Deadline(id) => (id, self.attempts[&id].state),
        };
        match (here, state) {
            (Here::Offered(_, token), State::Waiting) => {
                self.attempts.get_mut(&id).expect("its own").token = token;
                self.send(id, There::Confirm(self.now));
            }
            (Here::Offered(..), State::Over) => self.send(id, There::Release),
            (Here::Confirmed(_, sent), State::Waiting | State::Holding) => {
                self.confirmed(id, sent, state == State::Holding);
            }
            (Here::Foreign(_), State::Waiting) => self.send(id, There::Acquire),
            (Here::Foreign(_), State::Holding) if !self.is(Flaw::TellsLate) => {
                self.over(id, What::Lost { id });
            }
            (Here::TimeUp(_), State::Waiting) if !self.attempts[&id].forgotten => {
                let why = "wait_timed_out".to_owned();
                self.over(id, What::Refused { id, why });
            }
            (Here::AskAgain(_), State::Waiting) if !self.attempts[&id].forgotten => {
                self.send(id, There::Acquire);
                self.here(process, 400 * MS, here);
            }
            (Here::Leave(_), State::Waiting | State::Holding) => {
                self.over(id, What::Cancelled { id });
            }
            (Here::Claim(_), State::Holding) => self.claim(id),
            (Here::Write(_), State::Holding) => self.store(id),
            (Here::Write(_), State::Over) if self.attempts[&id].stubborn => self.store(id),
            (Here::Release(_), State::Holding) => self.over(id, What::Releases { id }),
            (Here::Renew(_), State::Holding) => {
                self.send(id, There::Confirm(self.now));
                self.here(process, TTL / 3, here);
            }
            (Here::Deadline(_), State::Holding) => {
                let late = if self.is(Flaw::TellsLate) {
                    600 * MS
                } else {
                    0
                };
                if self.attempts[&id].valid_until + late <= self.now + EARLY {
                    self.over(id, What::Lost { id });
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, process: u32) {
        if self.now > ENDS {
            return;
        }
        self.number += 1;
        let id = AttemptId {
            process,
            number: self.number,
        };
        let key = self.rng.usize(0..KEYS);
        let wait = self.between(300, 2000);
        let client = Client {
            key,
            state: State::Waiting,
            token: 0,
            valid_until: 0,
            stubborn: self.rng.u8(0..4) == 0,
            forgotten: false,
            row: None,
        };
        self.attempts.insert(id, client);
        self.write(What::Call {
            id,
            key: key as u32,
            order: Order::Fifo,
            wait,
        });
        if self.refuses {
            let why = "backend_unavailable".to_owned();
            return self.over(id, What::Refused { id, why });
        }
        self.send(id, There::Acquire);
        self.here(process, 400 * MS, Here::AskAgain(id));
        let late = if self.is(Flaw::AnswersLate) && self.rng.u8(0..4) == 0 {
            700 * MS
        } else {
            0
        };
        self.here(process, wait + late, Here::TimeUp(id));
        if self.rng.u8(0..10) == 0 {
            let time = self.between(0, 300);
            self.here(process, time, Here::Leave(id));
        }
    }

    /// It is over, and whoever holds for it at the server need not.
    fn over(&mut self, id: AttemptId, what: What) {
        self.write(what);
        self.attempts.get_mut(&id).expect("its own").state = State::Over;
        self.send(id, There::Release);
        let time = self.between(0, 60);
        self.here(id.process, time, Here::Begin);
    }

    fn confirmed(&mut self, id: AttemptId, sent: Nanos, holding: bool) {
        let from = if self.is(Flaw::FromReply) {
            self.now
        } else {
            sent
        };
        let valid_until = from + TTL - EARLY;
        if valid_until <= self.now + EARLY {
            // A stop has eaten it up; a holder's deadline is due as well.
            return;
        }
        let client = self.attempts.get_mut(&id).expect("its own");
        client.valid_until = client.valid_until.max(valid_until);
        client.state = State::Holding;
        let token = client.token;
        let deadline = valid_until - EARLY - self.now;
        self.here(id.process, deadline, Here::Deadline(id));
        if self.is(Flaw::TellsLate) {
            self.here(id.process, deadline + 601 * MS, Here::Deadline(id));
        }
        if holding {
            return self.write(What::Renewed { id, valid_until });
        }
        self.write(What::Granted {
            id,
            token,
            valid_until,
        });
        let holds = match self.rng.u8(0..10) {
            0 | 1 => self.between(200, 900),
            _ => self.between(5, 60),
        };
        let claims = self.between(0, 3);
        self.here(id.process, claims, Here::Claim(id));
        self.here(id.process, holds, Here::Write(id));
        self.here(id.process, holds + 1, Here::Release(id));
        self.here(id.process, TTL / 3, Here::Renew(id));
    }

    // The storage, which is asked without delay.

    fn claim(&mut self, id: AttemptId) {
        let Client { key, token, .. } = self.attempts[&id];
        let lax = self.is(Flaw::NoFence) || self.is(Flaw::FenceOnWritesOnly);
        let row = &mut self.rows[key];
        let accepted = lax || row.highest <= token;
        if accepted && !lax {
            row.highest = token;
        }
        let read = *row;
        self.attempts.get_mut(&id).expect("its own").row = Some(read);
        self.write(What::Claim {
            id,
            key: key as u32,
            token,
            accepted,
        });
    }

    fn store(&mut self, id: AttemptId) {
        let Client {
            key, token, row, ..
        } = self.attempts[&id];
        let Some(read) = row else { return };
        let open = self.is(Flaw::NoFence);
        let own = self.is(Flaw::FenceOnWritesOnly);
        let refuses = self.is(Flaw::RefusesHolder) && self.rng.u8(0..50) == 0;
        let row = &mut self.rows[key];
        row.written += 1;
        row.unfenced = read.unfenced + 1;
        let accepted = open || (own && row.highest <= token) || (row.highest == token && !refuses);
        if accepted {
            row.highest = row.highest.max(token);
            row.accepted += 1;
            row.fenced = read.fenced + 1;
        }
        self.write(What::Write {
            id,
            key: key as u32,
            token,
            accepted,
        });
    }

    // What befalls them.

    fn strike(&mut self) {
        if self.now > ENDS {
            return;
        }
        let running = self.processes.iter().filter(|(_, known)| !known.dead);
        let running: Vec<u32> = running.map(|(process, _)| *process).collect();
        let process = running[self.rng.usize(0..running.len())];
        let time = self.between(100, 1500);
        match self.rng.u8(0..5) {
            0 => {
                self.write(What::Stopped { process });
                let until = self.now + time;
                self.processes
                    .get_mut(&process)
                    .expect("it runs")
                    .stopped_until = until;
                self.at(until, Do::Continued(process));
            }
            1 => self.cut(&[process], Some(process), time),
            2 => self.cut(&running, None, time),
            3 => self.kill(process),
            _ => {
                self.fault("restart", None);
                for key in 0..KEYS {
                    if self.is(Flaw::CounterLost) {
                        self.keys[key].token = 1;
                    }
                    if self.is(Flaw::HoldersLost) && self.keys[key].holder.take().is_some() {
                        self.keys[key].token += 1;
                        self.wake(key);
                    }
                }
                self.healed("restart", None);
            }
        }
        let next = time + self.between(1000, 4000);
        self.after(next, Do::Strike);
    }

    fn fault(&mut self, name: &str, process: Option<u32>) {
        let name = name.to_owned();
        self.write(What::Fault { name, process });
    }

    fn healed(&mut self, name: &str, process: Option<u32>) {
        let name = name.to_owned();
        self.write(What::Healed { name, process });
        if self.is(Flaw::SleepsAfterFault) {
            self.asleep_until = self.now + 5000 * MS;
        }
        self.refuses |= self.is(Flaw::RefusesAfterFault);
    }

    fn cut(&mut self, processes: &[u32], named: Option<u32>, time: Nanos) {
        let until = self.now + time;
        for process in processes {
            self.processes.get_mut(process).expect("it runs").cut_until = until;
        }
        self.fault("cut", named);
        self.at(until, Do::Healed(named));
    }

    /// What it waited for ends with its connection, what it held with its lease. Another process
    /// is started.
    fn kill(&mut self, process: u32) {
        self.write(What::Killed { process });
        self.processes.get_mut(&process).expect("it runs").dead = true;
        for queue in &mut self.keys {
            queue.waiters.retain(|waiter| waiter.process != process);
        }
        let next = self.processes.len() as u32;
        self.start(next);
    }
}
