//! Distributed locks for web routes.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod clock;
pub mod error;
#[cfg(feature = "axum")]
mod extract;
pub mod key;
mod layer;
pub mod lease;
mod manager;
mod policy;
mod runtime;
mod sync;

#[cfg(feature = "axum")]
pub use self::extract::LockRejection;
pub use self::{
    backend::{LockBackend, MemoryBackend, Mode},
    error::{BackendError, BackendErrorKind, BoxError, ConfigError},
    key::{KeyExtractor, LockKey},
    lease::{FencingToken, Lease, Loss, OwnerToken},
    layer::{FromBody, FromHead, LockLayer, LockService, ResponseFuture},
    manager::{
        AcquireError, AcquireErrorKind, HeldLock, HeldLocks, HeldState, LockGuard, LockManager,
        LockManagerBuilder, ManagerState, ShutdownReport, WaitingState,
    },
    policy::{Fairness, Guarantee, LockPolicy, OnDisconnect, OnLost, ReleaseOn, Wait},
};
