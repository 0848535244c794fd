//! The ZooKeeper backend on real servers, with real faults. `scripts/test` installs what it needs.

#[path = "../servers/mod.rs"]
mod servers;

mod child;
mod lost_answers;
mod sessions;
mod support;
