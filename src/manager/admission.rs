//! How many wait: bounded per key and per manager, so that a hot key cannot fill the process.

use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    key::LockKey,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
        lock,
    },
};

const SHARDS: usize = 16;

/// Counts the waiters. Nothing is kept for a key that has none.
#[derive(Debug)]
pub(crate) struct Admission {
    max: usize,
    total: AtomicUsize,
    shards: [Mutex<HashTable<(LockKey, usize)>>; SHARDS],
}

/// Why a waiter was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// Too many wait for this key.
    Key,
    /// Too many wait in this manager.
    Manager,
}

impl Admission {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            total: AtomicUsize::new(0),
            shards: std::array::from_fn(|_| Mutex::default()),
        }
    }

    /// Admits one more waiter, who must [`leave`](Self::leave).
    pub(crate) fn enter(&self, key: &LockKey, max_per_key: usize) -> Result<(), Full> {
        let mut shard = self.shard(key);
        let entry = shard.entry(key.hash64(), |(k, _)| k == key, |(k, _)| k.hash64());
        if let Entry::Occupied(occupied) = &entry
            && occupied.get().1 >= max_per_key
        {
            return Err(Full::Key);
        }
        // Who is refused is not counted even for a moment: a shutdown that saw it would wait for
        // somebody who never tells it that they left.
        self.total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |total| {
                (total < self.max).then_some(total + 1)
            })
            .map_err(|_| Full::Manager)?;
        entry
            .and_modify(|(_, n)| *n += 1)
            .or_insert_with(|| (key.clone(), 1));
        Ok(())
    }

    /// How many wait for this key.
    pub(crate) fn waiting_for(&self, key: &LockKey) -> usize {
        if self.total.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.shard(key)
            .find(key.hash64(), |(k, _)| k == key)
            .map_or(0, |(_, n)| *n)
    }

    /// How many wait in all.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// Every key that has waiters, with their number.
    pub(crate) fn list(&self) -> Vec<(LockKey, usize)> {
        self.shards
            .iter()
            .flat_map(|s| lock(s).iter().cloned().collect::<Vec<_>>())
            .collect()
    }

    fn shard(&self, key: &LockKey) -> MutexGuard<'_, HashTable<(LockKey, usize)>> {
        // The table itself uses the hash's top and low bits.
        lock(&self.shards[(key.hash64() >> 32) as usize % SHARDS])
    }

    /// One admitted waiter is gone.
    pub(crate) fn leave(&self, key: &LockKey) {
        let mut shard = self.shard(key);
        if let Ok(mut entry) = shard.find_entry(key.hash64(), |(k, _)| k == key) {
            entry.get_mut().1 -= 1;
            if entry.get().1 == 0 {
                entry.remove();
                if shard.len() * 8 < shard.capacity() {
                    shard.shrink_to(16, |(k, _)| k.hash64());
                }
            }
        }
        drop(shard);
        self.total.fetch_sub(1, Ordering::Relaxed);
    }
}
