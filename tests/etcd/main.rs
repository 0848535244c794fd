//! The etcd backend on real servers, with real faults. `scripts/test` installs what it needs.
