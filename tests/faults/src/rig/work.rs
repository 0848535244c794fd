//! What is done under a lock: claim, read, take time, write. And the record of how long it was
//! believed to be held.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tower_lock::HeldLock;

use super::{recorder::Recorder, storage::Client};
use crate::history::{AttemptId, What, now};

/// How often a holder looks at its lease.
const LOOK: Duration = Duration::from_millis(10);

/// What all attempts of a process share.
#[derive(Debug)]
pub(super) struct Shop {
    pub(super) recorder: Recorder,
    pub(super) storage: Client,
}

/// One attempt, in the request that makes it.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) id: AttemptId,
    pub(super) key: u32,
    pub(super) holds: Duration,
    progress: Arc<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// Its caller has dropped it, or is about to.
    cancelled: AtomicBool,
    /// Somebody holds, or held: who writes down how it ends.
    granted: AtomicBool,
}

impl Attempt {
    pub(super) fn new(id: AttemptId, key: u32, holds: Duration) -> Self {
        let progress = Arc::default();
        Self {
            id,
            key,
            holds,
            progress,
        }
    }

    pub(super) fn cancel(&self) {
        self.progress.cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_granted(&self) -> bool {
        self.progress.granted.load(Ordering::Relaxed)
    }
}

/// Somebody who holds. Written down as lost, or as cancelled, if it is dropped before its end.
pub(super) struct Holder {
    shop: Arc<Shop>,
    attempt: Attempt,
    held: HeldLock,
    valid_until: AtomicU64,
    over: AtomicBool,
}

impl Holder {
    /// To be made right after the grant.
    pub(super) fn new(shop: Arc<Shop>, attempt: Attempt, held: HeldLock) -> Self {
        let valid_until = end_of(&held);
        attempt.progress.granted.store(true, Ordering::Relaxed);
        shop.recorder.write(What::Granted {
            id: attempt.id,
            token: held.fencing_token().get(),
            valid_until,
        });
        Self {
            shop,
            attempt,
            held,
            valid_until: valid_until.into(),
            over: false.into(),
        }
    }

    /// Takes its time, and writes down what renewals bring.
    async fn hold(&self, until: Instant) {
        while Instant::now() < until {
            sleep(LOOK.min(until - Instant::now())).await;
            let valid_until = end_of(&self.held);
            let known = self.valid_until.load(Ordering::Relaxed);
            // Less is no renewal: it is what is left of the same lease.
            if self.held.is_held() && valid_until > known + LOOK.as_nanos() as u64 {
                self.valid_until.store(valid_until, Ordering::Relaxed);
                let id = self.attempt.id;
                self.shop.recorder.write(What::Renewed { id, valid_until });
            }
        }
    }

    /// Reads, takes its time, writes: whatever has become of the lock meanwhile.
    pub(super) async fn work(&self) {
        let Attempt { id, key, holds, .. } = self.attempt;
        let token = self.held.fencing_token().get();
        let until = Instant::now() + holds;
        let row = self.shop.storage.claim(id, key, token).await;
        let row = row.expect("the storage answers");
        self.hold(until).await;
        let written = self.shop.storage.write(id, key, token, row).await;
        written.expect("the storage answers");
    }

    /// It was told.
    pub(super) fn lost(&self) {
        self.ends(What::Lost {
            id: self.attempt.id,
        });
    }

    /// Its work is done, and the lock goes back.
    pub(super) fn releases(&self) {
        self.ends(What::Releases {
            id: self.attempt.id,
        });
    }

    /// The first end is the one.
    fn ends(&self, what: What) {
        if !self.over.swap(true, Ordering::Relaxed) {
            self.shop.recorder.write(what);
        }
    }
}

/// The end that a holder counts on. No later than that: the clock is read first.
fn end_of(held: &HeldLock) -> u64 {
    let now = now();
    now + held.remaining().as_nanos() as u64
}

impl Drop for Holder {
    fn drop(&mut self) {
        let id = self.attempt.id;
        self.ends(if self.attempt.progress.cancelled.load(Ordering::Relaxed) {
            What::Cancelled { id }
        } else {
            What::Lost { id }
        });
    }
}
