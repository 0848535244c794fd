//! Real servers for the tests, faults between us and them, and clients of other languages.
//!
//! Shared by test binaries and benches, each of which uses its part of it:
//!
//! ```ignore
//! #[path = "../servers/mod.rs"]
//! mod servers;
//! ```
//!
//! Everything is ended by its own pid on drop; what is left when the process ends, in a `static` or
//! because it was killed, is ended by its heir.
//! A missing program or client is a failure that says what to run, never a skip.

// Not every binary uses everything, and all of it is shared.
#![allow(dead_code, unreachable_pub, unused_imports)]

pub mod base64;
pub mod certificates;
pub mod clock;
pub mod cluster;
pub mod ensemble;
pub mod etcd;
pub mod etcd_operator;
pub mod foreign;
pub mod front;
pub mod heir;
pub mod jute;
pub mod partition;
pub mod patience;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod redlock;
pub mod resp;
pub mod scratch;
pub mod sentinel;
pub mod shared;
pub mod sockets;
pub mod zookeeper;

pub use self::{
    certificates::Certificates,
    clock::Clock,
    cluster::{ClusterServers, ClusterSetup},
    ensemble::Ensemble,
    etcd::Etcd,
    foreign::ForeignClient,
    process::Process,
    proxy::TcpProxy,
    redis::{RedisServer, documented_rights},
    redlock::RedLockServers,
    resp::Reply,
    sentinel::{SentinelServers, SentinelSetup},
    zookeeper::ZooKeeperServer,
};
