//! The suite that every backend passes (feature `contract-tests`; not covered by semver).
//!
//! Describe your backend by a [`ContractTarget`], then run the suite over it, plain and erased:
//!
//! ```no_run
//! # use tower_lock::contract::{self, ContractTarget};
//! # async fn suite<T: ContractTarget>(target: T, erased: T) {
//! contract::run(&target).await.expect_passed(&[]);
//! contract::run(&contract::Erased(erased)).await.expect_passed(&[]);
//! # }
//! ```
//!
//! Checks are chosen by [`Capabilities`]. One that does not apply is reported as such with its
//! reason, and [`Report::expect_passed`] takes the names that may be: nothing is skipped silently.
//! A broken must is a [`Violation`], never a panic.
//!
//! The suite of stores of records is [`records`].
//!
//! The suite takes real time, on a multi-thread runtime with a timer. It uses the public traits
//! only, keys of its own, and two clients of the same server ([`ContractTarget::connect`]).

macro_rules! checks {
    ($($module:ident::$check:ident,)*) => {
        const CHECKS: &[&str] = &[$(stringify!($check)),*];

        async fn dispatch<T: ContractTarget>(context: &Context<'_, T>, name: &str) -> Checked {
            match name {
                $(stringify!($check) => Box::pin($module::$check(context)).await,)*
                _ => Err(Violation::new(0, format!("there is no check `{name}`"))),
            }
        }
    };
}

mod cancel;
mod context;
mod exclusion;
mod keys;
mod leases;
mod operators;
pub mod records;
mod report;
mod shared;
mod target;
mod tokens;
mod waiting;

use std::time::{Duration, Instant};

use self::context::Context;
pub use self::{
    report::{Outcome, Report, Violation},
    target::{ContractTarget, Erased, Options},
};
#[cfg(doc)]
use crate::backend::Capabilities;

/// What a check found out, short of a violation.
enum Verdict {
    Passed,
    NotApplicable(&'static str),
}

type Checked = Result<Verdict, Violation>;

checks! {
    exclusion::exclusion,
    exclusion::unfair,
    waiting::arrival_order,
    waiting::try_is_immediate,
    waiting::timeout_is_precise,
    waiting::no_lost_wakeups,
    waiting::dropped_waiters_cost_nothing,
    waiting::dead_waiters_cost_one_wait,
    cancel::drop_at_every_await,
    cancel::random_aborts,
    cancel::reply_lost,
    cancel::queued_owner_keeps_its_place,
    leases::late_release_is_harmless,
    leases::late_renew_is_lost,
    leases::double_release_is_harmless,
    leases::loss_before_the_end,
    leases::valid_until_counts_from_the_request,
    leases::renewal_keeps_the_key,
    tokens::tokens_grow,
    tokens::tokens_grow_over_a_restart,
    tokens::reserved_tokens,
    keys::keys_of_any_bytes,
    keys::idle_keys_leave_nothing,
    shared::readers_and_writers,
    shared::nobody_starves,
    operators::wait_free,
    operators::force_release,
    operators::inspect,
}

/// The names of all checks, in the order in which [`run`] runs them.
pub fn checks() -> &'static [&'static str] {
    CHECKS
}

/// Runs all checks, one after the other.
pub async fn run<T: ContractTarget>(target: &T) -> Report {
    let mut report = Report::default();
    for name in checks() {
        report.push(name, check(target, name).await);
    }
    report
}

/// Runs one check by its name. An unknown name is a violation.
pub async fn check<T: ContractTarget>(target: &T, name: &str) -> Outcome {
    let start = Instant::now();
    let patience = target.options().patience;
    let result = tokio::time::timeout(patience, async {
        let context = Context::connect(target).await?;
        dispatch(&context, name).await
    })
    .await
    .unwrap_or_else(|_| Err(endless(patience)));
    outcome(start, result.map_err(|violation| violation.of_check(name)))
}

fn endless(patience: Duration) -> Violation {
    Violation::new(4, format!("the check did not end within {patience:?}"))
}

fn outcome(start: Instant, result: Checked) -> Outcome {
    match result {
        Ok(Verdict::Passed) => Outcome::Passed(start.elapsed()),
        Ok(Verdict::NotApplicable(reason)) => Outcome::NotApplicable(reason),
        Err(violation) => Outcome::Violated(violation),
    }
}
