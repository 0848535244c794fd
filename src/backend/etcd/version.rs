//! Which servers keep their leases.
//!
//! Two bugs of etcd end a lease under a live holder, or let a holder think that it renewed one
//! that is gone:
//!
//! - A leader that hangs, for example on a slow disk, and has been replaced revokes leases that
//!   were renewed with its successor ([etcd-io/etcd#15247]); requests of an old leader are ignored
//!   since 3.4.31 and 3.5.13.
//! - A renewal succeeds although the lease was revoked meanwhile ([etcd-io/etcd#20547]); fixed in
//!   3.4.38, 3.5.23 and 3.6.5.
//!
//! A third, stale reads after the server was paused (fixed in 3.4.42, 3.5.28 and 3.6.9), does no
//! harm here: whoever reads stale sees nodes before its own that are gone already, and waits on.
//!
//! [etcd-io/etcd#15247]: https://github.com/etcd-io/etcd/issues/15247
//! [etcd-io/etcd#20547]: https://github.com/etcd-io/etcd/issues/20547

/// Whether a server of this version has neither bug. One that does not say is taken for old.
pub(super) fn keeps_its_leases(version: &str) -> bool {
    match read(version) {
        Some((3, 4, patch)) => patch >= 38,
        Some((3, 5, patch)) => patch >= 23,
        Some((3, 6, patch)) => patch >= 5,
        Some(version) => version >= (3, 7, 0),
        None => false,
    }
}

/// Of `3.6.5`, and of `3.6.5-rc.1` too, which came before it and so counts as the one before.
fn read(version: &str) -> Option<(u64, u64, u64)> {
    let mut parts = version.trim().splitn(3, '.');
    let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let rest = parts.next()?;
    let digits = rest.find(|c: char| !c.is_ascii_digit());
    let patch: u64 = rest[..digits.unwrap_or(rest.len())].parse().ok()?;
    match digits.map(|at| &rest[at..]) {
        // A build of the version itself, by a distribution.
        None => Some((major, minor, patch)),
        Some(suffix) if suffix.starts_with('+') => Some((major, minor, patch)),
        Some(_) => Some((major, minor, patch.saturating_sub(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_with_known_bugs_are_known() {
        for old in [
            "3.3.27",
            "3.4.0",
            "3.4.23",
            "3.4.37",
            "3.5.0",
            "3.5.13",
            "3.5.22",
            "3.6.0",
            "3.6.4",
            "3.6.5-rc.1",
            "3.6.0-rc.5",
            "2.3.8",
            "",
            "3",
            "3.6",
            "unknown",
            "3.x.1",
        ] {
            assert!(!keeps_its_leases(old), "{old}");
        }
        for fixed in [
            "3.4.38",
            "3.4.45",
            "3.5.23",
            "3.5.23+x",
            "3.6.5",
            "3.6.14",
            "3.7.0",
            "3.7.1-rc.0",
            "3.10.0",
            "4.0.0",
        ] {
            assert!(keeps_its_leases(fixed), "{fixed}");
        }
    }
}
