//! Letting go of everything before the process ends.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::timeout;

use super::{Hold, LockManager, Releaser, Shared};
use crate::lease::Loss;

/// For how long aborted handlers may take to be dropped, and signalled ones to let go.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// How a shutdown went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Holders that ended within the grace.
    pub finished: usize,
    /// Holders that were told of the loss after the grace and then let go.
    pub interrupted: usize,
    /// Holders that did not let go: their locks were released under them.
    pub forced: usize,
    /// Whether every release was confirmed before the end.
    pub confirmed: bool,
}

impl LockManager {
    /// Lets go of everything: waiters and newcomers are refused at once (503 `draining`), holders
    /// get the grace, then their locks are lost ([`Loss::Shutdown`]), and a second later whatever
    /// is still held is released.
    ///
    /// Call it before the process ends, so that other instances need not wait for leases to run
    /// out, and together with the server's graceful shutdown:
    /// [`guide::operations`](crate::guide::operations) has the lines. Holders include detached handlers and sockets that took their guard, which a server's
    /// own graceful shutdown does not wait for. What is still running after this call runs
    /// without its lock: end the process.
    ///
    /// Repeated calls are harmless. Cancel safe: what was begun goes on.
    pub async fn shutdown(&self, grace: Duration) -> ShutdownReport {
        let shared = self.shared();
        shared.closing.store(true, Ordering::SeqCst);
        shared.draining.cancel();
        let mut report = ShutdownReport::default();
        // A guard that was dropped just now is the reaper's already.
        let held = shared.held().iter().filter(|h| !h.is_released()).count();
        shared.until_free(grace).await;
        let after_grace = shared.registry.len();
        report.finished = held.saturating_sub(after_grace);
        if after_grace > 0 || shared.admission.total() > 0 {
            for hold in shared.held() {
                shared.lose(&hold, Loss::Shutdown);
            }
            shared.until_free(LAST_MOMENT).await;
            for hold in shared.held() {
                if hold.begin_release(Releaser::Layer) || hold.begin_release(Releaser::Guard) {
                    report.forced += 1;
                    shared.reap(hold);
                }
            }
            report.interrupted = after_grace.saturating_sub(report.forced);
        }
        shared.releases.close();
        report.confirmed = timeout(shared.backend_timeout, shared.releases.wait())
            .await
            .is_ok();
        report
    }
}

impl Shared {
    fn held(&self) -> Vec<std::sync::Arc<Hold>> {
        let mut held = Vec::new();
        self.registry.for_each(|hold| held.push(hold.clone()));
        held
    }

    /// Something that a shutdown waits for has ended.
    pub(super) fn tell_shutdown(&self) {
        if self.closing.load(Ordering::SeqCst) {
            self.released.notify_waiters();
        }
    }

    /// Waits until nothing is held or waited for, at most for so long.
    async fn until_free(&self, limit: Duration) {
        let free = async {
            loop {
                let released = self.released.notified();
                // In the order in which a lock moves on: whoever waits may hold by now.
                if self.admission.total() == 0 && self.registry.len() == 0 {
                    return;
                }
                released.await;
            }
        };
        let _ = timeout(limit, free).await;
    }
}
