//! What keeps records.

use std::{fmt, future::Future};

use super::{Record, RecordLimits, Save};
use crate::{error::BackendError, key::LockKey};

#[doc = include_str!("../docs/records.md")]
pub trait RecordStore: fmt::Debug + Send + Sync + 'static {
    /// What it takes at most. Plain data; never changes.
    fn limits(&self) -> RecordLimits;

    /// The record of the key, if there is one.
    ///
    /// # Errors
    ///
    /// `Unavailable`, `Misconfigured`.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it changes nothing.
    fn load(
        &self,
        key: &LockKey,
    ) -> impl Future<Output = Result<Option<Record>, BackendError>> + Send;

    /// Leaves what the holder of a grant left, if no later grant is in its way (R2). The lock, if
    /// there still is one, stays held.
    ///
    /// # Errors
    ///
    /// `Lost` where it is refused: terminal. `TooLarge` and `Unsupported` outside of the
    /// [limits](Self::limits), before anything is sent. `Unavailable` where it may have been done;
    /// to repeat it is harmless. `Misconfigured`.
    ///
    /// # Cancellation
    ///
    /// The first poll sends it. A caller that drops the future does not learn the outcome.
    fn save(&self, save: &Save) -> impl Future<Output = Result<(), BackendError>> + Send;
}
