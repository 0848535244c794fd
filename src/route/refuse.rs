//! From an error to the answer that the client gets.

use std::error::Error as _;

use bytes::Bytes;
use http::{HeaderMap, Response, request::Parts};
use tokio::time::Instant;

use super::config::{Config, Terms, Told};
use crate::{
    key::{KeyRejection, LockKey, OwnResponse},
    lease::Loss,
    manager::{AcquireError, AcquireErrorKind, HeldLock},
    web::{Refusal, RefusalKind, ResponseBody, grpc, prefer, problem},
};

/// An answer that is not the inner service's.
pub(crate) enum Answer {
    Refusal(Response<Bytes>),
    Own(OwnResponse),
}

impl Answer {
    pub(crate) fn into_response<R>(self) -> Response<ResponseBody<R>> {
        match self {
            Self::Refusal(response) => response.map(ResponseBody::refusal),
            Self::Own(response) => response.into_inner().map(ResponseBody::foreign),
        }
    }
}

impl Config {
    pub(crate) fn reject(&self, rejection: KeyRejection, parts: &Parts) -> Answer {
        match Refusal::from_rejection(rejection) {
            Ok(refusal) => {
                Answer::Refusal(self.render(refusal, Some(parts), Told::unwaited(&parts.headers)))
            }
            Err(response) => Answer::Own(response),
        }
    }

    pub(crate) fn refuse(
        &self,
        error: &AcquireError,
        key: &LockKey,
        terms: Terms,
        parts: &Parts,
    ) -> Answer {
        let kind = match error.kind() {
            AcquireErrorKind::Contended => RefusalKind::LockBusy,
            // It lost its place, and the handler never ran: the same to the client.
            AcquireErrorKind::WaitTimedOut | AcquireErrorKind::Lost => RefusalKind::LockTimeout,
            AcquireErrorKind::TooManyWaiters => RefusalKind::TooManyWaiters,
            AcquireErrorKind::Overloaded => RefusalKind::Overloaded,
            AcquireErrorKind::Draining => RefusalKind::Draining,
            AcquireErrorKind::BackendUnavailable => RefusalKind::BackendUnavailable,
            AcquireErrorKind::Config => RefusalKind::LockMisconfigured,
        };
        let refusal = Refusal::new(kind, Some(key.namespace()))
            .with_status(self.contended_status)
            .with_retry_after(self.retry_after(error, key));
        Answer::Refusal(self.render(refusal, Some(parts), terms.told))
    }

    pub(crate) fn refuse_kind(
        &self,
        kind: RefusalKind,
        namespace: &str,
        told: Told,
        parts: Option<&Parts>,
    ) -> Response<Bytes> {
        self.render(Refusal::new(kind, Some(namespace)), parts, told)
    }

    pub(crate) fn render(
        &self,
        refusal: Refusal,
        parts: Option<&Parts>,
        told: Told,
    ) -> Response<Bytes> {
        let mut response = match (&self.on_refuse, parts) {
            (Some(on_refuse), Some(parts)) => {
                let mut response = on_refuse(&refusal, parts);
                response.extensions_mut().insert(refusal);
                response
            }
            _ => match told.grpc {
                Some(content_type) => grpc::render(refusal, *content_type),
                None => problem::render(refusal, &self.problem_base),
            },
        };
        tell_applied(response.headers_mut(), told.applied);
        response
    }

    /// When a key is likely to be free for one more: what each holder takes, times how many are
    /// before it; else what the holder's lease has left.
    fn retry_after(&self, error: &AcquireError, key: &LockKey) -> Option<std::time::Duration> {
        let waiting = self.manager.shared().waiting_for(key);
        match self.stats.average_hold() {
            Some(hold) => Some(hold.saturating_mul(u32::try_from(waiting + 1).unwrap_or(u32::MAX))),
            None => error.retry_after(),
        }
    }

    /// A wait that ended for a reason in this process is worth a line: such a wait never ends
    /// well, however long it is.
    pub(crate) fn log(&self, error: &AcquireError, key: &LockKey, parts: &Parts) {
        match error.kind() {
            AcquireErrorKind::WaitTimedOut => {
                if let Some(outer) = parts.extensions.get::<HeldLock>() {
                    tracing::warn!(
                        target: "tower_lock",
                        waited_for = key.namespace(),
                        while_holding = outer.key().namespace(),
                        "a request timed out waiting for a lock while it holds another: \
                         do two routes nest these layers in opposite order?"
                    );
                } else if let Some(holder) = self.manager.shared().held_here(key) {
                    tracing::warn!(
                        target: "tower_lock",
                        waited_for = key.namespace(),
                        held_ms = holder.held_for(Instant::now()).as_millis() as u64,
                        "a request timed out waiting for a lock that this process holds: \
                         does the holder call this service again?"
                    );
                }
            }
            AcquireErrorKind::BackendUnavailable | AcquireErrorKind::Config => tracing::error!(
                target: "tower_lock",
                namespace = key.namespace(),
                // Its context is written for logs; what lies below is the server's own text.
                error = error.source().map(tracing::field::display),
                "the lock backend could not give an answer"
            ),
            _ => {}
        }
    }

    pub(crate) fn lost(
        &self,
        session_parts: Option<&Parts>,
        namespace: &str,
        told: Told,
        loss: Loss,
    ) -> Response<Bytes> {
        tracing::warn!(
            target: "tower_lock",
            namespace,
            reason = loss.as_str(),
            "the handler was dropped because its lock was lost"
        );
        self.refuse_kind(RefusalKind::LockLost, namespace, told, session_parts)
    }
}

/// Tells the client that its `Prefer: wait` was honoured.
pub(crate) fn tell_applied(headers: &mut HeaderMap, applied: Option<u64>) {
    if let Some(seconds) = applied {
        headers.append(prefer::PREFERENCE_APPLIED, prefer::applied(seconds));
    }
}
