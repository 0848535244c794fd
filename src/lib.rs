//! Distributed locks for web routes.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod clock;
pub mod error;
pub mod key;
pub mod lease;
mod manager;
mod policy;
mod runtime;
mod sync;

pub use self::{
    backend::{LockBackend, MemoryBackend, Mode},
    error::{BackendError, BackendErrorKind, BoxError, ConfigError},
    key::{KeyExtractor, LockKey},
    lease::{FencingToken, Lease, Loss, OwnerToken},
    manager::{
        AcquireError, AcquireErrorKind, HeldLock, HeldLocks, HeldState, LockGuard, LockManager,
        LockManagerBuilder, ManagerState, ShutdownReport, WaitingState,
    },
    policy::{Fairness, Guarantee, LockPolicy, OnDisconnect, OnLost, ReleaseOn, Wait},
};
