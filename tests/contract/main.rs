//! The contract suite: the memory backend passes it, plain and erased, and it catches backends
//! that are broken in one way each.

mod broken;
mod broken_store;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redis_topologies;
#[cfg(feature = "redlock")]
mod redlock;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
#[path = "../servers/mod.rs"]
mod servers;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::{
    future::Future,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use broken::{Fault, Rig};
use broken_store::{Fault as StoreFault, Store};
use tower_lock::{
    BackendErrorKind, BoxError, LockKey, MemoryBackend,
    backend::{AcquireRequest, DynLockBackend, WaitBound},
    contract::{self, ContractTarget, Erased, Options, Outcome},
};

/// The memory backend; a restart is a new process, that is a new table.
struct Memory {
    backend: Mutex<MemoryBackend>,
    options: Options,
}

impl Memory {
    fn new(options: Options) -> Self {
        Self {
            backend: Mutex::default(),
            options,
        }
    }

    fn backend(&self) -> MemoryBackend {
        self.backend
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ContractTarget for Memory {
    type Backend = MemoryBackend;

    async fn connect(&self) -> Result<MemoryBackend, BoxError> {
        Ok(self.backend())
    }

    async fn leftovers(&self) -> Option<u64> {
        let backend = self.backend();
        Some((backend.len() + backend.records_len()) as u64)
    }

    async fn restart(&self) -> bool {
        *self.backend.lock().unwrap_or_else(PoisonError::into_inner) = MemoryBackend::new();
        true
    }

    async fn slow_replies(&self, _delay: Duration) -> bool {
        false
    }

    fn options(&self) -> Options {
        self.options
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// So many suites run at a time, however many threads the tests have: their load is a machine's
/// whole work.
const SEATS: u32 = 4;

/// One of them.
struct Seat;

static TAKEN: Mutex<u32> = Mutex::new(0);
static LEFT: Condvar = Condvar::new();

impl Seat {
    fn taken<T>(suite: impl FnOnce() -> T) -> T {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken == SEATS {
            taken = LEFT.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += 1;
        drop(taken);
        let _seat = Self;
        suite()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        LEFT.notify_one();
    }
}

#[track_caller]
fn passes<T: ContractTarget>(target: &T, not_applicable: &[&str]) {
    let report = Seat::taken(|| block_on(contract::run(target)));
    println!("{report}");
    report.expect_passed(not_applicable);
    assert_eq!(report.outcomes().len(), contract::checks().len());
    for (name, reason) in report.not_applicable() {
        assert!(report.to_string().contains(&format!("{name}: {reason}")));
    }
}

/// For one more server of a backend whose scripts or client had the whole load elsewhere.
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
fn modest() -> Options {
    let mut options = Options::new();
    options.grants = 2_000;
    options.keys = 2_000;
    options
}

/// Where each grant is a write on a disk: a hundred that wait are as many, and take their time. Who
/// is not told, and looks by its own after 4.5 s, is late all the same.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
fn written_down() -> Options {
    let mut options = modest();
    options.slack = Duration::from_millis(1500);
    options
}

/// Runs both at once: most of either is waiting.
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
fn both(one: impl FnOnce() + Send, other: impl FnOnce()) {
    std::thread::scope(|scope| {
        let one = scope.spawn(one);
        other();
        if let Err(panic) = one.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn memory_passes() {
    passes(&Memory::new(Options::in_process()), &[]);
}

/// The same for the suite of records.
#[track_caller]
fn keeps_records<T: ContractTarget>(target: &T) {
    let report = Seat::taken(|| block_on(contract::records::run(target)));
    println!("{report}");
    report.expect_passed(&[]);
    assert_eq!(report.outcomes().len(), contract::records::checks().len());
}

#[test]
fn memory_keeps_records() {
    let mut options = Options::in_process();
    options.aborts = 20_000;
    keeps_records(&Memory::new(options));
}

#[test]
fn memory_keeps_records_erased() {
    keeps_records(&Erased(Memory::new(Options::in_process())));
}

/// A backend without records says so, and nothing of them applies.
#[test]
fn a_backend_without_records_has_nothing_to_check() {
    let report = block_on(contract::records::run(&Rig::new(Fault::None)));
    report.expect_passed(contract::records::checks());
}

#[test]
fn memory_passes_erased() {
    let mut options = Options::in_process();
    options.keys = 200_000;
    passes(&Erased(Memory::new(options)), &[]);
}

/// Without a fault the lock below passes, so what is caught is the fault.
#[test]
fn the_sound_rig_passes() {
    passes(
        &Rig::new(Fault::None),
        &["reserved_tokens", "readers_and_writers", "nobody_starves"],
    );
}

/// What the manager uses for requests that do not wait: no box and no await in this process.
#[test]
fn erased_tries_end_at_once_in_this_process_only() {
    let request = AcquireRequest::new(LockKey::new("order", 7), Duration::from_secs(30));
    let other = AcquireRequest::new(LockKey::new("order", 7), Duration::from_secs(30));
    let memory = MemoryBackend::new();
    let erased: Arc<dyn DynLockBackend> = Arc::new(memory.clone());
    let lease = erased
        .dyn_try_now(&request)
        .expect("decided here")
        .expect("free");
    let refused = erased
        .dyn_try_now(&other)
        .expect("decided here")
        .expect_err("held");
    assert_eq!(refused.kind(), BackendErrorKind::Contended);
    lease
        .dyn_release_now()
        .expect("decided here")
        .expect("released");
    assert!(memory.is_empty());
    let waits = other.with_wait(WaitBound::Forever);
    assert!(erased.dyn_try_now(&waits).is_none());

    let elsewhere = block_on(Rig::new(Fault::None).connect()).expect("a client");
    let elsewhere: Arc<dyn DynLockBackend> = Arc::new(elsewhere);
    assert!(elsewhere.dyn_try_now(&request).is_none());
}

#[test]
fn an_unknown_check_is_not_passed() {
    let outcome = block_on(contract::check(&Rig::new(Fault::None), "no_such_check"));
    assert!(matches!(outcome, Outcome::Violated(_)), "{outcome:?}");
}

/// The named check catches this fault, plain and erased, as a breach of this must (of one of these).
#[track_caller]
fn caught(fault: Fault, check: &str, musts: &[u8]) {
    let (plain, erased) = (Rig::new(fault), Erased(Rig::new(fault)));
    let (plain, erased) = block_on(async {
        tokio::join!(
            contract::check(&plain, check),
            contract::check(&erased, check)
        )
    });
    for outcome in [plain, erased] {
        match outcome {
            Outcome::Violated(violation) => {
                assert_eq!(violation.check(), check);
                assert!(musts.contains(&violation.must()), "{violation}");
            }
            other => panic!("{fault:?} was not caught by {check}: {other:?}"),
        }
    }
}

macro_rules! caught {
    ($($test:ident: $fault:ident by $check:ident, must $($must:literal)|+;)*) => {
        $(#[test]
        fn $test() {
            caught(Fault::$fault, stringify!($check), &[$($must),+]);
        })*
    };
}

caught! {
    a_release_without_an_owner_check:
        NoOwnerCheckOnRelease by late_release_is_harmless, must 7;
    a_second_release_without_an_owner_check:
        NoOwnerCheckOnRelease by double_release_is_harmless, must 7;
    waking_before_deleting: WakesBeforeDeleting by no_lost_wakeups, must 4;
    checking_before_registering: ChecksBeforeRegistering by no_lost_wakeups, must 4;
    waking_nobody: WakesNobody by no_lost_wakeups, must 4;
    an_expiry_that_counts_from_the_reply:
        ExpiryFromTheReply by valid_until_counts_from_the_request, must 2;
    a_repeated_token: RepeatsTokens by tokens_grow, must 3;
    a_repeated_token_in_a_crowd: RepeatsTokens by exclusion, must 3;
    tokens_that_restart: TokensRestart by tokens_grow_over_a_restart, must 3;
    barging: Barges by arrival_order, must 5;
    a_queue_entry_that_is_left: LeavesEntryOnDrop by drop_at_every_await, must 6;
    a_grant_that_is_left: LeavesGrantOnDrop by drop_at_every_await, must 6;
    queue_entries_that_are_left: LeavesEntryOnDrop by random_aborts, must 6;
    hung_waiters_that_block: TrustsTheHung by dead_waiters_cost_one_wait, must 4;
    a_holder_that_blocks_itself: NotIdempotent by reply_lost, must 11;
    a_second_place_for_one_owner: QueuesTwice by queued_owner_keeps_its_place, must 11;
    two_holders: IgnoresHolders by exclusion, must 1 | 3;
    a_lease_that_ends_early: EndsEarly by loss_before_the_end, must 1;
    a_loss_that_is_not_told: HidesLoss by late_renew_is_lost, must 7;
    a_timeout_that_is_late: LateTimeout by timeout_is_precise, must 4;
    keys_that_stay: KeepsKeys by idle_keys_leave_nothing, must 9;
    keys_that_collide: CutsKeys by keys_of_any_bytes, must 13;
    a_renewal_that_does_nothing: RenewsNothing by renewal_keeps_the_key, must 8;
}

/// Without a fault the store below passes, so what is caught is the fault.
#[test]
fn the_sound_store_keeps_records() {
    keeps_records(&Store::new(StoreFault::None));
}

macro_rules! caught_with_records {
    ($($test:ident: $fault:ident by $check:ident, must $($must:literal)|+;)*) => {
        $(#[test]
        fn $test() {
            let check = stringify!($check);
            let store = Store::new(StoreFault::$fault);
            match block_on(contract::records::check(&store, check)) {
                Outcome::Violated(violation) => {
                    assert_eq!(violation.check(), check);
                    assert!([$($must),+].contains(&violation.must()), "{violation}");
                    assert!(violation.to_string().contains("must R"), "{violation}");
                }
                other => panic!("not caught by {check}: {other:?}"),
            }
        })*
    };
}

caught_with_records! {
    a_stale_save_by_token: ComparesNoToken by stale_holders_write_nothing, must 2;
    a_stale_save_by_owner: ComparesNoOwner by stale_holders_do_not_come_first, must 2;
    a_stale_save_after_a_forget: ForgetsItsToken by stale_holders_write_nothing, must 2;
    a_late_save_that_is_refused: RefusesTheLate by holders_without_successors_save_late, must 3;
    a_result_that_changes: OverwritesItself by saves_are_repeated, must 3;
    one_look_for_a_wait: LooksOnce by a_result_wakes_all, must 5;
    one_look_for_many: LooksOnce by one_of_many_requests_runs, must 4;
    a_look_apart_from_the_grant: LooksAndThenAcquires by one_of_many_requests_runs, must 4;
    waiters_that_queue_for_a_result: WakesOneByOne by a_result_wakes_all, must 5;
    an_open_record_that_is_left: LeavesOpenRecords by drop_of_a_first_request, must 8;
    open_records_that_are_left: LeavesOpenRecords by aborts_at_random, must 8;
    an_orphan_that_is_lost: LosesOrphans by drop_of_a_first_request, must 8;
    a_key_between_lock_and_result: ReleasesAndThenSaves by nobody_comes_between, must 10;
    a_record_without_an_end: KeepsForEver by records_are_kept_until_their_end, must 1;
    a_byte_too_many: AddsAByte by records_are_kept_until_their_end, must 1;
    orphans_that_are_all_replaced: ReplacesAllOrphans by orphans_as_the_opening_says, must 6;
    orphans_replaced_by_waiters: ReplacesAllOrphans by kept_orphans_are_for_all, must 5;
    no_limits: HasNoLimits by limits_come_first, must 11;
    an_open_record_that_ends_with_the_lease: ClosesWithTheLease by open_records_stay, must 12;
    a_held_key_without_its_record: HidesOpenRecords by held_keys_are_told, must 7;
    a_second_grant_for_one_owner: GrantsAgain by owners_ask_again, must 9;
    a_loss_that_is_none: ReportsALoss by saving_releases, must 10;
    marks_that_are_left: LeavesMarks by nothing_is_left, must 12;
    results_that_are_for_all: KeepsResults by results_for_those_who_wait, must 4;
    results_that_a_newcomer_takes: LosesReplaced by results_for_those_who_wait, must 5;
    results_that_are_for_nobody: HidesResults by results_for_those_who_wait, must 5;
}
