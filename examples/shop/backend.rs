//! From a URL to the backend that it names.

use tower_lock::{LockManager, MemoryBackend, backend::Scope};

use crate::BoxError;

/// What [`connect`] accepts; a new backend adds its form here and an arm there.
const ACCEPTED: &str = "`memory:` (one process)";

/// Connects to the backend of this URL.
pub(crate) async fn connect(url: &str) -> Result<LockManager, BoxError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(LockManager::new(MemoryBackend::new())),
        // The URL may hold a password, so only its scheme is shown.
        Some((scheme, _)) => {
            Err(format!("the backend `{scheme}:` is not known here; accepted: {ACCEPTED}").into())
        }
        None => Err(format!("the backend is not a URL; accepted: {ACCEPTED}").into()),
    }
}

/// Whether the locks of this backend end at the process's border.
pub(crate) fn is_per_process(locks: &LockManager) -> bool {
    locks.capabilities().scope == Scope::Process
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn memory_is_known_and_locks_one_process() {
        assert!(is_per_process(&connect("memory:").await.unwrap()));
    }

    #[tokio::test]
    async fn others_are_refused_by_name_without_their_secrets() {
        for url in ["redis://:secret@127.0.0.1", "memory:secret", "secret"] {
            let error = connect(url).await.unwrap_err().to_string();
            assert!(error.contains("memory:"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
