//! What the simulations have in common: how many histories, from which seed, and how one that
//! shows something is repeated.

#[cfg(feature = "redis")]
mod redis;

use std::{
    fmt::{Debug, Display},
    hash::{DefaultHasher, Hash, Hasher},
    ops::Range,
    time::Duration,
};

/// What one history was.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Everything that happened, in order.
    pub(crate) events: Vec<String>,
    /// What must not happen.
    pub(crate) problems: Vec<String>,
    /// How often what happened: a history in which nothing happens shows nothing.
    pub(crate) seen: Seen,
}

/// Counts by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(Vec<(&'static str, u64)>);

impl Seen {
    pub(crate) fn add(&mut self, what: &'static str, times: u64) {
        match self.0.iter_mut().find(|(name, _)| *name == what) {
            Some((_, n)) => *n += times,
            None => self.0.push((what, times)),
        }
    }

    pub(crate) fn get(&self, what: &str) -> u64 {
        let found = self.0.iter().find(|(name, _)| *name == what);
        found.map_or(0, |(_, n)| *n)
    }

    fn add_all(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            self.add(what, *times);
        }
    }
}

impl History {
    pub(crate) fn event(&mut self, at: Duration, what: impl Display) {
        self.events
            .push(format!("{:>9.3?} {what}", at.as_secs_f64()));
    }

    pub(crate) fn problem(&mut self, at: Duration, what: impl Display) {
        let what = format!("{:>9.3?} !! {what}", at.as_secs_f64());
        self.events.push(what.clone());
        self.problems.push(what);
    }

    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.events.hash(&mut hasher);
        hasher.finish()
    }
}

/// What so many histories showed.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) histories: u64,
    pub(crate) seen: Seen,
    /// The seeds of those that showed a problem, in order.
    pub(crate) seeds: Vec<u64>,
    first: Option<(u64, History)>,
    /// What was looked for.
    found: bool,
}

impl Findings {
    /// That no history showed a problem; the first one that did is printed.
    #[track_caller]
    pub(crate) fn assert_none(&self) {
        if let Some((seed, history)) = &self.first {
            for event in &history.events {
                println!("{event}");
            }
            panic!(
                "{} of {} histories: {:?}\nTOWER_LOCK_SIM_SEED={seed} repeats the first: {:#?}",
                self.seeds.len(),
                self.histories,
                self.seeds,
                history.problems
            );
        }
    }

    fn print(&self, settings: impl Debug) {
        println!(
            "{} of {settings:?}: {:?}; {} with problems, first {:?} {:?}",
            self.histories,
            self.seen,
            self.seeds.len(),
            self.seeds.first(),
            self.problems()
        );
    }

    /// What the first history with a problem showed.
    fn problems(&self) -> &[String] {
        self.first.as_ref().map_or(&[], |(_, h)| &h.problems)
    }
}

/// `TOWER_LOCK_HISTORIES=1000000` makes so many of each kind.
pub(crate) fn count(usual: u64) -> u64 {
    number("TOWER_LOCK_HISTORIES").unwrap_or(usual)
}

fn number(name: &str) -> Option<u64> {
    let asked = std::env::var(name).ok()?;
    Some(asked.parse().expect("a number"))
}

/// Runs so many histories, on two threads, or that of `TOWER_LOCK_SIM_SEED` alone.
pub(crate) fn histories<S: Copy + Debug + Sync>(
    settings: S,
    count: u64,
    run: fn(S, u64) -> History,
) -> Findings {
    if let Some(seed) = number("TOWER_LOCK_SIM_SEED") {
        return part(settings, seed..seed + 1, 1, None, run);
    }
    let (mut findings, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| part(settings, 1..count, 2, None, run));
        let one = part(settings, 0..count, 2, None, run);
        (one, other.join().expect("a history ended in a panic"))
    });
    findings.histories += other.histories;
    findings.seen.add_all(&other.seen);
    findings.seeds.extend(other.seeds);
    findings.seeds.sort_unstable();
    let both = findings.first.into_iter().chain(other.first);
    findings.first = both.min_by_key(|(seed, _)| *seed);
    findings.print(settings);
    findings
}

/// Runs these histories until one shows this problem; whether one did.
pub(crate) fn shows<S: Copy + Debug>(
    settings: S,
    problem: &str,
    seeds: Range<u64>,
    run: fn(S, u64) -> History,
) -> bool {
    let findings = part(settings, seeds, 1, Some(problem), run);
    findings.print(settings);
    findings.found
}

fn part<S: Copy + Debug>(
    settings: S,
    seeds: Range<u64>,
    step: usize,
    until: Option<&str>,
    run: fn(S, u64) -> History,
) -> Findings {
    /// A panic says which seed it was.
    struct Running(u64);
    impl Drop for Running {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("TOWER_LOCK_SIM_SEED={} repeats it", self.0);
            }
        }
    }
    let mut findings = Findings::default();
    for seed in seeds.step_by(step) {
        let _running = Running(seed);
        let history = run(settings, seed);
        findings.histories += 1;
        findings.seen.add_all(&history.seen);
        if !history.problems.is_empty() {
            let shows = |what: &str| history.problems.iter().any(|p| p.contains(what));
            findings.found = until.is_some_and(shows);
            findings.seeds.push(seed);
            findings.first.get_or_insert((seed, history));
            if findings.found {
                break;
            }
        }
    }
    findings
}

/// The sending of a request, from which a lease counts; its answer, by mistake.
#[cfg(feature = "redis")]
pub(crate) fn counted_from(sent: tokio::time::Instant) -> tokio::time::Instant {
    if redis::counts_from_reply() {
        return tokio::time::Instant::now();
    }
    sent
}
