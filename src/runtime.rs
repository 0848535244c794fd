//! The lock runtime: one thread per process that drives renewals, the reaper, and every
//! connection that they need.
//!
//! It is apart from the application's runtime because a handler that blocks its thread, or all of
//! them, must not stop the renewals that keep its own lock.

use std::{sync::OnceLock, thread};

use tokio::runtime::{Builder, Handle};

use crate::error::ConfigError;

/// The handle of the lock runtime, which is started on first use and never ends.
pub(crate) fn handle() -> Result<Handle, ConfigError> {
    static HANDLE: OnceLock<Result<Handle, ConfigError>> = OnceLock::new();
    HANDLE.get_or_init(start).clone()
}

fn start() -> Result<Handle, ConfigError> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| ConfigError::new(format!("the lock runtime cannot start: {e}")))?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("tower-lock".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(|e| ConfigError::new(format!("the lock runtime's thread cannot start: {e}")))?;
    Ok(handle)
}
