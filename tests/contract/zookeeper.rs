//! The contract suite on a real ZooKeeper server.

use std::{sync::Mutex, time::Duration};

use tower_lock::{
    BoxError, ZooKeeperBackend,
    contract::{ContractTarget, Erased, Options},
};

use crate::{
    both, keeps_records, passes,
    servers::{TcpProxy, ZooKeeperServer},
    written_down,
};

/// Long enough for a machine that stalls now and then.
const SESSION: Duration = Duration::from_secs(5);

struct ZooKeeper {
    server: ZooKeeperServer,
    /// In front of it for clients whose replies are slow.
    slow: Mutex<Option<TcpProxy>>,
    options: Options,
}

impl ZooKeeper {
    fn new() -> Self {
        let mut options = written_down();
        options.short_ttl = SESSION + Duration::from_secs(1);
        // What a client that lost its connection leaves is the server's to delete, once a minute
        // else. That ours delete what they leave is tested in tests/zookeeper.
        let often = "-Dznode.container.checkIntervalMs=2000";
        Self {
            server: ZooKeeperServer::start_with("", &[often]),
            slow: Mutex::default(),
            options,
        }
    }
}

impl ContractTarget for ZooKeeper {
    type Backend = ZooKeeperBackend;

    async fn connect(&self) -> Result<ZooKeeperBackend, BoxError> {
        let slow = self.slow.lock().unwrap().as_ref().map(TcpProxy::address);
        let url = match slow {
            Some(address) => format!("zookeeper://{address}"),
            None => self.server.url(),
        };
        let builder = ZooKeeperBackend::builder(&url).with_session_timeout(SESSION);
        Ok(builder.connect().await?)
    }

    async fn leftovers(&self) -> Option<u64> {
        Some(self.server.nodes_left("/tower-lock").len() as u64)
    }

    async fn restart(&self) -> bool {
        self.server.restart();
        true
    }

    async fn slow_replies(&self, delay: Duration) -> bool {
        let mut slow = self.slow.lock().unwrap();
        *slow = None;
        if !delay.is_zero() {
            let proxy = TcpProxy::start(self.server.address());
            proxy.set_latency(Duration::ZERO, delay);
            *slow = Some(proxy);
        }
        true
    }

    fn options(&self) -> Options {
        self.options
    }
}

/// Tokens are the numbers of creations: none can be reserved.
const NOT_APPLICABLE: &[&str] = &["reserved_tokens"];

#[test]
fn zookeeper_passes_plain_and_erased() {
    both(
        || passes(&ZooKeeper::new(), NOT_APPLICABLE),
        || passes(&Erased(ZooKeeper::new()), NOT_APPLICABLE),
    );
}

#[test]
fn zookeeper_keeps_records_plain_and_erased() {
    both(
        || keeps_records(&ZooKeeper::new()),
        || keeps_records(&Erased(ZooKeeper::new())),
    );
}
