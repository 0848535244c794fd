//! Runs an entry point over its corpus and mutations of it.

use std::{
    collections::HashMap,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use fastrand::Rng;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{
    entries::{Entry, watch},
    mutate::mutate,
};

/// More than the whole process needs, and less than a length of 2³¹ that is believed.
const MEMORY: u64 = 3 << 29;

/// The longest input.
const LONGEST: usize = 512;

/// So many beside the corpus, however slow the machine is.
const LEAST: usize = 50;

/// One entry and how much of it is run.
pub(crate) struct Runner {
    entry: Entry,
    time: Duration,
    threads: usize,
    seed: u64,
    runs: Option<usize>,
    corpus: Vec<(String, Vec<u8>)>,
    under_way: Mutex<HashMap<ThreadId, Vec<u8>>>,
}

impl Runner {
    /// So many inputs at once.
    pub(crate) fn of(entry: Entry, time: Duration, threads: usize) -> Self {
        let number = |name| {
            let text = env::var(name).ok()?;
            Some(
                text.parse::<u64>()
                    .unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")),
            )
        };
        Self {
            entry,
            time,
            threads,
            seed: number("TOWER_LOCK_FUZZ_SEED").unwrap_or_else(|| fastrand::u64(..)),
            runs: number("TOWER_LOCK_FUZZ_RUNS").map(|runs| runs as usize),
            corpus: corpus(entry.name),
            under_way: Mutex::default(),
        }
    }

    pub(crate) fn run(&self) {
        // One entry at a time: what goes wrong behind its back is its own.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let Entry { name, .. } = self.entry;
        println!("{name}: TOWER_LOCK_FUZZ_SEED={} repeats this", self.seed);
        watch::begin();
        // Servers are started, which are not meant by the limit.
        if let Some(report) = self.try_input("nothing", &[]) {
            panic!("{name}: {report}");
        }
        limit_memory();
        let begun = Instant::now();
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for _ in 0..self.threads {
                let work = || self.work(&next, &failed, begun);
                let thread = thread::Builder::new().name("fuzz-runner".to_owned());
                thread.spawn_scoped(scope, work).expect("a thread");
            }
        });
        let seconds = begun.elapsed().as_secs_f64();
        let runs = next.load(Ordering::Relaxed);
        println!(
            "{name}: {runs} runs in {seconds:.1} s, {:.0} a second",
            runs as f64 / seconds
        );
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        assert!(
            failed.is_empty(),
            "{name}: {} of the inputs failed:\n{}",
            failed.len(),
            failed.join("\n")
        );
        // What lives on may have had its trouble later.
        let seen = watch::seen();
        assert!(
            seen.is_empty(),
            "{name}: behind the callers' back: {seen:#?}"
        );
    }

    /// Inputs until it is enough, or one has failed.
    fn work(&self, next: &AtomicUsize, failed: &Mutex<Vec<String>>, begun: Instant) {
        watch::begin();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            // All of the corpus, whatever that takes.
            let enough = match self.runs {
                Some(runs) => number >= self.corpus.len() + runs,
                None => number >= self.corpus.len() + LEAST && begun.elapsed() >= self.time,
            };
            if enough || !lock(failed).is_empty() {
                next.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            let (what, input) = match self.corpus.get(number) {
                Some((name, input)) => (format!("corpus/{name}"), input.clone()),
                None => (format!("run {number}"), self.input(number)),
            };
            if let Some(report) = self.try_input(&what, &input) {
                lock(failed).push(report);
            }
        }
    }

    /// The same for the same seed and number, whoever runs it.
    fn input(&self, number: usize) -> Vec<u8> {
        let mut random = Rng::with_seed(self.seed.wrapping_add(number as u64));
        let mut input = match random.choice(&self.corpus) {
            Some((_, input)) if random.u8(..) > 16 => input.clone(),
            _ => Vec::new(),
        };
        for _ in 0..random.usize(1..=6) {
            let other = random
                .choice(&self.corpus)
                .map_or(&[][..], |(_, other)| other);
            mutate(&mut input, other, self.entry.words, &mut random);
        }
        input.truncate(LONGEST);
        input
    }

    /// What to say of it, if it fails.
    fn try_input(&self, what: &str, input: &[u8]) -> Option<String> {
        // Where a process ends at once, for want of memory, this is what tells why.
        let kept = kept(self.entry.name);
        let _ = fs::write(&kept, input);
        let this = thread::current().id();
        lock(&self.under_way).insert(this, input.to_vec());
        let result = catch_unwind(AssertUnwindSafe(|| (self.entry.run)(input)));
        let seen = watch::seen();
        let under_way = lock(&self.under_way).clone();
        lock(&self.under_way).remove(&this);
        let said = match result {
            Err(panic) => {
                let said = panic.downcast_ref::<String>().map(String::as_str);
                let said = said.or(panic.downcast_ref::<&str>().copied());
                said.unwrap_or("it panicked").to_owned()
            }
            Ok(()) if seen.is_empty() => {
                let _ = fs::remove_file(&kept);
                return None;
            }
            // By this or another, which all are at fault as far as is known.
            Ok(()) => format!(
                "behind the caller's back: {seen:#?}\n  under way: {:#?}",
                under_way
                    .values()
                    .map(|input| input.escape_ascii().to_string())
                    .collect::<Vec<_>>()
            ),
        };
        Some(format!(
            "{what}: {said}\n  input: \"{}\"\n  to keep it: cp {} tests/fuzz/corpus/{}/",
            input.escape_ascii(),
            kept.display(),
            self.entry.name
        ))
    }
}

/// Where an input is while it is under way, and afterwards if it failed.
fn kept(name: &str) -> PathBuf {
    let thread = format!("{:?}", thread::current().id());
    let thread: String = thread.chars().filter(char::is_ascii_digit).collect();
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("fuzz-{name}-{}-{thread}", std::process::id()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fuzz/corpus")
        .join(name);
    let Ok(entries) = fs::read_dir(&dir) else {
        return Vec::new();
    };
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (
            name,
            fs::read(entry.path()).expect("a file that can be read"),
        )
    };
    let mut corpus: Vec<_> = entries
        .map(|entry| read(entry.expect("a directory")))
        .collect();
    corpus.sort();
    corpus
}

/// Whoever allocates for a length that was only claimed ends the process.
fn limit_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let limit = Rlimit {
            current: Some(MEMORY),
            maximum: None,
        };
        setrlimit(Resource::Data, limit).expect("it may be lowered");
    });
}
