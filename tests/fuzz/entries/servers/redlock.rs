//! RedLock nodes of which one, or all, answer wrongly.

use std::time::Duration;

use tokio::sync::OnceCell;
use tower_lock::{BackendError, RedLockBackend};

use super::{
    drill::{Subject, TTL},
    redis::WIRE,
    relay::Relay,
    runtime,
};
use crate::{
    entries::Entry,
    servers::{RedLockServers, RedisServer},
};

pub const ENTRY: Entry = Entry {
    name: "redlock",
    run,
    words: &[
        "\0m\0", "\x01m\0", "m\x01", ".", "\x07", "\x0f", "x", "_", "d", "t\x02", "T\x03",
    ],
};

/// The first byte says which nodes are behind the relay, the others are its steps. Several nodes
/// have one relay each, which all do the same.
fn run(data: &[u8]) {
    let (all, steps) = match data.split_first() {
        Some((first, steps)) => (first & 1 == 1, steps),
        None => (false, data),
    };
    runtime().block_on(async {
        static CLEAN: OnceCell<RedLockBackend> = OnceCell::const_new();
        let nodes = RedLockServers::shared();
        let urls = || nodes.iter().map(RedisServer::url);
        let clean = async || {
            let clean = connect_to(urls().collect())
                .await
                .expect("they answer well");
            assert!(clean.found().await.expect("they are new"));
            clean
        };
        let clean = CLEAN.get_or_init(clean).await.clone();
        let mut relays = Vec::new();
        for node in nodes.iter().take(if all { 3 } else { 1 }) {
            relays.push(Relay::start(WIRE, node.address(), steps).await);
        }
        let behind: Vec<_> = relays.iter().map(Relay::address).collect();
        let connect = async || {
            let urls = urls().enumerate().map(|(at, url)| match behind.get(at) {
                Some(address) => format!("redis://{address}"),
                None => url,
            });
            connect_to(urls.collect()).await
        };
        // A client of several nodes may put a token together itself.
        let tells = |_| Vec::new();
        let subject = Subject {
            clean,
            connect,
            tells,
            has_session: false,
        };
        subject.drill(&relays).await;
    });
}

async fn connect_to(urls: Vec<String>) -> Result<RedLockBackend, BackendError> {
    let builder = RedLockBackend::builder_of(urls).with_max_ttl(TTL);
    builder
        .with_node_timeout(Duration::from_millis(250))
        .connect()
        .await
}
