//! Where a test has its locks in etcd: under a prefix of its own, on the one server of this process.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use tower_lock::{EtcdBackend, LockBackend, LockKey};

use crate::{servers::Etcd, support::SOON};

/// A prefix, and a client of it. Clones share both.
#[derive(Clone)]
pub(crate) struct Place {
    prefix: Arc<str>,
    backend: EtcdBackend,
}

impl Place {
    pub(crate) async fn new() -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let place = PLACES.fetch_add(1, Ordering::Relaxed);
        Self::at(format!("place-{place}/").into()).await
    }

    /// The same place as another process has it.
    pub(crate) async fn elsewhere(&self) -> Self {
        Self::at(self.prefix.clone()).await
    }

    async fn at(prefix: Arc<str>) -> Self {
        let backend = EtcdBackend::builder(&Etcd::shared().url())
            .with_prefix(&*prefix)
            // Nothing here is about its end, and the machine may be busy.
            .with_operation_timeout(SOON)
            .connect()
            .await
            .expect("the server of the tests");
        Self { prefix, backend }
    }

    pub(crate) fn backend(&self) -> &EtcdBackend {
        &self.backend
    }

    /// The locks of which the server knows anything: a holder, a waiter, a record.
    pub(crate) fn locks(&self) -> BTreeSet<String> {
        let names = Etcd::shared().keys_left(&self.prefix);
        let lock = |name: &str| match name.strip_prefix("rec/") {
            Some(record) => record.to_owned(),
            None => name.split('/').next().unwrap_or(name).to_owned(),
        };
        names
            .iter()
            .map(|name| [&self.prefix, &*lock(&name[self.prefix.len()..])].concat())
            .collect()
    }

    /// As an operator does, through a connection of their own.
    pub(crate) async fn take_away(&self, key: &LockKey) -> bool {
        let operator = self.elsewhere().await;
        let taken = operator.backend.force_release(key).await;
        taken.expect("the server of the tests")
    }
}
