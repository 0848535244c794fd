//! Leases of records: each for one, and for all of its time. Nobody keeps them alive.
//!
//! Their numbers are chosen here, so that a lease whose answer got lost is known: asked for again
//! it is there, and undone it is revoked. One that nobody could revoke, as the cluster was away for
//! too long or the process was killed, ends by itself, with nothing on it or with its record.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{client::Shared, trouble::Trouble, undo::Undo};
use crate::{clock::jittered, record::Save};

/// How often revoking is tried.
const TRIES: u32 = 20;

/// A number that no other lease has.
pub(super) fn new() -> i64 {
    fastrand::i64(1..=i64::MAX)
}

/// That of a save, and of its repetitions.
pub(super) fn of(save: &Save, ttl: Duration) -> i64 {
    let (mut owner, bytes) = ([0; 8], save.owner.as_bytes());
    owner.copy_from_slice(&bytes[..8]);
    // Owners are random.
    let number = u64::from_be_bytes(owner)
        ^ save.token.get().wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (seconds(ttl) as u64).rotate_left(32);
    ((number >> 1) as i64).max(1)
}

/// The server counts seconds; rounded up, so that no record ends early.
fn seconds(ttl: Duration) -> i64 {
    ttl.as_nanos().div_ceil(1_000_000_000).max(1) as i64
}

/// Has the server give the lease of this number, or start it again.
pub(super) async fn lend(shared: &Shared, id: i64, ttl: Duration) -> Result<(), Trouble> {
    let started = Instant::now();
    loop {
        let connection = shared.link.connection().await?;
        let lent = match connection.grant_as(id, seconds(ttl)).await {
            // By a try that was not answered.
            Err(trouble) if trouble.lease_exists => {
                let patience = shared.link.patience;
                connection.keep_alive(id, patience).await
            }
            lent => lent,
        };
        match lent {
            Err(trouble)
                if (trouble.elsewhere || !trouble.answered || trouble.lease_gone)
                    && started.elapsed() < shared.budget => {}
            lent => return lent,
        }
    }
}

/// Revokes a lease on which nothing hangs; in the background, where that does not succeed at once.
pub(super) async fn give_back(shared: &Shared, id: i64) {
    // A record without a lease was written by hand.
    if id != 0 && revoke(shared, id).await.is_err() {
        shared.undo(Undo::lease(id));
    }
}

/// The same in the background, for several.
pub(super) fn leave(shared: &Shared, leases: Vec<i64>) {
    for id in leases.into_iter().filter(|id| *id != 0) {
        shared.undo(Undo::lease(id));
    }
}

async fn revoke(shared: &Shared, id: i64) -> Result<(), Trouble> {
    shared.link.connection().await?.revoke(id).await
}

pub(super) async fn insist(shared: &Shared, id: i64) {
    let mut pause = Duration::from_millis(20);
    for _ in 0..TRIES {
        if revoke(shared, id).await.is_ok() {
            return;
        }
        sleep(jittered(pause)).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
