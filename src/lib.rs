//! Distributed locks for web routes.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
#[cfg(feature = "contract-tests")]
#[cfg_attr(docsrs, doc(cfg(feature = "contract-tests")))]
pub mod contract;
pub mod error;
pub mod key;
pub mod lease;
mod policy;

pub use self::{
    backend::{LockBackend, MemoryBackend, Mode},
    error::{BackendError, BackendErrorKind, BoxError, ConfigError},
    key::{KeyExtractor, LockKey},
    lease::{FencingToken, Lease, Loss, OwnerToken},
    policy::{Fairness, Guarantee, LockPolicy, OnDisconnect, OnLost, ReleaseOn, Wait},
};
