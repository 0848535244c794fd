//! What the nodes of a lock are called, and how to read the names of others.
//!
//! The sequence number at the end of a name is drawn by the server, one counter for all names under
//! a parent, so the order is total whatever the names are. It is 32 bits wide and wraps around: two
//! numbers are compared by their distance.

use std::fmt::Write as _;

use crate::{backend::Mode, lease::OwnerToken};

/// How the nodes of a lock are named, so that clients in other languages queue with ours. All
/// clients of one path need the same: nodes of different layouts do not see each other.
///
/// A key whose path holds nodes of another layout is refused
/// ([`Misconfigured`](crate::BackendErrorKind::Misconfigured)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NodeLayout {
    /// `_c_<uuid>-lock-<sequence>`, as Curator's `InterProcessMutex` and zookeeper-client's lock
    /// recipe have it; shared holders are `_c_<uuid>-read-lock-<sequence>`, which a mutex of
    /// Curator counts as one of its own, and waits for.
    #[default]
    Curator,
    /// `_c_<uuid>-__WRIT__<sequence>` and, in shared mode, `_c_<uuid>-__READ__<sequence>`, as
    /// Curator's `InterProcessReadWriteLock` has it.
    CuratorReadWrite,
    /// `<hex>__lock__<sequence>`, as kazoo's `Lock` and `WriteLock` have it, and in shared mode
    /// `<hex>__rlock__<sequence>`, as its `ReadLock`. A plain kazoo `Lock` does not wait for
    /// shared holders, so beside them use its `WriteLock`.
    Kazoo,
}

/// What the name of a child says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// It holds or waits.
    Stands { mode: Mode, sequence: i32 },
    /// It holds or waits for clients of another layout.
    OtherLayout,
    /// It is no lock's.
    Stranger,
}

const READ: &str = "read-";

/// The marks before the sequence number. None is found in another's place: they end differently.
const MARKS: [(&str, NodeLayout, Mode); 5] = [
    ("lock-", NodeLayout::Curator, Mode::Exclusive),
    ("__WRIT__", NodeLayout::CuratorReadWrite, Mode::Exclusive),
    ("__READ__", NodeLayout::CuratorReadWrite, Mode::Shared),
    ("__lock__", NodeLayout::Kazoo, Mode::Exclusive),
    ("__rlock__", NodeLayout::Kazoo, Mode::Shared),
];

impl NodeLayout {
    /// How all nodes of this owner begin, and no other's.
    pub(super) fn of_owner(self, owner: &OwnerToken) -> String {
        let hex = u128::from_be_bytes(*owner.as_bytes());
        let mut name = String::with_capacity(64);
        // Writing to a string does not fail.
        let _ = match self {
            Self::Kazoo => write!(name, "{hex:032x}__"),
            _ => write!(
                name,
                "_c_{:08x}-{:04x}-{:04x}-{:04x}-{:012x}-",
                hex >> 96,
                hex >> 80 & 0xffff,
                hex >> 64 & 0xffff,
                hex >> 48 & 0xffff,
                hex & 0xffff_ffff_ffff,
            ),
        };
        name
    }

    /// The name of its node without the sequence number.
    pub(super) fn prefix(self, owner: &OwnerToken, mode: Mode) -> String {
        let mut name = self.of_owner(owner);
        name.push_str(match (self, mode) {
            (Self::Curator, Mode::Exclusive) => "lock-",
            (Self::Curator, Mode::Shared) => "read-lock-",
            (Self::CuratorReadWrite, Mode::Exclusive) => "__WRIT__",
            (Self::CuratorReadWrite, Mode::Shared) => "__READ__",
            (Self::Kazoo, Mode::Exclusive) => "lock__",
            (Self::Kazoo, Mode::Shared) => "rlock__",
        });
        name
    }

    pub(super) fn read(self, name: &str) -> Reading {
        for (mark, layout, mode) in MARKS {
            let Some((before, number)) = name.rsplit_once(mark) else {
                continue;
            };
            let Some(sequence) = sequence(number) else {
                continue;
            };
            if layout != self {
                return Reading::OtherLayout;
            }
            let mode = if before.ends_with(READ) && layout == Self::Curator {
                Mode::Shared
            } else {
                mode
            };
            return Reading::Stands { mode, sequence };
        }
        Reading::Stranger
    }
}

/// At least ten digits, as the server writes them; negative after it has wrapped around.
fn sequence(number: &str) -> Option<i32> {
    let digits = number.strip_prefix('-').unwrap_or(number);
    if number.len() < 10 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Servers may come to count in 64 bits: the distance is what counts.
    number.parse::<i64>().ok().map(|number| number as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerToken {
        OwnerToken::from_bytes(*b"\x01\x23\x45\x67\x89\xab\xcd\xef\xfe\xdc\xba\x98\x76\x54\x32\x10")
    }

    /// Others rely on these names: clients of other languages, operators, other versions of us.
    #[test]
    fn names_are_as_documented() {
        use Mode::{Exclusive, Shared};
        use NodeLayout::{Curator, CuratorReadWrite, Kazoo};
        for (layout, mode, name) in [
            (
                Curator,
                Exclusive,
                "_c_01234567-89ab-cdef-fedc-ba9876543210-lock-",
            ),
            (
                Curator,
                Shared,
                "_c_01234567-89ab-cdef-fedc-ba9876543210-read-lock-",
            ),
            (
                CuratorReadWrite,
                Exclusive,
                "_c_01234567-89ab-cdef-fedc-ba9876543210-__WRIT__",
            ),
            (
                CuratorReadWrite,
                Shared,
                "_c_01234567-89ab-cdef-fedc-ba9876543210-__READ__",
            ),
            (Kazoo, Exclusive, "0123456789abcdeffedcba9876543210__lock__"),
            (Kazoo, Shared, "0123456789abcdeffedcba9876543210__rlock__"),
        ] {
            let prefix = layout.prefix(&owner(), mode);
            assert_eq!(prefix, name);
            assert!(prefix.starts_with(&layout.of_owner(&owner())));
            for sequence in [0, 7, i32::MAX, i32::MIN, -5] {
                let full = format!("{prefix}{sequence:010}");
                assert_eq!(
                    layout.read(&full),
                    Reading::Stands { mode, sequence },
                    "{full}"
                );
                for other in [Curator, CuratorReadWrite, Kazoo] {
                    if other != layout {
                        assert_eq!(other.read(&full), Reading::OtherLayout, "{full}");
                    }
                }
            }
        }
    }

    #[test]
    fn names_of_others() {
        let curator = NodeLayout::Curator;
        let stands = Reading::Stands {
            mode: Mode::Exclusive,
            sequence: 3,
        };
        // Without Curator's protection.
        assert_eq!(curator.read("lock-0000000003"), stands);
        assert_eq!(NodeLayout::Kazoo.read("__lock__0000000003"), stands);
        for stranger in [
            "",
            "lock-",
            "lock-3",
            "lock-+000000003",
            "lock-00000000x3",
            "config",
            "leases",
        ] {
            assert_eq!(curator.read(stranger), Reading::Stranger, "{stranger}");
        }
    }
}
