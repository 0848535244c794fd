//! Independent Redis servers, the nodes of a RedLock deployment.

use std::collections::BTreeSet;

use super::redis::RedisServer;

/// So many real servers without persistence. Killed on drop.
#[derive(Debug)]
pub struct RedLockServers(Vec<RedisServer>);

impl RedLockServers {
    pub fn start(count: usize) -> Self {
        Self::start_with(count, &[])
    }

    /// The same, each with these options.
    pub fn start_with(count: usize, options: &[&str]) -> Self {
        let start = |_| RedisServer::start_with(options);
        Self((0..count).map(start).collect())
    }

    /// These.
    pub fn of(nodes: Vec<RedisServer>) -> Self {
        Self(nodes)
    }

    /// `redlock://..`, with all of them.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.iter().map(|node| node.address().to_string()).collect();
        format!("redlock://{}", hosts.join(","))
    }

    /// `redis://..` of each.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(RedisServer::url).collect()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, RedisServer> {
        self.0.iter()
    }

    pub fn node(&self, at: usize) -> &RedisServer {
        &self.0[at]
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Every key with this prefix on any of them, but what may stay: what a node knows of itself
    /// (`<prefix>node`) and tombstones.
    pub fn keys_left(&self, prefix: &str) -> BTreeSet<String> {
        let keys = self.iter().flat_map(|node| node.keys_left(prefix));
        let itself = format!("{prefix}node");
        keys.filter(|key| *key != itself).collect()
    }
}
