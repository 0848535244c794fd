//! One acquire that waits, and what the nodes tell it.

use std::sync::Mutex;

use tokio::sync::Notify;

use crate::sync::lock;

#[derive(Debug, Default)]
pub(super) struct Waiter {
    told: Mutex<Told>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct Told {
    /// The nodes, a bit each, where the key was free since it asked.
    free: u64,
    replaced: bool,
    /// The highest token of a grant that was taken away, perhaps before all answers came.
    revoked: u64,
}

/// What a waiter knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct News {
    /// At how many of the nodes in question the key was free since it asked.
    pub(super) free: usize,
    /// Whether it was so at any node.
    pub(super) any: bool,
    /// Another acquire of the same owner has taken its place.
    pub(super) replaced: bool,
}

impl Waiter {
    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut lock(&self.told));
        self.woken.notify_one();
    }

    /// The key was free at this node, or it may have been without a word of it.
    pub(super) fn free_at(&self, node: usize) {
        self.tell(|told| told.free |= 1 << node);
    }

    /// Its place in the line of this process is another.
    pub(super) fn moved(&self) {
        self.woken.notify_one();
    }

    pub(super) fn replace(&self) {
        self.tell(|told| told.replaced = true);
    }

    pub(super) fn revoke(&self, token: u64) {
        self.tell(|told| told.revoked = told.revoked.max(token));
    }

    /// It is about to ask: what it was told before says nothing of what it will be answered.
    pub(super) fn asks(&self) {
        lock(&self.told).free = 0;
    }

    /// Whether a grant of this token, or of a later one, was taken away.
    pub(super) fn was_revoked(&self, token: u64) -> bool {
        lock(&self.told).revoked >= token
    }

    /// `at`: the nodes in question, a bit each.
    pub(super) fn news(&self, at: u64) -> News {
        let told = lock(&self.told);
        News {
            free: (told.free & at).count_ones() as usize,
            any: told.free != 0,
            replaced: told.replaced,
        }
    }

    /// Cancel safe: a permit is kept for the one task that waits.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    pub(super) async fn replaced(&self) {
        while !lock(&self.told).replaced {
            self.woken.notified().await;
        }
    }
}
