//! Admission: never more than its limits, and nothing is left of those who are gone or refused.

use std::sync::atomic::{AtomicBool as Flag, AtomicUsize as Tally, Ordering::SeqCst};

use shuttle::{future::block_on, thread};

use crate::{
    admission::{Admission, Full},
    explore::{fails, holds},
    hold::Hold,
    key::LockKey,
    registry::Registry,
    sync::{Arc, Notify, atomic::AtomicUsize, point},
};

trait Counts: Send + Sync + 'static {
    fn new(max: usize) -> Self;
    fn enter(&self, key: &LockKey, max_per_key: usize) -> Result<(), Full>;
    fn leave(&self, key: &LockKey);
    fn total(&self) -> usize;
    fn is_empty(&self) -> bool;
}

impl Counts for Admission {
    fn new(max: usize) -> Self {
        Self::new(max)
    }

    fn enter(&self, key: &LockKey, max_per_key: usize) -> Result<(), Full> {
        self.enter(key, max_per_key)
    }

    fn leave(&self, key: &LockKey) {
        self.leave(key);
    }

    fn total(&self) -> usize {
        self.total()
    }

    fn is_empty(&self) -> bool {
        self.total() == 0 && self.list().is_empty()
    }
}

/// Four come for three places, two of them for a key that has one.
fn keeps_its_limits<C: Counts>() {
    let counts = Arc::new(C::new(2));
    let inside = std::sync::Arc::new([Tally::new(0), Tally::new(0), Tally::new(0)]);
    let all: Vec<_> = [1, 1, 2, 2]
        .into_iter()
        .map(|number: usize| {
            let (counts, inside) = (counts.clone(), inside.clone());
            thread::spawn(move || {
                let key = LockKey::new(number as u64);
                if counts.enter(&key, 1).is_err() {
                    return;
                }
                assert!(inside[number].fetch_add(1, SeqCst) < 1, "two for one key");
                assert!(inside[0].fetch_add(1, SeqCst) < 2, "three in all");
                point();
                inside[number].fetch_sub(1, SeqCst);
                inside[0].fetch_sub(1, SeqCst);
                counts.leave(&key);
            })
        })
        .collect();
    for one in all {
        one.join().unwrap();
    }
    assert!(counts.is_empty(), "something was left");
    // All places are free again.
    assert_eq!(counts.enter(&LockKey::new(1), 1), Ok(()));
    assert_eq!(counts.enter(&LockKey::new(2), 1), Ok(()));
    assert_eq!(counts.enter(&LockKey::new(3), 1), Err(Full::Manager));
    assert_eq!(counts.enter(&LockKey::new(1), 1), Err(Full::Key));
}

/// A shutdown waits until nobody waits: who leaves tells it, and who is refused has nothing to
/// tell.
fn lets_a_shutdown_end<C: Counts>() {
    let counts = Arc::new(C::new(1));
    let left = Arc::new(Notify::new());
    let key = LockKey::new(1);
    assert_eq!(counts.enter(&key, 9), Ok(()));
    let newcomer = {
        let (counts, left, key) = (counts.clone(), left.clone(), LockKey::new(2));
        thread::spawn(move || {
            if counts.enter(&key, 9).is_ok() {
                counts.leave(&key);
                left.notify_waiters();
            }
        })
    };
    let shutdown = {
        let (counts, left) = (counts.clone(), left.clone());
        thread::spawn(move || {
            block_on(async {
                loop {
                    let left = left.notified();
                    if counts.total() == 0 {
                        return;
                    }
                    left.await;
                }
            });
        })
    };
    counts.leave(&key);
    left.notify_waiters();
    newcomer.join().unwrap();
    shutdown.join().unwrap();
}

/// How a shutdown looks whether anything is left.
type Look = fn(&Admission, &Registry) -> bool;

/// A waiter is registered before it leaves the waiters: a shutdown that looks in the order in
/// which it moves on misses it in neither place. The loop is the one of the library's
/// `until_free`, which has a timeout besides.
fn is_not_missed_on_its_way(free: Look) {
    let shared = Arc::new((Admission::new(1), Registry::new(), Notify::new()));
    let gone = std::sync::Arc::new(Flag::new(false));
    let hold = Arc::new(Hold::new(1, u64::MAX));
    assert_eq!(shared.0.enter(&hold.key, 1), Ok(()));
    let waiter = {
        let (shared, gone) = (shared.clone(), gone.clone());
        thread::spawn(move || {
            let (waiting, held, released) = &*shared;
            held.insert(hold.clone());
            waiting.leave(&hold.key);
            released.notify_waiters();
            gone.store(true, SeqCst);
            held.remove(&hold);
            released.notify_waiters();
        })
    };
    let (waiting, held, released) = &*shared;
    block_on(async {
        loop {
            let released = released.notified();
            if free(waiting, held) {
                break;
            }
            released.await;
        }
    });
    assert!(gone.load(SeqCst), "missed on its way");
    waiter.join().unwrap();
}

#[test]
fn a_shutdown_does_not_miss_a_waiter_that_becomes_a_holder() {
    holds(|| is_not_missed_on_its_way(|waiting, held| waiting.total() == 0 && held.len() == 0));
}

#[test]
fn a_shutdown_that_looks_for_holders_first_is_found() {
    fails("missed on its way", || {
        is_not_missed_on_its_way(|waiting, held| held.len() == 0 && waiting.total() == 0);
    });
}

#[test]
fn admission_keeps_its_limits() {
    holds(keeps_its_limits::<Admission>);
}

#[test]
fn a_refused_waiter_keeps_no_shutdown_waiting() {
    holds(lets_a_shutdown_end::<Admission>);
}

/// Looks whether there is room, then takes it.
struct TwoSteps {
    max: usize,
    total: AtomicUsize,
}

impl Counts for TwoSteps {
    fn new(max: usize) -> Self {
        Self {
            max,
            total: AtomicUsize::new(0),
        }
    }

    fn enter(&self, _: &LockKey, _: usize) -> Result<(), Full> {
        if self.total.load(SeqCst) >= self.max {
            return Err(Full::Manager);
        }
        self.total.fetch_add(1, SeqCst);
        Ok(())
    }

    fn leave(&self, _: &LockKey) {
        self.total.fetch_sub(1, SeqCst);
    }

    fn total(&self) -> usize {
        self.total.load(SeqCst)
    }

    fn is_empty(&self) -> bool {
        self.total() == 0
    }
}

#[test]
fn a_count_in_two_steps_is_found() {
    fails("three in all", in_all::<TwoSteps>);
}

/// As `keeps_its_limits`, each for a key of its own.
fn in_all<C: Counts>() {
    let counts = Arc::new(C::new(2));
    let inside = std::sync::Arc::new(Tally::new(0));
    let all: Vec<_> = (0..3)
        .map(|number| {
            let (counts, inside) = (counts.clone(), inside.clone());
            thread::spawn(move || {
                let key = LockKey::new(number);
                if counts.enter(&key, 1).is_ok() {
                    assert!(inside.fetch_add(1, SeqCst) < 2, "three in all");
                    point();
                    inside.fetch_sub(1, SeqCst);
                    counts.leave(&key);
                }
            })
        })
        .collect();
    for one in all {
        one.join().unwrap();
    }
    assert!(counts.is_empty(), "something was left");
}

#[test]
fn admission_keeps_its_limit_over_all_keys() {
    holds(in_all::<Admission>);
}

/// Counts the newcomer, then takes it back when there was no room.
struct TakenBack(TwoSteps);

impl Counts for TakenBack {
    fn new(max: usize) -> Self {
        Self(TwoSteps::new(max))
    }

    fn enter(&self, _: &LockKey, _: usize) -> Result<(), Full> {
        if self.0.total.fetch_add(1, SeqCst) >= self.0.max {
            self.0.total.fetch_sub(1, SeqCst);
            return Err(Full::Manager);
        }
        Ok(())
    }

    fn leave(&self, key: &LockKey) {
        self.0.leave(key);
    }

    fn total(&self) -> usize {
        self.0.total()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[test]
fn a_refused_waiter_that_counts_for_a_moment_is_found() {
    fails("deadlock", lets_a_shutdown_end::<TakenBack>);
}
