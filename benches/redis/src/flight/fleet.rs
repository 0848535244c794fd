//! The processes of a candidate, and what they measured.

use std::{
    collections::BTreeMap,
    process::Command,
    time::{Duration, Instant},
};

use super::candidate::Candidate;
use crate::{
    report::{median, quantile},
    server::{Server, Work},
    servers::Process,
};

/// Processes whose requests fly together; the leader is one of the first.
pub(super) struct Fleet {
    pub(super) candidate: Candidate,
    processes: Vec<Process>,
    /// Since the fleet started: each flight has a key of its own.
    flown: usize,
    flights: Vec<Flown>,
}

/// A flight that is over: nanoseconds since the end of the leader's work.
struct Flown {
    leader: u64,
    followers: Vec<u64>,
    /// What the server did until all had their answers, and a little longer.
    work: Work,
}

/// How often it is asked whether all wait, and how long they may take.
const LOOK: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than a task is between two steps, or a script on its way for which no follower waits.
const SETTLED: Duration = Duration::from_millis(20);

impl Fleet {
    pub(super) fn start(candidate: Candidate, processes: usize, threads: usize, url: &str) -> Self {
        let start = |_| {
            let bench = std::env::current_exe().expect("this program");
            let mut command = Command::new(bench);
            let (name, threads) = (candidate.to_string(), threads.to_string());
            command.args(["flight-worker", &name, &threads, url]);
            Process::spawn(&mut command, "it is this program")
        };
        let mut processes: Vec<_> = (0..processes).map(start).collect();
        for process in &mut processes {
            assert!(process.wait_for("ready"), "{candidate}:\n{}", process.log());
        }
        Self {
            candidate,
            processes,
            flown: 0,
            flights: Vec::new(),
        }
    }

    /// One leads, and so many follow.
    pub(super) fn fly(&mut self, server: &Server, followers: usize) {
        self.flown += 1;
        let key = format!("{}-{}", self.processes[0].id(), self.flown);
        self.processes[0].send(&format!("lead {key}"));
        self.told(0, "leading");
        let count = self.processes.len();
        for at in 0..count {
            let share = (followers + at) / count;
            self.processes[at].send(&format!("follow {key} {share}"));
        }
        for at in 0..count {
            self.told(at, "waiting");
        }
        if self.candidate.is_on_redis() {
            wait_in_line(server, followers);
        } else {
            // They are about to, within one poll.
            std::thread::sleep(SETTLED);
        }
        let (flown, work) = server.during(|| {
            self.processes[0].send("land");
            let ended = self.told(0, "ended");
            let [ended, leader] = ended[..] else {
                panic!("two moments, not {ended:?}");
            };
            self.processes.iter_mut().for_each(|p| p.send("collect"));
            let answered = (0..count).flat_map(|at| self.told(at, "answered"));
            let since = |moment: u64| match moment.checked_sub(ended) {
                Some(nanos) => nanos,
                None => panic!("an answer before there was one"),
            };
            let flown = (since(leader), answered.map(since).collect::<Vec<_>>());
            std::thread::sleep(SETTLED);
            flown
        });
        let (leader, followers_since) = flown;
        assert_eq!(followers_since.len(), followers, "everybody has an answer");
        self.flights.push(Flown {
            leader,
            followers: followers_since,
            work,
        });
    }

    /// The numbers of the next line of a process, which begins like this.
    fn told(&mut self, at: usize, what: &str) -> Vec<u64> {
        let line = self.processes[at].line();
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some(what), "{}: {line}", self.candidate);
        let numbers = words.map(str::parse).collect::<Result<_, _>>();
        numbers.unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// What was measured so far.
    pub(super) fn forget(&mut self) {
        self.flights.clear();
    }

    pub(super) fn processes(&self) -> usize {
        self.processes.len()
    }

    pub(super) fn flights(&self) -> usize {
        self.flights.len()
    }

    /// The median of the flights' quantiles.
    pub(super) fn latency(&self, q: f64) -> u64 {
        self.median(|flown| quantile(&mut flown.followers.clone(), q) as f64) as u64
    }

    /// The last answer of all flights.
    pub(super) fn worst(&self) -> u64 {
        let all = self.flights.iter().flat_map(|flown| &flown.followers);
        all.copied().max().unwrap_or(0)
    }

    /// Until the leader itself has its answer.
    pub(super) fn leader(&self) -> u64 {
        self.median(|flown| flown.leader as f64) as u64
    }

    pub(super) fn scripts(&self) -> f64 {
        self.median(|flown| flown.work.scripts_per(1))
    }

    /// How often each command ran in the last flight, those that scripts called included.
    pub(super) fn calls(&self) -> BTreeMap<&str, f64> {
        let last = self.flights.last();
        last.map(|flown| flown.work.each_per(1)).unwrap_or_default()
    }

    fn median(&self, figure: impl Fn(&Flown) -> f64) -> f64 {
        median(self.flights.iter().map(figure).collect())
    }
}

/// Returns when so many stand in the only queue of the server: who comes later is no follower.
fn wait_in_line(server: &Server, followers: usize) {
    let begun = Instant::now();
    let mut client = server.client();
    let mut ask = |words: &[&str]| client.call(words).expect("an answer");
    loop {
        let queues = ask(&["KEYS", "*:q"]);
        let stand = match queues.list() {
            [queue] => ask(&["ZCARD", queue.text()]).int(),
            _ => 0,
        };
        if stand == followers as i64 {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{stand} of {followers} wait");
        std::thread::sleep(LOOK);
    }
}
