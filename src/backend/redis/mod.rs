//! Locks in one Redis server, for all instances of a service.
//!
#![doc = include_str!("../../docs/redis.md")]

mod acquire;
mod answer;
mod attempt;
mod builder;
mod client;
mod connection;
mod gate;
mod inbox;
mod lease;
mod link;
mod names;
mod near;
mod operate;
mod patrol;
mod preflight;
mod renewals;
mod room;
mod scripts;
#[allow(dead_code)]
mod slot_map;
#[allow(dead_code)]
mod slots;
mod trouble;
mod undo;
mod waiter;

use std::{fmt, sync::Arc};

use self::client::Client;
pub use self::{builder::RedisBuilder, lease::RedisLease};
use super::{AcquireRequest, Capabilities, Faults, KeyState, LockBackend, Scope, WaitBound};
use crate::{error::BackendError, key::LockKey};

/// Locks in one Redis server. Clones share its connections.
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

    /// Sets up a connection to the server of this URL:
    /// `redis://[user:password@]host[:port][/database]`, the same with `rediss://` (TLS), or
    /// `unix:///path[?db=n&user=..&pass=..]`.
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
}
