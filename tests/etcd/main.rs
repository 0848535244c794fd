//! The etcd backend on real servers, with real faults. `scripts/test` installs what it needs.

#[path = "../servers/mod.rs"]
mod servers;

mod auth;
mod child;
mod clusters;
mod etcdctl;
mod leftovers;
mod losses;
mod network;
mod outages;
mod processes;
mod record_faults;
mod records;
mod refusals;
mod support;
mod tls;
mod versions;
mod waiting;
