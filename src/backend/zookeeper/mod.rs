//! Locks in a ZooKeeper ensemble, for all instances of a service.
//!
#![doc = include_str!("../../docs/zookeeper.md")]

mod acquire;
mod answer;
mod beats;
mod begin;
mod board;
mod builder;
mod client;
mod config;
mod ends;
mod errand;
mod hold;
mod kept;
mod layout;
mod lease;
mod operate;
mod patrol;
mod place;
mod queue;
mod record;
mod room;
mod seek;
mod server_clock;
mod session;
mod shelf;
mod stand;
mod sweep;
mod trouble;
mod url;
mod watches;

use std::{fmt, sync::Arc, time::Duration};

use self::client::Client;
pub use self::{builder::ZooKeeperBuilder, layout::NodeLayout, lease::ZooKeeperLease};
use super::{
    AcquireRequest, Capabilities, DynRecords, Faults, Found, KeyState, LockBackend,
    LockingRecordStore, Scope, WaitBound,
};
use crate::{
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    record::{Opening, Record, RecordLimits, RecordStore, Save},
};

/// The longest lease, so that no sum of times overflows.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Locks in a ZooKeeper ensemble. Clones share its session.
///
/// See the [module](self) for what it promises and what it does not.
#[derive(Clone)]
pub struct ZooKeeperBackend {
    client: Arc<Client>,
    session_timeout: Duration,
}

impl ZooKeeperBackend {
    /// Connects to the servers of this connect string, with everything else as
    /// [`builder`](Self::builder) has it.
    ///
    /// # Errors
    ///
    /// As [`ZooKeeperBuilder::connect`].
    pub async fn connect(servers: &str) -> Result<Self, BackendError> {
        Self::builder(servers).connect().await
    }

    /// Sets up a session with the servers of this connect string:
    /// `zookeeper://[user:password@]host[:port][,host[:port]..][/chroot]`.
    pub fn builder(servers: &str) -> ZooKeeperBuilder {
        ZooKeeperBuilder::new(servers)
    }

    /// The session timeout that the servers granted, the shortest ttl of a route: they keep what is
    /// asked for within bounds of their own.
    pub fn session_timeout(&self) -> Duration {
        self.session_timeout
    }

    /// Whether this can be asked for.
    fn check(&self, request: &AcquireRequest) -> Result<(), BackendError> {
        if request.ttl < self.session_timeout {
            return Err(BackendError::new(
                BackendErrorKind::Unsupported,
                format!(
                    "a ttl below the session timeout of {:?}: shorten that (`with_session_timeout`)",
                    self.session_timeout
                ),
            ));
        }
        if request.tokens > 1 {
            return Err(BackendError::new(
                BackendErrorKind::Unsupported,
                "tokens are the numbers of creations, so none can be reserved",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for ZooKeeperBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperBackend")
            .field("session_timeout", &self.session_timeout)
            .finish_non_exhaustive()
    }
}

impl LockBackend for ZooKeeperBackend {
    type Lease = ZooKeeperLease;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: true,
            shared: true,
            consensus: true,
            fencing: true,
            reserves_tokens: false,
            min_ttl: Some(self.session_timeout),
            survives: Faults {
                client_crash: true,
                server_restart: true,
                fail_over: true,
                partition: true,
                clock_step: true,
                data_loss: false,
            },
            ..Capabilities::new("zookeeper", Scope::Fleet)
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<ZooKeeperLease, BackendError> {
        self.check(request)?;
        acquire::acquire(&self.client, request).await
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        operate::wait_free(&self.client, key, wait).await
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

impl RecordStore for ZooKeeperBackend {
    fn limits(&self) -> RecordLimits {
        record::limits()
    }

    async fn load(&self, key: &LockKey) -> Result<Option<Record>, BackendError> {
        Ok(record::load(&self.client, key).await?)
    }

    async fn save(&self, save: &Save) -> Result<(), BackendError> {
        record::save(&self.client, save, false).await
    }
}

impl LockingRecordStore for ZooKeeperBackend {
    async fn acquire_or_load(
        &self,
        request: &AcquireRequest,
        open: Option<&Opening>,
    ) -> Result<Found<ZooKeeperLease>, BackendError> {
        request.may_load(&self.limits(), open)?;
        self.check(request)?;
        acquire::acquire_or_load(&self.client, request, open).await
    }

    async fn save_and_release(&self, save: &Save) -> Result<(), BackendError> {
        record::save(&self.client, save, true).await
    }
}
