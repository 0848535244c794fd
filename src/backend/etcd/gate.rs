//! Waiting until nobody holds a key, without holding it.
//!
//! Whoever held or waited when this began must be gone. Who comes later may hold already when it
//! ends: a key that is always waited for is never free, and was, for a moment, between two of them.
//! Nothing is put, and the last one that was seen is watched, so most of those before it wake nobody.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{sleep, timeout_at},
};

use super::{
    client::{Client, Shared},
    hub::Watching,
    names::Names,
    nodes,
    trouble::Trouble,
    watches::Target,
};
use crate::{
    backend::WaitBound,
    clock::jittered,
    error::{BackendError, BackendErrorKind},
    key::LockKey,
};

/// How long a lost notification may delay.
const CEILING: Duration = Duration::from_secs(1);

/// One caller.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// What was watched is gone, and has to be watched no more.
    gone: AtomicBool,
    opened: Notify,
}

impl Gate {
    pub(super) fn open(&self) {
        self.gone.store(true, Ordering::Release);
        self.check();
    }

    /// It may have opened before it was watched.
    pub(super) fn check(&self) {
        // A permit is kept for the one who waits.
        self.opened.notify_one();
    }
}

/// The last one that was in the way.
#[derive(Default)]
struct Seen {
    /// The revision of the first look: who comes later is not waited for.
    until: i64,
    /// That of the last one.
    now: i64,
    node: Option<Arc<str>>,
}

pub(super) async fn wait_free(
    client: &Client,
    key: &LockKey,
    wait: WaitBound,
) -> Result<(), BackendError> {
    let shared = &client.shared;
    let names = Names::new(&shared.prefix, key);
    let mut seen = Seen::default();
    // The first answer may take as long as that of a try.
    if seen.is_free(shared, &names).await? {
        return Ok(());
    }
    let freed = until_free(shared, &names, seen);
    match wait {
        WaitBound::Fail => Err(BackendError::new(BackendErrorKind::Contended, "")),
        WaitBound::Until(deadline) => timeout_at(deadline, freed)
            .await
            .unwrap_or_else(|_| Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""))),
        WaitBound::Forever => freed.await,
    }
}

async fn until_free(shared: &Shared, names: &Names, mut seen: Seen) -> Result<(), BackendError> {
    let gate = Arc::new(Gate::default());
    let mut watching = None::<Watching>;
    while let Some(node) = seen.node.take() {
        if !watching.as_ref().is_some_and(|w| w.is_of(&node)) {
            let target = Target::Gate(Arc::downgrade(&gate));
            watching = Some(shared.hub.watch(node, seen.now + 1, target));
        }
        tokio::select! {
            () = gate.opened.notified() => {
                if gate.gone.swap(false, Ordering::AcqRel) {
                    watching = None;
                }
            }
            () = sleep(jittered(CEILING)) => {}
        }
        seen.is_free(shared, names).await?;
    }
    Ok(())
}

impl Seen {
    async fn is_free(&mut self, shared: &Shared, names: &Names) -> Result<bool, Trouble> {
        let answer = shared.txn(nodes::last(names, self.until)).await?;
        (self.now, self.node) = nodes::was_last(&answer)?;
        if self.until == 0 {
            self.until = self.now;
        }
        Ok(self.node.is_none())
    }
}
