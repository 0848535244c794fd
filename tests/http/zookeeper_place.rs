//! Where a test has its locks in ZooKeeper: under a base of its own, on the one server of this
//! process.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tower_lock::{LockBackend, LockKey, ZooKeeperBackend};

use crate::{servers::ZooKeeperServer, support::SOON};

/// No ttl is shorter. Long enough for a machine that stalls now and then.
pub(crate) const SESSION: Duration = Duration::from_secs(5);

/// A base, and a client of it. Clones share both.
#[derive(Clone)]
pub(crate) struct Place {
    base: Arc<str>,
    backend: ZooKeeperBackend,
}

impl Place {
    pub(crate) async fn new() -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let place = PLACES.fetch_add(1, Ordering::Relaxed);
        Self::at(format!("/place-{place}").into()).await
    }

    /// The same place as another process has it.
    pub(crate) async fn elsewhere(&self) -> Self {
        Self::at(self.base.clone()).await
    }

    async fn at(base: Arc<str>) -> Self {
        let backend = ZooKeeperBackend::builder(&ZooKeeperServer::shared().url())
            .with_base(&*base)
            .with_session_timeout(SESSION)
            // Nothing here is about its end, and the machine may be busy.
            .with_operation_timeout(SOON)
            .connect()
            .await
            .expect("the server of the tests");
        Self { base, backend }
    }

    pub(crate) fn backend(&self) -> &ZooKeeperBackend {
        &self.backend
    }

    /// The locks that somebody holds or waits for, as the server knows them.
    pub(crate) fn locks(&self) -> BTreeSet<String> {
        let standing = ZooKeeperServer::shared().standing(&self.base);
        let lock = |node: &String| node.rsplit_once('/').map(|(lock, _)| lock.to_owned());
        standing.iter().filter_map(lock).collect()
    }

    /// As an operator does, through a session of their own.
    pub(crate) async fn take_away(&self, key: &LockKey) -> bool {
        let operator = self.elsewhere().await;
        let taken = operator.backend.force_release(key).await;
        taken.expect("the server of the tests")
    }
}
