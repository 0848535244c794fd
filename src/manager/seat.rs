//! A place in a queue of this process. It is given one value, once; its owner takes it, or
//! another takes it back if the owner does not.

use std::time::Duration;

use tokio::time::Instant;

use crate::sync::{Arc, Mutex, Notify, Weak, lock};

/// The owner holds it, the queue has a weak reference: an owner that is gone is seen as gone.
#[derive(Debug)]
pub(super) struct Seat<T> {
    state: Mutex<State<T>>,
    given: Notify,
}

#[derive(Debug)]
enum State<T> {
    Waiting,
    Given(T, Instant),
    Over,
}

impl<T> Seat<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Waiting),
            given: Notify::new(),
        })
    }

    /// Gives the owner its value; back if the owner is gone.
    pub(super) fn give(seat: &Weak<Self>, value: T) -> Result<(), T> {
        let Some(seat) = seat.upgrade() else {
            return Err(value);
        };
        *lock(&seat.state) = State::Given(value, Instant::now());
        seat.given.notify_one();
        if Arc::strong_count(&seat) == 1
            && let Some(value) = seat.empty(|_| true)
        {
            return Err(value);
        }
        // An owner that leaves from here on drops the value, or this reference does.
        Ok(())
    }

    /// Waits for the value; `None` if it was taken back. Cancel safe.
    pub(super) async fn taken(&self) -> Option<T> {
        loop {
            let given = self.given.notified();
            match &*lock(&self.state) {
                State::Waiting => {}
                State::Given(..) | State::Over => break,
            }
            given.await;
        }
        self.empty(|_| true)
    }

    /// Takes back a value that the owner has not taken for this long.
    pub(super) fn take_back(&self, after: Duration) -> Option<T> {
        self.empty(|given| given.elapsed() >= after)
    }

    fn empty(&self, ready: impl FnOnce(Instant) -> bool) -> Option<T> {
        let mut state = lock(&self.state);
        if !matches!(&*state, State::Given(_, at) if ready(*at)) {
            return None;
        }
        match std::mem::replace(&mut *state, State::Over) {
            State::Given(value, _) => Some(value),
            State::Waiting | State::Over => None,
        }
    }
}
