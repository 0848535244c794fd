//! The demonstration: the same payments without and with the lock, and what became of them.

mod figures;
mod instances;
mod load;
mod table;
mod timeline;

use std::process::ExitCode;

use self::{figures::Figures, instances::Instances, load::Load};
use crate::{
    BoxError,
    args::Demo,
    backend, signal,
    store::{Payment, Store},
};

/// One of the two runs.
#[derive(Debug)]
struct Run {
    figures: Figures,
    payments: Vec<Payment>,
}

/// Runs the demonstration; fails if an update was lost under the lock.
pub(crate) async fn run(args: Demo) -> Result<ExitCode, BoxError> {
    // Stopping drops the instances, which kills them.
    tokio::select! {
        done = demonstrate(&args) => done,
        () = signal::stop() => Err("interrupted; the instances were stopped".into()),
    }
}

async fn demonstrate(args: &Demo) -> Result<ExitCode, BoxError> {
    let (count, why) = instances_for(args).await?;
    println!(
        "{} payments of {} ms each, spread over {} and {}.",
        args.requests,
        args.ms,
        plural(args.orders, "order"),
        plural(count, "instance"),
    );
    if let Some(why) = why {
        println!("{why}");
    }
    println!();

    let without = one_run(args, count, Lock::Without).await?;
    let with = one_run(args, count, Lock::With).await?;

    println!("{}", table::render(&without.figures, &with.figures));
    let width = timeline::width();
    println!(
        "{}",
        timeline::render("Without the lock", &without.payments, width)
    );
    println!(
        "{}",
        timeline::render("With the lock", &with.payments, width)
    );

    let with = with.figures;
    if with.lost_updates != 0 {
        println!(
            "FAILED: {} updates were lost under the lock.",
            with.lost_updates
        );
        Ok(ExitCode::FAILURE)
    } else if with.accepted == 0 {
        println!("FAILED: no payment was accepted under the lock.");
        Ok(ExitCode::FAILURE)
    } else {
        println!("No update was lost under the lock.");
        Ok(ExitCode::SUCCESS)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lock {
    Without,
    With,
}

/// Starts the instances on a new database, fires the payments, and looks at what was stored.
async fn one_run(args: &Demo, count: u32, lock: Lock) -> Result<Run, BoxError> {
    let dir = tempfile::tempdir()?;
    let db = dir.path().join("orders.db");
    // Created before the instances share it.
    let store = Store::open(&db)?;
    let instances = Instances::start(count, &args.backend, &db, lock == Lock::Without).await?;
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
    let outcome = load.fire(label).await;
    instances.stop().await;

    let stored = store.totals().await?;
    let mut payments = store.payments().await?;
    instances::name(&mut payments, &load.addresses);
    Ok(Run {
        figures: Figures::new(&outcome, stored, &payments, lock == Lock::With),
        payments,
    })
}

/// How many instances to start, and why not as many as asked for.
async fn instances_for(args: &Demo) -> Result<(u32, Option<&'static str>), BoxError> {
    let locks = backend::connect(&args.backend).await?;
    if args.instances > 1 && backend::is_per_process(&locks) {
        return Ok((
            1,
            Some("One instance, since the memory backend locks within one process."),
        ));
    }
    Ok((args.instances, None))
}

fn plural(count: u32, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}
