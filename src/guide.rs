//! The guide: what to rely on, what to choose, where to put it, how to run it.
//!
//! | page | for |
//! |---|---|
//! | [`guarantees`] | what a lock can and cannot do; fencing your storage |
//! | [`backends`] | which backend for which task, and when none |
//! | [`which_redis`] | one server, Sentinel, Cluster: what can lose a lock, and the argument about RedLock |
//! | [`ordering`] | other layers, servers and proxies |
//! | [`operations`] | metrics, logs, inspection, shutdown, sizes |
//! | [`faults`] | what was done to every backend, and what came of it |
//! | [`implementing_a_backend`] | the contract, with an example |
//!
//! What clients must know of refusals is in [`problem`](crate::problem).

#[doc = include_str!("docs/guide/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("docs/guide/backends.md")]
pub mod backends {}

#[doc = include_str!("docs/guide/which_redis.md")]
pub mod which_redis {}

#[doc = include_str!("docs/guide/ordering.md")]
pub mod ordering {}

#[doc = include_str!("docs/guide/operations.md")]
pub mod operations {}

#[doc = include_str!("docs/guide/faults.md")]
pub mod faults {}

#[doc = include_str!("docs/guide/implementing_a_backend.md")]
pub mod implementing_a_backend {}
