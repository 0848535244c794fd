//! Wrong settings are told when the layer is built: every setter panics at its caller's line, and
//! `try_with_policy` returns the same text, which names the value and what is accepted.

use std::{
    num::NonZeroU32,
    panic::{AssertUnwindSafe, Location, catch_unwind},
    sync::{Mutex, Once},
    time::Duration,
};

use http::{Method, StatusCode};
use tower_lock::{
    AcquireErrorKind, BackendError, Fairness, Guarantee, KeyExtractor, LockBackend, LockKey,
    LockLayer, LockManager, LockPolicy, MemoryBackend, Mode, OnLost, ReleaseOn, Wait,
    backend::{AcquireRequest, Capabilities, KeyState, Scope, WaitBound, memory::MemoryLease},
    key::{self, HeaderKey},
};

use crate::flaky::{Flaky, memory};

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);

fn extractor() -> impl KeyExtractor {
    HeaderKey::new("order", "x-order")
}

/// A backend that can do nothing beyond the least.
#[derive(Debug)]
struct Plain;

impl LockBackend for Plain {
    type Lease = MemoryLease;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("plain", Scope::Fleet);
        capabilities.min_ttl = Some(Duration::from_secs(40));
        capabilities
    }

    async fn acquire(&self, _: &AcquireRequest) -> Result<MemoryLease, BackendError> {
        unreachable!("no request is made")
    }

    async fn wait_free(&self, _: &LockKey, _: WaitBound) -> Result<(), BackendError> {
        unreachable!("no request is made")
    }

    async fn inspect(&self, _: &LockKey) -> Result<KeyState, BackendError> {
        unreachable!("no request is made")
    }

    async fn force_release(&self, _: &LockKey) -> Result<bool, BackendError> {
        unreachable!("no request is made")
    }
}

/// What this panics with, and where: file and line as the message of a panic would show them.
fn panics<T>(f: impl FnOnce() -> T) -> (String, String, u32) {
    static HOOK: Once = Once::new();
    static PLACES: Mutex<Vec<(std::thread::ThreadId, String, u32)>> = Mutex::new(Vec::new());
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if let Some(at) = info.location() {
                let here = std::thread::current().id();
                PLACES
                    .lock()
                    .unwrap()
                    .push((here, at.file().to_owned(), at.line()));
            }
            before(info);
        }));
    });
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(f()))) else {
        panic!("it was accepted")
    };
    let message = panic.downcast_ref::<String>().expect("a text").clone();
    let here = std::thread::current().id();
    let places = PLACES.lock().unwrap();
    let (_, file, line) = places.iter().rfind(|(thread, ..)| *thread == here).unwrap();
    (message, file.clone(), *line)
}

/// Asserts that it panics on the caller's line with a message that holds all these texts.
#[track_caller]
fn refused<T>(f: impl FnOnce() -> T, texts: &[&str]) {
    let (message, file, line) = panics(f);
    for text in texts {
        assert!(message.contains(text), "{message:?} does not say {text:?}");
    }
    let here = Location::caller();
    assert_eq!(file, here.file(), "{message}");
    // A call of several lines panics at one of them.
    assert!(
        line.abs_diff(here.line()) <= 5,
        "{message}: line {line}, not {}",
        here.line()
    );
}

#[tokio::test]
async fn every_setter_of_the_policy() {
    let (_, locks) = memory();
    let new = || LockLayer::new(&locks, extractor());
    let accepted = "50ms to 86400s";
    refused(|| new().with_ttl(Duration::ZERO), &["ttl is 0ns", accepted]);
    refused(|| new().with_ttl(MS * 49), &["ttl is 49ms", accepted]);
    refused(
        || new().with_ttl(DAY + MS),
        &["ttl is 86400.001s", accepted],
    );
    let wait = Duration::from_millis(u64::from(u32::MAX) + 1);
    let accepted = "0ns to 4294967.295s";
    refused(
        || new().with_wait(wait),
        &["wait is 4294967.296s", accepted],
    );
    refused(
        || new().with_wait(Wait::For(Duration::MAX)),
        &["wait is", accepted],
    );
    refused(
        || new().with_max_prefer_wait(wait),
        &["max_prefer_wait is", accepted],
    );
    refused(
        || new().with_max_waiters(0),
        &["max_waiters is 0", "1 or more"],
    );
    let accepted = "1ms to 2592000s";
    refused(
        || new().with_max_hold(Duration::ZERO),
        &["max_hold is 0ns", accepted],
    );
    refused(
        || new().with_max_hold(DAY * 31),
        &["max_hold is 2678400s", accepted],
    );
    let body_end = |max| ReleaseOn::BodyEnd { max };
    refused(
        || new().with_release_on(body_end(Duration::ZERO)),
        &["BodyEnd max is 0ns", accepted],
    );
    let batched = |n| Fairness::Batched(NonZeroU32::new(n).unwrap());
    refused(
        || new().with_fairness(batched(10_001)),
        &["Batched(10001)", "1 to 10000"],
    );
    refused(
        || new().with_guarantee(Guarantee::Correctness),
        &["Correctness", "process", "single_instance"],
    );
    refused(
        || new().with_policy(LockPolicy::new().with_ttl(MS)),
        &["ttl is 1ms"],
    );
}

#[tokio::test]
async fn every_setter_of_http() {
    let (_, locks) = memory();
    let new = || LockLayer::new(&locks, extractor());
    for method in [
        Method::HEAD,
        Method::OPTIONS,
        Method::TRACE,
        Method::CONNECT,
    ] {
        refused(|| new().with_methods([method.clone()]), &[method.as_str()]);
        refused(
            || new().with_shared_methods([method.clone()]),
            &[method.as_str()],
        );
    }
    for status in [200, 400, 408, 425, 500, 504] {
        let status = StatusCode::from_u16(status).unwrap();
        refused(
            || new().with_contended_status(status),
            &[status.as_str(), "409, 423, 429 and 503"],
        );
    }
    refused(
        || new().with_problem_base(""),
        &["problem_base is \"\"", "accepted is a URI"],
    );
    refused(
        || new().with_problem_base("a b"),
        &["problem_base is \"a b\""],
    );
}

/// What the backend cannot do is refused when the layer is built, not when the first request comes.
#[tokio::test]
async fn what_the_backend_cannot_do() {
    let locks = LockManager::builder(Plain)
        .renew_on_current_runtime()
        .build();
    let new = || LockLayer::new(&locks, extractor());
    // The default layer fits: its ttl is raised to what the backend takes.
    assert!(format!("{:?}", new()).contains("ttl: 40s"));
    refused(
        || new().with_ttl(DAY / 86_400 * 39),
        &["ttl is 39s", "40s to"],
    );
    refused(
        || new().with_fairness(Fairness::Fifo),
        &["Fifo", "plain", "BestAvailable"],
    );
    let one = NonZeroU32::MIN;
    refused(
        || new().with_fairness(Fairness::Batched(one)),
        &["Batched", "plain", "Unfair"],
    );
    refused(
        || new().with_mode(Mode::Shared),
        &["Shared", "plain", "Exclusive"],
    );
    refused(
        || new().with_shared_methods([Method::GET]),
        &["Shared", "plain"],
    );
    refused(
        || new().with_mode_fn(|_| Mode::Shared),
        &["Shared", "plain"],
    );
    refused(
        || new().with_guarantee(Guarantee::Correctness),
        &["Correctness", "plain"],
    );
    let fenced = Guarantee::CorrectnessFencedByStorage;
    refused(
        || new().with_guarantee(fenced),
        &["plain", "no fencing tokens"],
    );
}

/// Redis can do all but agree on grants among several nodes.
#[cfg(feature = "redis")]
#[tokio::test]
async fn what_redis_can_do() {
    let (_, locks) = crate::backends::On::Redis.rig().await;
    let new = || LockLayer::new(&locks, extractor());
    let _layers = [
        new().with_fairness(Fairness::Fifo),
        new().with_fairness(Fairness::Unfair),
        new().with_fairness(Fairness::Batched(NonZeroU32::MIN)),
        new().with_mode(Mode::Shared),
        new().with_ttl(MS * 50),
        new().with_ttl(DAY),
        new().with_guarantee(Guarantee::CorrectnessFencedByStorage),
    ];
    refused(
        || new().with_guarantee(Guarantee::Correctness),
        &["Correctness", "redis", "CorrectnessFencedByStorage"],
    );
}

/// ZooKeeper agrees on grants, and cannot reserve tokens.
#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn what_zookeeper_can_do() {
    let (_, locks) = crate::backends::On::ZooKeeper.rig().await;
    let new = || LockLayer::new(&locks, extractor());
    let session = crate::zookeeper_place::SESSION;
    let _layers = [
        new().with_fairness(Fairness::Fifo),
        new().with_fairness(Fairness::Unfair),
        new().with_mode(Mode::Shared),
        new().with_ttl(session),
        new().with_ttl(DAY),
        new().with_guarantee(Guarantee::CorrectnessFencedByStorage),
        new().with_guarantee(Guarantee::Correctness),
    ];
    refused(
        || new().with_fairness(Fairness::Batched(NonZeroU32::MIN)),
        &["Batched", "zookeeper", "Unfair"],
    );
    refused(|| new().with_ttl(session - MS), &["ttl", "accepted is 5s"]);
}

/// The same texts as errors, for configuration that is read at run time; a wrong policy of a job
/// is an error as well.
#[tokio::test]
async fn wrong_policies_as_errors() {
    let (backend, locks) = memory();
    let table = [
        (
            LockPolicy::new().with_ttl(Duration::ZERO),
            "ttl is 0ns, accepted is 50ms to 86400s",
        ),
        (
            LockPolicy::new().with_max_waiters(0),
            "max_waiters is 0, accepted is 1 or more",
        ),
        (
            LockPolicy::new().with_max_hold(MS / 2),
            "max_hold is 500µs, accepted is 1ms to 2592000s",
        ),
    ];
    for (policy, text) in table {
        let layer = LockLayer::new(&locks, extractor());
        let error = layer
            .try_with_policy(policy.clone())
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(text), "{error}");
        let error = locks
            .acquire(LockKey::new("order", 1), &policy)
            .await
            .unwrap_err();
        assert_eq!(error.kind(), AcquireErrorKind::Config);
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with(text), "{source}");
    }
    assert!(backend.is_empty());
    // Zero is a fine wait: it does not wait.
    let policy = LockPolicy::new().with_wait(Duration::ZERO);
    assert_eq!(policy.wait(), Wait::Fail);
    assert_eq!(
        LockPolicy::new()
            .with_wait(Wait::For(Duration::ZERO))
            .wait(),
        Wait::Fail
    );
    assert!(
        LockLayer::new(&locks, extractor())
            .try_with_policy(policy)
            .is_ok()
    );
    let builder = || LockManager::builder(MemoryBackend::new()).renew_on_current_runtime();
    for (built, text) in [
        (builder().max_waiters(0).try_build(), "max_waiters is 0"),
        (
            builder().backend_timeout(Duration::ZERO).try_build(),
            "backend_timeout is 0",
        ),
    ] {
        assert!(built.unwrap_err().to_string().starts_with(text));
    }
}

/// Setters give the same layer in any order, and are accepted or refused in any order: values that
/// only fit together are never checked against a default that is about to change.
#[tokio::test]
async fn the_order_of_setters_does_not_count() {
    type Setter = fn(LockLayer) -> LockLayer;
    let locks = LockManager::builder(Flaky::default())
        .renew_on_current_runtime()
        .build();
    let setters: [Setter; 10] = [
        |l| l.with_ttl(Duration::from_secs(3600)),
        |l| l.with_max_hold(Duration::from_secs(7200)),
        |l| l.with_wait(Duration::from_secs(60)),
        |l| l.with_max_prefer_wait(Duration::from_secs(90)),
        |l| l.with_fairness(Fairness::Fifo),
        |l| l.with_max_waiters(3),
        |l| l.with_on_lost(OnLost::Signal),
        |l| l.with_guarantee(Guarantee::Correctness),
        |l| l.with_shared_methods([Method::GET]),
        |l| l.with_methods([Method::POST]),
    ];
    let build = |order: &[usize]| {
        let layer = LockLayer::new(
            &locks,
            key::from_fn(|_: &http::request::Parts| LockKey::new("a", 1)),
        );
        format!(
            "{:?}",
            order.iter().fold(layer, |layer, i| setters[*i](layer))
        )
    };
    let mut order: Vec<usize> = (0..setters.len()).collect();
    let expected = build(&order);
    assert!(expected.contains("3600s") && expected.contains("Signal"));
    for _ in 0..200 {
        for i in (1..order.len()).rev() {
            order.swap(i, fastrand::usize(..=i));
        }
        assert_eq!(build(&order), expected, "{order:?}");
    }
    // Failing open and a guarantee exclude each other, whichever comes second.
    let new = || LockLayer::new(&locks, extractor());
    let texts = ["fails open", "one of the two"];
    refused(
        || {
            new()
                .with_guarantee(Guarantee::Correctness)
                .with_insecure_fail_open()
        },
        &texts,
    );
    refused(
        || {
            new()
                .with_insecure_fail_open()
                .with_guarantee(Guarantee::Correctness)
        },
        &texts,
    );
}
