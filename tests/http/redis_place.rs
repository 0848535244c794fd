//! Where a test has its locks in Redis: under a prefix of its own, on the one server of this
//! process.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tower_lock::{LockBackend, LockKey, RedisBackend};

use crate::{servers::RedisServer, support::SOON};

/// A prefix, and a client of it. Clones share both.
#[derive(Clone)]
pub(crate) struct Place {
    prefix: Arc<str>,
    backend: RedisBackend,
}

impl Place {
    pub(crate) async fn new() -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let place = PLACES.fetch_add(1, Ordering::Relaxed);
        Self::at(format!("place-{place}:").into()).await
    }

    /// The same place as another process has it.
    pub(crate) async fn elsewhere(&self) -> Self {
        Self::at(self.prefix.clone()).await
    }

    async fn at(prefix: Arc<str>) -> Self {
        let backend = RedisBackend::builder(&RedisServer::shared().url())
            .with_prefix(&*prefix)
            // Nothing here is about its end, and the machine may be busy.
            .with_operation_timeout(SOON)
            .connect()
            .await
            .expect("the server of the tests");
        Self { prefix, backend }
    }

    pub(crate) fn backend(&self) -> &RedisBackend {
        &self.backend
    }

    /// The locks of which the server knows anything: a holder, a queue, readers.
    pub(crate) fn locks(&self) -> BTreeSet<String> {
        let keys = RedisServer::shared().keys_left(&self.prefix);
        // What lies beside a lock is called `{lock}:..`.
        keys.iter()
            .map(|key| match key.strip_prefix('{') {
                Some(beside) => beside.split('}').next().unwrap_or(beside).to_owned(),
                None => key.clone(),
            })
            .collect()
    }

    /// How many token counters there are.
    pub(crate) fn counters(&self) -> usize {
        let counters = format!("{}token:*", self.prefix);
        let counters = RedisServer::shared().command(&["KEYS", &counters]);
        counters.texts().len()
    }

    /// As an operator does, through a connection of their own.
    pub(crate) async fn take_away(&self, key: &LockKey) -> bool {
        let operator = self.elsewhere().await;
        let taken = operator.backend.force_release(key).await;
        taken.expect("the server of the tests")
    }
}
