//! The contract suite on a real etcd server.

use std::{sync::Mutex, time::Duration};

use tower_lock::{
    BoxError, EtcdBackend,
    contract::{ContractTarget, Erased, Options},
};

use crate::{
    both, keeps_records, passes,
    servers::{Etcd, TcpProxy},
    written_down,
};

const PREFIX: &str = "tower-lock/";

/// Revisions are nobody's to reserve.
const NOT_APPLICABLE: &[&str] = &["reserved_tokens"];

/// One member, which keeps its data over a restart.
struct Cluster {
    server: Etcd,
    /// In front of it for clients whose replies are slow.
    slow: Mutex<Option<TcpProxy>>,
    options: Options,
}

impl Cluster {
    fn new() -> Self {
        Self {
            server: Etcd::start(),
            slow: Mutex::default(),
            options: written_down(),
        }
    }

    /// A server ends leases up to a second late, and with them records.
    fn late() -> Self {
        let mut this = Self::new();
        this.options.slack = Duration::from_secs(6);
        this
    }
}

impl ContractTarget for Cluster {
    type Backend = EtcdBackend;

    async fn connect(&self) -> Result<EtcdBackend, BoxError> {
        let slow = self.slow.lock().unwrap().as_ref().map(TcpProxy::address);
        let url = match slow {
            Some(address) => format!("etcd://{address}"),
            None => self.server.url(),
        };
        Ok(EtcdBackend::connect(&url).await?)
    }

    async fn leftovers(&self) -> Option<u64> {
        Some(self.server.keys_left(PREFIX).len() as u64)
    }

    async fn restart(&self) -> bool {
        self.server.kill_all();
        self.server.restart();
        true
    }

    async fn slow_replies(&self, delay: Duration) -> bool {
        let mut slow = self.slow.lock().unwrap();
        *slow = None;
        if !delay.is_zero() {
            let proxy = TcpProxy::start(self.server.address(0));
            proxy.set_latency(Duration::ZERO, delay);
            *slow = Some(proxy);
        }
        true
    }

    fn options(&self) -> Options {
        self.options
    }
}

#[test]
fn etcd_passes_plain_and_erased() {
    both(
        || passes(&Cluster::new(), NOT_APPLICABLE),
        || passes(&Erased(Cluster::new()), NOT_APPLICABLE),
    );
}

#[test]
fn etcd_keeps_records_plain_and_erased() {
    both(
        || keeps_records(&Cluster::late()),
        || keeps_records(&Erased(Cluster::late())),
    );
}
