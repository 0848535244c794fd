//! What the worker of a manager is left to do, and when it looks at the registry next.
//!
//! Nothing is left without waking the worker afterwards, and the worker takes all that is left
//! before it waits: a wake-up that comes in between is kept.
//!
//! `next_look` is when the worker scans the registry next. A grant that is due earlier lowers it
//! and wakes the worker; most grants are not, and wake nobody. Before a scan the worker sets it
//! to "never" and afterwards lowers it to what it found: a grant inserted during the scan is
//! either seen by the scan or lowers it itself, because it is inserted before it looks.

use tokio::time::{Instant, timeout_at};

use crate::sync::{
    Arc, Mutex, Notify, Weak,
    atomic::{AtomicU64, Ordering},
    lock,
};

/// Times are nanoseconds since the manager's start; `u64::MAX` is never.
#[derive(Debug)]
pub(super) struct Agenda<T> {
    next_look: AtomicU64,
    left: Mutex<Vec<T>>,
    wake: Arc<Notify>,
}

impl<T> Agenda<T> {
    pub(super) fn new() -> Self {
        Self {
            next_look: AtomicU64::new(u64::MAX),
            left: Mutex::default(),
            wake: Arc::new(Notify::new()),
        }
    }

    /// What wakes the worker, also when the agenda is gone.
    pub(super) fn wake(&self) -> Arc<Notify> {
        self.wake.clone()
    }

    /// Leaves work to the worker. Never blocks for longer than a push.
    pub(super) fn leave(&self, work: T) {
        lock(&self.left).push(work);
        self.wake.notify_one();
    }

    /// All that was left.
    pub(super) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *lock(&self.left))
    }

    /// Has the worker look at the registry no later than this. What is due then was inserted
    /// before.
    pub(super) fn look_at(&self, nanos: u64) {
        if nanos < self.next_look.load(Ordering::SeqCst)
            && nanos < self.next_look.fetch_min(nanos, Ordering::SeqCst)
        {
            self.wake.notify_one();
        }
    }

    pub(super) fn next_look(&self) -> u64 {
        self.next_look.load(Ordering::SeqCst)
    }

    /// The worker's look at the registry; the scan returns when the next is due.
    pub(super) fn look(&self, scan: impl FnOnce() -> u64) {
        self.next_look.store(u64::MAX, Ordering::SeqCst);
        let next = scan();
        if next != u64::MAX {
            self.next_look.fetch_min(next, Ordering::SeqCst);
        }
    }
}

impl<T> Drop for Agenda<T> {
    fn drop(&mut self) {
        // The worker sees that the manager is gone.
        self.wake.notify_one();
    }
}

/// The worker: does what is due for as long as somebody has the manager. `work` says when to come
/// again; woken or due, it looks at everything.
pub(super) async fn run<S>(
    shared: Weak<S>,
    wake: Arc<Notify>,
    work: impl Fn(&Arc<S>) -> Option<Instant>,
) {
    loop {
        let next = match shared.upgrade() {
            Some(shared) => work(&shared),
            None => return,
        };
        match next {
            Some(at) => drop(timeout_at(at, wake.notified()).await),
            None => wake.notified().await,
        }
    }
}
