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
mod web;

#[cfg(feature = "axum")]
pub use self::extract::LockRejection;
pub use self::{
    backend::{LockBackend, MemoryBackend, Mode},
    error::{BackendError, BackendErrorKind, BoxError, ConfigError},
    key::{KeyExtractor, LockKey},
    layer::{FromBody, FromHead, LockLayer, LockService, ResponseFuture},
    lease::{FencingToken, Lease, Loss, OwnerToken},
    manager::{
        AcquireError, AcquireErrorKind, HeldLock, HeldLocks, HeldState, LockGuard, LockManager,
        LockManagerBuilder, ManagerState, ShutdownReport, WaitingState,
    },
    policy::{Fairness, Guarantee, LockPolicy, OnDisconnect, OnLost, ReleaseOn, Wait},
    web::{Refusal, RefusalKind, RequestBody, ResponseBody, problem},
};
