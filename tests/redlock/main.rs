//! The RedLock backend on real servers, with real faults. `scripts/test` installs what it needs.

#[path = "../servers/mod.rs"]
mod servers;

mod bursts;
mod clocks;
mod foreign_clients;
mod guard;
mod network;
mod nodes;
mod refusals;
#[cfg(feature = "axum")]
mod routes;
mod support;
mod waiting;
