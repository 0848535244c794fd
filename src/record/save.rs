//! How a holder ended.

use std::{fmt, time::Duration};

use bytes::Bytes;

use crate::{
    key::LockKey,
    lease::{FencingToken, OwnerToken},
};

/// What the holder of a key leaves under it.
///
/// Values only: whoever knows the grant can save, from another task or after its lease was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Save {
    /// Of the lock.
    pub key: LockKey,
    /// The owner that holds, or held, the key.
    pub owner: OwnerToken,
    /// The token of its grant.
    pub token: FencingToken,
    /// What is left.
    pub outcome: Outcome,
}

impl Save {
    /// Leaves a result for this long.
    pub fn keep(
        key: LockKey,
        owner: OwnerToken,
        token: FencingToken,
        bytes: impl Into<Bytes>,
        ttl: Duration,
    ) -> Self {
        let bytes = bytes.into();
        Self {
            key,
            owner,
            token,
            outcome: Outcome::Keep { bytes, ttl },
        }
    }

    /// Leaves nothing.
    pub fn forget(key: LockKey, owner: OwnerToken, token: FencingToken) -> Self {
        Self {
            key,
            owner,
            token,
            outcome: Outcome::Forget,
        }
    }
}

/// How a holder ended.
#[derive(Clone, PartialEq, Eq)]
pub enum Outcome {
    /// With a result.
    Keep {
        /// The result.
        bytes: Bytes,
        /// For how long it is kept.
        ttl: Duration,
    },
    /// Without one that is to be kept: the open record of the grant goes, and the next one begins
    /// anew.
    Forget,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep { bytes, ttl } => f
                .debug_struct("Keep")
                .field("len", &bytes.len())
                .field("ttl", ttl)
                .finish_non_exhaustive(),
            Self::Forget => f.write_str("Forget"),
        }
    }
}
