//! A seat in the queue of a process: its value goes to one, and its owner is woken.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::atomic::{AtomicUsize as Tally, Ordering::SeqCst},
    task::Poll,
    time::Duration,
};

use shuttle::{future::block_on, thread};

use crate::{
    explore::{fails, holds},
    seat::Seat,
    sync::{Arc, Mutex, Notify, Weak, lock},
};

/// The right that is handed on. It counts where it ends.
#[derive(Debug)]
struct Right(Option<std::sync::Arc<Tally>>);

impl Right {
    fn new(ended: std::sync::Arc<Tally>) -> Self {
        Self(Some(ended))
    }

    /// Kept in parts it does not end.
    fn parts(mut self) -> std::sync::Arc<Tally> {
        self.0.take().unwrap()
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        if let Some(ended) = self.0.take() {
            ended.fetch_add(1, SeqCst);
        }
    }
}

trait Place: Send + Sync + Sized + 'static {
    fn new() -> Arc<Self>;
    fn give(place: &Weak<Self>, value: Right) -> Result<(), Right>;
    fn taken(&self) -> impl Future<Output = Option<Right>>;
    fn take_back(&self) -> Option<Right>;
}

impl Place for Seat<Right> {
    fn new() -> Arc<Self> {
        Self::new()
    }

    fn give(place: &Weak<Self>, value: Right) -> Result<(), Right> {
        Self::give(place, value)
    }

    fn taken(&self) -> impl Future<Output = Option<Right>> {
        self.taken()
    }

    fn take_back(&self) -> Option<Right> {
        self.take_back(Duration::ZERO)
    }
}

/// The owner waits; another takes the value back if it comes first.
fn goes_to_one<P: Place>() {
    let place = P::new();
    let weak = Arc::downgrade(&place);
    let ended = std::sync::Arc::new(Tally::new(0));
    let right = Right::new(ended.clone());
    let other = {
        let place = place.clone();
        thread::spawn(move || place.take_back())
    };
    let owner = thread::spawn(move || block_on(place.taken()));
    let given = P::give(&weak, right);
    let taken = owner.join().unwrap();
    let back = other.join().unwrap();
    let with = [taken.is_some(), back.is_some(), given.is_err()];
    let with = with.iter().filter(|has| **has).count();
    // A seat that both had left when the giver looked gave the value back or dropped it.
    assert!(with <= 1, "so many have it: {with}");
    drop((taken, back, given));
    assert_eq!(ended.load(SeqCst), 1, "it ended so often");
    assert!(weak.upgrade().is_none(), "the seat is left");
}

/// The owner polls once and goes: the giver has the value back, or it is dropped and with it the
/// right passes on.
fn survives_its_owner<P: Place>() {
    let place = P::new();
    let weak = Arc::downgrade(&place);
    let ended = std::sync::Arc::new(Tally::new(0));
    let right = Right::new(ended.clone());
    let owner = thread::spawn(move || {
        let once = block_on(async {
            let mut taken = pin!(place.taken());
            poll_fn(|cx| Poll::Ready(taken.as_mut().poll(cx))).await
        });
        match once {
            Poll::Ready(value) => value,
            Poll::Pending => None,
        }
    });
    let given = P::give(&weak, right);
    let taken = owner.join().unwrap();
    let before = ended.load(SeqCst);
    let with = usize::from(taken.is_some()) + usize::from(given.is_err());
    assert_eq!(with + before, 1, "it is lost, or there are two");
    drop((taken, given));
    assert_eq!(ended.load(SeqCst), 1, "it ended so often");
}

#[test]
fn the_value_of_a_seat_goes_to_one() {
    holds(goes_to_one::<Seat<Right>>);
}

#[test]
fn the_value_of_a_seat_survives_its_owner() {
    holds(survives_its_owner::<Seat<Right>>);
}

const WAKES_FIRST: u8 = 1;
const LOOKS_THEN_TAKES: u8 = 2;

/// Wakes its owner too early, or empties itself in two steps.
struct Mistaken<const WHICH: u8> {
    /// And whether it has been taken.
    value: Mutex<(Option<std::sync::Arc<Tally>>, bool)>,
    given: Notify,
}

impl<const WHICH: u8> Mistaken<WHICH> {
    fn empty(&self) -> Option<Right> {
        let mut state = lock(&self.value);
        let there = state.0.clone()?;
        if WHICH == LOOKS_THEN_TAKES {
            drop(state);
            state = lock(&self.value);
        }
        *state = (None, true);
        Some(Right::new(there))
    }
}

impl<const WHICH: u8> Place for Mistaken<WHICH> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            value: Mutex::new((None, false)),
            given: Notify::new(),
        })
    }

    fn give(place: &Weak<Self>, value: Right) -> Result<(), Right> {
        let Some(place) = place.upgrade() else {
            return Err(value);
        };
        if WHICH == WAKES_FIRST {
            place.given.notify_one();
            lock(&place.value).0 = Some(value.parts());
        } else {
            lock(&place.value).0 = Some(value.parts());
            place.given.notify_one();
        }
        Ok(())
    }

    async fn taken(&self) -> Option<Right> {
        loop {
            let given = self.given.notified();
            let value = self.empty();
            if value.is_some() || lock(&self.value).1 {
                return value;
            }
            given.await;
        }
    }

    fn take_back(&self) -> Option<Right> {
        self.empty()
    }
}

#[test]
fn the_control_is_right_without_its_mistake() {
    holds(goes_to_one::<Mistaken<0>>);
}

#[test]
fn a_seat_that_wakes_before_it_gives_is_found() {
    fails("deadlock", goes_to_one::<Mistaken<WAKES_FIRST>>);
}

#[test]
fn a_seat_that_is_emptied_in_two_steps_is_found() {
    fails("so many have it", goes_to_one::<Mistaken<LOOKS_THEN_TAKES>>);
}
