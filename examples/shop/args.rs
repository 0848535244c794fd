//! The command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// A shop whose orders are paid one at a time, across all its instances.
#[derive(Debug, clap::Parser)]
#[command(name = "shop", args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Fire the same requests with and without the lock, and show what became of the orders
    Demo(Demo),
}

/// Options of an instance.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    pub(crate) listen: SocketAddr,
    /// Who decides which request holds an order
    #[arg(long, value_name = "URL", default_value = "memory:")]
    pub(crate) backend: String,
    /// The SQLite file of the orders, which several instances may share [default: a temporary one]
    #[arg(long, value_name = "FILE")]
    pub(crate) db: Option<PathBuf>,
    /// Pay without the lock, to see updates being lost
    #[arg(long)]
    pub(crate) no_lock: bool,
    /// The lease's length without a renewal
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// How long a request waits for its order; 0s refuses at once
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub(crate) wait: Duration,
}

/// Options of the demonstration.
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Who decides which request holds an order
    #[arg(long, value_name = "URL", default_value = "memory:")]
    pub(crate) backend: String,
    /// How many instances of the shop to start
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=26))]
    pub(crate) instances: u32,
    /// How many orders the requests are spread over
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) orders: u32,
    /// How many payments to request, with and without the lock each
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) requests: u32,
    /// How long each payment works between its read and its write, in milliseconds
    #[arg(long, value_name = "MS", default_value = "20")]
    pub(crate) ms: u64,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn options_are_read() {
        let args = Args::parse_from(["shop", "--wait", "250ms", "--no-lock"]);
        assert_eq!(args.serve.wait, Duration::from_millis(250));
        assert!(args.serve.no_lock);

        let args = Args::parse_from(["shop", "demo", "--requests", "60"]);
        let Some(Command::Demo(demo)) = args.command else {
            panic!("not a demo: {args:?}");
        };
        assert_eq!((demo.instances, demo.orders, demo.requests), (3, 5, 60));
    }
}
