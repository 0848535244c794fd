//! Backends whose server answers wrongly.
//!
//! Each input is a list of [steps](relay) for a relay in front of a real server, so that it meets
//! connecting or what comes after it, as far as its steps reach; and then the server answers well
//! again.

pub mod drill;
pub mod etcd;
pub mod redis;
pub mod redlock;
pub mod relay;
pub mod zookeeper;

use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};

/// What drives the relays and the drills of this process.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(2).thread_name("fuzz-relay");
        builder.enable_all().build().expect("a runtime")
    })
}
