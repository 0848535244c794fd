//! The Redis backend on real servers, with real faults.

#[path = "../servers/mod.rs"]
mod servers;

mod support_itself;
