//! Whether a response is stored, and for how long.

use std::time::Duration;

use http::{HeaderMap, response::Parts};

use super::{knobs::Keep, policy::IdempotencyPolicy};
use crate::web::{Refusal, grpc};

/// What becomes of a response, as far as its head tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is stored for this long, if it can be.
    Store(Duration),
    /// It is not stored, and its body need not be read.
    Forget,
    /// The trailers tell: see [`IdempotencyPolicy::judge_trailers`].
    ByTrailers,
}

impl IdempotencyPolicy {
    /// What becomes of a response with this head: first by the [`Keep`] in its extensions, then by
    /// [`Store`](super::Store).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_lock::idempotency::{IdempotencyPolicy, Keep, Verdict};
    ///
    /// let policy = IdempotencyPolicy::new();
    /// let (mut head, ()) = http::Response::builder().status(503).body(()).unwrap().into_parts();
    /// assert_eq!(policy.judge(&head), Verdict::Forget);
    ///
    /// head.extensions.insert(Keep::For(Duration::from_secs(60)));
    /// assert_eq!(policy.judge(&head), Verdict::Store(Duration::from_secs(60)));
    /// ```
    pub fn judge(&self, head: &Parts) -> Verdict {
        if head.status.is_informational() {
            return Verdict::Forget;
        }
        match head.extensions.get() {
            Some(Keep::No) => return Verdict::Forget,
            Some(Keep::For(ttl)) if ttl.is_zero() => return Verdict::Forget,
            Some(Keep::For(ttl)) => return Verdict::Store(Self::within_bounds(*ttl)),
            None => {}
        }
        // It says that it had no effect, and that the same request may succeed later.
        if head.extensions.get().is_some_and(Refusal::is_retryable) {
            return Verdict::Forget;
        }
        if grpc::is_call(&head.headers) {
            return match grpc::status(&head.headers) {
                None => Verdict::ByTrailers,
                code => self.verdict(self.store().stores_grpc(code)),
            };
        }
        self.verdict(self.store().stores(head.status))
    }

    /// What becomes of a response whose head left it to its trailers; never
    /// [`Verdict::ByTrailers`].
    pub fn judge_trailers(&self, trailers: Option<&HeaderMap>) -> Verdict {
        let code = trailers.and_then(grpc::status);
        self.verdict(self.store().stores_grpc(code))
    }

    fn verdict(&self, stores: bool) -> Verdict {
        if stores {
            Verdict::Store(self.record_ttl())
        } else {
            Verdict::Forget
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Response};

    use super::*;
    use crate::{RefusalKind, idempotency::Store};

    const TTL: Duration = Duration::from_secs(24 * 60 * 60);

    fn head(status: u16) -> Parts {
        let response = Response::builder().status(status).body(()).unwrap();
        response.into_parts().0
    }

    fn call(content_type: &'static str, status: Option<&'static str>) -> Parts {
        let mut head = head(200);
        head.headers
            .insert("content-type", HeaderValue::from_static(content_type));
        if let Some(status) = status {
            head.headers
                .insert("grpc-status", HeaderValue::from_static(status));
        }
        head
    }

    #[test]
    fn the_status_decides() {
        let policy = IdempotencyPolicy::new();
        for (status, verdict) in [
            (200, Verdict::Store(TTL)),
            (404, Verdict::Store(TTL)),
            (429, Verdict::Forget),
            (500, Verdict::Forget),
            (101, Verdict::Forget),
        ] {
            assert_eq!(policy.judge(&head(status)), verdict, "{status}");
        }
        let everything = policy.with_store(Store::Everything);
        assert_eq!(everything.judge(&head(500)), Verdict::Store(TTL));
        assert_eq!(everything.judge(&head(101)), Verdict::Forget);
    }

    #[test]
    fn the_handler_decides_first() {
        let policy = IdempotencyPolicy::new();
        let judge = |status, keep: Keep| {
            let mut head = head(status);
            head.extensions.insert(keep);
            policy.judge(&head)
        };
        let minute = Duration::from_secs(60);
        assert_eq!(judge(200, Keep::No), Verdict::Forget);
        assert_eq!(judge(200, Keep::For(Duration::ZERO)), Verdict::Forget);
        assert_eq!(judge(200, Keep::For(minute)), Verdict::Store(minute));
        assert_eq!(judge(500, Keep::For(minute)), Verdict::Store(minute));
        assert_eq!(judge(101, Keep::For(minute)), Verdict::Forget);
        // Within what a policy accepts.
        let Verdict::Store(longest) = judge(200, Keep::For(Duration::MAX)) else {
            panic!()
        };
        assert!(
            policy
                .clone()
                .with_record_ttl(longest)
                .check_records(usize::MAX, longest)
                .is_ok()
        );
        let Verdict::Store(shortest) = judge(200, Keep::For(Duration::from_nanos(1))) else {
            panic!()
        };
        assert!(shortest > Duration::from_nanos(1));
    }

    #[test]
    fn a_refusal_that_had_no_effect_is_never_stored() {
        let policy = IdempotencyPolicy::new().with_store(Store::Everything);
        for (kind, verdict) in [
            (RefusalKind::LockBusy, Verdict::Forget),
            (RefusalKind::BackendUnavailable, Verdict::Forget),
            (RefusalKind::LockLost, Verdict::Store(TTL)),
        ] {
            let mut head = head(500);
            head.extensions.insert(Refusal::new(kind, None));
            assert_eq!(policy.judge(&head), verdict, "{kind}");
        }
    }

    #[test]
    fn calls_are_judged_by_their_own_status() {
        let policy = IdempotencyPolicy::new();
        for (status, verdict) in [
            (Some("0"), Verdict::Store(TTL)),
            (Some("5"), Verdict::Store(TTL)),
            (Some("14"), Verdict::Forget),
            (Some("nonsense"), Verdict::Forget),
            (None, Verdict::ByTrailers),
        ] {
            assert_eq!(
                policy.judge(&call("application/grpc+proto", status)),
                verdict,
                "{status:?}"
            );
        }
        let trailers = |status| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                HeaderValue::from_static(status),
            )])
        };
        assert_eq!(
            policy.judge_trailers(Some(&trailers("0"))),
            Verdict::Store(TTL)
        );
        assert_eq!(
            policy.judge_trailers(Some(&trailers("13"))),
            Verdict::Forget
        );
        assert_eq!(
            policy.judge_trailers(Some(&HeaderMap::new())),
            Verdict::Forget
        );
        assert_eq!(policy.judge_trailers(None), Verdict::Forget);
        // Its status is within the body.
        let web = call("application/grpc-web+proto", None);
        assert_eq!(policy.judge(&web), Verdict::Store(TTL));
    }
}
