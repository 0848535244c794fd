//! The contract suite: the memory backend passes it, plain and erased, and it catches backends
//! that are broken in one way each.

mod broken;
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
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use broken::{Fault, Rig};
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
        Some(self.backend().len() as u64)
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

#[track_caller]
fn passes<T: ContractTarget>(target: &T, not_applicable: &[&str]) {
    let report = block_on(contract::run(target));
    println!("{report}");
    report.expect_passed(not_applicable);
    assert_eq!(report.outcomes().len(), contract::checks().len());
    for (name, reason) in report.not_applicable() {
        assert!(report.to_string().contains(&format!("{name}: {reason}")));
    }
}

#[test]
fn memory_passes() {
    passes(&Memory::new(Options::in_process()), &[]);
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
