//! A shop whose orders are paid one at a time, across all its instances.
//!
//! ```sh
//! cargo run --example shop             # serves, and prints curl lines to try
//! cargo run --example shop -- demo     # the same load with and without the lock
//! ```
//!
//! `server.rs` is what a service looks like with tower-lock, `store.rs` is storage that refuses
//! a stale holder. The rest is about showing it.

mod args;
mod backend;
mod demo;
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
    let args = Args::parse();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .init();
    let done = match args.command {
        Some(Command::Demo(demo)) => demo::run(demo).await,
        None => server::run(args.serve).await.map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("shop: {error}");
        ExitCode::FAILURE
    })
}
