//! Records beside locks: what they cost, what stands on the server, and for how long.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tower_lock::{
    BackendErrorKind, EtcdBackend, Lease as _, LockBackend as _, LockKey,
    backend::{AcquireRequest, Found, LockingRecordStore as _, etcd::EtcdLease},
    record::{Opening, Orphans, Record, RecordStore as _, Results, Save},
};

use crate::{
    servers::{Etcd, TcpProxy},
    support::{
        LONG, PATIENCE, PREFIX, SLACK, connect, connect_with, hold, key, name, patient, try_it,
        until, until_nothing_is_left, url_of, waiters,
    },
};

pub(crate) fn record_name(key: &LockKey) -> String {
    format!("{PREFIX}rec/{}", key.as_str())
}

/// What stands in a record, as an operator sees it.
pub(crate) fn stands(server: &Etcd, key: &LockKey) -> String {
    let value = server.etcdctl(&["get", "--print-value-only", &record_name(key)]);
    value.trim_end_matches('\n').to_owned()
}

pub(crate) fn opening(bytes: &'static str) -> Opening {
    Opening::new(bytes, LONG)
}

pub(crate) fn keep(request: &AcquireRequest, lease: &EtcdLease, bytes: &'static str) -> Save {
    let token = lease.fencing_token();
    Save::keep(request.key.clone(), request.owner, token, bytes, LONG)
}

pub(crate) fn forget(request: &AcquireRequest, lease: &EtcdLease) -> Save {
    Save::forget(request.key.clone(), request.owner, lease.fencing_token())
}

/// Begins, on a key that nobody holds: its request, lease, and the orphan that it replaced.
pub(crate) async fn begin(
    backend: &EtcdBackend,
    key: &LockKey,
) -> (AcquireRequest, EtcdLease, Option<Record>) {
    let request = AcquireRequest::new(key.clone(), LONG);
    match backend
        .acquire_or_load(&request, Some(&opening("begun")))
        .await
    {
        Ok(Found::Lease { lease, previous }) => (request, lease, previous),
        other => panic!("{other:?}"),
    }
}

/// How often a client asked so far.
fn asked(server: &Etcd, method: &str) -> u64 {
    server.metric(
        0,
        &format!("grpc_server_started_total{{grpc_method=\"{method}\""),
    ) as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_are_few_and_locks_alone_touch_no_record() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    // Its lease is there.
    hold(&backend, &key("lock")).await.release().await.unwrap();
    let methods = ["Txn", "LeaseGrant", "LeaseRevoke"];
    let counts = || methods.map(|method| asked(&server, method));
    let before = std::cell::Cell::new(counts());
    let steps = async |expected: [u64; 3], what: &str| {
        let now = counts();
        let steps = [0, 1, 2].map(|n| now[n] - before.get()[n]);
        assert_eq!(steps, expected, "{methods:?} of {what}");
        before.set(now);
    };
    let (request, lease, _) = begin(&backend, &key("new")).await;
    steps([2, 1, 0], "a first request").await;
    let second = AcquireRequest::new(key("new"), LONG);
    let found = backend.acquire_or_load(&second, Some(&opening("x"))).await;
    assert!(
        matches!(found, Ok(Found::Held { open: Some(_), .. })),
        "{found:?}"
    );
    steps([1, 0, 0], "a duplicate, which leaves nothing to undo").await;
    backend
        .save_and_release(&keep(&request, &lease, "x"))
        .await
        .unwrap();
    until("the lease of the open record is given back", async || {
        asked(&server, "LeaseRevoke") > before.get()[2]
    })
    .await;
    steps([1, 1, 1], "a save with its release").await;
    drop(lease);
    let found = backend.acquire_or_load(&second, Some(&opening("x"))).await;
    assert!(matches!(found, Ok(Found::Record(_))), "{found:?}");
    steps([1, 0, 0], "a replay").await;
    let single = AcquireRequest::new(key("single"), LONG);
    match backend.acquire_or_load(&single, None).await {
        Ok(Found::Lease { lease, .. }) => {
            backend
                .save_and_release(&forget(&single, &lease))
                .await
                .unwrap();
        }
        other => panic!("{other:?}"),
    }
    steps([3, 0, 0], "a grant without an opening, and its end").await;
    hold(&backend, &key("lock")).await.release().await.unwrap();
    steps([2, 0, 0], "a lock and its release").await;
    assert_eq!(server.keys_left(PREFIX), [record_name(&key("new"))]);
}

/// A record has a lease of its own, which goes with it: whichever way it ends.
#[tokio::test(flavor = "multi_thread")]
async fn leases_go_with_their_records() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    hold(&backend, &key("lock")).await.release().await.unwrap();
    // That of the locks, and of so many records.
    let records = async |expected: usize, what: &str| {
        until(what, async || server.leases().len() == 1 + expected).await;
    };
    records(0, "no record has one").await;
    let (request, lease, _) = begin(&backend, &key(1)).await;
    records(1, "an open record has one").await;
    backend
        .save_and_release(&forget(&request, &lease))
        .await
        .unwrap();
    records(0, "what was forgotten has none").await;
    // An orphan is replaced, and its replacement forgotten: the mark of its token stays.
    begin(&backend, &key(2)).await.1.release().await.unwrap();
    let (request, lease, previous) = begin(&backend, &key(2)).await;
    assert!(previous.is_some());
    records(2, "the orphan's stays, to be put back").await;
    backend
        .save_and_release(&forget(&request, &lease))
        .await
        .unwrap();
    records(1, "the mark of the token has one").await;
    assert_eq!(
        stands(&server, &key(2)),
        format!("f {} ", lease.fencing_token())
    );
    let (request, lease, _) = begin(&backend, &key(2)).await;
    for bytes in ["first", "second"] {
        backend.save(&keep(&request, &lease, bytes)).await.unwrap();
        records(1, "a result has one, however often it is saved").await;
    }
    lease.release().await.unwrap();
    assert_eq!(
        stands(&server, &key(2)),
        format!("c {} first", lease.fencing_token())
    );
    // One that is dropped on its way.
    for n in 0..60 {
        let request = patient(&key(format!("dropped {n}")), LONG);
        let open = opening("x");
        let dropped = backend.acquire_or_load(&request, Some(&open));
        let _ = tokio::time::timeout(Duration::from_micros(n * 60), dropped).await;
    }
    until("they are undone, or were granted", async || {
        server.keys_left(PREFIX).len() == server.leases().len() - 1
    })
    .await;
    // Refused, for it comes late: nothing is left of that either.
    let (stale, old, _) = begin(&backend, &key(3)).await;
    old.release().await.unwrap();
    let (_, next, _) = begin(&backend, &key(3)).await;
    let leases = server.leases().len();
    let refused = backend.save(&keep(&stale, &old, "stale")).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Lost);
    assert_eq!(server.leases().len(), leases);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_wakes_all_of_a_process_without_a_read_for_each() {
    const WAITERS: usize = 300;
    let server = Etcd::start();
    let (backend, other) = (connect(&server).await, connect(&server).await);
    let (request, lease, _) = begin(&backend, &key(1)).await;
    let mut waiting = JoinSet::new();
    for _ in 0..WAITERS {
        let other = other.clone();
        waiting.spawn(async move {
            let request = patient(&key(1), LONG);
            let found = other.acquire_or_load(&request, Some(&opening("x"))).await;
            (found.unwrap(), Instant::now())
        });
    }
    until("they wait", async || {
        waiters(&backend, &key(1)).await == WAITERS as u64
    })
    .await;
    let lock = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire(&patient(&key(1), LONG)).await }
    });
    until("a lock is behind them", async || {
        waiters(&backend, &key(1)).await == WAITERS as u64 + 1
    })
    .await;
    let before = asked(&server, "Txn");
    let saved = Instant::now();
    backend
        .save_and_release(&keep(&request, &lease, "result"))
        .await
        .unwrap();
    let mut last = saved;
    while let Some(found) = waiting.join_next().await {
        let (found, at) = found.unwrap();
        match found {
            Found::Record(record) => assert_eq!(record.bytes, "result"),
            other => panic!("{other:?}"),
        }
        last = last.max(at);
    }
    println!("{:?} from the save to the last of {WAITERS}", last - saved);
    let lock = tokio::time::timeout(PATIENCE, lock).await;
    let lock = lock.unwrap().unwrap().unwrap();
    let txns = asked(&server, "Txn") - before;
    println!("{txns} transactions");
    // One node of each is deleted; few are told that the one before them is gone before they go.
    assert!(txns < WAITERS as u64 * 2, "{txns}");
    lock.release().await.unwrap();
}

/// The end of a connection takes the watch of the record along.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_not_missed_over_a_broken_connection() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let backend = connect(&server).await;
    let other = connect_with(&url_of(&proxy), Duration::from_secs(2)).await;
    for n in 0..6 {
        let (request, lease, _) = begin(&backend, &key(n)).await;
        let waiting = tokio::spawn({
            let other = other.clone();
            async move {
                let request = patient(&key(n), LONG);
                other.acquire_or_load(&request, Some(&opening("x"))).await
            }
        });
        until("it waits", async || waiters(&backend, &key(n)).await == 1).await;
        let save = keep(&request, &lease, "result");
        // Before and after; the lock stays held, so that nothing else says so.
        if n % 2 == 0 {
            proxy.reset();
            backend.save(&save).await.unwrap();
        } else {
            proxy.refuse();
            proxy.reset();
            backend.save(&save).await.unwrap();
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..200))).await;
            proxy.heal();
        }
        let found = tokio::time::timeout(SLACK * 3, waiting).await;
        match found.expect("it is told").unwrap().unwrap() {
            Found::Record(record) => assert_eq!(record.bytes, "result"),
            other => panic!("{other:?}"),
        }
        lease.release().await.unwrap();
    }
}

/// What was saved before it came is not for it.
#[tokio::test(flavor = "multi_thread")]
async fn who_joins_others_that_wait_gets_no_older_result() {
    let server = Etcd::start();
    let (backend, other) = (connect(&server).await, connect(&server).await);
    let open = opening("x").with_results(Results::ForWaiting);
    for n in 0..20 {
        let request = patient(&key(1), LONG);
        let Found::Lease { lease, .. } = backend
            .acquire_or_load(&request, Some(&open))
            .await
            .unwrap()
        else {
            panic!("a result for somebody who does not wait");
        };
        let mut waiting = JoinSet::new();
        for _ in 0..4 {
            let (other, open) = (other.clone(), open.clone());
            waiting.spawn(async move {
                let request = patient(&key(1), LONG);
                other.acquire_or_load(&request, Some(&open)).await
            });
        }
        until("they wait", async || waiters(&backend, &key(1)).await == 4).await;
        let token = lease.fencing_token();
        let result = format!("{n}");
        let save = Save::keep(key(1), request.owner, token, result.clone(), LONG);
        backend.save_and_release(&save).await.unwrap();
        while let Some(found) = waiting.join_next().await {
            match found.unwrap().unwrap() {
                Found::Record(record) => assert_eq!(record.bytes, result),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_lock_is_another_holder() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let (request, lease, _) = begin(&backend, &key(1)).await;
    lease.release().await.unwrap();
    let node = format!("{}/694d8a4f5b1c2e10", name(&key(1)));
    server.etcdctl(&["put", &node, ""]);
    let second = AcquireRequest::new(key(1), LONG);
    match backend.acquire_or_load(&second, Some(&opening("x"))).await {
        Ok(Found::Held { open: Some(_), .. }) => {}
        other => panic!("{other:?}"),
    }
    let refused = backend.save(&keep(&request, &lease, "x")).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Lost);
    server.etcdctl(&["del", &node]);
    // It is late, and nobody came.
    backend.save(&keep(&request, &lease, "x")).await.unwrap();
    assert_eq!(backend.load(&key(1)).await.unwrap().unwrap().bytes, "x");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_open_or_closed_outlives_a_restart_with_its_data() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let (request, lease, _) = begin(&backend, &key(1)).await;
    backend
        .save_and_release(&keep(&request, &lease, "result"))
        .await
        .unwrap();
    begin(&backend, &key(2)).await.1.release().await.unwrap();
    server.kill_all();
    server.restart();
    until("it is back", async || {
        match try_it(&backend, &key(3)).await {
            Ok(lease) => lease.release().await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
    assert_eq!(
        backend.load(&key(1)).await.unwrap().unwrap().bytes,
        "result"
    );
    let keeps = opening("x").with_orphans(Orphans::Keep);
    let request = AcquireRequest::new(key(2), LONG);
    match backend.acquire_or_load(&request, Some(&keeps)).await {
        Ok(Found::Record(record)) => assert!(!record.is_closed()),
        other => panic!("{other:?}"),
    }
}

/// What has ended is taken away by the server, whether anybody asks or not.
#[tokio::test(flavor = "multi_thread")]
async fn records_of_keys_that_nobody_asks_for_end() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let ttl = Duration::from_secs(1);
    for n in 0..50 {
        let request = AcquireRequest::new(key(n), LONG);
        let open = Opening::new("x", ttl);
        match backend.acquire_or_load(&request, Some(&open)).await {
            Ok(Found::Lease { lease, .. }) if n % 2 == 0 => lease.release().await.unwrap(),
            Ok(Found::Lease { lease, .. }) => {
                let token = lease.fencing_token();
                let save = Save::keep(key(n), request.owner, token, "x", ttl);
                backend.save_and_release(&save).await.unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    until_nothing_is_left(&server, ttl + Duration::from_secs(1) + SLACK).await;
    assert_eq!(server.leases().len(), 1, "that of the locks");
}

/// It takes what frees, and says what is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_opens_nothing_and_lets_go() {
    let server = Etcd::start_with(&["--quota-backend-bytes", "4000000"]);
    let backend = connect_with(&server.url(), Duration::from_millis(600)).await;
    let (request, lease, _) = begin(&backend, &key(1)).await;
    let (second, other, _) = begin(&backend, &key(2)).await;
    let text = "x".repeat(500_000);
    let mut fills = 0;
    while server.try_etcdctl(&["put", &format!("fill{fills}"), &text[..100_000]]) {
        fills += 1;
        assert!(fills < 100, "it is never full");
    }
    let third = AcquireRequest::new(key(3), LONG);
    for refused in [
        backend
            .acquire_or_load(&third, Some(&opening("x")))
            .await
            .map(drop),
        backend
            .save_and_release(&keep(&request, &lease, "result"))
            .await,
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("NOSPACE"), "{error}");
    }
    assert_eq!(lease.lost().get(), None);
    lease.release().await.unwrap();
    backend
        .save_and_release(&forget(&second, &other))
        .await
        .unwrap();
    let left = server.keys_left(PREFIX);
    assert_eq!(left, [record_name(&key(1))], "what it opened stays");
}
