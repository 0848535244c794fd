//! The signal of a loss: fired once, and nobody who waits for it is forgotten.

use std::{
    future::{Future, poll_fn},
    task::{Context, Poll, Waker},
};

use shuttle::{future::block_on, thread};

use crate::{
    explore::{fails, holds},
    loss::{Loss, LossSignal},
    sync::{
        Arc, Mutex, Notify,
        atomic::{AtomicBool, Ordering::SeqCst},
        lock,
    },
};

trait Signal: Send + Sync + 'static {
    fn new() -> Self;
    fn fire(&self, loss: Loss) -> bool;
    fn wait(&self) -> impl Future<Output = Loss>;
    fn poll_holder(&self, cx: &mut Context<'_>) -> Poll<Loss>;
}

impl Signal for LossSignal {
    fn new() -> Self {
        Self::new()
    }

    fn fire(&self, loss: Loss) -> bool {
        self.fire(loss)
    }

    fn wait(&self) -> impl Future<Output = Loss> {
        self.wait()
    }

    fn poll_holder(&self, cx: &mut Context<'_>) -> Poll<Loss> {
        self.poll_holder(cx)
    }
}

/// Two report a loss; the holder and two others wait for it, before or after.
fn reaches_everybody<S: Signal>() {
    let signal = Arc::new(S::new());
    let fire = |loss| {
        let signal = signal.clone();
        thread::spawn(move || signal.fire(loss))
    };
    let wait = |who: fn(&S) -> Loss| {
        let signal = signal.clone();
        thread::spawn(move || who(&signal))
    };
    let fired = [fire(Loss::Expired), fire(Loss::Revoked)];
    let told = [
        wait(|signal| block_on(poll_fn(|cx| signal.poll_holder(cx)))),
        wait(|signal| block_on(signal.wait())),
        wait(|signal| block_on(signal.wait())),
    ];
    let first = fired.map(|one| one.join().unwrap());
    let loss = match first {
        [true, false] => Loss::Expired,
        [false, true] => Loss::Revoked,
        _ => panic!("so many were the first: {first:?}"),
    };
    for one in told {
        assert_eq!(one.join().unwrap(), loss, "not what was fired first");
    }
}

#[test]
fn a_loss_is_fired_once_and_reaches_everybody() {
    holds(reaches_everybody::<LossSignal>);
}

/// Each of its parts right, or with a mistake.
struct Mistaken<const HOLDER: bool, const WAIT: bool, const FIRE: bool> {
    fired: AtomicBool,
    loss: Mutex<Option<Loss>>,
    holder: Mutex<Option<Waker>>,
    others: Notify,
}

impl<const HOLDER: bool, const WAIT: bool, const FIRE: bool> Mistaken<HOLDER, WAIT, FIRE> {
    fn get(&self) -> Option<Loss> {
        *lock(&self.loss)
    }

    fn set(&self, loss: Loss) -> bool {
        if FIRE {
            // Looks, then writes.
            if self.fired.load(SeqCst) {
                return false;
            }
            self.fired.store(true, SeqCst);
            *lock(&self.loss) = Some(loss);
            return true;
        }
        let mut slot = lock(&self.loss);
        if slot.is_some() {
            return false;
        }
        *slot = Some(loss);
        true
    }
}

impl<const HOLDER: bool, const WAIT: bool, const FIRE: bool> Signal
    for Mistaken<HOLDER, WAIT, FIRE>
{
    fn new() -> Self {
        Self {
            fired: AtomicBool::new(false),
            loss: Mutex::new(None),
            holder: Mutex::new(None),
            others: Notify::new(),
        }
    }

    fn fire(&self, loss: Loss) -> bool {
        let first = self.set(loss);
        if first {
            let waker = lock(&self.holder).take();
            if let Some(waker) = waker {
                waker.wake();
            }
            self.others.notify_waiters();
        }
        first
    }

    async fn wait(&self) -> Loss {
        loop {
            if WAIT {
                // Looks, then registers.
                if let Some(loss) = self.get() {
                    return loss;
                }
                self.others.notified().await;
                continue;
            }
            let notified = self.others.notified();
            if let Some(loss) = self.get() {
                return loss;
            }
            notified.await;
        }
    }

    fn poll_holder(&self, cx: &mut Context<'_>) -> Poll<Loss> {
        if let Some(loss) = self.get() {
            return Poll::Ready(loss);
        }
        *lock(&self.holder) = Some(cx.waker().clone());
        // Does not look again.
        match self.get() {
            Some(loss) if !HOLDER => Poll::Ready(loss),
            _ => Poll::Pending,
        }
    }
}

#[test]
fn the_controls_are_right_without_their_mistake() {
    holds(reaches_everybody::<Mistaken<false, false, false>>);
}

#[test]
fn a_holder_that_does_not_look_again_is_found() {
    fails(
        "deadlock",
        reaches_everybody::<Mistaken<true, false, false>>,
    );
}

#[test]
fn a_waiter_that_looks_before_it_registers_is_found() {
    fails(
        "deadlock",
        reaches_everybody::<Mistaken<false, true, false>>,
    );
}

#[test]
fn a_signal_that_is_fired_in_two_steps_is_found() {
    fails(
        "so many were the first: [true, true]",
        reaches_everybody::<Mistaken<false, false, true>>,
    );
}
