//! The command line.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

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
    /// Run a program that ends when the standard input does; the demo starts its server so
    #[command(hide = true)]
    Leash(Leash),
}

/// Options of an instance.
#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    pub(crate) listen: SocketAddr,
    /// Who decides which request holds an order: `memory:` in this process; `redis://HOST:PORT`,
    /// `rediss://..`, `unix:///PATH`, `redis+sentinel://HOST,HOST,HOST/SERVICE` or
    /// `redis+cluster://HOST,HOST,HOST` among all instances on that server or cluster;
    /// `redlock://HOST,HOST,HOST` among all on a majority of these, which takes a --ttl to start;
    /// `zookeeper://HOST,HOST,HOST/CHROOT` among all on that ensemble; `etcd://HOST,HOST,HOST` or
    /// `etcds://..` on that cluster, with the feature etcd
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
    /// What becomes of a payment whose lock is lost
    #[arg(long, value_name = "HOW", value_enum, default_value_t = OnLost::Abort)]
    pub(crate) on_lost: OnLost,
    /// End when the standard input does, and so with who started this
    #[arg(long, hide = true)]
    pub(crate) leashed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnLost {
    /// It is dropped before the lease can end
    Abort,
    /// It goes on, and the storage refuses its write
    Signal,
}

impl OnLost {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Abort => "abort",
            Self::Signal => "signal",
        }
    }
}

/// A program and its arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct Leash {
    pub(crate) program: OsString,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) args: Vec<OsString>,
}

/// Options of the demonstration.
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Who decides which request holds an order: `memory:` in one instance; `redis:` among several,
    /// on a redis-server that is started for it; `redis://HOST:PORT`, `rediss://..`,
    /// `unix:///PATH`, `redis+sentinel://..`, `redis+cluster://..`,
    /// `redlock://HOST,HOST,HOST` or `zookeeper://HOST,HOST,HOST/CHROOT` on servers that run
    #[arg(long, value_name = "URL", default_value = "memory:")]
    pub(crate) backend: String,
    /// How many instances of the shop to start; with `memory:` it is one
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
    /// The lease's length without a renewal: the order of an instance that fails is free after it
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
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
        assert_eq!(demo.backend, "memory:");

        for how in [OnLost::Abort, OnLost::Signal] {
            let args = Args::parse_from(["shop", "--on-lost", how.name()]);
            assert_eq!(args.serve.on_lost, how);
        }
    }
}
