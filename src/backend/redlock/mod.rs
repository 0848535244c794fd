//! Locks on a majority of independent Redis servers, for all instances of a service.
//!
#![doc = include_str!("../../docs/redlock.md")]

mod acquire;
mod attempt;
mod builder;
mod campaign;
mod client;
mod gate;
mod inbox;
mod lease;
mod member;
mod names;
mod node;
mod operate;
mod post;
mod quorum;
mod room;
mod scripts;
mod undo;
mod url;
mod waiter;

use std::{fmt, sync::Arc};

use self::client::Client;
pub use self::{builder::RedLockBuilder, lease::RedLockLease};
use super::{AcquireRequest, Capabilities, Faults, KeyState, LockBackend, Scope, WaitBound};
use crate::{error::BackendError, key::LockKey};

/// Locks on a majority of independent Redis servers. Clones share its connections.
///
/// See the [module](self) for what it promises and what it does not.
#[derive(Clone)]
pub struct RedLockBackend {
    client: Arc<Client>,
}

impl RedLockBackend {
    /// Connects to the nodes of this URL, with everything else as [`builder`](Self::builder) has
    /// it.
    ///
    /// # Errors
    ///
    /// As [`RedLockBuilder::connect`].
    pub async fn connect(url: &str) -> Result<Self, BackendError> {
        Self::builder(url).connect().await
    }

    /// Sets up connections to the nodes of this URL:
    /// `redlock://[user:password@]host[:port],host[:port],..[/database]`, or the same with
    /// `redlocks://` (TLS). The user, the password and the database are those of all nodes.
    pub fn builder(url: &str) -> RedLockBuilder {
        RedLockBuilder::new(url::split(url))
    }

    /// The same for nodes that have a URL each: `redis://[user:password@]host[:port][/database]`,
    /// or `rediss://` (TLS).
    pub fn builder_of<U: Into<String>>(urls: impl IntoIterator<Item = U>) -> RedLockBuilder {
        RedLockBuilder::new(Ok(urls.into_iter().map(Into::into).collect()))
    }

    /// Waits until a majority of the nodes votes, so that locks can be had. After the first start
    /// of all nodes, and after a restart of a majority, that takes as long as the longest ttl. It does
    /// not time out.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe.
    pub async fn until_voting(&self) {
        let shared = &self.client.shared;
        member::until_voting(shared, shared.majority()).await;
    }

    /// Declares that these nodes begin a new deployment, so that they need not wait for the longest
    /// ttl before they vote. Returns whether they do: on nodes that have granted anything before,
    /// this does nothing.
    ///
    /// Nobody can tell nodes that are new from nodes that all lost their data while locks were
    /// held. **Call it once, by hand or where a deployment is created, not whenever a service
    /// starts**: after a power cut of all nodes without persistence it would let a second holder
    /// in.
    ///
    /// # Errors
    ///
    /// `Unavailable`: it needs all nodes, and waits for them for seconds. It may have been done all
    /// the same, or on some of them.
    ///
    /// # Cancellation safety
    ///
    /// It may have been done on some nodes; call it again.
    pub async fn found(&self) -> Result<bool, BackendError> {
        member::found(&self.client.shared).await
    }
}

impl fmt::Debug for RedLockBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLockBackend")
            .field("nodes", &self.client.shared.nodes)
            .finish_non_exhaustive()
    }
}

impl LockBackend for RedLockBackend {
    type Lease = RedLockLease;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fencing: true,
            reserves_tokens: true,
            max_ttl: Some(self.client.shared.max_ttl),
            survives: Faults {
                client_crash: true,
                server_restart: true,
                fail_over: true,
                partition: true,
                ..Faults::default()
            },
            ..Capabilities::new("redlock", Scope::Fleet)
        }
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<RedLockLease, BackendError> {
        acquire::acquire(&self.client, request).await
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        gate::wait_free(&self.client, key, wait).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        operate::inspect(&self.client, key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        operate::force_release(&self.client, key).await
    }
}
