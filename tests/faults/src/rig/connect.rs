//! From the name of a lock to its manager.

use std::time::Duration;

use tokio::time::sleep;
use tower_lock::{
    BoxError, EtcdBackend, LockManager, LockManagerBuilder, MemoryBackend, RedLockBackend,
    RedisBackend, ReplicaAck, ZooKeeperBackend,
};

use super::{Locks, Setup, naive::NaiveBackend};

/// How long an answer of a server may take.
const OPERATION: Duration = Duration::from_secs(1);

/// More than any storm has.
const MAX_WAITERS: usize = 100_000;

/// How often a process tries to begin, as one that is started again whenever it fails.
const TRIES: usize = 10;

pub(super) async fn manager(setup: &Setup) -> Result<LockManager, BoxError> {
    let mut tries = 0;
    loop {
        tries += 1;
        match builder(setup).await {
            Ok(builder) => return Ok(builder.max_waiters(MAX_WAITERS).build()),
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => sleep(OPERATION / 4).await,
        }
    }
}

async fn builder(setup: &Setup) -> Result<LockManagerBuilder, BoxError> {
    Ok(match &setup.locks {
        Locks::Memory => LockManager::builder(MemoryBackend::new()).single_instance(),
        Locks::Redis { url, acks } => {
            let mut builder = RedisBackend::builder(url).with_operation_timeout(OPERATION);
            if *acks > 0 {
                builder = builder
                    .with_replica_ack(ReplicaAck::Require(*acks), Duration::from_millis(500));
            }
            LockManager::builder(builder.connect().await?)
        }
        Locks::RedLock { url } => {
            let backend = RedLockBackend::builder(url)
                .with_max_ttl(setup.ttl)
                .connect()
                .await?;
            backend.until_voting().await;
            LockManager::builder(backend)
        }
        Locks::Etcd { url } => LockManager::builder(EtcdBackend::connect(url).await?),
        Locks::ZooKeeper { url } => {
            let backend = ZooKeeperBackend::builder(url)
                .with_session_timeout(setup.ttl)
                .with_operation_timeout(OPERATION)
                .connect();
            LockManager::builder(backend.await?)
        }
        Locks::Naive(naive) => LockManager::builder(NaiveBackend(naive.clone())),
    })
}
