//! Every lock that this manager holds, by key.

use hashbrown::HashTable;

use super::hold::Hold;
use crate::{
    key::LockKey,
    sync::{Arc, Mutex, MutexGuard, lock},
};

const SHARDS: usize = 16;

/// The held locks; what is not here is not renewed.
#[derive(Debug)]
pub(crate) struct Registry {
    shards: [Mutex<HashTable<Arc<Hold>>>; SHARDS],
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    pub(crate) fn insert(&self, hold: Arc<Hold>) {
        self.shard(&hold.key)
            .insert_unique(hold.key.hash64(), hold, |h| h.key.hash64());
    }

    pub(crate) fn remove(&self, hold: &Hold) {
        let mut shard = self.shard(&hold.key);
        if let Ok(entry) = shard.find_entry(hold.key.hash64(), |h| std::ptr::eq(&**h, hold)) {
            entry.remove();
            if shard.len() * 8 < shard.capacity() {
                shard.shrink_to(16, |h| h.key.hash64());
            }
        }
    }

    /// Any lock that this manager holds on the key.
    pub(crate) fn find(&self, key: &LockKey) -> Option<Arc<Hold>> {
        self.shard(key)
            .find(key.hash64(), |h| h.key == *key)
            .cloned()
    }

    /// Calls `visit` for every held lock. It must not acquire or release.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&Arc<Hold>)) {
        for shard in &self.shards {
            for hold in lock(shard).iter() {
                visit(hold);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|s| lock(s).len()).sum()
    }

    fn shard(&self, key: &LockKey) -> MutexGuard<'_, HashTable<Arc<Hold>>> {
        lock(&self.shards[(key.hash64() >> 32) as usize % SHARDS])
    }
}
