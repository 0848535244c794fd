//! In place of the library's held locks: what the registry and the worker look at.

use crate::{
    claim::{Owner, Releaser},
    key::LockKey,
    sync::atomic::AtomicU64,
};

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) key: LockKey,
    pub(crate) owner: Owner,
    /// When the worker must have looked at it.
    pub(crate) due: AtomicU64,
}

impl Hold {
    pub(crate) fn new(key: u64, due: u64) -> Self {
        Self {
            key: LockKey::new(key),
            owner: Owner::new(Releaser::Guard),
            due: AtomicU64::new(due),
        }
    }
}
