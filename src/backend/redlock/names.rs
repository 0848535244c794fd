//! What things are called on the nodes.

use std::{fmt::Write as _, sync::Arc};

use crate::{
    backend::redis::names::{COUNTERS, fnv1a, unhex},
    key::LockKey,
    lease::OwnerToken,
};

/// The names of one lock, which is called as in a single server.
#[derive(Debug)]
pub(super) struct Names {
    /// A string, as other clients of `SET key value NX PX` know it.
    pub(super) lock: Arc<str>,
    /// Who waits, by since when.
    pub(super) waiters: Box<str>,
    /// The field of the node in which the last token is that was taken, shared with other locks.
    pub(super) counter: Box<str>,
}

impl Names {
    pub(super) fn new(prefix: &str, key: &LockKey) -> Self {
        let lock: Arc<str> = [prefix, key.as_str()].concat().into();
        let counter = fnv1a(lock.as_bytes()) % COUNTERS;
        Self {
            waiters: ["{", &lock, "}:w"].concat().into(),
            lock,
            counter: counter.to_string().into(),
        }
    }

    /// Says that an owner was undone, where its attempt could not be stopped otherwise.
    pub(super) fn tombstone(&self, owner: &str) -> String {
        format!("{{{}}}:u:{owner}", self.lock)
    }
}

/// What a node knows of itself: whether it is a member, and the token counters.
pub(super) fn node(prefix: &str) -> Box<str> {
    [prefix, "node"].concat().into()
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
        assert_eq!(&*names.counter, "242");
        assert_eq!(names.tombstone("00ff"), "{shop:order:1.7;}:u:00ff");
        assert_eq!(&*node("shop:"), "shop:node");
    }

    #[test]
    fn owners_go_to_hex_and_back() {
        let token = OwnerToken::from_bytes([0x0f; 16]);
        assert_eq!(hex(&token), "0f".repeat(16));
        assert_eq!(owner(&hex(&token)), Some(token));
        assert_eq!(owner("0f"), None);
    }
}
