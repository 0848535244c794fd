//! In place of the library's keys.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKey(u64);

impl LockKey {
    /// Keys below 2³² share a shard, and with it its lock.
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    pub(crate) fn hash64(&self) -> u64 {
        self.0
    }
}
