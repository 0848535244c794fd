//! The request path over HTTP.
#![cfg(feature = "axum")]

mod backends;
mod basics;
mod blocked;
mod bodies;
mod bodies_in;
mod connections;
mod counting;
mod disconnect;
mod drops;
#[cfg(feature = "etcd")]
mod etcd_place;
mod exits;
mod fairness;
mod flaky;
mod flaky_records;
#[cfg(feature = "redis")]
mod fleet;
mod floods;
mod generic;
mod grpc;
mod idempotency;
mod keys_over_http;
mod logs;
mod loss;
mod modes;
mod nesting;
mod observing;
mod outages;
mod placement;
mod prefer;
mod readiness;
mod records_that_fail;
#[cfg(feature = "redis")]
mod redis_place;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
#[path = "../servers/mod.rs"]
mod servers;
mod settings;
mod shutdown;
mod single_flight;
mod support;
mod upgrades;
mod waits;
#[cfg(feature = "zookeeper")]
mod zookeeper_place;
