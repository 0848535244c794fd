//! Locks in Redis, for all instances of a service: in one server, in the master that Sentinels
//! name, or in a Cluster.
//!
#![doc = include_str!("../../docs/redis.md")]
//!
#![doc = include_str!("../../docs/redis_topologies.md")]

mod acks;
mod acquire;
pub(in crate::backend) mod answer;
mod attempt;
mod builder;
pub(in crate::backend) mod callers;
mod client;
mod cluster;
pub(in crate::backend) mod connection;
mod course;
pub(in crate::backend) mod endpoint;
mod gate;
mod inbox;
mod lease;
pub(in crate::backend) mod link;
pub(in crate::backend) mod names;
mod near;
mod opening;
mod operate;
mod patrol;
mod place;
mod preflight;
mod record;
mod renewals;
mod room;
pub(in crate::backend) mod scripts;
mod sentinel;
#[cfg(test)]
pub(crate) mod sim;
mod slots;
pub(in crate::backend) mod trouble;
mod undo;
pub(in crate::backend) mod url;
mod waiter;

use std::{fmt, sync::Arc};

use self::client::Client;
pub use self::{acks::ReplicaAck, builder::RedisBuilder, lease::RedisLease};
use super::{
    AcquireRequest, Capabilities, DynRecords, Faults, Found, KeyState, LockBackend,
    LockingRecordStore, Scope, WaitBound,
};
use crate::{
    error::BackendError,
    key::LockKey,
    record::{Opening, Record, RecordLimits, RecordStore, Save},
};

/// Locks in Redis. Clones share its connections.
///
/// See the [module](self) for what it promises and what it does not.
#[derive(Clone)]
pub struct RedisBackend {
    client: Arc<Client>,
}

impl RedisBackend {
    /// Connects to the server of this URL, with everything else as [`builder`](Self::builder)
    /// has it.
    ///
    /// # Errors
    ///
    /// As [`RedisBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self, BackendError> {
        Self::builder(url).connect().await
    }

    /// Sets up connections to the servers of this URL:
    ///
    /// - one server: `redis://[user:password@]host[:port][/database]`, or
    ///   `unix:///path[?db=n&user=..&pass=..]`
    /// - [behind Sentinels](self#behind-sentinels): `redis+sentinel://[user:password@]host[:port]..
    ///   [,host[:port]..]/service[?db=n&sentinel_user=..&sentinel_password=..]`
    /// - [a Cluster](self#in-a-cluster): `redis+cluster://[user:password@]host[:port][,host[:port]..]`
    ///
    /// and each with TLS: `rediss://`, `rediss+sentinel://`, `rediss+cluster://`.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(url)
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").finish_non_exhaustive()
    }
}

impl LockBackend for RedisBackend {
    type Lease = RedisLease;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: true,
            shared: true,
            consensus: false,
            fencing: true,
            reserves_tokens: true,
            survives: Faults {
                client_crash: true,
                server_restart: true,
                ..Faults::default()
            },
            ..Capabilities::new("redis", Scope::Fleet)
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<RedisLease, BackendError> {
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

impl RecordStore for RedisBackend {
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

impl LockingRecordStore for RedisBackend {
    async fn acquire_or_load(
        &self,
        request: &AcquireRequest,
        open: Option<&Opening>,
    ) -> Result<Found<RedisLease>, BackendError> {
        request.may_load(&self.limits(), open)?;
        acquire::acquire_or_load(&self.client, request, open).await
    }

    async fn save_and_release(&self, save: &Save) -> Result<(), BackendError> {
        record::save(&self.client, save, true).await
    }
}
