//! Errors of the backends and of configuration.

use std::{borrow::Cow, error::Error, fmt, time::Duration};

/// A boxed error, as tower and axum use it.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// A configuration that cannot work: it names what was wrong and what is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    message: Cow<'static, str>,
}

impl ConfigError {
    /// An error with this message, which must name what was wrong and what is accepted.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for ConfigError {}

/// What kind of answer a backend gave instead of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// Another owner holds the key, and the request did not want to wait.
    Contended,
    /// Another owner held the key until the request's wait ended, or nobody had the time to say who
    /// does.
    WaitTimedOut,
    /// The backend could not be reached, did not answer in time, or refused to work.
    /// Whether the command was executed is unknown.
    Unavailable,
    /// The key was granted, but fewer replicas than required acknowledged it in time: it was
    /// given back. See `ReplicaAck::Require` of the Redis backend.
    NotReplicated,
    /// The lease is not held by this owner (any more). Terminal.
    Lost,
    /// The request asks for something that this backend cannot do.
    Unsupported,
    /// A record has more bytes than the store takes:
    /// [`RecordLimits::max_bytes`](crate::record::RecordLimits::max_bytes).
    TooLarge,
    /// The backend is set up so that it cannot work: missing rights, a read-only server.
    Misconfigured,
}

/// An error of a [`LockBackend`](crate::backend::LockBackend).
///
/// "Held by another" and "the backend failed" are different kinds and never mixed.
///
/// What caused it is told by [`source`](std::error::Error::source) alone, and neither printed nor
/// shown by `Debug`: it may hold what a server said.
pub struct BackendError {
    kind: BackendErrorKind,
    context: Cow<'static, str>,
    remaining: Option<Duration>,
    source: Option<BoxError>,
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendError")
            .field("kind", &self.kind)
            .field("context", &self.context)
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}

impl BackendError {
    /// An error of this kind. The context is for logs: it must hold no key and no secret.
    pub fn new(kind: BackendErrorKind, context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            context: context.into(),
            remaining: None,
            source: None,
        }
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds what is known of the current holder's lease, for `Retry-After`.
    #[must_use]
    pub fn with_remaining(mut self, remaining: Option<Duration>) -> Self {
        self.remaining = remaining;
        self
    }

    /// What kind of error this is.
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    #[cfg(feature = "redlock")]
    pub(crate) fn context(&self) -> &str {
        &self.context
    }

    /// What remains of the current holder's lease, where the backend knows it.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// Whether the same request may succeed later without a change by an operator.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            BackendErrorKind::Contended
                | BackendErrorKind::WaitTimedOut
                | BackendErrorKind::Unavailable
                | BackendErrorKind::NotReplicated
        )
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            BackendErrorKind::Contended => "the key is held by another owner",
            BackendErrorKind::WaitTimedOut => "the wait for the key timed out",
            BackendErrorKind::Unavailable => "the backend is unavailable",
            BackendErrorKind::NotReplicated => "the lock is not replicated",
            BackendErrorKind::Lost => "the lease is lost",
            BackendErrorKind::Unsupported => "the backend does not support this",
            BackendErrorKind::TooLarge => "the record is too large",
            BackendErrorKind::Misconfigured => "the backend is misconfigured",
        })?;
        if !self.context.is_empty() {
            write!(f, ": {}", self.context)?;
        }
        Ok(())
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_said_is_told_by_the_source_alone() {
        let error = BackendError::new(BackendErrorKind::Unavailable, "it is away")
            .with_source("the secret of a server");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("secret"), "{shown}");
        assert!(error.source().is_some());
    }
}
