//! Waiting until nobody holds a key, without holding it.
//!
//! Whoever held or waited when this began must be gone. Who comes later may hold already when it
//! ends: a key that is always waited for is never free, and was, for a moment, between two of them.
//! Nothing is put, and the last one that was seen is watched, so most of those before it wake nobody.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{
    client::Client,
    hub::{Target, Watching},
    names::Names,
    nodes,
};
use crate::{
    backend::WaitBound,
    error::{BackendError, BackendErrorKind},
    key::LockKey,
};

/// How long a lost notification may delay.
const CEILING: Duration = Duration::from_secs(1);

/// One caller.
#[derive(Debug, Default)]
pub(super) struct Gate {
    opened: Notify,
}

impl Gate {
    pub(super) fn open(&self) {
        // A permit is kept for the one who waits.
        self.opened.notify_one();
    }
}

pub(super) async fn wait_free(
    client: &Arc<Client>,
    key: &LockKey,
    wait: WaitBound,
) -> Result<(), BackendError> {
    let shared = &client.shared;
    let names = Names::new(&shared.prefix, key);
    let gate = Arc::new(Gate::default());
    let mut watching = None::<Watching>;
    let mut until = 0;
    loop {
        let answer = shared.txn(nodes::last(&names, until)).await?;
        let (now, Some(node)) = nodes::was_last(&answer)? else {
            return Ok(());
        };
        if until == 0 {
            until = now;
        }
        let mut next = Instant::now() + super::jittered(CEILING);
        match wait {
            WaitBound::Fail => return Err(BackendError::new(BackendErrorKind::Contended, "")),
            WaitBound::Until(deadline) if deadline <= Instant::now() => {
                return Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""));
            }
            WaitBound::Until(deadline) => next = next.min(deadline),
            WaitBound::Forever => {}
        }
        if !watching.as_ref().is_some_and(|w| w.is_of(&node)) {
            let target = Target::Gate(Arc::downgrade(&gate));
            watching = Some(shared.hub.watch(node, now + 1, target));
        }
        tokio::select! {
            () = gate.opened.notified() => watching = None,
            () = sleep_until(next) => {}
        }
    }
}
