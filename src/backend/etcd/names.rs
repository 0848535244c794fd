//! What things are called on the server.
//!
//! A lock is a directory, `<prefix><key>/`, and every owner that holds or waits has one node in it,
//! under its owner token: `<token>` for an exclusive owner, `r<token>` for a shared one. `etcdctl
//! lock <prefix><key>` and every user of etcd's own mutex put theirs beside, under the number of
//! their lease in hexadecimal digits; they count as exclusive. So all that are *not* shared are
//! the names before `r` and those from `s` on: two ranges that the server can search.
//!
//! The canonical form of a key has no slash and none is the beginning of another, so no directory
//! lies in another, nor in `<prefix>undo/`, where the marks of [`undo`](super::undo) are, nor in
//! `<prefix>rec/`, where the [records](super::steps) are.

use std::{fmt::Write as _, sync::Arc};

use crate::{
    backend::Mode,
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::OwnerToken,
};

/// How everything begins, unless the builder says otherwise.
pub(super) const PREFIX: &str = "tower-lock/";

/// How a shared owner's node begins.
const SHARED: char = 'r';

/// The names of one lock.
#[derive(Debug)]
pub(super) struct Names {
    /// With the slash at its end.
    directory: Arc<str>,
}

/// From a name, to the name behind the last one.
pub(super) type Range = (String, String);

impl Names {
    pub(super) fn new(prefix: &str, key: &LockKey) -> Self {
        Self {
            directory: [prefix, key.as_str(), "/"].concat().into(),
        }
    }

    /// Stands for the lock in this process.
    pub(super) fn id(&self) -> Arc<str> {
        self.directory.clone()
    }

    /// As `etcdctl lock` takes it.
    pub(super) fn lock(&self) -> &str {
        &self.directory[..self.directory.len() - 1]
    }

    /// All nodes.
    pub(super) fn everybody(&self) -> Range {
        // The byte behind the slash.
        (self.directory.to_string(), [self.lock(), "0"].concat())
    }

    /// All nodes but those of shared owners.
    pub(super) fn exclusive(&self) -> [Range; 2] {
        let (first, end) = self.everybody();
        let readers = format!("{first}{SHARED}");
        let behind = [&first, "s"].concat();
        [(first, readers), (behind, end)]
    }

    pub(super) fn node(&self, owner: &OwnerToken, mode: Mode) -> String {
        let mut node = String::with_capacity(self.directory.len() + 33);
        node.push_str(&self.directory);
        if mode == Mode::Shared {
            node.push(SHARED);
        }
        push_hex(&mut node, owner);
        node
    }

    /// Whose node this is: the mode, and whether it is one of this crate.
    pub(super) fn read(&self, node: &[u8]) -> (Mode, bool) {
        let name = node
            .strip_prefix(self.directory.as_bytes())
            .unwrap_or_default();
        let (mode, owner) = match name.strip_prefix(&[SHARED as u8]) {
            Some(owner) => (Mode::Shared, owner),
            None => (Mode::Exclusive, name),
        };
        let ours = owner.len() == 32 && owner.iter().all(u8::is_ascii_hexdigit);
        (mode, ours)
    }
}

/// Says that an owner was undone at a lock: see [`undo`](super::undo).
pub(super) fn mark(prefix: &str, owner: &OwnerToken, key: &LockKey) -> String {
    let mut mark = [prefix, "undo/"].concat();
    push_hex(&mut mark, owner);
    mark.push('/');
    mark.push_str(key.as_str());
    mark
}

/// The record of a lock: see [`steps`](super::steps).
pub(super) fn record(prefix: &str, key: &LockKey) -> String {
    [prefix, "rec/", key.as_str()].concat()
}

/// Whether keys may begin like this.
pub(super) fn check_prefix(prefix: &str) -> Result<(), BackendError> {
    if prefix.len() <= 128 && prefix.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    Err(BackendError::new(
        BackendErrorKind::Misconfigured,
        "the prefix of keys is not usable: up to 128 visible ASCII characters are",
    ))
}

pub(super) fn hex(owner: &OwnerToken) -> String {
    let mut text = String::with_capacity(32);
    push_hex(&mut text, owner);
    text
}

fn push_hex(text: &mut String, owner: &OwnerToken) {
    let _ = write!(text, "{:032x}", u128::from_be_bytes(*owner.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others rely on these names: etcd's own mutex, operators, other versions of us.
    #[test]
    fn names_are_as_documented() {
        let names = Names::new("shop/", &LockKey::new("order", 7));
        assert_eq!(names.lock(), "shop/order:1.7;");
        let (first, end) = names.everybody();
        assert_eq!(
            (first.as_str(), end.as_str()),
            ("shop/order:1.7;/", "shop/order:1.7;0")
        );
        let owner = OwnerToken::random();
        let hex = format!("{:032x}", u128::from_be_bytes(*owner.as_bytes()));
        let writer = names.node(&owner, Mode::Exclusive);
        let reader = names.node(&owner, Mode::Shared);
        assert_eq!(writer, format!("shop/order:1.7;/{hex}"));
        assert_eq!(reader, format!("shop/order:1.7;/r{hex}"));
        let mark = mark("shop/", &owner, &LockKey::new("order", 7));
        assert_eq!(mark, format!("shop/undo/{hex}/order:1.7;"));
        let record = record("shop/", &LockKey::new("order", 7));
        assert_eq!(record, "shop/rec/order:1.7;");
        assert_eq!(names.read(writer.as_bytes()), (Mode::Exclusive, true));
        assert_eq!(names.read(reader.as_bytes()), (Mode::Shared, true));
    }

    /// The number of a lease, as etcd's own mutex writes it: never taken for a shared owner's.
    #[test]
    fn nodes_of_others_are_exclusive() {
        let names = Names::new(PREFIX, &LockKey::new("order", 7));
        let inside = |name: &str, (from, to): &Range| from.as_str() <= name && name < to.as_str();
        for other in ["694d8a4f5b1c2e10", "1", "ffffffffffffffff", "zebra"] {
            let node = format!("{}/{other}", names.lock());
            assert_eq!(names.read(node.as_bytes()), (Mode::Exclusive, false));
            assert!(inside(&node, &names.everybody()));
            assert!(names.exclusive().iter().any(|range| inside(&node, range)));
        }
        let reader = names.node(&OwnerToken::random(), Mode::Shared);
        assert!(inside(&reader, &names.everybody()));
        assert!(!names.exclusive().iter().any(|range| inside(&reader, range)));
    }

    #[test]
    fn no_lock_lies_in_another() {
        let keys = ["", "a", "a/b", "a;", "/", "undo", "\0"];
        let names: Vec<_> = keys
            .iter()
            .flat_map(|value| {
                [
                    Names::new(PREFIX, &LockKey::new("order", value)),
                    Names::new(PREFIX, &LockKey::new("undo", value)),
                    Names::new(PREFIX, &LockKey::new("rec", value)),
                ]
            })
            .collect();
        for a in &names {
            let mark = mark(PREFIX, &OwnerToken::random(), &LockKey::new("order", 7));
            assert!(!mark.starts_with(&*a.id()));
            let record = record(PREFIX, &LockKey::new("order", 7));
            assert!(!record.starts_with(&*a.id()) && !a.id().starts_with(&record));
            for b in &names {
                assert!(a.id() == b.id() || !a.id().starts_with(&*b.id()));
            }
        }
    }

    #[test]
    fn prefixes_are_checked() {
        for good in ["", "a", "tower-lock/", "/services/shop/"] {
            check_prefix(good).unwrap();
        }
        for bad in ["a b", "a\n", "\u{e9}", &"x".repeat(129)] {
            check_prefix(bad).unwrap_err();
        }
    }
}
