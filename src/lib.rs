#![doc = include_str!("docs/crate.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
mod clock;
#[cfg(feature = "contract-tests")]
#[cfg_attr(docsrs, doc(cfg(feature = "contract-tests")))]
pub mod contract;
pub mod error;
#[cfg(feature = "axum")]
mod extract;
pub mod guide;
pub mod idempotency;
pub mod key;
mod layer;
pub mod lease;
mod loss;
mod manager;
mod policy;
pub mod record;
mod replay;
mod route;
mod runtime;
#[cfg(test)]
mod simulation;
pub mod single_flight;
mod sync;
mod web;

#[cfg(feature = "etcd")]
#[doc(inline)]
pub use self::backend::etcd::EtcdBackend;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use self::backend::redis::{RedisBackend, ReplicaAck};
#[cfg(feature = "redlock")]
#[doc(inline)]
pub use self::backend::redlock::RedLockBackend;
#[cfg(feature = "zookeeper")]
#[doc(inline)]
pub use self::backend::zookeeper::ZooKeeperBackend;
#[cfg(feature = "axum")]
pub use self::extract::LockRejection;
#[doc(inline)]
pub use self::{
    backend::{LockBackend, MemoryBackend, Mode},
    error::{BackendError, BackendErrorKind, BoxError, ConfigError},
    idempotency::{IdempotencyKey, IdempotencyLayer, IdempotencyPolicy},
    key::{KeyExtractor, LockKey},
    lease::{FencingToken, Lease, Loss, OwnerToken},
    single_flight::{SingleFlightLayer, SingleFlightPolicy},
};
pub use self::{
    layer::{FromBody, FromHead, LockLayer, LockService, ResponseFuture},
    manager::{
        AcquireError, AcquireErrorKind, HeldLock, HeldLocks, HeldState, LockGuard, LockManager,
        LockManagerBuilder, ManagerState, ShutdownReport, WaitingState,
    },
    policy::{Fairness, Guarantee, LockPolicy, OnDisconnect, OnLost, ReleaseOn, Wait},
    web::{Refusal, RefusalKind, RequestBody, ResponseBody, problem},
};

/// What users move between tasks stays movable: checked when the crate is compiled.
const _: () = {
    const fn send_sync_unpin<T: Send + Sync + Unpin + 'static>() {}
    send_sync_unpin::<LockManager>();
    send_sync_unpin::<LockGuard>();
    send_sync_unpin::<HeldLock>();
    send_sync_unpin::<HeldLocks>();
    send_sync_unpin::<LockLayer>();
    send_sync_unpin::<LockLayer<FromBody>>();
    send_sync_unpin::<LockPolicy>();
    send_sync_unpin::<IdempotencyKey>();
    send_sync_unpin::<IdempotencyLayer>();
    send_sync_unpin::<IdempotencyPolicy>();
    send_sync_unpin::<SingleFlightLayer>();
    send_sync_unpin::<SingleFlightPolicy>();
    send_sync_unpin::<LockKey>();
    send_sync_unpin::<FencingToken>();
    send_sync_unpin::<OwnerToken>();
    send_sync_unpin::<Refusal>();
    send_sync_unpin::<AcquireError>();
    send_sync_unpin::<BackendError>();
    send_sync_unpin::<MemoryBackend>();
    #[cfg(feature = "etcd")]
    send_sync_unpin::<EtcdBackend>();
    #[cfg(feature = "redis")]
    send_sync_unpin::<RedisBackend>();
    #[cfg(feature = "redlock")]
    send_sync_unpin::<RedLockBackend>();
    #[cfg(feature = "zookeeper")]
    send_sync_unpin::<ZooKeeperBackend>();
};

/// Runs the README's quick start.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
