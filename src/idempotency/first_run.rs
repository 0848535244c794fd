//! What a handler sees of its idempotency.

use std::fmt;

use super::client_key::ClientKey;
use crate::{lease::FencingToken, manager::HeldLock};

/// The run of a handler behind an [`IdempotencyLayer`](crate::IdempotencyLayer): in the extensions
/// of its request, and an extractor in axum.
///
/// A replayed response has no run: the handler is not called.
///
/// ```
/// use tower_lock::idempotency::FirstRun;
///
/// # async fn paid_already(_: &str) -> Option<String> { None }
/// # async fn charge(_: &str) -> String { String::new() }
/// async fn checkout(run: FirstRun) -> String {
///     // A run before this one may have come as far as the payment.
///     if run.is_rerun() && let Some(receipt) = paid_already(run.key().as_str()).await {
///         return receipt;
///     }
///     // The provider knows keys too: then a second run charges nothing.
///     charge(run.key().as_str()).await
/// }
/// # let _ = checkout;
/// ```
#[derive(Clone)]
pub struct FirstRun {
    key: ClientKey,
    held: HeldLock,
    rerun: bool,
}

impl FirstRun {
    pub(super) fn new(key: ClientKey, held: HeldLock, rerun: bool) -> Self {
        Self { key, held, rerun }
    }

    /// The client's key: hand it on to whoever knows such keys.
    pub fn key(&self) -> &ClientKey {
        &self.key
    }

    /// The token of this run: a run of the same key that began later has a higher one. Storage that
    /// compares it refuses a run that was overtaken.
    pub fn fencing_token(&self) -> FencingToken {
        self.held.fencing_token()
    }

    /// Whether another run of this key may have begun, of which nobody knows how it ended: its
    /// process died, or it lost its lock and could not save. See
    /// [`OnCrash`](super::OnCrash).
    pub fn is_rerun(&self) -> bool {
        self.rerun
    }

    /// Whether no later run can have begun yet.
    pub fn is_held(&self) -> bool {
        self.held.is_held()
    }
}

impl fmt::Debug for FirstRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirstRun")
            .field("fencing_token", &self.fencing_token())
            .field("rerun", &self.rerun)
            .finish_non_exhaustive()
    }
}
