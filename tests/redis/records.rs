//! Records beside locks: what they cost, what stands on the server, where a slot or master moves.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tower_lock::{
    BackendErrorKind, Lease as _, LockKey, RedisBackend, ReplicaAck,
    backend::{AcquireRequest, Found, LockingRecordStore as _, redis::RedisLease},
    record::{Opening, Orphans, Record, RecordStore as _, Save},
};

use crate::{
    servers::{ClusterServers, RedisServer, SentinelServers},
    support::{
        LONG, SLACK, UNDONE, connect, hold, key, name, patient, try_it, until,
        until_nothing_is_left, waiters,
    },
};

pub(crate) fn record_name(key: &LockKey) -> String {
    format!("{{{}}}:rec", name(key))
}

pub(crate) fn opening(bytes: &'static str) -> Opening {
    Opening::new(bytes, LONG)
}

pub(crate) fn keep(request: &AcquireRequest, lease: &RedisLease, bytes: &'static str) -> Save {
    let token = lease.fencing_token();
    Save::keep(request.key.clone(), request.owner, token, bytes, LONG)
}

pub(crate) fn forget(request: &AcquireRequest, lease: &RedisLease) -> Save {
    Save::forget(request.key.clone(), request.owner, lease.fencing_token())
}

/// Begins, on a key that nobody holds: its request, lease, and the orphan that it replaced.
pub(crate) async fn begin(
    backend: &RedisBackend,
    key: &LockKey,
) -> (AcquireRequest, RedisLease, Option<Record>) {
    let request = AcquireRequest::new(key.clone(), LONG);
    match backend
        .acquire_or_load(&request, Some(&opening("begun")))
        .await
    {
        Ok(Found::Lease { lease, previous }) => (request, lease, previous),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_step_is_one_script_and_locks_alone_touch_no_record() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    // Every script is known, and this runtime has its connection.
    for n in 0..3 {
        let (request, lease, _) = begin(&backend, &key(n)).await;
        backend
            .save_and_release(&keep(&request, &lease, "x"))
            .await
            .unwrap();
        hold(&backend, &key("lock")).await.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let scripts = || server.calls("evalsha") + server.calls("eval");
    let steps = |expected: u64, what: &str| {
        assert_eq!(scripts(), expected, "scripts of {what}");
        server.reset_calls();
    };
    server.reset_calls();
    let (request, lease, _) = begin(&backend, &key("new")).await;
    steps(1, "a first request");
    let second = AcquireRequest::new(key("new"), LONG);
    let found = backend.acquire_or_load(&second, Some(&opening("x"))).await;
    assert!(
        matches!(found, Ok(Found::Held { open: Some(_), .. })),
        "{found:?}"
    );
    tokio::time::sleep(Duration::from_millis(50)).await;
    steps(1, "a duplicate, which leaves nothing to undo");
    backend
        .save_and_release(&keep(&request, &lease, "x"))
        .await
        .unwrap();
    drop(lease);
    tokio::time::sleep(Duration::from_millis(50)).await;
    steps(1, "a save with its release");
    let found = backend.acquire_or_load(&second, Some(&opening("x"))).await;
    assert!(matches!(found, Ok(Found::Record(_))), "{found:?}");
    tokio::time::sleep(Duration::from_millis(50)).await;
    steps(1, "a replay");
    hold(&backend, &key("lock")).await.release().await.unwrap();
    steps(2, "a lock and its release");

    // `MONITOR` says what they do: of locks alone, nothing to a record.
    let mut monitor = server.client();
    monitor.call(&["MONITOR"]).unwrap();
    hold(&backend, &key("lock")).await.release().await.unwrap();
    server.command(&["ECHO", "the end"]);
    let mut seen = Vec::new();
    while !seen
        .last()
        .is_some_and(|line: &String| line.contains("the end"))
    {
        seen.push(monitor.read().unwrap().to_string());
    }
    assert!(seen.len() > 5, "{seen:?}");
    assert!(!seen.iter().any(|line| line.contains(":rec")), "{seen:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_stand_beside_their_lock_and_have_an_end() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let stands = |key: &LockKey| server.command(&["GET", &record_name(key)]).to_string();
    let (request, lease, _) = begin(&backend, &key(7)).await;
    let token = lease.fencing_token();
    let lock = server.command(&["GET", &name(&key(7))]).to_string();
    let owner = lock.split(' ').nth(1).unwrap();
    assert_eq!(stands(&key(7)), format!("o {token} {owner} 0 begun"));
    lease.release().await.unwrap();

    // An orphan: the next one has it in its own record until it is sure to be the next one.
    let (next, lease, previous) = begin(&backend, &key(7)).await;
    let newer = lease.fencing_token();
    assert_eq!(previous.unwrap().token, token);
    let value = stands(&key(7));
    assert!(value.starts_with(&format!("o {newer} ")), "{value}");
    assert!(
        value.ends_with(&format!("o {token} {owner} 0 begunbegun")),
        "{value}"
    );
    backend
        .save_and_release(&forget(&next, &lease))
        .await
        .unwrap();
    assert_eq!(stands(&key(7)), format!("f {newer} "));
    assert!(backend.load(&key(7)).await.unwrap().is_none());
    let (last, lease, previous) = begin(&backend, &key(7)).await;
    assert!(previous.is_none());
    backend
        .save_and_release(&keep(&last, &lease, "end"))
        .await
        .unwrap();
    assert_eq!(stands(&key(7)), format!("c {} end", lease.fencing_token()));
    let stale = Save::keep(request.key, request.owner, token, "stale", LONG);
    let refused = backend.save(&stale).await.unwrap_err();
    assert_eq!(refused.kind(), BackendErrorKind::Lost);

    begin(&backend, &key(8)).await.1.release().await.unwrap();
    let (ninth, lease, _) = begin(&backend, &key(9)).await;
    lease.release().await.unwrap();
    drop(ninth);
    let (ninth, lease, _) = begin(&backend, &key(9)).await;
    backend
        .save_and_release(&forget(&ninth, &lease))
        .await
        .unwrap();
    for n in 7..10 {
        let ms = server.command(&["PTTL", &record_name(&key(n))]).int();
        assert!(ms > 0 && ms <= LONG.as_millis() as i64, "{n}: {ms}");
    }
}

/// Many that wait for one result: their process hears once, and loads it once.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_that_wait_have_it_together() {
    let server = RedisServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    let mut took = Vec::new();
    for round in 0..5 {
        let key = key(round);
        let (request, lease, _) = begin(&one, &key).await;
        let mut waiting = JoinSet::new();
        for n in 0..1000 {
            let backend = if n % 2 == 0 { one.clone() } else { two.clone() };
            let request = patient(&key, LONG);
            waiting
                .spawn(async move { backend.acquire_or_load(&request, Some(&opening("x"))).await });
        }
        until("all wait", async || waiters(&server, &key) == 1000).await;
        server.reset_calls();
        let begun = Instant::now();
        one.save_and_release(&keep(&request, &lease, "result"))
            .await
            .unwrap();
        while let Some(found) = waiting.join_next().await {
            match found.unwrap().unwrap() {
                Found::Record(record) => assert_eq!(record.bytes, "result"),
                other => panic!("{other:?}"),
            }
        }
        took.push(begun.elapsed());
        assert_eq!(waiters(&server, &key), 0);
        // The save, and perhaps a look of each process.
        let scripts = server.calls("evalsha") + server.calls("eval");
        assert!(scripts < 10, "{scripts} scripts for 1000 who wait");
        server.command(&["DEL", &record_name(&key)]);
    }
    took.sort();
    println!("1000 who waited had it after {took:?}");
    assert!(took[0] < Duration::from_millis(250), "{took:?}");
    until_nothing_is_left(&server, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_saves_nothing_and_releases() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let (request, lease, _) = begin(&backend, &key(1)).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let save = keep(&request, &lease, "result");
    for refused in [
        backend.save_and_release(&save).await,
        backend
            .acquire_or_load(&AcquireRequest::new(key(2), LONG), None)
            .await
            .map(drop),
    ] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("maxmemory"), "{error}");
    }
    assert_eq!(lease.lost().get(), None);
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    // It said nothing, so what it opened stays.
    let (next, lease, previous) = begin(&backend, &key(1)).await;
    assert!(previous.is_some());
    backend
        .save_and_release(&forget(&next, &lease))
        .await
        .unwrap();
    server.command(&["DEL", &record_name(&key(1))]);
    until_nothing_is_left(&server, UNDONE).await;
}

/// The stream to a replica is in order, and grant and record are one moment of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_counts_when_replicas_have_it() {
    const WITHIN: Duration = Duration::from_millis(400);
    let servers = SentinelServers::start(1);
    let connect = async |within| {
        RedisBackend::builder(&servers.url())
            .with_replica_ack(ReplicaAck::Require(1), within)
            .connect()
            .await
            .unwrap()
    };
    // For as long as the replica is there, however busy the machine is, and for when it is not.
    let patient = connect(Duration::from_secs(5)).await;
    let backend = connect(WITHIN).await;
    let replica = servers.replicas().next().unwrap();
    for n in 0..30 {
        let (request, lease, _) = begin(&patient, &key(n)).await;
        let there = [name(&key(n)), record_name(&key(n))];
        let there = replica.command(&["EXISTS", &there[0], &there[1]]).int();
        assert_eq!(there, 2, "{n}");
        patient
            .save_and_release(&forget(&request, &lease))
            .await
            .unwrap();
    }
    replica.pause();
    let request = AcquireRequest::new(key("a"), LONG);
    let refused = backend.acquire_or_load(&request, Some(&opening("x"))).await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::NotReplicated);
    until_nothing_is_left(servers.master(), UNDONE).await;
    // Dropped in the middle of that, too.
    let request = AcquireRequest::new(key("b"), LONG);
    let began = opening("x");
    let dropped = backend.acquire_or_load(&request, Some(&began));
    assert!(tokio::time::timeout(WITHIN / 2, dropped).await.is_err());
    until_nothing_is_left(servers.master(), UNDONE).await;
    replica.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_moves_with_its_slot() {
    let servers = ClusterServers::start(3, 0);
    let connect = async || RedisBackend::connect(&servers.url()).await.unwrap();
    let (one, two) = (connect().await, connect().await);
    let key = key(1);
    let slot = servers.slot_of(&name(&key));
    assert_eq!(servers.slot_of(&record_name(&key)), slot);
    let from = servers.node_of_key(&name(&key));
    let to = (from + 1) % 3;
    let (request, lease, _) = begin(&one, &key).await;
    let open = opening("x");
    let waiting = tokio::spawn({
        let (two, request, open) = (two.clone(), patient(&key, LONG), open.clone());
        async move { two.acquire_or_load(&request, Some(&open)).await }
    });
    until("it waits", async || waiters(servers.node(from), &key) == 1).await;

    let moving = servers.begin_move(slot, to);
    moving.these_keys(&[name(&key)]);
    // Keys here and there: what needs several waits, what needs one goes on.
    let save = keep(&request, &lease, "result");
    let saving = tokio::spawn({
        let one = one.clone();
        async move { one.save_and_release(&save).await }
    });
    assert_eq!(two.load(&key).await.unwrap().unwrap().bytes, "begun");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!saving.is_finished());
    moving.keys();
    moving.end();
    saving.await.unwrap().unwrap();
    match tokio::time::timeout(SLACK * 4, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap()
    {
        Found::Record(record) => assert_eq!(record.bytes, "result"),
        other => panic!("{other:?}"),
    }
    assert_eq!(one.load(&key).await.unwrap().unwrap().bytes, "result");
    let there = servers.node(to).command(&["EXISTS", &record_name(&key)]);
    assert_eq!(there.int(), 1);
    assert_eq!(lease.lost().get(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_open_or_closed_outlives_a_restart_with_its_data() {
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let backend = connect(&server).await;
    let (request, lease, _) = begin(&backend, &key(1)).await;
    backend
        .save_and_release(&keep(&request, &lease, "result"))
        .await
        .unwrap();
    begin(&backend, &key(2)).await.1.release().await.unwrap();
    server.restart();
    until("it is back", async || {
        try_it(&backend, &key(3)).await.is_ok()
    })
    .await;
    assert_eq!(
        backend.load(&key(1)).await.unwrap().unwrap().bytes,
        "result"
    );
    let keeps = opening("x").with_orphans(Orphans::Keep);
    let request = AcquireRequest::new(key(2), LONG);
    match backend
        .acquire_or_load(&request, Some(&keeps))
        .await
        .unwrap()
    {
        Found::Record(record) => assert!(!record.is_closed()),
        other => panic!("{other:?}"),
    }
}
