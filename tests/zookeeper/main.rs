//! The ZooKeeper backend on real servers, with real faults. `scripts/test` installs what it needs.

#[path = "../servers/mod.rs"]
mod servers;

mod child;
mod ensemble;
mod foreign_clients;
mod leftovers;
mod lost_answers;
mod record_faults;
mod records;
mod refusals;
mod sessions;
mod support;
mod waiting;
