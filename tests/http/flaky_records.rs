//! The records of a [`Flaky`] backend.

use std::sync::atomic::Ordering;

use tower_lock::{
    BackendError, LockBackend, LockKey,
    backend::{AcquireRequest, DynRecords, Found, LockingRecordStore},
    record::{Opening, Record, RecordLimits, RecordStore, Save},
};

use crate::flaky::{Flaky, FlakyLease, faulty};

impl Flaky {
    fn below_records(&self) -> &dyn DynRecords {
        self.erased.records().expect("one that keeps records")
    }
}

impl RecordStore for Flaky {
    fn limits(&self) -> RecordLimits {
        self.below_records().dyn_limits()
    }

    async fn load(&self, key: &LockKey) -> Result<Option<Record>, BackendError> {
        faulty(&self.wire.load, self.below_records().dyn_load(key)).await
    }

    async fn save(&self, save: &Save) -> Result<(), BackendError> {
        self.wire.saves.fetch_add(1, Ordering::SeqCst);
        faulty(&self.wire.save, self.below_records().dyn_save(save)).await
    }
}

impl LockingRecordStore for Flaky {
    async fn acquire_or_load(
        &self,
        request: &AcquireRequest,
        open: Option<&Opening>,
    ) -> Result<Found<FlakyLease>, BackendError> {
        self.wire.acquires.fetch_add(1, Ordering::SeqCst);
        let asked = self.below_records().dyn_acquire_or_load(request, open);
        let found = faulty(&self.wire.load, asked).await?;
        Ok(found.map_lease(|lease| self.lease(lease)))
    }

    async fn save_and_release(&self, save: &Save) -> Result<(), BackendError> {
        self.wire.saves.fetch_add(1, Ordering::SeqCst);
        let saved = self.below_records().dyn_save_and_release(save);
        faulty(&self.wire.save, saved).await
    }
}
