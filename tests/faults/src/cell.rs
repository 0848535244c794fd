//! One run: a backend, a fault, and what its history shows.

use std::{
    fs,
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{
    checks::{self, Found},
    expect,
    faults::Fault,
    history::{Event, History},
    nemesis::{Brought, Nemesis},
    rig::Load,
    stage::{Backend, Needs, Rigs, Stage},
};

/// How many processes use the backend.
const PROCESSES: usize = 3;

/// How many faults a short run of any of them brings.
const ANY: u32 = 3;

/// How many faults a short run of a broken lock brings.
const CONTROL: u32 = 3;

/// How long the load runs before anything happens.
const BEFORE: Duration = Duration::from_millis(700);

/// How long what is left may stay on the servers: what the crate's contract says (must 9).
const LEFTOVERS: Duration = Duration::from_secs(60);

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) backend: Backend,
    pub(crate) fault: Fault,
    pub(crate) seed: u64,
    /// How long it is repeated for; once if nothing is said.
    pub(crate) time: Option<Duration>,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) cell: Cell,
    pub(crate) found: Found,
    pub(crate) brought: Brought,
    /// What should not be so, each in a line. None of them is what the table of expectations has.
    pub(crate) wrong: Vec<String>,
    /// Where the history is, if something is wrong.
    pub(crate) kept: Option<PathBuf>,
    pub(crate) took: Duration,
}

impl Cell {
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.backend.name(), self.fault.name())
    }

    pub(crate) fn run(self) -> Outcome {
        let begun = Instant::now();
        let mut wrong = Vec::new();
        let mut logs = String::new();
        let (events, brought) = self.play(&mut wrong, &mut logs);
        let found = match History::of(events.clone()) {
            Ok(history) => {
                let found = checks::check(&history, &expect::rules(self.backend, self.fault));
                wrong.extend(expect::judge(self.backend, self.fault, &history, &found));
                found
            }
            Err(error) => {
                wrong.push(format!("the history makes no sense: {error}"));
                Found::default()
            }
        };
        let kept = (!wrong.is_empty()).then(|| self.keep(events, &logs));
        Outcome {
            cell: self,
            found,
            brought,
            wrong,
            kept,
            took: begun.elapsed(),
        }
    }

    /// What happens. What the harness itself sees goes to `wrong`, what servers said to `logs`.
    fn play(&self, wrong: &mut Vec<String>, logs: &mut String) -> (Vec<Event>, Brought) {
        let places = if self.backend.is_shared() {
            PROCESSES
        } else {
            1
        };
        let mut rigs = Rigs::new(self.load(), places, self.seed);
        let mut brought = Brought::default();
        // What starts servers panics where it cannot: one run fails, not all, and what happened
        // until then is kept.
        let played = catch_unwind(AssertUnwindSafe(|| {
            let stage = Stage::begin(
                self.backend,
                Needs {
                    ttl: expect::ttl(self.backend, self.fault),
                    fail_over: expect::fails_over(self.backend, self.fault),
                    server_clocks: matches!(self.fault, Fault::ServerClock | Fault::MajorityClock),
                    durable: matches!(self.fault, Fault::KillAll | Fault::DiskFull | Fault::Any),
                    client_clocks: self.fault == Fault::ClientClock,
                    places,
                },
            );
            let act = || self.act(&stage, &mut rigs, &mut brought, wrong);
            let acted = catch_unwind(AssertUnwindSafe(act));
            *logs = stage.logs();
            acted.unwrap_or_else(|panic| resume_unwind(panic))
        }));
        match played {
            Ok(Ok(())) => {}
            Ok(Err(error)) => wrong.push(error),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                let text = text.unwrap_or("of an unknown kind");
                wrong.push(format!("the harness panicked: {text}"));
            }
        }
        let events = rigs.history().unwrap_or_else(|error| {
            wrong.push(error);
            Vec::new()
        });
        (events, brought)
    }

    /// How many faults a short run brings.
    fn rounds(&self) -> u32 {
        let must_find = !expect::must_find(self.backend, self.fault).is_empty();
        match self.fault {
            Fault::Any => ANY,
            Fault::Calm => 1,
            // What is broken shows where somebody asks at that moment. After a fail-over somebody does.
            fault if must_find && !expect::is_fail_over(self.backend, fault) => CONTROL,
            _ => 1,
        }
    }

    fn load(&self) -> Load {
        let barges = self.backend == Backend::Barging;
        Load {
            // Long queues, in which nobody has a place.
            tasks: if barges { 24 } else { 8 },
            cancels: if self.fault == Fault::Cancel { 330 } else { 30 },
            fifo: self.backend.is_fifo(),
            barges,
            queue: expect::queue(self.backend),
            // So that a batch takes as long as it takes to stand in the queue for sure.
            batch: if self.fault == Fault::Calm { 90 } else { 0 },
            // Somebody has to hold when it happens.
            long: if barges {
                0
            } else if expect::meets_holders(self.backend, self.fault) {
                500
            } else {
                50
            },
            ttls: expect::long_hold(self.backend, self.fault),
        }
    }

    fn act(
        &self,
        stage: &Stage,
        rigs: &mut Rigs,
        brought: &mut Brought,
        wrong: &mut Vec<String>,
    ) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        rigs.fill(stage)?;
        thread::sleep(BEFORE);
        let begun = Instant::now();
        let mut nemesis = Nemesis::new(stage, rigs, self.seed, &runtime);
        loop {
            nemesis.strike(self.fault)?;
            // Those who waited are to be served, and the locks of the dead to be free.
            let repeats = self.time.is_some() || self.rounds() > 1;
            let settles = || thread::sleep(expect::settles(self.backend, self.fault, repeats));
            settles();
            while nemesis.failed_over() {
                settles();
            }
            let over = match self.time {
                Some(time) => begun.elapsed() >= time,
                None => nemesis.brought.rounds >= self.rounds(),
            };
            if over {
                break;
            }
        }
        *brought = nemesis.brought;
        wrong.extend(rigs.rest()?);
        // While the processes live: what they renew for nobody would be gone with them.
        wrong.extend(left_over(stage));
        for place in 0..rigs.len() {
            let said = rigs.drain(place)?;
            if !said.contains("forced: 0, confirmed: true") {
                wrong.push(format!("nobody held any more, and yet: {said}"));
            }
        }
        wrong.extend(left_over(stage));
        Ok(())
    }

    /// Writes the history where it is found after the run, and what the servers said beside it.
    fn keep(&self, mut events: Vec<Event>, logs: &str) -> PathBuf {
        events.sort_by_key(|event| event.at);
        // Wherever it is run from.
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/faults");
        let name = self.name().replace('/', "-");
        let path = dir.join(format!("{name}-{}.jsonl", self.seed));
        let write = || {
            fs::create_dir_all(&dir)?;
            let mut file = std::io::BufWriter::new(fs::File::create(&path)?);
            for event in &events {
                serde_json::to_writer(&mut file, event)?;
                file.write_all(b"\n")?;
            }
            file.flush()?;
            fs::write(path.with_extension("log"), logs)
        };
        if let Err(error) = write() {
            eprintln!("{}: {error}", path.display());
        }
        path
    }
}

/// What is left on the servers although nobody holds or waits, and does not go.
fn left_over(stage: &Stage) -> Option<String> {
    let begun = Instant::now();
    loop {
        let left = stage.leftovers();
        if left.is_empty() {
            return None;
        }
        if begun.elapsed() > LEFTOVERS {
            let some: Vec<_> = left.iter().take(5).collect();
            return Some(format!("{} left on the servers: {some:?}", left.len()));
        }
        thread::sleep(Duration::from_millis(100));
    }
}
