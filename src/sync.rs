//! What keeps a panic of somebody else from spreading: one way to lock a `std` mutex (no section
//! here leaves its data half changed), one to run foreign code where others wait behind it, and how
//! tables hash.
//!
//! The files that `tests/schedules` includes take their means of synchronisation from here: there
//! they are others, whose every step may be the other thread's turn.

pub(crate) use std::sync::{Arc, Mutex, MutexGuard, Weak, atomic};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::PoisonError,
};

pub(crate) use tokio::sync::Notify;

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what may run foreign code: a waker, a backend, a subscriber of logs. Its panic has been
/// told by the panic hook, and ends there.
pub(crate) fn contain(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// How tables of this process hash: not to be foreseen by who sends requests.
#[cfg(not(test))]
pub(crate) type HashState = std::hash::RandomState;

/// The same in every run, so that a simulation walks its tables in the same order.
#[cfg(test)]
pub(crate) type HashState = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;
