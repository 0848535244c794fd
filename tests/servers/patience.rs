//! Waits for what servers do in their own time.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Only reached by failures.
const PATIENCE: Duration = Duration::from_secs(60);

const INTERVAL: Duration = Duration::from_millis(5);

/// To be called after each try that was in vain: it panics when the time is over.
fn tries(what: &str) -> impl FnMut() {
    let begun = Instant::now();
    move || {
        assert!(begun.elapsed() < PATIENCE, "{what}: not so");
    }
}

/// Blocks until it is there.
pub(super) fn block_until<T>(what: &str, mut so: impl FnMut() -> Option<T>) -> T {
    let mut still_patient = tries(what);
    loop {
        if let Some(it) = so() {
            return it;
        }
        still_patient();
        thread::sleep(INTERVAL);
    }
}

/// Waits until it is there, while the other tasks of the runtime go on.
pub(super) async fn wait_until<T>(what: &str, mut so: impl FnMut() -> Option<T>) -> T {
    let mut still_patient = tries(what);
    loop {
        if let Some(it) = so() {
            return it;
        }
        still_patient();
        tokio::time::sleep(INTERVAL).await;
    }
}

/// What is counted, once it has been the same for longer than anything is repeated after: 50 looks,
/// 2.5 s or more, as a look may itself have taken long.
pub async fn quiet(count: impl Fn() -> u64) -> u64 {
    let mut still_patient = tries("nothing is counted any more");
    let (mut last, mut looks) = (count(), 0);
    while looks < 50 {
        still_patient();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = count();
        looks = if now == last { looks + 1 } else { 0 };
        last = now;
    }
    last
}
