//! Who releases a lock, and whether a body may still run under it: each claimed by one.

use crate::sync::atomic::{AtomicU8, Ordering};

/// Who a guard acts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Releaser {
    /// The middleware, unless the handler took the guard.
    Layer,
    /// Whoever has the `LockGuard`.
    Guard,
}

const LAYER: u8 = 0;
const TAKEN: u8 = 1;
const RELEASED: u8 = 2;
const TAKEN_RELEASED: u8 = 3;

/// Who may release the lock. It moves one way, from `LAYER` to `RELEASED`, or to `TAKEN` and then
/// to `TAKEN_RELEASED`. Whoever makes the last move releases: exactly one does.
#[derive(Debug)]
pub(super) struct Owner(AtomicU8);

impl Owner {
    pub(super) fn new(releaser: Releaser) -> Self {
        Self(AtomicU8::new(match releaser {
            Releaser::Layer => LAYER,
            Releaser::Guard => TAKEN,
        }))
    }

    /// Moves the right to release; `true` for the one caller that must now release.
    pub(super) fn begin_release(&self, releaser: Releaser) -> bool {
        let (from, to) = match releaser {
            Releaser::Layer => (LAYER, RELEASED),
            Releaser::Guard => (TAKEN, TAKEN_RELEASED),
        };
        self.0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Moves the right to release to the handler, once.
    pub(super) fn take(&self) -> bool {
        self.0
            .compare_exchange(LAYER, TAKEN, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    pub(super) fn is_layers(&self) -> bool {
        self.0.load(Ordering::Acquire) == LAYER
    }

    /// Whether the lock left the middleware, even if it has been released since.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), TAKEN | TAKEN_RELEASED)
    }

    pub(super) fn is_released(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), RELEASED | TAKEN_RELEASED)
    }
}

const NONE: u8 = 0;
const OPEN: u8 = 1;
const POLLING: u8 = 2;
const CLOSED: u8 = 3;

/// Whether the response body is being polled. The manager closes an open gate when the body has
/// had its time: after that the body never runs again, so its lock can go although nobody polls.
#[derive(Debug)]
pub(super) struct Gate(AtomicU8);

impl Gate {
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(NONE))
    }

    /// The handler is done, its body streams on under the lock.
    pub(super) fn open(&self) {
        self.0.store(OPEN, Ordering::SeqCst);
    }

    /// Enters a poll of the body; `false` if the gate was closed.
    pub(super) fn enter(&self) -> bool {
        self.0
            .compare_exchange(OPEN, POLLING, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Leaves a poll of the body, which must look for a loss afterwards.
    pub(super) fn leave(&self) {
        // Fails only for a lock that the handler took: it has no gate.
        let _ = self
            .0
            .compare_exchange(POLLING, OPEN, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Closes an open gate that is not being polled.
    pub(super) fn close(&self) -> bool {
        self.0
            .compare_exchange(OPEN, CLOSED, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}
