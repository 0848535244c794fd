//! Who asks in this process: what the rooms of Redis and of RedLock have in common.

use std::{
    hash::{Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::{Notify, futures::Notified};

use crate::lease::OwnerToken;

/// An owner and the lock that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) struct Asker {
    owner: OwnerToken,
    pub(in crate::backend) lock: Arc<str>,
}

impl Hash for Asker {
    /// Few owners ask for more than one lock.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.owner.hash64());
    }
}

impl Asker {
    pub(in crate::backend) fn new(owner: OwnerToken, lock: impl Into<Arc<str>>) -> Self {
        let lock = lock.into();
        Self { owner, lock }
    }
}

/// The callers of one process that wait for one key to be free.
#[derive(Debug)]
pub(in crate::backend) struct Gate {
    entry: String,
    callers: AtomicUsize,
    opened: Notify,
}

impl Gate {
    /// A gate of the process that hears by this inbox.
    pub(in crate::backend) fn new(inbox: &str) -> Self {
        Self {
            entry: format!("gate {inbox} {:016x}", fastrand::u64(..)),
            callers: AtomicUsize::new(0),
            opened: Notify::new(),
        }
    }

    /// Its entry in the queue, never used again after the last caller left. Where it is left, it ends
    /// with the queue, and tells nobody.
    pub(in crate::backend) fn entry(&self) -> &str {
        &self.entry
    }

    /// Under the room's lock, as [`leave`](Self::leave).
    pub(in crate::backend) fn join(&self) {
        self.callers.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it was the last caller.
    pub(in crate::backend) fn leave(&self) -> bool {
        self.callers.fetch_sub(1, Ordering::Relaxed) == 1
    }

    pub(in crate::backend) fn open(&self) {
        self.opened.notify_waiters();
    }

    pub(in crate::backend) fn opened(&self) -> Notified<'_> {
        self.opened.notified()
    }
}
