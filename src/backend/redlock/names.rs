//! What things are called on the nodes.

use std::{fmt::Write as _, sync::Arc};

use crate::{
    backend::redis::names::{COUNTERS, Names as RedisNames, unhex},
    key::LockKey,
    lease::OwnerToken,
};

/// The names of one lock. The lock itself and its counter are called as in a single server, so
/// that what knows the one knows the other.
#[derive(Debug)]
pub(super) struct Names {
    /// A string, as other clients of `SET key value NX PX` know it.
    pub(super) lock: Arc<str>,
    /// Who waits, by since when.
    pub(super) waiters: Box<str>,
    /// The last token taken, shared with other locks.
    pub(super) counter: Box<str>,
}

impl Names {
    pub(super) fn new(prefix: &str, key: &LockKey) -> Self {
        let RedisNames { lock, counter, .. } = RedisNames::new(prefix, key);
        Self {
            waiters: ["{", &lock, "}:w"].concat().into(),
            lock,
            counter,
        }
    }

    /// Says that an owner was undone, where its attempt could not be stopped otherwise.
    pub(super) fn tombstone(&self, owner: &str) -> String {
        format!("{{{}}}:u:{owner}", self.lock)
    }
}

/// The names of what a node knows of itself.
#[derive(Debug)]
pub(super) struct NodeNames {
    /// The process that votes, and the longest ttl that it has granted.
    pub(super) member: Box<str>,
    /// The process that does not vote yet, and when it was seen first.
    pub(super) joining: Box<str>,
    pub(super) counters: Vec<String>,
}

impl NodeNames {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            member: [prefix, "node:member"].concat().into(),
            joining: [prefix, "node:joining"].concat().into(),
            counters: (0..COUNTERS)
                .map(|n| format!("{prefix}token:{n}"))
                .collect(),
        }
    }

    /// As the scripts take them that read or write all.
    pub(super) fn all(&self) -> Vec<&str> {
        let markers = [&*self.member, &*self.joining];
        let counters = self.counters.iter().map(String::as_str);
        markers.into_iter().chain(counters).collect()
    }
}

pub(super) fn hex(owner: &OwnerToken) -> String {
    let mut text = String::with_capacity(32);
    let _ = write!(text, "{:032x}", u128::from_be_bytes(*owner.as_bytes()));
    text
}

pub(super) fn owner(text: &str) -> Option<OwnerToken> {
    unhex(text).map(OwnerToken::from_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others rely on these names: clients of other languages, operators, other versions of us.
    #[test]
    fn names_are_as_documented() {
        let names = Names::new("shop:", &LockKey::new("order", 7));
        assert_eq!(&*names.lock, "shop:order:1.7;");
        assert_eq!(&*names.waiters, "{shop:order:1.7;}:w");
        assert_eq!(&*names.counter, "shop:token:242");
        assert_eq!(names.tombstone("00ff"), "{shop:order:1.7;}:u:00ff");
        let node = NodeNames::new("shop:");
        assert_eq!(&*node.member, "shop:node:member");
        assert_eq!(&*node.joining, "shop:node:joining");
        assert_eq!(node.all().len(), 258);
        assert!(node.counters.iter().any(|name| **name == *names.counter));
    }

    #[test]
    fn owners_go_to_hex_and_back() {
        let token = OwnerToken::from_bytes([0x0f; 16]);
        assert_eq!(hex(&token), "0f".repeat(16));
        assert_eq!(owner(&hex(&token)), Some(token));
        assert_eq!(owner("0f"), None);
    }
}
