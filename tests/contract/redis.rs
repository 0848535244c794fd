//! The contract suite on a real Redis server.

use std::{sync::Mutex, time::Duration};

use tower_lock::{
    BoxError, RedisBackend,
    contract::{ContractTarget, Erased, Options},
};

use crate::{
    both, keeps_records, modest, passes,
    servers::{RedisServer, TcpProxy},
};

const PREFIX: &str = "tower-lock:";

/// A server with its append-only file, so that a restart keeps the data.
struct Redis {
    server: RedisServer,
    /// In front of it for clients whose replies are slow.
    slow: Mutex<Option<TcpProxy>>,
    options: Options,
}

impl Redis {
    fn new(options: Options) -> Self {
        Self {
            server: RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "no"]),
            slow: Mutex::default(),
            options,
        }
    }
}

impl ContractTarget for Redis {
    type Backend = RedisBackend;

    async fn connect(&self) -> Result<RedisBackend, BoxError> {
        let slow = self.slow.lock().unwrap().as_ref().map(TcpProxy::redis_url);
        let url = slow.unwrap_or_else(|| self.server.url());
        Ok(RedisBackend::connect(&url).await?)
    }

    async fn leftovers(&self) -> Option<u64> {
        Some(self.server.keys_left(PREFIX).len() as u64)
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

#[test]
fn redis_passes_plain_and_erased() {
    both(
        || passes(&Redis::new(Options::new()), &[]),
        || passes(&Erased(Redis::new(modest())), &[]),
    );
}

#[test]
fn redis_keeps_records_plain_and_erased() {
    both(
        || keeps_records(&Redis::new(Options::new())),
        || keeps_records(&Erased(Redis::new(modest()))),
    );
}
