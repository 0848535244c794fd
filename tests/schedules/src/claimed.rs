//! The right to release: claimed by one. The gate of a body: a loss is seen on one of its sides.

use std::sync::atomic::{AtomicBool as Flag, AtomicUsize as Tally, Ordering::SeqCst};

use shuttle::thread;

use crate::{
    claim::{Gate, Owner, Releaser},
    explore::{fails, holds},
    loss::{Loss, LossSignal},
    sync::{Arc, atomic::AtomicU8},
};

trait Right: Send + Sync + 'static {
    fn new() -> Self;
    fn begin_release(&self, releaser: Releaser) -> bool;
    fn take(&self) -> bool;
    fn is_released(&self) -> bool;
}

impl Right for Owner {
    fn new() -> Self {
        Self::new(Releaser::Layer)
    }

    fn begin_release(&self, releaser: Releaser) -> bool {
        self.begin_release(releaser)
    }

    fn take(&self) -> bool {
        self.take()
    }

    fn is_released(&self) -> bool {
        assert_ne!(self.is_layers(), self.is_released() || self.is_taken());
        self.is_released()
    }
}

/// The layer, a handler that takes the guard, and a shutdown that takes it from either.
fn is_claimed_once<R: Right>() {
    let right = Arc::new(R::new());
    let claimed = std::sync::Arc::new(Tally::new(0));
    let claim = |by: fn(&R) -> bool| {
        let (right, claimed) = (right.clone(), claimed.clone());
        thread::spawn(move || {
            if by(&right) {
                claimed.fetch_add(1, SeqCst);
            }
        })
    };
    let all = [
        claim(|right| right.begin_release(Releaser::Layer)),
        claim(|right| right.take() && right.begin_release(Releaser::Guard)),
        claim(|right| right.begin_release(Releaser::Layer) || right.begin_release(Releaser::Guard)),
    ];
    for one in all {
        one.join().unwrap();
    }
    let claimed = claimed.load(SeqCst);
    assert_eq!(claimed, 1, "released by so many");
    assert!(right.is_released());
    assert!(!right.take() && !right.begin_release(Releaser::Guard));
}

#[test]
fn a_release_is_claimed_once() {
    holds(is_claimed_once::<Owner>);
}

/// Looks who has it, then writes.
struct LookThenWrite(AtomicU8);

impl LookThenWrite {
    fn step(&self, from: u8, to: u8) -> bool {
        let may = self.0.load(SeqCst) == from;
        if may {
            self.0.store(to, SeqCst);
        }
        may
    }
}

impl Right for LookThenWrite {
    fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    fn begin_release(&self, releaser: Releaser) -> bool {
        match releaser {
            Releaser::Layer => self.step(0, 2),
            Releaser::Guard => self.step(1, 3),
        }
    }

    fn take(&self) -> bool {
        self.step(0, 1)
    }

    fn is_released(&self) -> bool {
        self.0.load(SeqCst) >= 2
    }
}

#[test]
fn a_claim_in_two_steps_is_found() {
    fails("released by so many", is_claimed_once::<LookThenWrite>);
}

struct Body {
    gate: Gate,
    lost: LossSignal,
    right: Owner,
}

/// How the body leaves a poll, and whether it was lost.
type Leave = fn(&Body) -> Option<Loss>;

/// A body that is polled twice, and the worker that tells of its loss meanwhile.
fn somebody_releases(leave: Leave) {
    let body = Arc::new(Body {
        gate: Gate::new(),
        lost: LossSignal::new(),
        right: Owner::new(Releaser::Layer),
    });
    let polled = std::sync::Arc::new(Flag::new(false));
    let released = std::sync::Arc::new(Tally::new(0));
    assert!(!body.gate.close(), "there is no body yet");
    body.gate.open();
    let stream = {
        let (body, polled, released) = (body.clone(), polled.clone(), released.clone());
        thread::spawn(move || {
            for _ in 0..2 {
                if !body.gate.enter() {
                    return;
                }
                polled.store(true, SeqCst);
                // Within the poll.
                crate::sync::point();
                polled.store(false, SeqCst);
                if leave(&body).is_some() {
                    if body.right.begin_release(Releaser::Layer) {
                        released.fetch_add(1, SeqCst);
                    }
                    return;
                }
            }
        })
    };
    // As the worker's `lose`.
    if body.lost.fire(Loss::MaxHold)
        && body.gate.close()
        && body.right.begin_release(Releaser::Layer)
    {
        assert!(!polled.load(SeqCst), "released under a poll");
        released.fetch_add(1, SeqCst);
    }
    stream.join().unwrap();
    assert_eq!(released.load(SeqCst), 1, "releases of a lost lock");
}

#[test]
fn a_lost_body_is_released_by_one_side() {
    holds(|| {
        somebody_releases(|body| {
            body.gate.leave();
            body.lost.get()
        });
    });
}

#[test]
fn a_body_that_looks_before_it_leaves_is_found() {
    fails("releases of a lost lock", || {
        somebody_releases(|body| {
            let loss = body.lost.get();
            body.gate.leave();
            loss
        });
    });
}
