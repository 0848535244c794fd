//! What a critical section wants done once the lock is free.

use std::{sync::Arc, task::Waker};

use super::lease::Grant;
use crate::{lease::Loss, sync::contain};

/// Wakers and losses to fire after the shard is unlocked: both run foreign code, which may drop a
/// lease of the same shard.
#[derive(Default)]
pub(super) struct Effects {
    /// The usual case, one waiter, without an allocation.
    first: Option<Waker>,
    more: Vec<Waker>,
    lost: Vec<(Arc<Grant>, Loss)>,
    discarded: Vec<Waker>,
}

impl Effects {
    pub(super) fn wake(&mut self, waker: Option<Waker>) {
        match waker {
            Some(waker) if self.first.is_none() => self.first = Some(waker),
            Some(waker) => self.more.push(waker),
            None => {}
        }
    }

    pub(super) fn lost(&mut self, grant: Arc<Grant>, loss: Loss) {
        self.lost.push((grant, loss));
    }

    /// Drops a waker after the lock: its drop is foreign code too.
    pub(super) fn discard(&mut self, waker: Option<Waker>) {
        self.discarded.extend(waker);
    }

    pub(super) fn run(self) {
        // The old holder learns of its loss before a successor runs.
        for (grant, loss) in self.lost {
            grant.lost.fire(loss);
        }
        // One that panics must not cost the others their turn.
        for waker in self.first.into_iter().chain(self.more) {
            contain(|| waker.wake());
        }
    }
}
