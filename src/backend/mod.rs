//! The systems that decide who holds a key, and the contract that each of them keeps.
//!
//! [`MemoryBackend`] serves one process; `RedisBackend` (feature `redis`), `RedLockBackend` (feature
//! `redlock`), `EtcdBackend` (feature `etcd`) and `ZooKeeperBackend` (feature `zookeeper`) all instances. Which one for which task:
//! [`guide::backends`](crate::guide::backends). One of your own:
//! [`guide::implementing_a_backend`](crate::guide::implementing_a_backend).

mod capabilities;
mod erased;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
#[cfg(any(feature = "etcd", feature = "redis"))]
mod pem;
mod records;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
mod request;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

use std::{fmt, future::Future, time::Duration};

pub use self::{
    capabilities::{Capabilities, Faults, Scope},
    erased::{DynLease, DynLockBackend},
    memory::MemoryBackend,
    records::{DynRecords, Found, LockingRecordStore},
    request::{AcquireRequest, Mode, Order, WaitBound},
};
use crate::{
    error::BackendError,
    key::LockKey,
    lease::{FencingToken, Lease},
};

#[doc = include_str!("../docs/contract.md")]
pub trait LockBackend: fmt::Debug + Send + Sync + 'static {
    /// The grant that this backend gives.
    type Lease: Lease;

    /// What this backend can do and which faults it survives. Plain data; never changes.
    fn capabilities(&self) -> Capabilities;

    /// Acquires the key, waiting as the request says.
    ///
    /// # Errors
    ///
    /// `Contended` (only with [`WaitBound::Fail`]), `WaitTimedOut` (only with
    /// [`WaitBound::Until`]), `Unavailable`, `Unsupported`, `Misconfigured`.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future at any await point leaves nothing behind (must 6).
    fn acquire(
        &self,
        request: &AcquireRequest,
    ) -> impl Future<Output = Result<Self::Lease, BackendError>> + Send;

    /// Waits until nobody holds the key, without holding it: the gate of single flight.
    ///
    /// # Errors
    ///
    /// `Contended` or `WaitTimedOut` when it is still held at the end of the wait, `Unavailable`.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it leaves nothing behind.
    fn wait_free(
        &self,
        key: &LockKey,
        wait: WaitBound,
    ) -> impl Future<Output = Result<(), BackendError>> + Send;

    /// What the backend knows of the key now.
    ///
    /// # Errors
    ///
    /// `Unavailable`.
    fn inspect(&self, key: &LockKey)
    -> impl Future<Output = Result<KeyState, BackendError>> + Send;

    /// Takes the key from all its holders and tells them ([`Loss::ForceReleased`]); waiters are
    /// served next. Returns whether somebody held it.
    ///
    /// This breaks exclusion by intent: a holder that does not look at its loss runs on.
    ///
    /// # Errors
    ///
    /// `Unavailable`.
    ///
    /// [`Loss::ForceReleased`]: crate::lease::Loss::ForceReleased
    fn force_release(
        &self,
        key: &LockKey,
    ) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// The records beside the locks, if this backend keeps some: `Some(self)` where it is a
    /// [`LockingRecordStore`].
    ///
    /// The one default, `None`: layers that need records refuse such a backend when they are built.
    fn records(&self) -> Option<&dyn DynRecords> {
        None
    }
}

/// What a backend knows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyState {
    /// The backend's own name of the key, as an operator sees it on the server.
    pub name: String,
    /// Who holds it; several only in shared mode.
    pub holders: Vec<HolderState>,
    /// How many wait, over all instances, as far as the backend counts them.
    pub waiters: u64,
}

impl KeyState {
    /// A free key of this name.
    pub fn free(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            holders: Vec::new(),
            waiters: 0,
        }
    }
}

/// One holder of a key, as the backend sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderState {
    /// Exclusive or shared.
    pub mode: Mode,
    /// The token of its grant; `None` for a holder that is not of this crate.
    pub fencing_token: Option<FencingToken>,
    /// What remains of its lease, where the backend knows it.
    pub remaining: Option<Duration>,
}

impl HolderState {
    /// A holder in this mode, of which nothing else is known.
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            fencing_token: None,
            remaining: None,
        }
    }
}
