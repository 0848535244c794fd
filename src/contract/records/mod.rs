//! The suite that every store of records passes that also has the locks.
//!
//! A store is what [`LockBackend::records`] of the backend of a
//! [`ContractTarget`] returns; of a backend that returns none, nothing applies. Records count among
//! what [`leftovers`](ContractTarget::leftovers) counts.
//!
//! ```no_run
//! # use tower_lock::contract::{self, ContractTarget};
//! # async fn suite<T: ContractTarget>(target: T) {
//! contract::records::run(&target).await.expect_passed(&[]);
//! # }
//! ```

mod fencing;
mod requests;
mod steps;
mod undo;
mod waiting;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    Checked, ContractTarget, Outcome, Report, Verdict, Violation,
    context::{Context, ensure, request},
    endless, outcome,
};
use crate::{
    backend::{AcquireRequest, DynLease, DynRecords, Found, LockBackend},
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::{FencingToken, Lease},
    record::{Opening, Record, RecordState, Save},
};

checks! {
    requests::records_are_kept_until_their_end,
    requests::a_first_request_runs,
    requests::one_of_many_requests_runs,
    requests::held_keys_are_told,
    requests::orphans_as_the_opening_says,
    requests::limits_come_first,
    fencing::stale_holders_write_nothing,
    fencing::stale_holders_do_not_come_first,
    fencing::holders_without_successors_save_late,
    fencing::saves_are_repeated,
    waiting::a_result_wakes_all,
    waiting::locks_in_the_same_queue,
    waiting::one_of_those_who_wait_takes_over,
    waiting::kept_orphans_are_for_all,
    waiting::results_for_those_who_wait,
    undo::drop_of_a_first_request,
    undo::drop_of_a_wait,
    undo::aborts_at_random,
    steps::owners_ask_again,
    steps::saving_releases,
    steps::nobody_comes_between,
    steps::open_records_stay,
    steps::nothing_is_left,
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
        if context.one.records().is_none() {
            return Ok(Verdict::NotApplicable("the backend keeps no records"));
        }
        dispatch(&context, name).await
    })
    .await
    .unwrap_or_else(|_| Err(endless(patience)));
    outcome(
        start,
        result.map_err(|violation| violation.of_check(name).of_records()),
    )
}

/// A record that no check outlives.
const LONG: Duration = Duration::from_secs(600);

type Lent = Arc<dyn DynLease>;
type Loaded = Result<Found<Lent>, BackendError>;

/// The store of a backend that has one, as [`check`] has seen.
fn store(backend: &impl LockBackend) -> Result<&dyn DynRecords, Violation> {
    let none = || Violation::new(0, "the backend keeps records, and then none");
    backend.records().ok_or_else(none)
}

fn opening(bytes: &'static str) -> Opening {
    Opening::new(bytes, LONG)
}

fn keep(request: &AcquireRequest, token: FencingToken, bytes: impl Into<Bytes>) -> Save {
    Save::keep(request.key.clone(), request.owner, token, bytes, LONG)
}

fn forget(request: &AcquireRequest, token: FencingToken) -> Save {
    Save::forget(request.key.clone(), request.owner, token)
}

/// A grant that has to be there, and the orphan whose place it took.
fn lease(found: Loaded, must: u8, why: &str) -> Result<(Lent, Option<Record>), Violation> {
    match found? {
        Found::Lease { lease, previous } => Ok((lease, previous)),
        other => Err(Violation::new(
            must,
            format!("{why}: {other:?} instead of a lease"),
        )),
    }
}

/// A record that has to be there.
fn record(found: Loaded, must: u8, why: &str) -> Result<Record, Violation> {
    match found? {
        Found::Record(record) => Ok(record),
        other => Err(Violation::new(
            must,
            format!("{why}: {other:?} instead of a record"),
        )),
    }
}

/// A result with these bytes, of this token.
fn result(
    found: Option<&Record>,
    token: FencingToken,
    bytes: &[u8],
    (must, why): (u8, &str),
) -> Result<(), Violation> {
    let expected = Record::new(RecordState::Closed, token, Bytes::copy_from_slice(bytes));
    match found {
        Some(record) if *record == expected => Ok(()),
        other => Err(Violation::new(
            must,
            format!("{why}: {other:?} instead of {expected:?} (or other bytes)"),
        )),
    }
}

/// What was opened with these bytes, under this token.
fn open_record(
    found: Option<&Record>,
    token: FencingToken,
    bytes: &'static str,
    (must, why): (u8, &str),
) -> Result<(), Violation> {
    let expected = Record::new(RecordState::Open, token, bytes);
    match found {
        Some(record) if *record == expected => Ok(()),
        other => Err(Violation::new(
            must,
            format!("{why}: {other:?} instead of {expected:?} (or other bytes)"),
        )),
    }
}

fn refused(saved: Result<(), BackendError>, must: u8, why: &str) -> Result<(), Violation> {
    match saved {
        Err(error) if error.kind() == BackendErrorKind::Lost => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Violation::new(must, format!("a save was accepted {why}"))),
    }
}

/// Waits until the lease of the holder has surely ended at the store.
async fn until_over<T: ContractTarget>(
    context: &Context<'_, T>,
    key: &LockKey,
) -> Result<(), Violation> {
    let start = Instant::now();
    while !context.two.inspect(key).await?.holders.is_empty() {
        ensure!(
            start.elapsed() < context.short_ttl() + context.options.settle,
            0,
            "a lease does not end"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Begins, and is gone: an orphan with these bytes is left, of this request and token.
async fn orphan<T: ContractTarget>(
    context: &Context<'_, T>,
    key: &LockKey,
    bytes: &'static str,
) -> Result<(AcquireRequest, FencingToken), Violation> {
    let wish = request(key);
    let found = store(&*context.one)?
        .dyn_acquire_or_load(&wish, Some(&opening(bytes)))
        .await;
    let (held, _) = lease(found, 4, "a key that nobody holds")?;
    held.release().await?;
    Ok((wish, held.fencing_token()))
}

/// Whatever is open there goes.
async fn clean_up<T: ContractTarget>(
    context: &Context<'_, T>,
    key: &LockKey,
) -> Result<(), Violation> {
    let wish = request(key);
    let store = store(&*context.one)?;
    let found = store.dyn_acquire_or_load(&wish, Some(&opening(""))).await;
    let (held, _) = lease(found, 4, "a key that is to be cleaned up")?;
    let forget = forget(&wish, held.fencing_token());
    store.dyn_save_and_release(&forget).await?;
    Ok(())
}
