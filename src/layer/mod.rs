//! The middleware: one lock per request, held exactly as long as the handler runs.

mod future;
mod guards;
mod key_source;
mod lock_layer;
mod service;
mod session;
mod start;
mod watch;

pub use self::{
    future::ResponseFuture,
    key_source::{FromBody, FromHead},
    lock_layer::LockLayer,
    service::LockService,
};
