//! The one worker of a manager: it renews what is held, tells of losses, and finishes the
//! releases that a `Drop` cannot await.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{Hold, ReleaseFuture, Releaser, Shared};
use crate::{
    backend::DynLease,
    clock,
    error::{BackendError, BackendErrorKind},
    lease::Loss,
    policy::OnLost,
    sync::contain,
};

/// How often to look whether the machine was suspended, while anything is held.
const SUSPEND_CHECK: Duration = Duration::from_secs(1);

/// Renewals that are due within this part of their ttl go along with one that is due now: a
/// backend may send them together.
const EARLY: u32 = 15;

/// What is left to the reaper. The token keeps shutdown waiting for it.
#[derive(Debug)]
pub(super) struct Reap {
    work: Work,
    token: TaskTrackerToken,
}

enum Work {
    /// A guard was dropped: end its hold.
    Hold(Arc<Hold>),
    /// A release was sent and its caller is gone: see it through.
    Finish(Option<Arc<Hold>>, ReleaseFuture),
    /// A release failed: try again while the lease lasts.
    Retry(Arc<Hold>),
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Hold(_) => "Hold",
            Self::Finish(..) => "Finish",
            Self::Retry(_) => "Retry",
        })
    }
}

impl Shared {
    /// Leaves a dropped guard's lock to the reaper. Never blocks for longer than a push.
    pub(super) fn reap(&self, hold: Arc<Hold>) {
        self.leave(Work::Hold(hold));
    }

    pub(super) fn finish_release(&self, hold: Arc<Hold>, release: ReleaseFuture) {
        self.leave(Work::Finish(Some(hold), release));
    }

    pub(super) fn reap_release(&self, release: ReleaseFuture) {
        self.leave(Work::Finish(None, release));
    }

    pub(super) fn retry_release(&self, hold: Arc<Hold>) {
        self.leave(Work::Retry(hold));
    }

    fn leave(&self, work: Work) {
        let token = self.releases.token();
        self.agenda.leave(Reap { work, token });
    }

    /// Ends a hold whose right to release was claimed; returns what is left to await.
    pub(super) fn end_hold(&self, hold: &Hold) -> Option<ReleaseFuture> {
        /// Also where a backend's release panics, or its lock would be held for ever.
        struct Removal<'a>(&'a Shared, &'a Hold);
        impl Drop for Removal<'_> {
            fn drop(&mut self) {
                self.0.registry.remove(self.1);
                self.0.tell_shutdown();
            }
        }
        // After the release is counted: a shutdown that finds no hold waits for the releases.
        let _removal = Removal(self, hold);
        match hold.end() {
            Some(lineage) => self.end_lineage(hold, lineage),
            None => self.release(hold.lease.clone()),
        }
    }

    /// Releases to the backend, which has its timeout to confirm; `None` if it is done.
    pub(super) fn release(&self, lease: Arc<dyn DynLease>) -> Option<ReleaseFuture> {
        match lease.dyn_release_now() {
            Some(Ok(())) => None,
            Some(error) => Some(Box::pin(std::future::ready(error))),
            None => {
                // Its timers, and those that the backend makes, are the lock runtime's: the caller's
                // may end before the answer comes.
                let runtime = self.runtime.clone();
                let entered = runtime.enter();
                let release = in_time(self.backend_timeout, lease.dyn_release());
                drop(entered);
                // Counted from here on, whoever sees it through.
                let token = self.releases.token();
                Some(Box::pin(async move {
                    let mut release = pin!(release);
                    let result = poll_fn(|cx| {
                        let _entered = runtime.enter();
                        release.as_mut().poll(cx)
                    })
                    .await;
                    drop(token);
                    result
                }))
            }
        }
    }

    /// Has the worker look at the registry no later than this.
    pub(super) fn look_at(&self, nanos: u64) {
        self.agenda.look_at(nanos);
    }

    /// Does what is due and says when to come again.
    pub(super) fn work(self: &Arc<Self>) -> Option<Instant> {
        for Reap { work, token } in self.agenda.take() {
            // What panics here must cost its own lock alone.
            contain(|| self.reap_one(work, token));
        }
        let now = Instant::now();
        let jumped = self.watches_suspend && self.note_suspends();
        if jumped || self.agenda.next_look() <= self.nanos(now) {
            self.agenda.look(|| self.look(now));
        }
        match self.agenda.next_look() {
            u64::MAX => None,
            nanos if self.watches_suspend => Some(self.instant(nanos).min(now + SUSPEND_CHECK)),
            nanos => Some(self.instant(nanos)),
        }
    }

    fn reap_one(self: &Arc<Self>, work: Work, token: TaskTrackerToken) {
        let (hold, release) = match work {
            Work::Hold(hold) => match self.end_hold(&hold) {
                Some(release) => (Some(hold), Some(release)),
                None => return,
            },
            Work::Finish(hold, release) => (hold, Some(release)),
            Work::Retry(hold) => (Some(hold), None),
        };
        self.runtime.spawn(async move {
            let result = match release {
                Some(release) => release.await,
                None => Err(BackendError::new(BackendErrorKind::Unavailable, "")),
            };
            if let Some(hold) = hold {
                see_through(&hold, result).await;
            }
            drop(token);
        });
    }

    fn note_suspends(&self) -> bool {
        let suspended = clock::nanos(clock::suspended());
        let before = self.suspended.fetch_max(suspended, Ordering::Relaxed);
        suspended > before + 1_000_000
    }

    /// Renews and loses what is due; returns when the next is.
    fn look(self: &Arc<Self>, now: Instant) -> u64 {
        let suspended = self.suspended();
        let then = self.nanos(now);
        let mut lost = Vec::new();
        let mut renewals = Vec::new();
        let mut soon = Vec::new();
        let early = |now: u64, hold: &Hold| now.saturating_add(clock::nanos(hold.ttl() / EARLY));
        let (mut renew_at, mut soon_at, mut lose_at) = (u64::MAX, u64::MAX, u64::MAX);
        let mut least_ttl = Duration::MAX;
        let mut scan = |hold: &Arc<Hold>| {
            if hold.lease.dyn_lost().get().is_some() {
                lost.push((hold.clone(), None));
                return;
            }
            if let Some(loss) = hold.loss_due(then, suspended) {
                lost.push((hold.clone(), Some(loss)));
                return;
            }
            if hold.claim_renewal(then) {
                renewals.push(hold.clone());
            }
            let due = hold.due(suspended);
            if due.renew_at <= early(then, hold) {
                soon.push(hold.clone());
                soon_at = soon_at.min(due.renew_at);
            } else {
                renew_at = renew_at.min(due.renew_at);
            }
            lose_at = lose_at.min(due.lose_at);
            least_ttl = least_ttl.min(hold.ttl());
        };
        self.registry.for_each(|hold| contain(|| scan(hold)));
        for (hold, loss) in lost {
            contain(|| match loss {
                Some(loss) => self.lose(&hold, loss),
                None => hold.leave_batch(),
            });
        }
        if renewals.is_empty() {
            renew_at = renew_at.min(soon_at);
        } else {
            soon.retain(|hold| hold.claim_renewal(early(then, hold)));
            renewals.append(&mut soon);
        }
        for hold in renewals {
            self.runtime.spawn(renew(hold));
        }
        // Renewals are coarse so that many locks do not mean many scans; losses are exact.
        let next_renewal =
            renew_at.max(self.nanos(now + least_ttl.min(Duration::from_secs(60)) / 64));
        if renew_at == u64::MAX {
            lose_at
        } else {
            lose_at.min(next_renewal)
        }
    }

    /// Tells a holder that its lock is lost. A body that nobody polls cannot be told: it is
    /// closed, never runs again, and its lock goes.
    pub(super) fn lose(self: &Arc<Self>, hold: &Arc<Hold>, loss: Loss) {
        if hold.lose(loss)
            && hold.plan.on_lost == OnLost::Abort
            && hold.close_gate()
            && hold.begin_release(Releaser::Layer)
        {
            self.reap(hold.clone());
        }
    }
}

/// One renewal. Whatever happens, the next one is planned.
async fn renew(hold: Arc<Hold>) {
    struct Plan<'a> {
        hold: &'a Hold,
        delay: Duration,
    }
    impl Drop for Plan<'_> {
        fn drop(&mut self) {
            let now = Instant::now();
            self.hold.renew_in(self.delay, now);
            let due = self.hold.due(self.hold.shared.suspended());
            self.hold.shared.look_at(due.renew_at.min(due.lose_at));
        }
    }
    // A failure is tried again soon: until the lease ends there is time for several.
    let mut plan = Plan {
        hold: &hold,
        delay: hold.ttl() / 12,
    };
    if hold.is_released() {
        return;
    }
    let shared = &hold.shared;
    let suspended_before = shared.suspended();
    // Another attempt must still fit into the lease.
    let limit = (hold.ttl() / 3).min(shared.backend_timeout);
    match in_time(limit, hold.lease.clone().dyn_renew()).await {
        Ok(()) => {
            hold.renewed(suspended_before);
            plan.delay = hold.ttl() / 3;
        }
        Err(error) if error.kind() == BackendErrorKind::Lost => {
            if !hold.is_released() {
                hold.lose(Loss::Revoked);
            }
        }
        Err(error) => tracing::warn!(
            target: "tower_lock",
            namespace = hold.key.namespace(),
            kind = ?error.kind(),
            remaining_ms = hold.remaining().as_millis() as u64,
            "lock renewal failed"
        ),
    }
}

/// Repeats a release that failed for as long as the lease would block others.
async fn see_through(hold: &Hold, mut result: Result<(), BackendError>) {
    let mut delay = Duration::from_millis(20);
    while result.as_ref().is_err_and(BackendError::is_retryable)
        && Instant::now() + delay < hold.lease.dyn_valid_until()
    {
        sleep(delay.mul_f64(0.5 + fastrand::f64())).await;
        delay = (delay * 2).min(Duration::from_secs(1));
        result = in_time(
            hold.shared.backend_timeout,
            hold.lease.clone().dyn_release(),
        )
        .await;
    }
    if let Err(error) = result {
        tracing::warn!(
            target: "tower_lock",
            namespace = hold.key.namespace(),
            kind = ?error.kind(),
            "lock release failed, the lease runs out by itself"
        );
    }
}

/// A backend's answer, or that there was none in time, by a timer of the runtime that calls this.
pub(super) fn in_time<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, BackendError>>,
) -> impl Future<Output = Result<T, BackendError>> {
    let answer = timeout(limit, answer);
    async move {
        answer.await.unwrap_or_else(|_| {
            Err(BackendError::new(
                BackendErrorKind::Unavailable,
                "it did not answer in time",
            ))
        })
    }
}
