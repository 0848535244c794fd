//! The Redis backend on real servers, with real faults. `scripts/test` installs what it needs.

#[path = "../servers/mod.rs"]
mod servers;

mod bursts;
mod child;
mod cluster;
mod connections;
mod foreign_clients;
mod leftovers;
mod network;
mod outages;
mod processes;
mod record_faults;
mod records;
mod refusals;
mod replica_acks;
mod sentinel;
mod setups;
mod storage;
mod support;
mod support_itself;
mod topologies_itself;
