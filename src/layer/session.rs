//! The locks of one request while its handler runs.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Response, request::Parts};
use http_body::Body;
use tokio::time::Instant;

use super::{guards::Guards, watch::BodyEndWatch};
use crate::{
    backend::Mode,
    key::LockKey,
    lease::Loss,
    manager::{
        HeldLock, Hold, LockGuard, Releasing,
        observe::{Route, count_body_outlived},
    },
    policy::{OnDisconnect, OnLost, ReleaseOn},
    route::{Config, Terms, Told, tell_applied},
    web::{RefusalKind, ResponseBody},
};

/// The locks of one request. Dropped, it hands them to the reaper.
pub(super) struct Session {
    config: Arc<Config>,
    guards: Guards,
    told: Told,
    route: Route,
    /// A copy of the head, only where `on_refuse` would want it for a loss.
    parts: Option<Box<Parts>>,
    /// The locks of the outer layers, only where the handler may be detached.
    outer: Option<HeldLock>,
}

/// What the handler's end leads to.
pub(super) enum Finished<R> {
    /// The answer can go out.
    Respond(Response<ResponseBody<R>>),
    /// The answer goes out once these are confirmed.
    Confirm(Response<ResponseBody<R>>, Vec<Releasing>),
}

impl Session {
    pub(super) fn new(config: Arc<Config>, guards: Guards, terms: Terms, parts: &Parts) -> Self {
        let outer = match config.policy.on_disconnect() {
            OnDisconnect::Detach => parts.extensions.get::<HeldLock>().cloned(),
            OnDisconnect::Cancel => None,
        };
        let parts = config.on_refuse.is_some().then(|| Box::new(parts.clone()));
        Self {
            outer,
            config,
            guards,
            told: terms.told,
            route: terms.route,
            parts,
        }
    }

    /// Shows the locks to the handler: this layer's first, in canonical order, then the outer
    /// ones. A key that an outer layer holds is shown again, so that the handler finds it.
    pub(super) fn show(&self, parts: &mut Parts, reused: Vec<HeldLock>) {
        let guards = self.guards.as_slice();
        let siblings = u32::try_from(guards.len() + reused.len()).unwrap_or(u32::MAX);
        let mut outer = parts.extensions.remove::<HeldLock>();
        if siblings == 1
            && let (Some(reused), Some(outer)) = (reused.first(), &outer)
            && Arc::ptr_eq(reused.hold(), outer.hold())
        {
            parts.extensions.insert(outer.clone());
            return;
        }
        let holds = guards
            .iter()
            .map(|g| g.hold())
            .chain(reused.iter().map(HeldLock::hold));
        let mut link = |hold: &Arc<Hold>| {
            let around = outer.take().map(Arc::new);
            outer = Some(HeldLock::link(hold.clone(), siblings, around));
        };
        if siblings == 1 {
            holds.for_each(&mut link);
        } else {
            let mut holds: Vec<_> = holds.collect();
            holds.sort_by(|a, b| a.key.cmp(&b.key));
            holds.into_iter().rev().for_each(&mut link);
        }
        if let Some(held) = outer {
            parts.extensions.insert(held);
        }
    }

    fn holds_any(&self) -> bool {
        self.guards.layers().next().is_some()
    }

    /// Whether the handler must be dropped because a lock of it is lost.
    pub(super) fn abort(&self) -> Option<(Loss, LockKey)> {
        self.find_lost(|hold| hold.lease.dyn_lost().get())
    }

    /// As [`abort`](Self::abort); if not, the task is woken when that changes.
    pub(super) fn poll_abort(&self, cx: &mut Context<'_>) -> Option<(Loss, LockKey)> {
        self.find_lost(|hold| match hold.lease.dyn_lost().poll_holder(cx) {
            Poll::Ready(loss) => Some(loss),
            Poll::Pending => None,
        })
    }

    fn find_lost(&self, mut lost: impl FnMut(&Hold) -> Option<Loss>) -> Option<(Loss, LockKey)> {
        if self.config.policy.on_lost() != OnLost::Abort {
            return None;
        }
        self.guards
            .not_taken()
            .find_map(|guard| Some((lost(guard.hold())?, guard.key().clone())))
    }

    /// Takes the locks of the outer layers along with a handler that is detached: they end with
    /// it, and not with the outer layers' futures, which are being dropped.
    pub(super) fn take_outer(&mut self) -> Vec<LockGuard> {
        let outer = self.outer.take();
        let chain = outer.iter().flat_map(HeldLock::chain);
        chain.filter_map(HeldLock::take_guard).collect()
    }

    /// The answer after an abort; the handler is dropped by now.
    pub(super) fn aborted<R>(self, loss: Loss, key: &LockKey) -> Response<ResponseBody<R>> {
        let response = self.lost(loss, key);
        self.release_now();
        response.map(ResponseBody::refusal)
    }

    /// The handler answered: releases as the policy says.
    pub(super) fn finish<R>(mut self, mut response: Response<R>) -> Finished<R>
    where
        R: Body,
    {
        let now = Instant::now();
        // The lease may have ended while the handler's last poll ran.
        if let Some((loss, key)) = self.find_lost(|hold| hold.loss_at_end(now)) {
            drop(response);
            return Finished::Respond(self.aborted(loss, &key));
        }
        tell_applied(response.headers_mut(), self.told.applied);
        if !self.holds_any() {
            return Finished::Respond(response.map(ResponseBody::inner));
        }
        match self.config.policy.release_on() {
            ReleaseOn::BodyEnd { max } if !response.body().is_end_stream() => {
                for guard in self.guards.layers() {
                    guard.hold().open_gate();
                    guard.hold().hold_at_most_until(now + max);
                }
                let abort = self.config.policy.on_lost() == OnLost::Abort;
                let guards = std::mem::replace(&mut self.guards, Guards::None);
                let watch = BodyEndWatch::new(guards, abort, self.config.stats.clone());
                Finished::Respond(response.map(|body| ResponseBody::watched(body, Box::new(watch))))
            }
            ReleaseOn::HeadConfirmed => {
                let response = response.map(ResponseBody::inner);
                self.note_outlived(&response);
                let releasing = self.release_at(now);
                if releasing.is_empty() {
                    Finished::Respond(response)
                } else {
                    Finished::Confirm(response, releasing)
                }
            }
            ReleaseOn::Head | ReleaseOn::BodyEnd { .. } => {
                let response = response.map(ResponseBody::inner);
                self.note_outlived(&response);
                // Sent; what is not confirmed is the reaper's.
                drop(self.release_at(now));
                Finished::Respond(response)
            }
        }
    }

    /// A detached handler is done or was aborted, and dropped; nobody reads an answer.
    pub(super) fn detached_end(self, loss: Option<(Loss, LockKey)>) {
        if let Some((loss, key)) = loss {
            drop(self.lost(loss, &key));
        }
        drop(self.release_now());
    }

    /// The handler failed: its error is not ours to change.
    pub(super) fn fail(self) {
        drop(self.release_now());
    }

    fn release_now(&self) -> Vec<Releasing> {
        self.release_at(Instant::now())
    }

    fn release_at(&self, now: Instant) -> Vec<Releasing> {
        let mut releasing = Vec::new();
        for guard in self.guards.layers() {
            self.config.stats.record(guard.hold().held_for(now));
            releasing.extend(guard.start_release());
        }
        releasing
    }

    fn lost(&self, loss: Loss, key: &LockKey) -> Response<Bytes> {
        self.config.lost(
            self.parts.as_deref(),
            key.namespace(),
            self.told.clone(),
            loss,
        )
    }

    fn note_outlived<R: Body>(&self, response: &Response<ResponseBody<R>>) {
        if !response.body().outlives_head() {
            return;
        }
        for guard in self.guards.layers() {
            count_body_outlived(guard.key().namespace(), &self.route);
        }
        if self.config.stats.first_outlived() {
            tracing::warn!(
                target: "tower_lock",
                namespace = self.guards.as_slice().first().map(|g| g.key().namespace()),
                "a streamed response body outlives its lock, which was released at the head: \
                 `ReleaseOn::BodyEnd` keeps it (said once per layer)"
            );
        }
    }
}

/// A lock that an outer layer of the same request holds, for a key that is asked for again.
pub(super) enum Reentry {
    /// The outer lock serves.
    Reuse(HeldLock),
    /// It cannot serve.
    Refuse(RefusalKind),
    /// There is none.
    None,
}

pub(super) fn reentry(config: &Config, parts: &Parts, key: &LockKey, mode: Mode) -> Reentry {
    match config.outer(parts, key) {
        None => Reentry::None,
        Some(outer) if outer.mode() == Mode::Shared && mode == Mode::Exclusive => {
            tracing::error!(
                target: "tower_lock",
                namespace = key.namespace(),
                "an inner layer wants the key exclusively that an outer layer of the same request \
                 holds shared: it would wait for itself; make the outer layer exclusive"
            );
            Reentry::Refuse(RefusalKind::LockMisconfigured)
        }
        Some(outer) if !outer.is_held() => Reentry::Refuse(RefusalKind::LockLost),
        Some(outer) => Reentry::Reuse(outer.clone()),
    }
}
