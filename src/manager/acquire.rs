//! From a wish to a guard.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    AcquireError, AcquireErrorKind, Hold, LockGuard, Releaser, Shared,
    batch::Lineage,
    nanos,
    observe::{Observed, Route},
    plan::{Plan, lead},
    worker::in_time,
};
use crate::{
    backend::{AcquireRequest, DynLease, Mode, Scope, WaitBound},
    error::BackendErrorKind,
    key::LockKey,
    lease::FencingToken,
};

/// One lock that somebody wants.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) key: LockKey,
    pub(crate) mode: Mode,
    pub(crate) wait: WaitBound,
    pub(crate) plan: Arc<Plan>,
    pub(crate) route: Route,
    pub(crate) releaser: Releaser,
    pub(crate) started: Instant,
}

/// A grant that has no holder yet.
pub(super) struct Granted {
    pub(super) lease: Arc<dyn DynLease>,
    pub(super) token: FencingToken,
    pub(super) lineage: Option<Box<Lineage>>,
}

impl Shared {
    /// Acquires without waiting, allocating a future or counting a waiter, where the backend
    /// decides in this process. `None`: it has to wait, or to ask elsewhere. `now` is of this
    /// moment: each look at the clock costs a tenth of the rest.
    pub(crate) fn try_now(
        self: &Arc<Self>,
        wish: &Wish,
        now: Instant,
    ) -> Option<Result<LockGuard, AcquireError>> {
        if self.capabilities.scope != Scope::Process || self.is_batched(wish) {
            return None;
        }
        let suspended_before = self.suspended();
        let request = wish
            .plan
            .request(wish.key.clone(), wish.mode, WaitBound::Fail);
        match self.backend.dyn_try_now(&request)? {
            Ok(lease) => {
                let granted = Granted {
                    token: lease.dyn_fencing_token(),
                    lease,
                    lineage: None,
                };
                let observed = Observed::start(&wish.key, &wish.route);
                Some(self.grant(wish, granted, now, suspended_before, observed))
            }
            Err(error)
                if error.kind() == BackendErrorKind::Contended && wish.wait != WaitBound::Fail =>
            {
                None
            }
            Err(error) => {
                let error = AcquireError::from(error);
                Observed::start(&wish.key, &wish.route)
                    .refused(error.kind().as_str(), Duration::ZERO);
                Some(Err(error))
            }
        }
    }

    /// Acquires, waiting as the wish says. Dropped, it leaves nothing behind.
    pub(crate) async fn acquire(self: &Arc<Self>, wish: Wish) -> Result<LockGuard, AcquireError> {
        match self.try_now(&wish, Instant::now()) {
            Some(result) => result,
            None => self.acquire_queued(wish).await,
        }
    }

    /// As [`acquire`](Self::acquire), after `try_now` could not.
    pub(crate) async fn acquire_queued(
        self: &Arc<Self>,
        wish: Wish,
    ) -> Result<LockGuard, AcquireError> {
        let mut observed = Observed::start(&wish.key, &wish.route);
        match self.acquire_waiting(&wish, &mut observed).await {
            Ok((granted, now, suspended_before, _permit)) => {
                self.grant(&wish, granted, now, suspended_before, observed)
            }
            Err(error) => {
                observed.refused(error.kind().as_str(), wish.started.elapsed());
                Err(error)
            }
        }
    }

    /// Acquires all, in the order given, or none: what is held is free again before the error,
    /// which names the key, is returned.
    pub(crate) async fn acquire_all(
        self: &Arc<Self>,
        wishes: impl IntoIterator<Item = Wish>,
    ) -> Result<Vec<LockGuard>, (LockKey, AcquireError)> {
        let mut guards: Vec<LockGuard> = Vec::new();
        let mut failed = None;
        for wish in wishes {
            let key = wish.key.clone();
            match self.acquire(wish).await {
                Ok(guard) => guards.push(guard),
                Err(error) => {
                    failed = Some((key, error));
                    break;
                }
            }
        }
        // The first ones may have been lost while the last ones were waited for.
        if failed.is_none()
            && let Some(lost) = guards.iter().find(|guard| !guard.is_held())
        {
            let error = AcquireError::new(AcquireErrorKind::Lost);
            failed = Some((lost.key().clone(), error));
        }
        let Some(failed) = failed else {
            return Ok(guards);
        };
        while let Some(guard) = guards.pop() {
            // Its failure is the reaper's to finish; the caller needs the first error.
            let _ = guard.release().await;
        }
        Err(failed)
    }

    /// The permit is kept until the lock is registered, so that a shutdown sees one or the other.
    async fn acquire_waiting<'a>(
        self: &'a Arc<Self>,
        wish: &'a Wish,
        observed: &mut Observed,
    ) -> Result<(Granted, Instant, Duration, Permit<'a>), AcquireError> {
        if self.closing.load(Ordering::SeqCst) {
            return Err(AcquireError::new(AcquireErrorKind::Draining));
        }
        let permit = Permit::new(self, wish)?;
        observed.waiting();
        let mut pause = Duration::from_millis(5);
        loop {
            let before = self.suspended();
            let granted = match self.draining.run_until_cancelled(self.ask(wish)).await {
                Some(result) => result?,
                None => return Err(AcquireError::new(AcquireErrorKind::Draining)),
            };
            if self.closing.load(Ordering::SeqCst) {
                // Granted in the moment in which it was refused.
                self.discard(granted);
                return Err(AcquireError::new(AcquireErrorKind::Draining));
            }
            // A grant that reached this task late is worth nothing to it.
            let lineage = granted.lineage.as_ref();
            let suspended_before = lineage.map_or(before, |l| l.suspended_before);
            let slept = self.suspended().saturating_sub(suspended_before);
            let lost = granted.lease.dyn_lost().get().is_some();
            let now = Instant::now();
            let told = Duration::from_nanos(lead(nanos(wish.plan.ttl)));
            if !lost && now + told + slept < granted.lease.dyn_valid_until() {
                return Ok((granted, now, suspended_before, permit));
            }
            self.discard(granted);
            let timed_out = match wish.wait {
                WaitBound::Fail => true,
                WaitBound::Until(deadline) => now >= deadline,
                WaitBound::Forever => false,
            };
            if timed_out {
                return Err(AcquireError::new(AcquireErrorKind::WaitTimedOut));
            }
            // A backend that gives nothing else must not keep the thread busy.
            let rest = sleep(pause.mul_f64(0.5 + fastrand::f64()));
            if self.draining.run_until_cancelled(rest).await.is_none() {
                return Err(AcquireError::new(AcquireErrorKind::Draining));
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    async fn ask(self: &Arc<Self>, wish: &Wish) -> Result<Granted, AcquireError> {
        if self.is_batched(wish) {
            return self.acquire_batched(wish).await;
        }
        let request = wish.plan.request(wish.key.clone(), wish.mode, wish.wait);
        let lease = self.ask_backend(&request).await?;
        Ok(Granted {
            token: lease.dyn_fencing_token(),
            lease,
            lineage: None,
        })
    }

    /// Asks the backend, which must answer soon after the wait that it was asked for.
    pub(super) async fn ask_backend(
        &self,
        request: &AcquireRequest,
    ) -> Result<Arc<dyn DynLease>, AcquireError> {
        let answer = self.backend.dyn_acquire(request);
        if self.capabilities.scope == Scope::Process {
            // Nothing lies between that could be silent, and a second timer costs.
            return Ok(answer.await?);
        }
        let wait = match request.wait {
            WaitBound::Fail => Duration::ZERO,
            WaitBound::Until(deadline) => deadline.saturating_duration_since(Instant::now()),
            WaitBound::Forever => return Ok(answer.await?),
        };
        Ok(in_time(wait.saturating_add(self.backend_timeout), answer).await?)
    }

    fn is_batched(&self, wish: &Wish) -> bool {
        wish.plan.batch > 1 && wish.mode == Mode::Exclusive
    }

    pub(super) fn grant(
        self: &Arc<Self>,
        wish: &Wish,
        granted: Granted,
        now: Instant,
        suspended_before: Duration,
        mut observed: Observed,
    ) -> Result<LockGuard, AcquireError> {
        let waited = now.saturating_duration_since(wish.started);
        observed.granted(waited);
        let hold = Arc::new(Hold::new(
            self.clone(),
            wish.key.clone(),
            wish.mode,
            granted.token,
            granted.lease,
            wish.plan.clone(),
            granted.lineage,
            waited,
            now,
            suspended_before,
            wish.releaser,
            observed,
        ));
        self.registry.insert(hold.clone());
        let due = hold.due(suspended_before);
        self.look_at(due.renew_at.min(due.lose_at));
        let guard = LockGuard::new(hold, wish.releaser);
        // Registered first, then asked: a shutdown either sees this lock or is seen here.
        if self.closing.load(Ordering::SeqCst) {
            drop(guard);
            return Err(AcquireError::new(AcquireErrorKind::Draining));
        }
        Ok(guard)
    }
}

/// One admitted waiter.
pub(super) struct Permit<'a> {
    shared: &'a Shared,
    key: &'a LockKey,
}

impl<'a> Permit<'a> {
    pub(super) fn new(shared: &'a Shared, wish: &'a Wish) -> Result<Self, AcquireError> {
        let key = &wish.key;
        shared.admission.enter(key, wish.plan.max_waiters)?;
        Ok(Self { shared, key })
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.shared.admission.leave(self.key);
        self.shared.tell_shutdown();
    }
}
