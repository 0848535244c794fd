//! Waiting until nobody holds a key, without holding it: any number of callers of a process stand
//! behind one entry on each node, behind all who want to hold.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::{
    client::{Client, Shared},
    names::Names,
    operate::look,
    post::each,
};
use crate::{
    backend::{WaitBound, redis::callers::Gate},
    clock::jittered,
    error::{BackendError, BackendErrorKind},
    key::LockKey,
};

/// How long a lost notification may delay.
const CEILING: Duration = Duration::from_secs(1);
/// How soon, at first, a key is looked at whose holder tells nobody of its release.
const FOREIGN: Duration = Duration::from_millis(25);

/// One caller.
struct Caller<'a> {
    client: &'a Arc<Client>,
    names: Arc<Names>,
    gate: Arc<Gate>,
    asked: bool,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let last = self.client.shared.room.leave_gate(&self.names, &self.gate);
        if last && self.asked {
            self.client.close_gate(GateLeft {
                names: self.names.clone(),
                entry: self.gate.entry().to_owned(),
            });
        }
    }
}

/// An entry that nobody stands behind any more.
pub(super) struct GateLeft {
    names: Arc<Names>,
    entry: String,
}

impl GateLeft {
    /// Where it cannot be taken out now it ends by itself.
    pub(super) async fn take_out(self, shared: Arc<Shared>) {
        let asks = shared.nodes.iter().map(async |node| {
            if let Some(connection) = node.lock_link.ready() {
                let mut cmd = redis::cmd("ZREM");
                cmd.arg(&*self.names.waiters).arg(&self.entry);
                let _ = connection.ask(&cmd).await;
            }
        });
        each(asks, |_, ()| false).await;
    }
}

pub(super) async fn wait_free(
    client: &Arc<Client>,
    key: &LockKey,
    wait: WaitBound,
) -> Result<(), BackendError> {
    let shared = &client.shared;
    let names = Arc::new(Names::new(&shared.prefix, key));
    if wait == WaitBound::Fail {
        return match look(shared, &names, "").await?.holder() {
            None => Ok(()),
            Some(holder) => {
                Err(BackendError::new(BackendErrorKind::Contended, "")
                    .with_remaining(holder.remaining))
            }
        };
    }
    let gate = shared.room.join_gate(&names, || Gate::new(&shared.inbox));
    let mut caller = Caller {
        client,
        names,
        gate,
        asked: false,
    };
    let mut backoff = FOREIGN;
    loop {
        let gate = caller.gate.clone();
        let opened = gate.opened();
        tokio::pin!(opened);
        // Registered here and at the nodes before the answer is looked at.
        opened.as_mut().enable();
        caller.asked = true;
        let Some(holder) = look(shared, &caller.names, gate.entry()).await?.holder() else {
            return Ok(());
        };
        let now = Instant::now();
        if let WaitBound::Until(deadline) = wait
            && deadline <= now
        {
            return Err(BackendError::new(BackendErrorKind::WaitTimedOut, "")
                .with_remaining(holder.remaining));
        }
        let mut delay = jittered(CEILING);
        if let Some(remaining) = holder.remaining {
            delay = delay.min(remaining + Duration::from_millis(2));
        }
        if holder.is_foreign {
            delay = delay.min(jittered(backoff));
            backoff = (backoff * 2).min(CEILING);
        }
        let mut next = now + delay;
        if let WaitBound::Until(deadline) = wait {
            next = next.min(deadline);
        }
        tokio::select! {
            () = &mut opened => {
                // The other nodes are about to say so too.
                sleep(Duration::from_millis(1)).await;
            }
            () = sleep_until(next) => {}
        }
    }
}
