//! The registry and its worker: what is left to it is done, and what is due is looked at, without
//! the help of a timer. Time stands still here: a wake-up that is lost is a deadlock.

use std::sync::atomic::Ordering::SeqCst;

use shuttle::{future::block_on, sync::mpsc, thread};

use crate::{
    agenda::{Agenda, run},
    claim::Releaser,
    explore::{fails, holds},
    hold::Hold,
    registry::Registry,
    sync::{Arc, Mutex, Notify, atomic::AtomicU64, lock},
};

/// What the clock shows.
const NOW: u64 = 10;
const DUE: u64 = 5;
const LATER: u64 = 1000;

trait Work: Send + Sync + 'static {
    fn new() -> Self;
    fn wake(&self) -> Arc<Notify>;
    fn leave(&self, work: Arc<Hold>);
    fn take(&self) -> Vec<Arc<Hold>>;
    fn look_at(&self, nanos: u64);
    fn next_look(&self) -> u64;
    fn look(&self, scan: impl FnOnce() -> u64);
}

impl Work for Agenda<Arc<Hold>> {
    fn new() -> Self {
        Self::new()
    }

    fn wake(&self) -> Arc<Notify> {
        self.wake()
    }

    fn leave(&self, work: Arc<Hold>) {
        self.leave(work);
    }

    fn take(&self) -> Vec<Arc<Hold>> {
        self.take()
    }

    fn look_at(&self, nanos: u64) {
        self.look_at(nanos);
    }

    fn next_look(&self) -> u64 {
        self.next_look()
    }

    fn look(&self, scan: impl FnOnce() -> u64) {
        self.look(scan);
    }
}

struct Manager<W> {
    registry: Registry,
    agenda: W,
}

/// What the worker did.
#[derive(Debug, PartialEq, Eq)]
enum Done {
    Ended,
    Seen,
}

impl<W: Work> Manager<W> {
    /// As the library's, in its order: what was left, then what is due.
    fn work(&self, done: &mpsc::Sender<Done>) {
        for hold in self.agenda.take() {
            self.registry.remove(&hold);
            done.send(Done::Ended).unwrap();
        }
        if self.agenda.next_look() > NOW {
            return;
        }
        self.agenda.look(|| {
            let mut next = u64::MAX;
            let mut seen = 0;
            self.registry.for_each(|hold| {
                if hold.due.load(SeqCst) <= NOW {
                    hold.due.store(LATER, SeqCst);
                    seen += 1;
                }
                next = next.min(hold.due.load(SeqCst));
            });
            for _ in 0..seen {
                done.send(Done::Seen).unwrap();
            }
            next
        });
    }

    fn grant(&self, hold: &Arc<Hold>) {
        self.registry.insert(hold.clone());
        self.agenda.look_at(hold.due.load(SeqCst));
    }

    /// The guard is dropped.
    fn release(&self, hold: &Arc<Hold>) {
        if hold.owner.begin_release(Releaser::Guard) {
            self.agenda.leave(hold.clone());
        }
    }
}

/// Runs the worker beside these, and waits for what it must do.
fn works<W: Work>(holders: Vec<fn(&Manager<W>)>, ended: usize, seen: usize) {
    let manager = Arc::new(Manager {
        registry: Registry::new(),
        agenda: W::new(),
    });
    let (done, did) = mpsc::channel();
    let worker = {
        let (weak, wake) = (Arc::downgrade(&manager), manager.agenda.wake());
        thread::spawn(move || {
            block_on(run(weak, wake, move |manager: &Arc<Manager<W>>| {
                manager.work(&done);
                None
            }));
        })
    };
    let holders: Vec<_> = holders
        .into_iter()
        .map(|holder| {
            let manager = manager.clone();
            thread::spawn(move || holder(&manager))
        })
        .collect();
    let mut left = [ended, seen];
    while left != [0, 0] {
        let which = match did.recv().unwrap() {
            Done::Ended => 0,
            Done::Seen => 1,
        };
        assert_ne!(left[which], 0, "done twice");
        left[which] -= 1;
    }
    for holder in holders {
        holder.join().unwrap();
    }
    let held = manager.registry.len();
    assert_eq!(held, seen, "held");
    assert!(did.try_recv().is_err(), "done twice");
    // The worker ends with its manager.
    drop(manager);
    worker.join().unwrap();
}

/// Two locks end, one of them by two that want to.
fn ends_what_is_dropped<W: Work>() {
    fn held<W: Work>(manager: &Manager<W>, number: u64) -> Arc<Hold> {
        let hold = Arc::new(Hold::new(number, u64::MAX));
        manager.grant(&hold);
        assert!(manager.registry.find(&hold.key).is_some());
        hold
    }
    works::<W>(
        vec![|manager| manager.release(&held(manager, 1)), |manager| {
            let hold = held(manager, 2);
            let twice = hold.clone();
            // As a shutdown that finds it.
            manager.release(&twice);
            manager.release(&hold);
        }],
        2,
        0,
    );
}

/// Grants that are due at once, beside one that is not.
fn sees_what_is_due<W: Work>() {
    works::<W>(
        vec![
            |manager| manager.grant(&Arc::new(Hold::new(1, DUE))),
            |manager| manager.grant(&Arc::new(Hold::new(2, DUE))),
        ],
        0,
        2,
    );
}

/// As [`sees_what_is_due`], by grants that are told before they are registered.
fn told_before_inserted<W: Work>() {
    fn grant<W: Work>(manager: &Manager<W>, number: u64) {
        let hold = Arc::new(Hold::new(number, DUE));
        manager.agenda.look_at(DUE);
        manager.registry.insert(hold);
    }
    works::<W>(
        vec![|manager| grant(manager, 1), |manager| grant(manager, 2)],
        0,
        2,
    );
}

#[test]
fn a_dropped_lock_is_ended_once() {
    holds(ends_what_is_dropped::<Agenda<Arc<Hold>>>);
}

#[test]
fn a_grant_that_is_due_is_seen() {
    holds(sees_what_is_due::<Agenda<Arc<Hold>>>);
}

#[test]
fn a_grant_that_is_told_before_it_is_registered_is_found() {
    fails("deadlock", told_before_inserted::<Agenda<Arc<Hold>>>);
}

const WAKES_FIRST: u8 = 1;
const FORGETS_AFTER: u8 = 2;
const WRITES_LATE: u8 = 3;

/// Wakes the worker before it leaves the work; or forgets after a scan what was asked during it;
/// or lowers in two steps.
struct Mistaken<const WHICH: u8> {
    next: AtomicU64,
    left: Mutex<Vec<Arc<Hold>>>,
    wake: Arc<Notify>,
}

impl<const WHICH: u8> Work for Mistaken<WHICH> {
    fn new() -> Self {
        Self {
            next: AtomicU64::new(u64::MAX),
            left: Mutex::new(Vec::new()),
            wake: Arc::new(Notify::new()),
        }
    }

    fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    fn leave(&self, work: Arc<Hold>) {
        if WHICH == WAKES_FIRST {
            self.wake.notify_one();
            lock(&self.left).push(work);
        } else {
            lock(&self.left).push(work);
            self.wake.notify_one();
        }
    }

    fn take(&self) -> Vec<Arc<Hold>> {
        std::mem::take(&mut *lock(&self.left))
    }

    fn look_at(&self, nanos: u64) {
        if WHICH == WRITES_LATE {
            // Wakes before it lowers.
            if nanos < self.next.load(SeqCst) {
                self.wake.notify_one();
                self.next.fetch_min(nanos, SeqCst);
            }
        } else if nanos < self.next.fetch_min(nanos, SeqCst) {
            self.wake.notify_one();
        }
    }

    fn next_look(&self) -> u64 {
        self.next.load(SeqCst)
    }

    fn look(&self, scan: impl FnOnce() -> u64) {
        if WHICH == FORGETS_AFTER {
            let next = scan();
            self.next.store(next, SeqCst);
        } else {
            self.next.store(u64::MAX, SeqCst);
            let next = scan();
            self.next.fetch_min(next, SeqCst);
        }
    }
}

impl<const WHICH: u8> Drop for Mistaken<WHICH> {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

#[test]
fn the_controls_are_right_without_their_mistake() {
    holds(ends_what_is_dropped::<Mistaken<0>>);
    holds(sees_what_is_due::<Mistaken<0>>);
}

#[test]
fn a_wake_up_before_the_work_is_found() {
    fails("deadlock", ends_what_is_dropped::<Mistaken<WAKES_FIRST>>);
}

#[test]
fn a_scan_that_forgets_what_was_asked_meanwhile_is_found() {
    fails("deadlock", sees_what_is_due::<Mistaken<FORGETS_AFTER>>);
}

#[test]
fn a_wake_up_before_the_lowered_look_is_found() {
    fails("deadlock", sees_what_is_due::<Mistaken<WRITES_LATE>>);
}
