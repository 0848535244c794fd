//! Why a lock was lost, and the signal that tells.

use std::{
    fmt,
    task::{Context, Poll, Waker},
};

use crate::sync::{
    Mutex, Notify,
    atomic::{AtomicU8, Ordering},
    contain, lock,
};

/// Why a lock was lost before its holder released it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The lease ended before it could be renewed.
    Expired,
    /// The backend says that this owner does not hold the key (any more).
    Revoked,
    /// An operator took the lock away with `force_release`.
    ForceReleased,
    /// The holder kept it for longer than the policy's `max_hold`.
    MaxHold,
    /// The manager was shut down and its grace has passed.
    Shutdown,
}

impl Loss {
    fn from_u8(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Expired,
            2 => Self::Revoked,
            3 => Self::ForceReleased,
            4 => Self::MaxHold,
            5 => Self::Shutdown,
            _ => return None,
        })
    }

    fn to_u8(self) -> u8 {
        match self {
            Self::Expired => 1,
            Self::Revoked => 2,
            Self::ForceReleased => 3,
            Self::MaxHold => 4,
            Self::Shutdown => 5,
        }
    }

    /// The reason as a label for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::ForceReleased => "force_released",
            Self::MaxHold => "max_hold",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Tells everybody who holds a lease that it is lost.
///
/// Every [`Lease`](crate::lease::Lease) owns one; its backend fires it as soon as it knows, the manager fires it when
/// the lease ends unrenewed. Firing is terminal: the first reason stays.
#[derive(Default)]
pub struct LossSignal {
    loss: AtomicU8,
    /// The task that runs the handler: one slot, so that a request costs no allocation.
    holder: Mutex<Option<Waker>>,
    others: Notify,
}

impl LossSignal {
    /// A signal that has not been fired.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reports the loss. Only the first call counts; it returns `true`.
    pub fn fire(&self, loss: Loss) -> bool {
        let first = self
            .loss
            .compare_exchange(0, loss.to_u8(), Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        if first {
            let waker = lock(&self.holder).take();
            // A waker that panics must keep neither the others nor the caller from going on.
            if let Some(waker) = waker {
                contain(|| waker.wake());
            }
            contain(|| self.others.notify_waiters());
        }
        first
    }

    /// The reason, once fired.
    pub fn get(&self) -> Option<Loss> {
        Loss::from_u8(self.loss.load(Ordering::SeqCst))
    }

    /// Resolves with the reason when the lease is lost; at once if it is.
    ///
    /// Any number of tasks may wait. Cancel safe.
    pub async fn wait(&self) -> Loss {
        loop {
            // Register, then check, then wait: a fire in between is not missed.
            let notified = self.others.notified();
            if let Some(loss) = self.get() {
                return loss;
            }
            notified.await;
        }
    }

    /// As [`wait`](Self::wait), for the one task that polls the handler.
    pub(crate) fn poll_holder(&self, cx: &mut Context<'_>) -> Poll<Loss> {
        if let Some(loss) = self.get() {
            return Poll::Ready(loss);
        }
        {
            let mut slot = lock(&self.holder);
            match &mut *slot {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
        }
        // A fire between the first look and the registration found no waker to wake.
        match self.get() {
            Some(loss) => Poll::Ready(loss),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LossSignal").field(&self.get()).finish()
    }
}
