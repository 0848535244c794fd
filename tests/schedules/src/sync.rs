//! What `crate::sync` is in the library, with a point before every step at which shuttle may
//! switch to another thread.

use std::{
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::PoisonError,
};

pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn contain(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// Another thread's turn, maybe.
pub(crate) fn point() {
    if !std::thread::panicking() {
        atomic::AtomicBool::new(false).load(atomic::Ordering::SeqCst);
    }
}

/// Shuttle's `Arc` is std's, without a point where it counts.
#[derive(Debug, Default)]
pub(crate) struct Arc<T: ?Sized>(std::sync::Arc<T>);

impl<T> Arc<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Arc::new(value))
    }

    pub(crate) fn downgrade(this: &Self) -> Weak<T> {
        Weak(std::sync::Arc::downgrade(&this.0))
    }

    pub(crate) fn strong_count(this: &Self) -> usize {
        point();
        std::sync::Arc::strong_count(&this.0)
    }
}

impl<T: ?Sized> Clone for Arc<T> {
    fn clone(&self) -> Self {
        point();
        Self(self.0.clone())
    }
}

impl<T: ?Sized> Deref for Arc<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: ?Sized> Drop for Arc<T> {
    fn drop(&mut self) {
        point();
    }
}

#[derive(Debug)]
pub(crate) struct Weak<T>(std::sync::Weak<T>);

impl<T> Clone for Weak<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Weak<T> {
    pub(crate) fn upgrade(&self) -> Option<Arc<T>> {
        point();
        self.0.upgrade().map(Arc)
    }

    pub(crate) fn new() -> Self {
        Self(std::sync::Weak::new())
    }

    pub(crate) fn strong_count(&self) -> usize {
        point();
        self.0.strong_count()
    }
}

/// Tokio's as it is, which is atomic between shuttle's points: no other thread runs within it, and
/// the wakers that it calls only mark a task of shuttle's as ready.
#[derive(Debug, Default)]
pub(crate) struct Notify(tokio::sync::Notify);

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        point();
        self.0.notified()
    }

    pub(crate) fn notify_one(&self) {
        point();
        self.0.notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        point();
        self.0.notify_waiters();
    }
}
