//! Records while processes die or pause, and the network loses and delays.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tower_lock::{
    BackendErrorKind, Lease as _,
    backend::{AcquireRequest, Found, LockingRecordStore as _},
    record::{RecordState, RecordStore as _},
};

use crate::{
    child::Child,
    records::{begin, forget, keep, opening, record_name},
    servers::{RedisServer, TcpProxy},
    support::{
        LONG, SLACK, UNDONE, connect, connect_with, hold, key, patient, try_it, until,
        until_nothing_is_left,
    },
};

const TIMEOUT: Duration = Duration::from_millis(500);

async fn until_ended(server: &RedisServer, n: u32) {
    let lock = crate::support::name(&key(n));
    until("the lease has ended", async || {
        server.command(&["EXISTS", &lock]).int() == 0
    })
    .await;
}

/// A process stops past the end of its lease, its successor finishes, and it wakes up and saves.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_paused_saves_neither_over_nor_before_its_successor() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let ttl = Duration::from_millis(300);
    for n in 0..4 {
        let mut child = Child::start(&server.url());
        child.begin(&n.to_string(), ttl);
        child.pause();
        until_ended(&server, n).await;
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
        let orphan = previous.unwrap();
        assert_eq!(orphan.bytes, "child");
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
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let mut child = Child::start(&server.url());
    child.begin("1", Duration::from_millis(500));
    let request = patient(&key(1), LONG);
    let open = opening("x");
    let waiting = backend.acquire_or_load(&request, Some(&open));
    child.kill();
    let limit = Duration::from_millis(500) + SLACK * 2;
    match tokio::time::timeout(limit, waiting).await.unwrap().unwrap() {
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

/// A client behind a proxy, that has its connections and whose server knows its scripts.
async fn settled(proxy: &TcpProxy, url: &str) -> tower_lock::RedisBackend {
    let backend = connect_with(url, TIMEOUT).await;
    let (request, lease, _) = begin(&backend, &key("before")).await;
    backend
        .save_and_release(&forget(&request, &lease))
        .await
        .unwrap();
    drop(hold(&backend, &key("before")).await);
    until("three connections are up", async || {
        proxy.connections() == 3
    })
    .await;
    until("all is well", async || {
        match try_it(&backend, &key("before")).await {
            Ok(lease) => lease.release().await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
    backend
}

/// The attempt was executed, and nobody heard of it: neither lock nor record is left, and an
/// orphan is there again.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_granted_unheard_is_taken_back_with_its_record() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = settled(&proxy, &proxy.redis_url()).await;
    let stands = |n: u32| server.command(&["GET", &record_name(&key(n))]).to_string();
    begin(&backend, &key(2)).await.1.release().await.unwrap();
    let orphan = stands(2);
    for (n, before) in [(1, "(nil)"), (2, &*orphan)] {
        // Where the machine was so busy that it was given up before it ran, it is done again.
        let mut tries = 0;
        let mut ran = false;
        while !ran {
            tries += 1;
            assert!(tries <= 20, "it never runs");
            proxy.drop_down();
            let attempt = tokio::spawn({
                let (backend, request) = (backend.clone(), AcquireRequest::new(key(n), LONG));
                let open = opening("unheard");
                async move { backend.acquire_or_load(&request, Some(&open)).await }
            });
            while !attempt.is_finished() {
                ran |= stands(n).contains("unheard");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let refused = attempt.await.unwrap();
            assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
            proxy.heal();
            until("it is as before", async || {
                stands(n) == before
                    && server
                        .command(&["EXISTS", &crate::support::name(&key(n))])
                        .int()
                        == 0
            })
            .await;
            until("all is well", async || {
                try_it(&backend, &key("x")).await.is_ok()
            })
            .await;
        }
    }
}

/// The answer of a save is lost: it was done, and to repeat it is harmless.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_whose_answer_was_lost_is_repeated() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = settled(&proxy, &proxy.redis_url()).await;
    let (request, lease, _) = begin(&backend, &key(1)).await;
    let save = keep(&request, &lease, "result");
    proxy.drop_down();
    let unheard = backend.save_and_release(&save).await.unwrap_err();
    assert_eq!(unheard.kind(), BackendErrorKind::Unavailable);
    proxy.heal();
    until("it is accepted", async || {
        backend.save_and_release(&save).await.is_ok()
    })
    .await;
    assert_eq!(
        backend.load(&key(1)).await.unwrap().unwrap().bytes,
        "result"
    );
    let other = connect(&server).await;
    let next = hold(&other, &key(1)).await;
    lease.release().await.unwrap();
    drop(lease);
    next.renew().await.unwrap();
    next.release().await.unwrap();
}

/// The bytes of an attempt arrive after its undo, which then has buried it, or ended its connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_attempt_opens_nothing() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    let rights = [
        "~tower-lock:*",
        "~{tower-lock:*",
        "&tower-lock:inbox:*",
        "+@all",
    ];
    let mut user = vec!["ACL", "SETUSER", "restricted", "on", ">secret"];
    user.extend(rights);
    user.push("-client|kill");
    server.command(&user);
    let restricted = format!("redis://restricted:secret@{}", proxy.address());
    for url in [proxy.redis_url(), restricted] {
        let backend = settled(&proxy, &url).await;
        proxy.strand();
        let request = AcquireRequest::new(key(1), LONG);
        let refused = backend
            .acquire_or_load(&request, Some(&opening("late")))
            .await;
        assert_eq!(refused.unwrap_err().kind(), BackendErrorKind::Unavailable);
        until("it works again", async || {
            match try_it(&backend, &key("after")).await {
                Ok(lease) => lease.release().await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
        tokio::time::sleep(TIMEOUT * 2).await;
        proxy.heal();
        tokio::time::sleep(Duration::from_millis(100)).await;
        until_nothing_is_left(&server, UNDONE).await;
        drop(backend);
        until("its connections are closed", async || {
            proxy.connections() == 0
        })
        .await;
    }
}

/// Connections break all the time: every key comes to one result, whoever runs knows of those who
/// began before, and nothing but results is left.
#[tokio::test(flavor = "multi_thread")]
async fn connections_break_and_every_key_has_one_result() {
    const KEYS: u32 = 60;
    // A connection that is given up refuses at once, and all who ask would keep it from coming back.
    const A_MOMENT: Duration = Duration::from_millis(5);
    let server = RedisServer::start();
    let proxy = Arc::new(TcpProxy::start(server.address()));
    let backend = settled(&proxy, &proxy.redis_url()).await;
    let over = Arc::new(AtomicBool::new(false));
    // Whatever anybody was told that is no error.
    let answers = Arc::new(AtomicU64::new(0));
    let breaks = std::thread::spawn({
        let (proxy, over, answers) = (proxy.clone(), over.clone(), answers.clone());
        move || {
            while !over.load(Ordering::Relaxed) {
                let heard = answers.load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(fastrand::u64(5..60)));
                proxy.reset();
                // However slow the machine is, it comes to an end: each break leaves time enough
                // for one answer.
                while answers.load(Ordering::Relaxed) == heard && !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    });
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..KEYS * 4 {
        let (backend, answers) = (backend.clone(), answers.clone());
        tasks.spawn(async move {
            let key = key(n % KEYS);
            loop {
                let request = patient(&key, LONG);
                let found = backend.acquire_or_load(&request, Some(&opening("x"))).await;
                if found.is_ok() {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                match found {
                    Ok(Found::Record(record)) => return (n % KEYS, record.token, 0),
                    Ok(Found::Lease { lease, previous }) => {
                        // Whoever began here also saves, until it hears that it did.
                        assert!(previous.is_none(), "{previous:?}");
                        let save = keep(&request, &lease, "result");
                        while let Err(error) = backend.save_and_release(&save).await {
                            assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
                            tokio::time::sleep(A_MOMENT).await;
                        }
                        answers.fetch_add(1, Ordering::Relaxed);
                        return (n % KEYS, lease.fencing_token(), 1);
                    }
                    Ok(Found::Held { .. }) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
                        tokio::time::sleep(A_MOMENT).await;
                    }
                }
            }
        });
    }
    let mut results = vec![Vec::new(); KEYS as usize];
    let mut runs = vec![0; KEYS as usize];
    while let Some(done) = tasks.join_next().await {
        let (n, token, ran) = done.unwrap();
        results[n as usize].push(token);
        runs[n as usize] += ran;
    }
    over.store(true, Ordering::Relaxed);
    breaks.join().unwrap();
    for n in 0..KEYS as usize {
        assert_eq!(runs[n], 1, "runs of key {n}");
        results[n].dedup();
        assert_eq!(results[n].len(), 1, "results of key {n}");
        server.command(&["DEL", &record_name(&key(n))]);
    }
    until_nothing_is_left(&server, Duration::from_secs(3)).await;
}
