//! Why a request was not let through, independent of how it is written.

use std::{borrow::Cow, error::Error, fmt, sync::Arc, time::Duration};

use http::StatusCode;

use super::request_body::BufferError;
use crate::{
    error::ConfigError,
    key::{KeyRejection, OwnResponse},
};

/// The hint where nothing is known of when the key comes free.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);
/// The shortest and the longest hint that a client gets, in ms.
const MIN_RETRY_MS: u64 = 100;
const MAX_RETRY_MS: u64 = 30_000;

/// Why a request was refused before, or instead of, the handler's answer.
///
/// It is in the extensions of every response that a layer of this crate answers itself, so that
/// layers outside can tell (`response.extensions().get::<Refusal>()`), and is what
/// [`on_refuse`](crate::LockLayer::on_refuse) gets to write its own answer. It holds no key, no
/// holder and no text of the backend.
#[derive(Clone)]
pub struct Refusal {
    kind: RefusalKind,
    status: StatusCode,
    retry_after: Option<Duration>,
    namespace: Option<Arc<str>>,
    original_status: Option<StatusCode>,
    detail: Cow<'static, str>,
}

/// What kind of refusal it is; each has a section in [`problem`](crate::problem).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The request lacks what its key is made of: 400 `key-missing`.
    KeyMissing,
    /// It is there and cannot be a key: 400 `key-invalid`.
    KeyInvalid,
    /// The body is longer than is buffered to find the key or to compare it: 413 `body-too-large`.
    BodyTooLarge,
    /// The idempotency key was used for another request: 422 `key-reused`.
    KeyReused,
    /// The first request with this idempotency key is still at work: 409 `in-progress`.
    InProgress,
    /// The first request with this idempotency key is done, and its response was not kept: 409
    /// `already-completed`, with the [original status](Refusal::original_status).
    AlreadyCompleted,
    /// The first request with this idempotency key ended without a word, so whether it took effect
    /// is unknown: 409 `outcome-unknown`.
    OutcomeUnknown,
    /// The key is held, and the request does not wait: 409 `lock-busy`.
    LockBusy,
    /// The key was held until the wait ended: 409 `lock-timeout`.
    LockTimeout,
    /// Too many requests wait for this key: 429 `too-many-waiters`.
    TooManyWaiters,
    /// Too many requests wait in this process: 503 `overloaded`.
    Overloaded,
    /// This instance is shutting down: 503 `draining`.
    Draining,
    /// The lock backend cannot be reached: 503 `backend-unavailable`.
    BackendUnavailable,
    /// The lock was lost while the handler ran, so the outcome is unknown: 500 `lock-lost`.
    LockLost,
    /// The route is set up so that it cannot be locked: 500 `lock-misconfigured`.
    LockMisconfigured,
}

/// What a kind says of itself.
pub(super) struct Entry {
    pub(super) slug: &'static str,
    pub(super) status: StatusCode,
    pub(super) retryable: bool,
    pub(super) title: &'static str,
    detail: &'static str,
}

impl RefusalKind {
    #[cfg(test)]
    pub(super) const ALL: [Self; 15] = [
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::BodyTooLarge,
        Self::KeyReused,
        Self::InProgress,
        Self::AlreadyCompleted,
        Self::OutcomeUnknown,
        Self::LockBusy,
        Self::LockTimeout,
        Self::TooManyWaiters,
        Self::Overloaded,
        Self::Draining,
        Self::BackendUnavailable,
        Self::LockLost,
        Self::LockMisconfigured,
    ];

    /// The last part of the problem's `type`, and its label in logs and metrics.
    pub fn as_str(self) -> &'static str {
        self.entry().slug
    }

    /// Whether the same request may succeed later, unchanged, and has had no effect so far.
    pub fn is_retryable(self) -> bool {
        self.entry().retryable
    }

    pub(super) fn entry(self) -> Entry {
        let entry = |slug, status, retryable, title, detail| Entry {
            slug,
            status,
            retryable,
            title,
            detail,
        };
        match self {
            Self::KeyMissing => entry(
                "key-missing",
                StatusCode::BAD_REQUEST,
                false,
                "Key missing",
                "A required part of the request is missing.",
            ),
            Self::KeyInvalid => entry(
                "key-invalid",
                StatusCode::BAD_REQUEST,
                false,
                "Key invalid",
                "A part of the request is not acceptable.",
            ),
            Self::BodyTooLarge => entry(
                "body-too-large",
                StatusCode::PAYLOAD_TOO_LARGE,
                false,
                "Body too large",
                "The request body is too large.",
            ),
            Self::KeyReused => entry(
                "key-reused",
                StatusCode::UNPROCESSABLE_ENTITY,
                false,
                "Key reused",
                "The idempotency key was used before, for another request.",
            ),
            Self::InProgress => entry(
                "in-progress",
                StatusCode::CONFLICT,
                true,
                "In progress",
                "A request with the same idempotency key is being worked on.",
            ),
            Self::AlreadyCompleted => entry(
                "already-completed",
                StatusCode::CONFLICT,
                false,
                "Already completed",
                "A request with the same idempotency key was completed; its response was not kept.",
            ),
            Self::OutcomeUnknown => entry(
                "outcome-unknown",
                StatusCode::CONFLICT,
                false,
                "Outcome unknown",
                "A request with the same idempotency key was begun; whether it took effect is unknown.",
            ),
            Self::LockBusy => entry(
                "lock-busy",
                StatusCode::CONFLICT,
                true,
                "Busy",
                "Another request is working on the same resource.",
            ),
            Self::LockTimeout => entry(
                "lock-timeout",
                StatusCode::CONFLICT,
                true,
                "Still busy",
                "Other requests were working on the same resource for as long as this one could wait.",
            ),
            Self::TooManyWaiters => entry(
                "too-many-waiters",
                StatusCode::TOO_MANY_REQUESTS,
                true,
                "Too many waiters",
                "Too many requests are waiting for the same resource.",
            ),
            Self::Overloaded => entry(
                "overloaded",
                StatusCode::SERVICE_UNAVAILABLE,
                true,
                "Overloaded",
                "Too many requests are waiting in this instance of the service.",
            ),
            Self::Draining => entry(
                "draining",
                StatusCode::SERVICE_UNAVAILABLE,
                true,
                "Shutting down",
                "This instance of the service is shutting down.",
            ),
            Self::BackendUnavailable => entry(
                "backend-unavailable",
                StatusCode::SERVICE_UNAVAILABLE,
                true,
                "Locks unavailable",
                "The service cannot lock the resource at the moment.",
            ),
            Self::LockLost => entry(
                "lock-lost",
                StatusCode::INTERNAL_SERVER_ERROR,
                false,
                "Lock lost",
                "The request was stopped because its lock was lost; whether it took effect is unknown.",
            ),
            Self::LockMisconfigured => entry(
                "lock-misconfigured",
                StatusCode::INTERNAL_SERVER_ERROR,
                false,
                "Misconfigured",
                "The service is set up so that it cannot lock the resource.",
            ),
        }
    }

    /// Whether the only reason is that somebody else has the key.
    fn is_contended(self) -> bool {
        matches!(self, Self::LockBusy | Self::LockTimeout)
    }
}

impl fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Refusal {
    /// A refusal of this kind, of a key in this namespace if one was derived.
    pub(crate) fn new(kind: RefusalKind, namespace: Option<&str>) -> Self {
        let entry = kind.entry();
        Self {
            kind,
            status: entry.status,
            retry_after: entry.retryable.then_some(DEFAULT_RETRY),
            namespace: namespace.map(Arc::from),
            original_status: None,
            detail: Cow::Borrowed(entry.detail),
        }
    }

    /// What the client gets for a key that could not be derived, or the application's own answer.
    ///
    /// What a developer must change goes to the log and not to the client.
    pub(crate) fn from_rejection(rejection: KeyRejection) -> Result<Self, OwnResponse> {
        Ok(match rejection {
            KeyRejection::Missing { what } => Self::new(RefusalKind::KeyMissing, None).with_detail(
                format!("A required part of the request is missing: {what}."),
            ),
            KeyRejection::Invalid { what } => Self::new(RefusalKind::KeyInvalid, None)
                .with_detail(format!("A part of the request is not acceptable: {what}.")),
            KeyRejection::BodyTooLarge { limit } => Self::body_too_large(limit),
            KeyRejection::Misconfigured { what } => {
                tracing::error!(%what, "a route cannot be locked as it is set up");
                Self::new(RefusalKind::LockMisconfigured, None)
            }
            KeyRejection::Response(response) => return Err(response),
        })
    }

    /// What the client gets for a body that was not buffered.
    pub(crate) fn from_buffer_error(error: &BufferError) -> Self {
        match error {
            BufferError::TooLarge { limit } => Self::body_too_large(*limit),
            BufferError::LimitOutside => Self::new(RefusalKind::BodyTooLarge, None),
            BufferError::Read => Self::new(RefusalKind::KeyInvalid, None)
                .with_detail("The request body could not be read to its end."),
        }
    }

    fn body_too_large(limit: usize) -> Self {
        Self::new(RefusalKind::BodyTooLarge, None).with_detail(format!(
            "The request body is too large: {limit} bytes are accepted."
        ))
    }

    /// Adds what is known of when to try again; ignored where trying again is no use.
    #[must_use]
    pub(crate) fn with_retry_after(mut self, retry_after: impl Into<Option<Duration>>) -> Self {
        if let (true, Some(hint)) = (self.is_retryable(), retry_after.into()) {
            self.retry_after = Some(hint);
        }
        self
    }

    /// The status of a contended key, as the route wants it; the other kinds keep theirs.
    #[must_use]
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        if self.kind.is_contended() {
            self.status = status;
        }
        self
    }

    /// The status that the request had when it was completed; ignored for any other refusal.
    #[must_use]
    pub(crate) fn with_original_status(mut self, status: StatusCode) -> Self {
        if self.kind == RefusalKind::AlreadyCompleted {
            self.original_status = Some(status);
        }
        self
    }

    /// The text for the client: no key, no holder, no text of the backend.
    #[must_use]
    pub(crate) fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = detail.into();
        self
    }

    /// What kind of refusal it is.
    pub fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// The status of the response; of a gRPC response, what it would be otherwise.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// After what time trying again makes sense: an estimate, or 1 s where nothing is known.
    /// `None` where it makes no sense.
    ///
    /// The response says the same within 100 ms to 30 s and ± 10 %, so that clients that were
    /// refused together do not come back together.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether the same request may succeed later, unchanged, and has had no effect so far.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }

    /// The namespace of the key; empty if none was derived.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// The status of the first request's response, where it is known that it was completed:
    /// [`RefusalKind::AlreadyCompleted`]. The problem's member `original_status`.
    pub fn original_status(&self) -> Option<StatusCode> {
        self.original_status
    }

    /// What happened, for the client.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The hint for the client in ms, jittered. Draw once per response.
    pub(super) fn draw_retry_ms(&self) -> Option<u64> {
        let hint = u64::try_from(self.retry_after?.as_millis()).unwrap_or(u64::MAX);
        let hint = hint.clamp(MIN_RETRY_MS, MAX_RETRY_MS);
        let spread = hint / 10;
        let low = (hint - spread).max(MIN_RETRY_MS);
        let high = (hint + spread).min(MAX_RETRY_MS);
        Some(fastrand::u64(low..=high))
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal")
            .field("kind", &self.kind)
            .field("status", &self.status)
            .field("retry_after", &self.retry_after)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.detail)
    }
}

impl Error for Refusal {}

/// Checks the status that a route wants for a contended key.
///
/// # Errors
///
/// On any status that clients or proxies would take for something else.
pub(crate) fn contended_status(status: StatusCode) -> Result<StatusCode, ConfigError> {
    match status.as_u16() {
        409 | 423 | 429 | 503 => Ok(status),
        other => Err(ConfigError::new(format!(
            "contended_status is {other}, accepted are 409, 423, 429 and 503"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RefusalKind::*;

    #[test]
    fn status_slug_and_retryability_of_each_kind() {
        let table = [
            (KeyMissing, 400, "key-missing", false),
            (KeyInvalid, 400, "key-invalid", false),
            (BodyTooLarge, 413, "body-too-large", false),
            (KeyReused, 422, "key-reused", false),
            (InProgress, 409, "in-progress", true),
            (AlreadyCompleted, 409, "already-completed", false),
            (OutcomeUnknown, 409, "outcome-unknown", false),
            (LockBusy, 409, "lock-busy", true),
            (LockTimeout, 409, "lock-timeout", true),
            (TooManyWaiters, 429, "too-many-waiters", true),
            (Overloaded, 503, "overloaded", true),
            (Draining, 503, "draining", true),
            (BackendUnavailable, 503, "backend-unavailable", true),
            (LockLost, 500, "lock-lost", false),
            (LockMisconfigured, 500, "lock-misconfigured", false),
        ];
        assert_eq!(table.map(|row| row.0), RefusalKind::ALL);
        for (kind, status, slug, retryable) in table {
            let refusal = Refusal::new(kind, Some("order"));
            assert_eq!(refusal.kind(), kind);
            assert_eq!(refusal.status(), status, "{slug}");
            assert_eq!(kind.as_str(), slug);
            assert_eq!(refusal.is_retryable(), retryable, "{slug}");
            assert_eq!(refusal.retry_after().is_some(), retryable, "{slug}");
            assert_eq!(refusal.namespace(), "order");
            assert_eq!(
                refusal.to_string(),
                format!("{slug}: {}", refusal.detail()),
                "{slug}"
            );
        }
    }

    #[test]
    fn only_contention_takes_the_status_of_the_route() {
        for kind in RefusalKind::ALL {
            let refusal = Refusal::new(kind, None).with_status(StatusCode::LOCKED);
            let expected = match kind {
                LockBusy | LockTimeout => StatusCode::LOCKED,
                _ => kind.entry().status,
            };
            assert_eq!(refusal.status(), expected, "{kind}");
        }
    }

    #[test]
    fn contended_status_refuses_what_would_be_misread() {
        for status in [409, 423, 429, 503] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(contended_status(status), Ok(status));
        }
        for status in [200, 400, 408, 425, 500, 504] {
            let error = contended_status(StatusCode::from_u16(status).unwrap()).unwrap_err();
            assert!(error.to_string().contains(&status.to_string()));
            assert!(error.to_string().contains("409, 423, 429 and 503"));
        }
    }

    #[test]
    fn retry_hint_is_bounded_and_jittered() {
        let draw = |hint| {
            let refusal = Refusal::new(LockBusy, None).with_retry_after(hint);
            let drawn: Vec<u64> = (0..200).map(|_| refusal.draw_retry_ms().unwrap()).collect();
            (*drawn.iter().min().unwrap(), *drawn.iter().max().unwrap())
        };
        let table = [
            (Duration::ZERO, 100, 110),
            (Duration::from_secs(5), 4500, 5500),
            (Duration::from_secs(30), 27_000, 30_000),
            (Duration::MAX, 27_000, 30_000),
        ];
        for (hint, low, high) in table {
            let (min, max) = draw(Some(hint));
            assert!(low <= min && max <= high, "{hint:?}: {min}..={max}");
            assert!(min < max, "{hint:?}: no jitter");
        }
        let (min, max) = draw(None);
        assert!(900 <= min && max <= 1100, "{min}..={max}");
    }

    #[test]
    fn a_hint_is_ignored_where_it_is_no_use() {
        let refusal = Refusal::new(LockLost, None).with_retry_after(Duration::from_secs(1));
        assert_eq!(refusal.retry_after(), None);
        assert_eq!(refusal.draw_retry_ms(), None);
    }

    #[test]
    fn only_a_completed_request_has_an_original_status() {
        for kind in RefusalKind::ALL {
            let refusal = Refusal::new(kind, None).with_original_status(StatusCode::CREATED);
            let expected = (kind == AlreadyCompleted).then_some(StatusCode::CREATED);
            assert_eq!(refusal.original_status(), expected, "{kind}");
        }
    }

    #[test]
    fn rejections_of_extractors_become_refusals() {
        let map = |rejection| Refusal::from_rejection(rejection).unwrap();
        let missing = map(KeyRejection::Missing {
            what: "the header `order-id`".into(),
        });
        assert_eq!(missing.kind(), KeyMissing);
        assert!(missing.detail().contains("the header `order-id`"));
        let invalid = map(KeyRejection::Invalid {
            what: "the header is repeated".into(),
        });
        assert_eq!(invalid.kind(), KeyInvalid);
        assert!(invalid.detail().contains("the header is repeated"));
        let too_large = map(KeyRejection::BodyTooLarge { limit: 65_536 });
        assert_eq!(too_large.kind(), BodyTooLarge);
        assert!(too_large.detail().contains("65536 bytes"));
        let misconfigured = map(KeyRejection::Misconfigured {
            what: "no parameter `id` in the route".into(),
        });
        assert_eq!(misconfigured.kind(), LockMisconfigured);
        assert!(!misconfigured.detail().contains("id"), "for the log only");
        assert_eq!(misconfigured.namespace(), "");
    }

    #[test]
    fn travels_in_response_extensions() {
        fn assert<T: Clone + Send + Sync + Unpin + 'static>() {}
        assert::<Refusal>();
        let debug = format!("{:?}", Refusal::new(LockBusy, Some("order")));
        assert!(debug.contains("LockBusy") && debug.ends_with(".. }"));
    }

    #[test]
    fn an_answer_of_the_application_is_handed_back() {
        let back = Refusal::from_rejection(http::StatusCode::UNAUTHORIZED.into());
        assert_eq!(back.unwrap_err().status(), 401);
    }
}
