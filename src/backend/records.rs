//! Records that stand beside the locks, and the dyn twin of their store.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{AcquireRequest, DynLease, LockBackend, Mode, Scope, erased::erase};
use crate::{
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    record::{Opening, Record, RecordLimits, RecordStore, Save},
};

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A [`RecordStore`] that is also the backend of the locks: every step of a request is one step of
/// the backend, and one round trip where there is a network.
///
/// The musts are those of [`RecordStore`]. A backend that is one says so by
/// [`LockBackend::records`].
pub trait LockingRecordStore: RecordStore + LockBackend {
    /// Looks the record up and acquires the key if there is no result yet, in one step where the
    /// key is free; and once more in the step of the grant, after a wait (R4, R5).
    ///
    /// With an `open`, that is written in the step of the grant, and an orphan is dealt with as it
    /// says. Without, nothing is written, and an orphan does not stand in the way. The request is
    /// exclusive.
    ///
    /// # Errors
    ///
    /// As [`LockBackend::acquire`], but [`Found::Held`] instead of `Contended` and `WaitTimedOut`;
    /// the latter only if another acquire of the same owner took the place of this one.
    /// `TooLarge` and `Unsupported` outside of the [limits](RecordStore::limits), `Unsupported` in
    /// shared mode.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future at any await point leaves neither a lock nor an open record (R8).
    fn acquire_or_load(
        &self,
        request: &AcquireRequest,
        open: Option<&Opening>,
    ) -> impl Future<Output = Result<Found<Self::Lease>, BackendError>> + Send;

    /// Saves and gives the key back, in one step (R10). The lease of this owner needs no release
    /// afterwards, and its loss is not reported.
    ///
    /// # Errors
    ///
    /// As [`RecordStore::save`]. If it fails, the lease still wants to be released, unless the
    /// error is `Lost`.
    ///
    /// # Cancellation
    ///
    /// The first poll sends it. A caller that drops the future does not learn the outcome, and
    /// releases the lease as if it had failed, which is harmless if it had not.
    fn save_and_release(
        &self,
        save: &Save,
    ) -> impl Future<Output = Result<(), BackendError>> + Send;
}

/// What [`acquire_or_load`](LockingRecordStore::acquire_or_load) found.
#[derive(Clone, Debug)]
pub enum Found<L> {
    /// A result; or an orphan that is to be [kept](crate::record::Orphans). Nothing was acquired.
    Record(Record),
    /// Another holds the key: until the end of the wait, if there was one.
    Held {
        /// What the holder, or somebody before it, left in the step of its grant.
        open: Option<Record>,
        /// What remains of its lease, where the backend knows it.
        remaining: Option<Duration>,
    },
    /// The key is acquired.
    Lease {
        /// The grant.
        lease: L,
        /// The orphan whose place it took: somebody began before, and did not say how it ended.
        previous: Option<Record>,
    },
}

impl<L> Found<L> {
    /// The same with another kind of lease.
    pub fn map_lease<M>(self, change: impl FnOnce(L) -> M) -> Found<M> {
        match self {
            Self::Record(record) => Found::Record(record),
            Self::Held { open, remaining } => Found::Held { open, remaining },
            Self::Lease { lease, previous } => Found::Lease {
                lease: change(lease),
                previous,
            },
        }
    }
}

impl AcquireRequest {
    /// Whether a store of these limits can be asked for this, with records.
    pub(crate) fn may_load(
        &self,
        limits: &RecordLimits,
        open: Option<&Opening>,
    ) -> Result<(), BackendError> {
        if self.mode == Mode::Shared {
            return Err(BackendError::new(
                BackendErrorKind::Unsupported,
                "a record is for one holder: the request has to be exclusive",
            ));
        }
        open.map_or(Ok(()), |open| limits.check(&open.bytes, open.ttl))
    }
}

mod sealed {
    /// Only the blanket implementation exists.
    pub trait Sealed {}
    impl<T: super::LockingRecordStore> Sealed for T {}
}

/// A [`LockingRecordStore`] behind `dyn`. Implemented for every one; got from
/// [`LockBackend::records`].
pub trait DynRecords: sealed::Sealed + fmt::Debug + Send + Sync + 'static {
    /// See [`RecordStore::limits`].
    fn dyn_limits(&self) -> RecordLimits;

    /// See [`RecordStore::load`].
    fn dyn_load<'a>(
        &'a self,
        key: &'a LockKey,
    ) -> BoxFuture<'a, Result<Option<Record>, BackendError>>;

    /// See [`RecordStore::save`].
    fn dyn_save<'a>(&'a self, save: &'a Save) -> BoxFuture<'a, Result<(), BackendError>>;

    /// See [`LockingRecordStore::acquire_or_load`].
    fn dyn_acquire_or_load<'a>(
        &'a self,
        request: &'a AcquireRequest,
        open: Option<&'a Opening>,
    ) -> BoxFuture<'a, Result<Found<Arc<dyn DynLease>>, BackendError>>;

    /// See [`LockingRecordStore::save_and_release`].
    fn dyn_save_and_release<'a>(
        &'a self,
        save: &'a Save,
    ) -> BoxFuture<'a, Result<(), BackendError>>;
}

impl<T: LockingRecordStore> DynRecords for T {
    fn dyn_limits(&self) -> RecordLimits {
        self.limits()
    }

    fn dyn_load<'a>(
        &'a self,
        key: &'a LockKey,
    ) -> BoxFuture<'a, Result<Option<Record>, BackendError>> {
        Box::pin(self.load(key))
    }

    fn dyn_save<'a>(&'a self, save: &'a Save) -> BoxFuture<'a, Result<(), BackendError>> {
        Box::pin(self.save(save))
    }

    fn dyn_acquire_or_load<'a>(
        &'a self,
        request: &'a AcquireRequest,
        open: Option<&'a Opening>,
    ) -> BoxFuture<'a, Result<Found<Arc<dyn DynLease>>, BackendError>> {
        Box::pin(async move {
            let in_process = self.capabilities().scope == Scope::Process;
            let found = self.acquire_or_load(request, open).await?;
            Ok(found.map_lease(|lease| erase(lease, in_process)))
        })
    }

    fn dyn_save_and_release<'a>(
        &'a self,
        save: &'a Save,
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        Box::pin(self.save_and_release(save))
    }
}
