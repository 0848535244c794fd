//! The request path over HTTP.
#![cfg(feature = "axum")]

mod basics;
mod support;
