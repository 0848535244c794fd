//! The demonstration: the same payments without and with the lock, and what became of them; one
//! checkout that is sent again and again, and one report that everybody wants; then, where the lock
//! reaches several instances, what happens when two of them fail.

mod checkout;
mod client;
mod figures;
mod instances;
mod load;
mod process;
mod redis_server;
mod reports;
mod table;
mod takeover;
#[cfg(test)]
mod tests;
mod timeline;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use self::{
    checkout::Checkout, figures::Figures, instances::Setup, load::Load, redis_server::RedisServer,
    reports::Reports, takeover::Takeover,
};
use crate::{
    BoxError,
    args::{Demo, OnLost},
    backend,
    signal::Stop,
    store::{Payment, Store},
};

const INTERRUPTED: &str = "interrupted; the instances were stopped";

/// One of the two runs.
#[derive(Debug)]
struct Run {
    figures: Figures,
    payments: Vec<Payment>,
}

/// Runs the demonstration; fails if the lock did not do its part.
pub(crate) async fn run(mut args: Demo) -> Result<ExitCode, BoxError> {
    let stop = Stop::listen();
    if args.backend != "redis:" {
        return demonstrate(&args, &stop).await;
    }
    let server = tokio::select! {
        started = RedisServer::start() => started?,
        () = stop.wait() => return Err(INTERRUPTED.into()),
    };
    args.backend = server.url();
    let port = server.port();
    say(format_args!(
        "Started a redis-server at {}; to see what it is asked: redis-cli -p {port} monitor",
        args.backend
    ));
    let done = demonstrate(&args, &stop).await;
    server.stop().await?;
    done
}

async fn demonstrate(args: &Demo, stop: &Stop) -> Result<ExitCode, BoxError> {
    let locks = backend::connect(&args.backend, args.ttl).await?;
    let alone = backend::is_per_process(&locks);
    let count = if alone { 1 } else { args.instances };
    say(format_args!(
        "{} payments of {} ms each, spread over {} and {}.",
        args.requests,
        args.ms,
        plural(args.orders, "order"),
        plural(count, "instance"),
    ));
    if alone && args.instances > 1 {
        say(
            "One instance, since the memory backend locks within one process; \
             `--backend redis:` shows more.",
        );
    }
    say("");

    let without = one_run(args, stop, count, Lock::Without).await?;
    let with = one_run(args, stop, count, Lock::With).await?;

    say(table::render(&without.figures, &with.figures));
    let width = timeline::width();
    say(timeline::render(
        "Without the lock",
        &without.payments,
        width,
    ));
    say(timeline::render("With the lock", &with.payments, width));

    let same = if backend::keeps_records(&locks) {
        Some(Same::play(args, stop, count).await?)
    } else {
        None
    };
    let takeover = if alone {
        None
    } else {
        takeover::play(args, stop).await?
    };
    Ok(verdict(&with.figures, same.as_ref(), takeover.as_ref()))
}

/// Says whether the lock did its part.
fn verdict(with: &Figures, same: Option<&Same>, takeover: Option<&Takeover>) -> ExitCode {
    let mut failures = Vec::new();
    if with.lost_updates != 0 {
        let lost = with.lost_updates;
        failures.push(format!("{lost} updates were lost under the lock."));
    }
    if with.accepted == 0 {
        failures.push("no payment was accepted under the lock.".into());
    }
    if with.grants.is_some_and(|grants| !grants.tokens_grew) {
        failures.push("a fencing token was not above the one before.".into());
    }
    if let Some(same) = same {
        failures.extend(same.checkout.failure());
        failures.extend(same.reports.failure());
    }
    failures.extend(takeover.and_then(Takeover::failure));
    for failure in &failures {
        say(format_args!("FAILED: {failure}"));
    }
    if !failures.is_empty() {
        return ExitCode::FAILURE;
    }
    say(match takeover {
        None => "No update was lost under the lock.",
        Some(_) => "No update was lost under the lock, nor to an instance that failed.",
    });
    ExitCode::SUCCESS
}

/// Requests that are the same.
#[derive(Debug)]
struct Same {
    checkout: Checkout,
    reports: Reports,
}

impl Same {
    async fn play(args: &Demo, stop: &Stop, count: u32) -> Result<Self, BoxError> {
        let dir = tempfile::tempdir()?;
        let db = dir.path().join("orders.db");
        let store = Store::open(&db)?;
        let instances = setup(args, db, Lock::With).start(count, stop).await?;
        let addresses = instances.addresses();
        instances
            .during(stop, async |_| {
                Ok(Self {
                    checkout: checkout::play(&store, &addresses, args.ms).await?,
                    reports: reports::play(&store, &addresses).await?,
                })
            })
            .await
    }
}

fn setup(args: &Demo, db: PathBuf, lock: Lock) -> Setup {
    Setup {
        backend: args.backend.clone(),
        db,
        ttl: args.ttl,
        lock: lock == Lock::With,
        on_lost: OnLost::Abort,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Without,
    With,
}

/// Starts the instances on a new database, fires the payments, and looks at what was stored.
async fn one_run(args: &Demo, stop: &Stop, count: u32, lock: Lock) -> Result<Run, BoxError> {
    let dir = tempfile::tempdir()?;
    let db = dir.path().join("orders.db");
    // Created before the instances share it.
    let store = Store::open(&db)?;
    let instances = setup(args, db, lock).start(count, stop).await?;
    let label = match lock {
        Lock::Without => "without the lock",
        Lock::With => "with the lock",
    };
    let load = Load {
        addresses: instances.addresses(),
        orders: args.orders,
        requests: args.requests,
        ms: args.ms,
    };
    let outcome = instances
        .during(stop, async |_| Ok(load.fire(label).await))
        .await?;

    let stored = store.totals().await?;
    let mut payments = store.payments().await?;
    instances::name(&mut payments, &load.addresses);
    Ok(Run {
        figures: Figures::new(&outcome, stored, &payments, lock == Lock::With),
        payments,
    })
}

fn plural(count: u32, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}

/// Prints a line, and goes on when nobody reads it any more: there is something to clean up.
fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stdout(), "{line}");
}
