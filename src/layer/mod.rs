//! The middleware: one lock per request, held exactly as long as the handler runs.

mod config;
mod future;
mod lock_layer;
mod refuse;
mod service;
mod session;
mod start;
mod watch;

pub use self::{
    future::ResponseFuture,
    lock_layer::{FromBody, FromHead, LockLayer},
    service::LockService,
};
