//! Records, and what is asked about them.

use std::{fmt, time::Duration};

use bytes::Bytes;

use crate::{
    error::{BackendError, BackendErrorKind},
    lease::FencingToken,
};

/// Whether a holder has said how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordState {
    /// A holder may have begun, and has not said how it ended. If nobody holds the key, it is an
    /// orphan.
    Open,
    /// A result.
    Closed,
}

/// What stands under a key. `Debug` does not show the bytes.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Whether it is a result.
    pub state: RecordState,
    /// The token of the grant whose holder wrote it.
    pub token: FencingToken,
    /// What was written: of an [`Opening`], or of a [`Save`](super::Save).
    pub bytes: Bytes,
}

impl Record {
    /// A record of these parts, for a store to return.
    pub fn new(state: RecordState, token: FencingToken, bytes: impl Into<Bytes>) -> Self {
        Self {
            state,
            token,
            bytes: bytes.into(),
        }
    }

    /// Whether it is a result.
    pub fn is_closed(&self) -> bool {
        self.state == RecordState::Closed
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("state", &self.state)
            .field("token", &self.token)
            .field("len", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// What a store takes at most. Checked before anything is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordLimits {
    /// The longest record.
    pub max_bytes: usize,
    /// The longest ttl of a record.
    pub max_ttl: Duration,
}

impl RecordLimits {
    /// These limits.
    pub fn new(max_bytes: usize, max_ttl: Duration) -> Self {
        Self { max_bytes, max_ttl }
    }

    /// Whether a record of these bytes, for this ttl, is within them.
    ///
    /// # Errors
    ///
    /// `TooLarge` for more bytes, `Unsupported` for a longer ttl or none.
    pub fn check(&self, bytes: &Bytes, ttl: Duration) -> Result<(), BackendError> {
        if bytes.len() > self.max_bytes {
            return Err(BackendError::new(
                BackendErrorKind::TooLarge,
                format!("{} bytes, of {} at most", bytes.len(), self.max_bytes),
            ));
        }
        if ttl.is_zero() || ttl > self.max_ttl {
            return Err(BackendError::new(
                BackendErrorKind::Unsupported,
                "the ttl of a record is zero, or longer than the store takes",
            ));
        }
        Ok(())
    }
}

/// What is written in the step of a grant: that its holder may begin from now on.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opening {
    /// What the record says, such as a fingerprint of the request.
    pub bytes: Bytes,
    /// For how long it is kept, whatever becomes of the holder. Longer than the holder may hold:
    /// a record that ends under its holder is missing to those who come then.
    pub ttl: Duration,
    /// What to do about an orphan.
    pub orphans: Orphans,
    /// For whom a result is.
    pub results: Results,
}

impl Opening {
    /// Writes these bytes for this ttl; orphans are replaced, results are for all.
    pub fn new(bytes: impl Into<Bytes>, ttl: Duration) -> Self {
        Self {
            bytes: bytes.into(),
            ttl,
            orphans: Orphans::Replace,
            results: Results::ForAll,
        }
    }

    /// Sets what to do about an orphan.
    #[must_use]
    pub fn with_orphans(mut self, orphans: Orphans) -> Self {
        self.orphans = orphans;
        self
    }

    /// Whether an orphan of these bytes, which another left, is returned instead of a grant.
    pub(crate) fn keeps(&self, orphan: &Bytes) -> bool {
        match self.orphans {
            Orphans::Replace => false,
            Orphans::ReplaceEqual => *orphan != self.bytes,
            Orphans::Keep => true,
        }
    }

    /// Sets for whom a result is.
    #[must_use]
    pub fn with_results(mut self, results: Results) -> Self {
        self.results = results;
        self
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening")
            .field("len", &self.bytes.len())
            .field("ttl", &self.ttl)
            .field("orphans", &self.orphans)
            .field("results", &self.results)
            .finish_non_exhaustive()
    }
}

/// What to do about an open record whose holder is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Orphans {
    /// Grant the key, and write over it.
    #[default]
    Replace,
    /// The same if it has the bytes that are to be written, such as the same fingerprint; else as
    /// [`Keep`](Self::Keep).
    ReplaceEqual,
    /// Do not grant the key, but return the record.
    Keep,
}

/// For whom a result is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Results {
    /// For everybody, until its ttl is over: nobody is granted a key that has one.
    #[default]
    ForAll,
    /// Only for those who wait for its holder: who came before it was done. A newcomer is granted a
    /// free key, and the result is written over; it waits for whoever holds the key now.
    ForWaiting,
}
