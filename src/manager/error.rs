//! Why a lock was not acquired.

use std::{error::Error, fmt, time::Duration};

use super::admission::Full;
use crate::error::{BackendError, BackendErrorKind, BoxError, ConfigError};

/// What kind of outcome an acquire had instead of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AcquireErrorKind {
    /// The key is held, and the policy does not wait.
    Contended,
    /// The key was held until the wait ended.
    WaitTimedOut,
    /// As many wait for this key in this process as the policy allows.
    TooManyWaiters,
    /// As many wait in this manager as it allows.
    Overloaded,
    /// The manager is shutting down.
    Draining,
    /// The backend could not be reached, did not answer in time, or refused to work.
    BackendUnavailable,
    /// Of several keys, one was lost again while the others were waited for.
    Lost,
    /// The policy asks for what the backend cannot do.
    Config,
}

impl AcquireErrorKind {
    /// The kind as a label for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Contended => "contended",
            Self::WaitTimedOut => "wait_timed_out",
            Self::TooManyWaiters => "too_many_waiters",
            Self::Overloaded => "overloaded",
            Self::Draining => "draining",
            Self::BackendUnavailable => "backend_unavailable",
            Self::Lost => "lost",
            Self::Config => "config",
        }
    }
}

/// Why a lock was not acquired. "Held by another" and "the backend failed" are never mixed.
///
/// ```
/// # use tower_lock::{AcquireErrorKind, LockKey, LockManager, LockPolicy, MemoryBackend, Wait};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let locks = LockManager::new(MemoryBackend::new());
/// let once = LockPolicy::new().with_wait(Wait::Fail);
/// match locks.acquire(LockKey::new("job", "nightly"), &once).await {
///     Ok(guard) => guard.release().await?, // after the work
///     Err(error) if error.kind() == AcquireErrorKind::Contended => {} // another instance works
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AcquireError {
    kind: AcquireErrorKind,
    remaining: Option<Duration>,
    source: Option<BoxError>,
}

impl AcquireError {
    pub(crate) fn new(kind: AcquireErrorKind) -> Self {
        Self {
            kind,
            remaining: None,
            source: None,
        }
    }

    /// What kind of outcome this is.
    pub fn kind(&self) -> AcquireErrorKind {
        self.kind
    }

    /// What remains of the current holder's lease, where the backend knows it: when to try again
    /// at the latest.
    pub fn retry_after(&self) -> Option<Duration> {
        self.remaining
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.kind != AcquireErrorKind::Config
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            AcquireErrorKind::Contended => "the key is held, and the policy does not wait",
            AcquireErrorKind::WaitTimedOut => "the key was held until the wait ended",
            AcquireErrorKind::TooManyWaiters => "too many wait for this key",
            AcquireErrorKind::Overloaded => "too many wait in this process",
            AcquireErrorKind::Draining => "the lock manager is shutting down",
            AcquireErrorKind::BackendUnavailable => "the lock backend is unavailable",
            AcquireErrorKind::Lost => "a key was lost while the others were waited for",
            AcquireErrorKind::Config => "the policy does not fit the lock backend",
        })
    }
}

impl Error for AcquireError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

impl From<BackendError> for AcquireError {
    fn from(error: BackendError) -> Self {
        let kind = match error.kind() {
            BackendErrorKind::Contended => AcquireErrorKind::Contended,
            BackendErrorKind::WaitTimedOut => AcquireErrorKind::WaitTimedOut,
            BackendErrorKind::Unsupported => AcquireErrorKind::Config,
            BackendErrorKind::Unavailable
            | BackendErrorKind::NotReplicated
            | BackendErrorKind::Lost
            | BackendErrorKind::TooLarge
            | BackendErrorKind::Misconfigured => AcquireErrorKind::BackendUnavailable,
        };
        Self {
            kind,
            remaining: error.remaining(),
            source: Some(Box::new(error)),
        }
    }
}

impl From<ConfigError> for AcquireError {
    fn from(error: ConfigError) -> Self {
        Self {
            kind: AcquireErrorKind::Config,
            remaining: None,
            source: Some(Box::new(error)),
        }
    }
}

impl From<Full> for AcquireError {
    fn from(full: Full) -> Self {
        Self::new(match full {
            Full::Key => AcquireErrorKind::TooManyWaiters,
            Full::Manager => AcquireErrorKind::Overloaded,
        })
    }
}
