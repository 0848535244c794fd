//! Runs a test under many schedules, or again under one that failed.

use std::{
    env,
    panic::{AssertUnwindSafe, catch_unwind},
};

use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{PctScheduler, RandomScheduler},
};

/// The same in every run, unless `SHUTTLE_RANDOM_SEED` says otherwise.
const SEED: u64 = 7;

/// How many times a priority changes under `PctScheduler`: most mistakes need one or two.
const DEPTH: usize = 3;

/// Schedules of each of the two kinds in a test run; every mistake shows within them.
const ENOUGH: usize = 1500;

fn schedules() -> usize {
    match env::var("TOWER_LOCK_SCHEDULES") {
        Ok(number) => number.parse().expect("TOWER_LOCK_SCHEDULES is a number"),
        Err(_) => ENOUGH,
    }
}

fn config() -> Config {
    let mut config = Config::new();
    config.silence_warnings = true;
    config
}

/// Must hold under every schedule. One under which it does not is printed; with it in
/// `TOWER_LOCK_SCHEDULE` only that one is run.
pub(crate) fn holds(test: impl Fn() + Send + Sync + 'static) {
    if let Ok(schedule) = env::var("TOWER_LOCK_SCHEDULE") {
        shuttle::replay(test, &schedule);
        return;
    }
    let test = std::sync::Arc::new(test);
    explore(&config(), schedules(), move || test());
}

/// A deliberate mistake, which the test must find and say in these words.
pub(crate) fn fails(words: &str, test: impl Fn() + Send + Sync + 'static) {
    let mut config = config();
    config.failure_persistence = FailurePersistence::None;
    let test = std::sync::Arc::new(test);
    let run = || explore(&config, ENOUGH, move || test());
    let Err(panic) = catch_unwind(AssertUnwindSafe(run)) else {
        panic!("the mistake was not found");
    };
    let said = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    assert!(said.contains(words), "found another one: {said}");
}

fn explore(config: &Config, schedules: usize, test: impl Fn() + Clone + Send + Sync + 'static) {
    let random = RandomScheduler::new_from_seed(SEED, schedules);
    Runner::new(random, config.clone()).run(test.clone());
    let pct = PctScheduler::new_from_seed(SEED, DEPTH, schedules);
    Runner::new(pct, config.clone()).run(test);
}
