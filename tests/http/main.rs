//! The request path over HTTP.
#![cfg(feature = "axum")]

mod basics;
mod bodies;
mod counting;
mod disconnect;
mod drops;
mod exits;
mod placement;
mod readiness;
mod support;
mod upgrades;
mod waits;
