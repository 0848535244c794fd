//! Locks in an etcd cluster, for all instances of a service.
//!
#![doc = include_str!("../../docs/etcd.md")]

mod acquire;
mod address;
mod agenda;
mod builder;
mod client;
mod connection;
mod gate;
mod hub;
mod lease;
mod lends;
mod link;
mod names;
mod nodes;
mod opening;
mod operate;
mod preflight;
mod put;
mod record;
mod room;
mod save;
mod session;
mod steps;
mod trouble;
mod undo;
mod version;
mod waiter;
mod watches;

use std::{fmt, sync::Arc};

pub use self::{builder::EtcdBuilder, lease::EtcdLease};
use self::{client::Client, preflight::Found};
use super::{
    AcquireRequest, Capabilities, DynRecords, Faults, Found as Loaded, KeyState, LockBackend,
    LockingRecordStore, Scope, WaitBound,
};
use crate::{
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    record::{Opening, Record, RecordLimits, RecordStore, Save},
};

/// Locks in an etcd cluster. Clones share its connection.
///
/// See the [module](self) for what it promises and what it does not.
#[derive(Clone)]
pub struct EtcdBackend {
    client: Arc<Client>,
    found: Found,
}

impl EtcdBackend {
    /// Connects to the cluster of this URL, with everything else as [`builder`](Self::builder)
    /// has it.
    ///
    /// # Errors
    ///
    /// As [`EtcdBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self, BackendError> {
        Self::builder(url).connect().await
    }

    /// Sets up a connection to the cluster of this URL:
    /// `etcd://[user:password@]host[:port][,host[:port]..]`, and the same with `etcds://` (TLS).
    /// User and password are percent-encoded; without a port it is 2379. Name all members: the
    /// ones that are not named are not asked when others are away.
    pub fn builder(url: &str) -> EtcdBuilder {
        EtcdBuilder::new(url)
    }

    fn new(client: Arc<Client>, found: Found) -> Self {
        Self { client, found }
    }
}

impl fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBackend").finish_non_exhaustive()
    }
}

impl LockBackend for EtcdBackend {
    type Lease = EtcdLease;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: true,
            shared: true,
            consensus: self.found.sound,
            fencing: true,
            min_ttl: Some(self.found.shortest),
            survives: Faults {
                client_crash: true,
                server_restart: true,
                fail_over: true,
                partition: true,
                clock_step: true,
                ..Faults::default()
            },
            ..Capabilities::new("etcd", Scope::Fleet)
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<EtcdLease, BackendError> {
        check(request)?;
        acquire::acquire(&self.client, request).await
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        gate::wait_free(&self.client, key, wait).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        Ok(operate::inspect(&self.client, key).await?)
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        Ok(operate::force_release(&self.client, key).await?)
    }

    fn records(&self) -> Option<&dyn DynRecords> {
        Some(self)
    }
}

impl RecordStore for EtcdBackend {
    fn limits(&self) -> RecordLimits {
        save::limits()
    }

    async fn load(&self, key: &LockKey) -> Result<Option<Record>, BackendError> {
        Ok(save::load(&self.client, key).await?)
    }

    async fn save(&self, save: &Save) -> Result<(), BackendError> {
        save::save(&self.client, save, false).await
    }
}

impl LockingRecordStore for EtcdBackend {
    async fn acquire_or_load(
        &self,
        request: &AcquireRequest,
        open: Option<&Opening>,
    ) -> Result<Loaded<EtcdLease>, BackendError> {
        check(request)?;
        request.may_load(&self.limits(), open)?;
        acquire::acquire_or_load(&self.client, request, open).await
    }

    async fn save_and_release(&self, save: &Save) -> Result<(), BackendError> {
        save::save(&self.client, save, true).await
    }
}

fn check(request: &AcquireRequest) -> Result<(), BackendError> {
    if request.tokens > 1 {
        return Err(BackendError::new(
            BackendErrorKind::Unsupported,
            "etcd cannot reserve fencing tokens",
        ));
    }
    Ok(())
}
