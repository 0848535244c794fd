//! Records while processes die or pause, leases are revoked, and the network loses and delays.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tower_lock::{
    BackendErrorKind, EtcdBackend, Lease as _,
    backend::{AcquireRequest, Found, LockingRecordStore as _},
    record::{RecordState, RecordStore as _},
};

use crate::{
    child::Child,
    records::{begin, forget, keep, opening, record_name, stands},
    servers::{Etcd, TcpProxy},
    support::{
        LONG, PREFIX, SLACK, connect, connect_with, hold, key, name, patient, until,
        until_it_serves, until_nothing_is_left, url_of, waiters,
    },
};

const TIMEOUT: Duration = Duration::from_millis(900);

/// The server ends a lease within a second of its time.
const EXPIRY: Duration = Duration::from_secs(1);

async fn until_free(server: &Etcd, n: u64) {
    let lock = format!("{}/", name(&key(n)));
    until("the lease has ended", async || {
        server.keys_left(&lock).is_empty()
    })
    .await;
}

/// A process stops past the end of its lease, its successor finishes, and it wakes up and saves.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_paused_saves_neither_over_nor_before_its_successor() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let ttl = Duration::from_secs(1);
    for n in 0..4 {
        let mut child = Child::start(&server.url());
        child.begin(&n.to_string(), ttl);
        child.pause();
        until_free(&server, n).await;
        if n == 3 {
            // Nobody came: it is late, and right.
            child.resume();
            assert!(child.save("late"));
            let loaded = backend.load(&key(n)).await.unwrap().unwrap();
            assert_eq!(
                (loaded.state, &*loaded.bytes),
                (RecordState::Closed, &b"late"[..])
            );
            continue;
        }
        let (request, lease, previous) = begin(&backend, &key(n)).await;
        assert_eq!(previous.unwrap().bytes, "child");
        let saved = match n {
            // While it still works, after it saved, after it forgot.
            0 => None,
            1 => Some(keep(&request, &lease, "successor")),
            _ => Some(forget(&request, &lease)),
        };
        if let Some(saved) = &saved {
            backend.save_and_release(saved).await.unwrap();
        }
        child.resume();
        assert!(!child.save("late"), "{n}");
        if n == 0 {
            lease.renew().await.unwrap();
            backend
                .save_and_release(&keep(&request, &lease, "successor"))
                .await
                .unwrap();
        }
        let loaded = backend.load(&key(n)).await.unwrap();
        match n {
            2 => assert!(loaded.is_none(), "{loaded:?}"),
            _ => assert_eq!(loaded.unwrap().bytes, "successor"),
        }
        drop(lease);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_leaves_an_orphan_to_who_waits() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let mut child = Child::start(&server.url());
    let ttl = Duration::from_secs(2);
    child.begin("1", ttl);
    let request = patient(&key(1), LONG);
    let waiting = tokio::spawn({
        let (backend, request) = (backend.clone(), request.clone());
        async move { backend.acquire_or_load(&request, Some(&opening("x"))).await }
    });
    until("it waits", async || waiters(&backend, &key(1)).await == 1).await;
    child.kill();
    let limit = ttl + EXPIRY + SLACK * 2;
    let found = tokio::time::timeout(limit, waiting).await.unwrap();
    match found.unwrap().unwrap() {
        Found::Lease { lease, previous } => {
            assert_eq!(previous.unwrap().bytes, "child");
            backend
                .save_and_release(&keep(&request, &lease, "x"))
                .await
                .unwrap();
        }
        other => panic!("{other:?}"),
    }
}

/// The lease of a process's locks is revoked at the server: the records are not on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_leaves_the_record_and_a_wait_goes_on() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let other = connect(&server).await;
    hold(&other, &key("lock")).await.release().await.unwrap();
    let of_other = server.leases();
    let (request, lease, _) = begin(&backend, &key(1)).await;
    let waiting = tokio::spawn({
        let other = other.clone();
        async move {
            let request = patient(&key(1), LONG);
            let found = other.acquire_or_load(&request, Some(&opening("x"))).await;
            (request, found.unwrap())
        }
    });
    until("it waits", async || waiters(&backend, &key(1)).await == 1).await;
    // First the one who waits loses its place, and stands anew; then the holder.
    server.etcdctl(&["lease", "revoke", &of_other[0]]);
    until("it waits again", async || {
        server.leases().iter().all(|lease| *lease != of_other[0])
            && waiters(&backend, &key(1)).await == 1
    })
    .await;
    let node = format!("{}/", name(&key(1)));
    let fields = server.etcdctl(&["get", &node, "--prefix", "-w", "fields", "--sort-by=CREATE"]);
    let held_by = fields
        .lines()
        .find_map(|line| line.strip_prefix("\"Lease\" : "));
    let held_by: i64 = held_by.expect("a lease").parse().unwrap();
    server.etcdctl(&["lease", "revoke", &format!("{held_by:x}")]);
    let (next, found) = tokio::time::timeout(SLACK * 3, waiting)
        .await
        .unwrap()
        .unwrap();
    let Found::Lease {
        lease: newer,
        previous,
    } = found
    else {
        panic!("{found:?}")
    };
    assert_eq!(previous.unwrap().token, lease.fencing_token());
    let refused = backend
        .save_and_release(&keep(&request, &lease, "stale"))
        .await;
    assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Lost);
    other
        .save_and_release(&keep(&next, &newer, "result"))
        .await
        .unwrap();
    let loaded = backend.load(&key(1)).await.unwrap().unwrap();
    assert_eq!(loaded.bytes, "result");
}

/// A client behind a proxy, that has its connection and its lease.
async fn settled(proxy: &TcpProxy) -> EtcdBackend {
    let backend = connect_with(&url_of(proxy), TIMEOUT).await;
    hold(&backend, &key("before"))
        .await
        .release()
        .await
        .unwrap();
    backend
}

/// The attempt was executed, and nobody heard of it: neither lock nor record is left, and an
/// orphan is there again.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_granted_unheard_is_taken_back_with_its_record() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let backend = settled(&proxy).await;
    let other = connect(&server).await;
    begin(&other, &key(2)).await.1.release().await.unwrap();
    for n in 1..=2 {
        let before = stands(&server, &key(n));
        let leases = server.leases().len();
        let (mut heard, mut opened) = (0, 0);
        // The look is answered, the lease is, or neither; and the grant took place, or not.
        for wait in (8..30).map(|n| n * 4) {
            let request = AcquireRequest::new(key(n), LONG);
            let open = opening("unheard");
            proxy.set_latency(Duration::from_millis(10), Duration::from_millis(10));
            let asking = tokio::spawn({
                let (backend, open) = (backend.clone(), open.clone());
                async move { backend.acquire_or_load(&request, Some(&open)).await }
            });
            tokio::time::sleep(Duration::from_millis(wait)).await;
            proxy.drop_down();
            match asking.await.unwrap() {
                Ok(Found::Lease { lease, .. }) => {
                    // It was faster. Its caller may have begun, and says that it did not.
                    heard += 1;
                    proxy.heal();
                    until_it_serves(&backend).await;
                    drop(lease);
                    until_free(&server, n).await;
                    if opened > 0 {
                        break;
                    }
                    // It slept for longer than it was to.
                    continue;
                }
                Ok(other) => panic!("{other:?}"),
                Err(error) => assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}"),
            }
            opened += u32::from(stands(&server, &key(n)).ends_with("unheard"));
            proxy.heal();
            until_it_serves(&backend).await;
            until_free(&server, n).await;
            until("the record is as it was", async || {
                let now = stands(&server, &key(n));
                // Put back, it says its token.
                now.ends_with("0 begun") == before.ends_with("0 begun")
                    && now.is_empty() == before.is_empty()
            })
            .await;
            if opened == 3 {
                break;
            }
        }
        println!("key {n}: {opened} opened, {heard} heard");
        assert!(opened > 0, "no grant was unheard");
        if heard == 0 {
            let record = other.load(&key(n)).await.unwrap();
            assert_eq!(record.is_some(), n == 2, "{record:?}");
        }
        until("no lease is left over", async || {
            server.leases().len() <= leases + 1 + heard
        })
        .await;
    }
}

/// The answer of a save is lost: it was done, and to repeat it is harmless.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_whose_answer_was_lost_is_repeated() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let backend = settled(&proxy).await;
    let other = connect(&server).await;
    hold(&other, &key("before")).await.release().await.unwrap();
    for forgets in [false, true] {
        let (request, lease, _) = begin(&backend, &key(1)).await;
        let leases = server.leases().len();
        let save = match forgets {
            false => keep(&request, &lease, "result"),
            true => forget(&request, &lease),
        };
        proxy.drop_down();
        let unheard = backend.save_and_release(&save).await.unwrap_err();
        assert_eq!(unheard.kind(), BackendErrorKind::Unavailable);
        proxy.heal();
        until("it is accepted", async || {
            backend.save_and_release(&save).await.is_ok()
        })
        .await;
        let loaded = other.load(&key(1)).await.unwrap();
        match forgets {
            false => assert_eq!(loaded.unwrap().bytes, "result"),
            true => assert!(loaded.is_none(), "{loaded:?}"),
        }
        let next = hold(&other, &key(1)).await;
        // Once more, while another holds: what was saved stays so.
        let again = backend.save_and_release(&save).await;
        match forgets {
            false => again.unwrap(),
            true => assert_eq!(again.unwrap_err().kind(), BackendErrorKind::Lost),
        }
        lease.release().await.unwrap();
        drop(lease);
        next.renew().await.unwrap();
        next.release().await.unwrap();
        // However often it was tried, it has one lease.
        until("no lease is left over", async || {
            server.leases().len() <= leases
        })
        .await;
        server.etcdctl(&["del", &record_name(&key(1))]);
    }
    until_nothing_is_left(&server, SLACK).await;
}

/// What was sent arrives after its undo, which has left a mark.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_attempt_opens_nothing() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    let backend = settled(&proxy).await;
    let mut marks = 0;
    for wait in (9..40).map(|n| n * 2) {
        let request = AcquireRequest::new(key(1), LONG);
        let open = opening("late");
        proxy.set_latency(Duration::from_millis(5), Duration::from_millis(5));
        let asking = tokio::spawn({
            let backend = backend.clone();
            let dropped = async move { backend.acquire_or_load(&request, Some(&open)).await };
            tokio::time::timeout(Duration::from_millis(200), dropped)
        });
        tokio::time::sleep(Duration::from_millis(wait)).await;
        // What is sent from now on waits in the network; new connections are well.
        proxy.strand();
        if let Ok(Ok(Found::Lease { lease, .. })) = asking.await.unwrap() {
            drop(lease);
            proxy.heal();
            until_free(&server, 1).await;
            server.etcdctl(&["del", &record_name(&key(1))]);
            if marks > 0 {
                break;
            }
            // It slept for longer than it was to.
            continue;
        }
        until_it_serves(&backend).await;
        tokio::time::sleep(TIMEOUT).await;
        proxy.heal();
        // Whatever arrives of it, arrives within this time.
        tokio::time::sleep(Duration::from_millis(300)).await;
        until_nothing_is_left(&server, SLACK).await;
        marks = server.keys("tower-lock/undo/").len();
        if marks >= 3 {
            break;
        }
    }
    println!("{marks} were on their way when they were undone");
    assert!(marks > 0, "no grant was late");
}

/// Dropped at any moment, with answers that take their time.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_attempts_leave_neither_records_nor_leases() {
    let server = Etcd::start();
    let proxy = TcpProxy::start(server.address(0));
    proxy.set_latency(Duration::from_millis(1), Duration::from_millis(1));
    let backend = connect_with(&url_of(&proxy), Duration::from_secs(3)).await;
    let other = connect(&server).await;
    let (request, held, _) = begin(&other, &key("held")).await;
    let mut began = Vec::new();
    for n in 0..200 {
        let key = if n % 2 == 0 { key(n) } else { key("held") };
        let wish = patient(&key, LONG);
        let open = opening("dropped");
        let after = Duration::from_micros(n * 60);
        let dropped = backend.acquire_or_load(&wish, Some(&open));
        match tokio::time::timeout(after, dropped).await {
            Ok(Ok(Found::Lease { lease, .. })) => began.push((wish, lease)),
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    }
    println!("{} were granted", began.len());
    for (wish, lease) in &began {
        let forget = forget(wish, lease);
        backend.save_and_release(&forget).await.unwrap();
    }
    other
        .save_and_release(&forget(&request, &held))
        .await
        .unwrap();
    until_nothing_is_left(&server, SLACK).await;
    // Those of the locks, of two clients.
    until("no lease is left over", async || server.leases().len() == 2).await;
}

/// Requests for so many keys, four for each, over these clients: every key comes to one result, and
/// whoever runs knows of those who began before. Returns when all have their answer.
async fn one_result_each(backends: &[EtcdBackend], from: u64, keys: u64) {
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..keys * 4 {
        let backend = backends[n as usize % backends.len()].clone();
        tasks.spawn(async move {
            let (n, key) = (n % keys, key(from + n % keys));
            loop {
                let request = patient(&key, LONG);
                match backend.acquire_or_load(&request, Some(&opening("x"))).await {
                    Ok(Found::Record(record)) => return (n, record.token, 0),
                    Ok(Found::Lease { lease, previous }) => {
                        // Whoever began here also saves, until it hears that it did.
                        assert!(previous.is_none(), "{previous:?}");
                        let save = keep(&request, &lease, "result");
                        while let Err(error) = backend.save_and_release(&save).await {
                            assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
                        }
                        return (n, lease.fencing_token(), 1);
                    }
                    Ok(Found::Held { .. }) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
                    }
                }
            }
        });
    }
    let mut results = vec![Vec::new(); keys as usize];
    let mut runs = vec![0; keys as usize];
    while let Some(done) = tasks.join_next().await {
        let (n, token, ran) = done.unwrap();
        results[n as usize].push(token);
        runs[n as usize] += ran;
    }
    for n in 0..keys as usize {
        assert_eq!(runs[n], 1, "runs of key {n}");
        results[n].dedup();
        assert_eq!(results[n].len(), 1, "results of key {n}");
    }
}

async fn until_only_results_are_left(server: &Etcd, keys: u64, clients: usize) {
    until("nothing but results is left", async || {
        let left = server.keys_left(PREFIX);
        left.len() == keys as usize && left.iter().all(|name| name.contains("/rec/"))
    })
    .await;
    until("nor a lease but theirs", async || {
        server.leases().len() <= keys as usize + clients
    })
    .await;
}

/// Connections break all the time.
#[tokio::test(flavor = "multi_thread")]
async fn connections_break_and_every_key_has_one_result() {
    const KEYS: u64 = 40;
    let server = Etcd::start();
    let proxy = Arc::new(TcpProxy::start(server.address(0)));
    let backend = settled(&proxy).await;
    let over = Arc::new(AtomicBool::new(false));
    let breaks = std::thread::spawn({
        let (proxy, over) = (proxy.clone(), over.clone());
        move || {
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(fastrand::u64(20..120)));
                proxy.reset();
            }
        }
    });
    one_result_each(std::slice::from_ref(&backend), 0, KEYS).await;
    over.store(true, Ordering::Relaxed);
    breaks.join().unwrap();
    until_only_results_are_left(&server, KEYS, 1).await;
}

/// Members are killed and come back, the leader first.
#[tokio::test(flavor = "multi_thread")]
async fn members_die_and_every_key_has_one_result() {
    const KEYS: u64 = 60;
    let server = Arc::new(Etcd::cluster(3));
    let mut backends = Vec::new();
    for _ in 0..2 {
        let backend = connect_with(&server.url(), Duration::from_secs(4)).await;
        hold(&backend, &key("before"))
            .await
            .release()
            .await
            .unwrap();
        backends.push(backend);
    }
    let deaths = std::thread::spawn({
        let server = server.clone();
        move || {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(fastrand::u64(20..200)));
                server.kill(server.leader());
                std::thread::sleep(Duration::from_millis(1500));
                server.restart();
            }
        }
    });
    for round in 0..3 {
        one_result_each(&backends, round * KEYS, KEYS).await;
    }
    tokio::task::spawn_blocking(move || deaths.join().unwrap())
        .await
        .unwrap();
    until_only_results_are_left(&server, KEYS * 3, 2).await;
}
