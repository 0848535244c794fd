//! A shop whose orders are paid one at a time, across all its instances.
//!
//! ```sh
//! cargo run --example shop             # serves, and prints curl lines to try
//! cargo run --example shop -- demo     # the same load with and without the lock
//!
//! # Three instances and a Redis; then one of them is killed and one paused in the middle of it.
//! cargo run --example shop -- demo --backend redis:                      # starts a server
//! cargo run --example shop -- demo --backend redis://127.0.0.1:6379      # on one of yours
//! cargo run --example shop -- demo --backend zookeeper://127.0.0.1:2181  # on yours
//!
//! # Two instances that share orders and locks, each in a terminal of its own.
//! cargo run --example shop -- --backend redis://127.0.0.1:6379 --db orders.db
//! cargo run --example shop -- --backend redis://127.0.0.1:6379 --db orders.db --listen 127.0.0.1:3001
//! ```
//!
//! `server.rs` is what a service looks like with tower-lock, `store.rs` is storage that refuses
//! a stale holder, `backend.rs` is where the backend is chosen. The rest is about showing it.

mod args;
mod backend;
mod demo;
mod leash;
mod server;
mod signal;
mod store;

use std::{error::Error, process::ExitCode};

use clap::Parser as _;
use tracing_subscriber::filter::LevelFilter;

use self::args::{Args, Command};

/// As axum and tower use it.
type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    run(Args::parse()).await
}

async fn run(args: Args) -> ExitCode {
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .init();
    let done = match args.command {
        Some(Command::Demo(demo)) => demo::run(demo).await,
        Some(Command::Leash(leash)) => leash::run(leash).await,
        None => server::run(args.serve).await.map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("shop: {error}");
        ExitCode::FAILURE
    })
}
