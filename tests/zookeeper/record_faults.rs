//! Records while processes die or pause, sessions end, and the network loses and delays.

use std::{
    future::Future as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::time::{sleep, timeout};
use tower_lock::{
    BackendErrorKind, Lease as _, ZooKeeperBackend,
    backend::{Found, LockingRecordStore as _},
    record::{RecordState, RecordStore as _},
};

use crate::{
    child::Child,
    records::{begin, forget, keep, opening, stands},
    servers::{TcpProxy, ZooKeeperServer, zookeeper::TICK},
    support::{LONG, SESSION, SLACK, connect, hold, key, patient, standing, try_it, until, url},
};

/// How late answers are while one of them is to be lost.
const LATE: Duration = Duration::from_millis(400);

async fn through(proxy: &TcpProxy, session: Duration) -> ZooKeeperBackend {
    ZooKeeperBackend::builder(&url(proxy.address()))
        .with_session_timeout(session)
        .with_operation_timeout(Duration::from_secs(8))
        .connect()
        .await
        .unwrap()
}

fn slow(proxy: &TcpProxy) {
    proxy.set_latency(Duration::ZERO, LATE);
}

/// The answer to what was done just now is lost.
fn lose(proxy: &TcpProxy) {
    proxy.reset();
    proxy.heal();
}

/// With its key's node, and in one that is there: what was opened is found, not opened again.
#[tokio::test(flavor = "multi_thread")]
async fn an_opening_whose_answer_is_lost_is_found_by_its_owner() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = through(&proxy, Duration::from_secs(15)).await;
    for (n, is_hot, is_orphan) in [(1, false, false), (2, true, false), (3, true, true)] {
        if is_orphan {
            begin(&backend, &key(n)).await.1.release().await.unwrap();
        } else if is_hot {
            hold(&backend, &key(n)).await.release().await.unwrap();
        }
        let before = stands(&server, &key(n));
        slow(&proxy);
        let task = tokio::spawn({
            let backend = backend.clone();
            async move {
                let request = patient(&key(n));
                let open = opening("unheard");
                let found = backend.acquire_or_load(&request, Some(&open)).await;
                (request, found)
            }
        });
        until("it is open", async || stands(&server, &key(n)) != before).await;
        let opened = stands(&server, &key(n));
        lose(&proxy);
        let (request, found) = task.await.unwrap();
        let Ok(Found::Lease { lease, previous }) = found else {
            panic!("{found:?}");
        };
        assert_eq!(previous.is_some(), is_orphan);
        assert_eq!(stands(&server, &key(n)), opened);
        assert_eq!(standing(&server, &key(n)), 1);
        backend
            .save_and_release(&keep(&request, &lease, "result"))
            .await
            .unwrap();
        let loaded = backend.load(&key(n)).await.unwrap().unwrap();
        assert_eq!(loaded.token, lease.fencing_token());
    }
}

/// Its caller has left meanwhile: neither node nor record is left, and an orphan is there again.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_opened_unheard_is_taken_back() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = through(&proxy, Duration::from_secs(15)).await;
    begin(&backend, &key(2)).await.1.release().await.unwrap();
    for n in [1, 2] {
        let before = backend.load(&key(n)).await.unwrap();
        let stood = stands(&server, &key(n));
        slow(&proxy);
        let task = tokio::spawn({
            let backend = backend.clone();
            async move {
                let open = opening("unheard");
                let _ = backend
                    .acquire_or_load(&patient(&key(n)), Some(&open))
                    .await;
            }
        });
        until("it is open", async || stands(&server, &key(n)) != stood).await;
        task.abort();
        let _ = task.await;
        lose(&proxy);
        until("nobody stands there", async || {
            standing(&server, &key(n)) == 0
        })
        .await;
        // At once: they go together.
        let after = backend.load(&key(n)).await.unwrap();
        assert_eq!(after, before);
        begin(&backend, &key(n)).await.1.release().await.unwrap();
    }
}

/// What nobody took is taken back in the next session, where its own ended first.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_opened_in_a_session_that_ends_is_taken_back_in_the_next() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let session = Duration::from_secs(4);
    let backend = through(&proxy, session).await;
    let other = connect(&server).await;
    for is_orphan in [false, true] {
        let key = key(is_orphan);
        if is_orphan {
            begin(&other, &key).await.1.release().await.unwrap();
        }
        let stood = stands(&server, &key);
        let before = other.load(&key).await.unwrap();
        let request = patient(&key);
        let open = opening("unheard");
        let mut offered = Box::pin(backend.acquire_or_load(&request, Some(&open)));
        std::future::poll_fn(|cx| {
            assert!(offered.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        until("it is open", async || stands(&server, &key) != stood).await;
        proxy.black_hole();
        drop(offered);
        until("its session has ended", async || {
            standing(&server, &key) == 0
        })
        .await;
        assert_ne!(stands(&server, &key), stood, "nothing was to be undone");
        lose(&proxy);
        until("it is taken back", async || {
            other.load(&key).await.unwrap() == before
        })
        .await;
        hold(&backend, &key).await.release().await.unwrap();
    }
}

/// It was done, and is not done twice; those who wait have it, and nobody the key in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_whose_answer_is_lost_was_done() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = through(&proxy, Duration::from_secs(15)).await;
    let other = connect(&server).await;
    for forgets in [false, true] {
        let key = key(forgets);
        let (request, lease, _) = begin(&backend, &key).await;
        let save = match forgets {
            true => forget(&request, &lease),
            false => keep(&request, &lease, "result"),
        };
        slow(&proxy);
        let task = tokio::spawn({
            let (backend, save) = (backend.clone(), save.clone());
            async move { backend.save_and_release(&save).await }
        });
        until("it is done", async || standing(&server, &key) == 0).await;
        lose(&proxy);
        // The key is another's by the time the saver knows.
        let next = hold(&other, &key).await;
        task.await.unwrap().unwrap();
        assert_eq!(lease.lost().get(), None);
        let loaded = other.load(&key).await.unwrap();
        assert_eq!(loaded.is_none(), forgets);
        // To repeat it is harmless, and so is what becomes of the lease.
        let again = backend.save_and_release(&save).await;
        assert!(again.is_ok() || forgets, "{again:?}");
        lease.release().await.unwrap();
        drop(lease);
        next.renew().await.unwrap();
        next.release().await.unwrap();
        assert_eq!(other.load(&key).await.unwrap(), loaded);
    }
}

/// A process stops past the end of its session, its successor finishes, and it wakes up and saves.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_paused_saves_neither_over_nor_before_its_successor() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let paused = async |n: u32| {
        let mut child = Child::start(&server.url());
        child.begin(&n.to_string());
        child.pause();
        let over = async || standing(&server, &key(n)) == 0;
        until("its session has ended", over).await;
        child
    };
    let (a, b, c, d) = tokio::join!(paused(0), paused(1), paused(2), paused(3));
    for (n, mut child) in [a, b, c, d].into_iter().enumerate() {
        let key = key(n);
        if n == 3 {
            // Nobody came: it is late, and right.
            child.resume();
            assert!(child.save("late"));
            let loaded = backend.load(&key).await.unwrap().unwrap();
            let expected = (RecordState::Closed, &b"late"[..]);
            assert_eq!((loaded.state, &*loaded.bytes), expected);
            continue;
        }
        let (request, lease, previous) = begin(&backend, &key).await;
        assert_eq!(previous.unwrap().bytes, "child");
        let successor = keep(&request, &lease, "successor");
        // While it still works, after it saved, after it forgot.
        match n {
            0 => {}
            1 => backend.save_and_release(&successor).await.unwrap(),
            _ => {
                let forget = forget(&request, &lease);
                backend.save_and_release(&forget).await.unwrap();
            }
        }
        child.resume();
        assert!(!child.save("late"), "{n}");
        if n == 0 {
            lease.renew().await.unwrap();
            backend.save_and_release(&successor).await.unwrap();
        }
        let loaded = backend.load(&key).await.unwrap();
        match n {
            2 => assert!(loaded.is_none(), "{loaded:?}"),
            _ => assert_eq!(loaded.unwrap().bytes, "successor"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_leaves_an_orphan_to_who_waits() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let mut child = Child::start(&server.url());
    child.begin("1");
    let request = patient(&key(1));
    let waiting = tokio::spawn({
        let (backend, request) = (backend.clone(), request.clone());
        async move { backend.acquire_or_load(&request, Some(&opening("x"))).await }
    });
    until("it waits", async || standing(&server, &key(1)) == 2).await;
    child.kill();
    let limit = SESSION + 2 * TICK + SLACK * 2;
    let found = timeout(limit, waiting).await.unwrap();
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

/// A lease ends with its session while its holder works: the result of a holder without a successor
/// is kept, over the next session, and one with a successor is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_session_ended_saves_in_the_next_or_is_refused() {
    let server = ZooKeeperServer::start();
    let proxy = TcpProxy::start(server.address());
    let backend = through(&proxy, Duration::from_secs(4)).await;
    let other = connect(&server).await;
    let held = [
        begin(&backend, &key(0)).await,
        begin(&backend, &key(1)).await,
    ];
    proxy.black_hole();
    until("its session has ended", async || {
        standing(&server, &key(0)) + standing(&server, &key(1)) == 0
    })
    .await;
    let successor = begin(&other, &key(1)).await;
    lose(&proxy);
    for (n, (request, lease, _)) in held.iter().enumerate() {
        lease.lost().wait().await;
        let save = keep(request, lease, "late");
        let mut saved = backend.save_and_release(&save).await;
        while saved
            .as_ref()
            .is_err_and(|error| error.kind() == BackendErrorKind::Unavailable)
        {
            sleep(Duration::from_millis(50)).await;
            saved = backend.save_and_release(&save).await;
        }
        let refused = saved.err().map(|error| error.kind());
        assert_eq!(refused, (n == 1).then_some(BackendErrorKind::Lost));
    }
    assert_eq!(other.load(&key(0)).await.unwrap().unwrap().bytes, "late");
    let (request, lease, orphan) = successor;
    assert_eq!(orphan.unwrap().bytes, "begun");
    lease.renew().await.unwrap();
    other
        .save_and_release(&keep(&request, &lease, "new"))
        .await
        .unwrap();
}

/// Connections break all the time: every key comes to one result, and nothing but results is left.
#[tokio::test(flavor = "multi_thread")]
async fn connections_break_and_every_key_has_one_result() {
    const KEYS: u32 = 40;
    let server = ZooKeeperServer::start();
    let proxy = Arc::new(TcpProxy::start(server.address()));
    let backend = through(&proxy, Duration::from_secs(15)).await;
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
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..KEYS * 4 {
        let backend = backend.clone();
        tasks.spawn(async move {
            let mut runs = Vec::new();
            loop {
                let request = patient(&key(n % KEYS));
                let open = opening("open");
                // Some leave in the middle of it.
                let patience = match n % 3 {
                    0 => Duration::from_millis(fastrand::u64(1..80)),
                    _ => LONG,
                };
                let found = backend.acquire_or_load(&request, Some(&open));
                let lease = match timeout(patience, found).await {
                    Ok(Ok(Found::Lease { lease, .. })) => lease,
                    Ok(Ok(Found::Record(record))) => return (n % KEYS, runs, record.token),
                    Ok(Ok(Found::Held { .. }) | Err(_)) | Err(_) => continue,
                };
                let save = keep(&request, &lease, "result");
                let token = lease.fencing_token();
                while let Err(error) = backend.save_and_release(&save).await {
                    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
                }
                runs.push(token);
            }
        });
    }
    let mut results = std::collections::HashMap::new();
    while let Some(done) = timeout(Duration::from_secs(100), tasks.join_next())
        .await
        .expect("it comes to an end")
    {
        let (n, runs, token) = done.unwrap();
        assert!(runs.iter().all(|run| *run == token), "two runs of one key");
        assert_eq!(*results.entry(n).or_insert(token), token);
    }
    over.store(true, Ordering::Relaxed);
    breaks.join().unwrap();
    assert_eq!(results.len(), KEYS as usize);
    until("nobody stands anywhere", async || {
        (0..KEYS).all(|n| standing(&server, &key(n)) == 0)
    })
    .await;
    for n in 0..KEYS {
        let loaded = until_loaded(&backend, n).await;
        assert_eq!(loaded, Some((RecordState::Closed, results[&n])));
    }
}

async fn until_loaded(
    backend: &ZooKeeperBackend,
    n: u32,
) -> Option<(RecordState, tower_lock::FencingToken)> {
    let begun = std::time::Instant::now();
    loop {
        match backend.load(&key(n)).await {
            Ok(record) => return record.map(|record| (record.state, record.token)),
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
    }
}

/// What was open or closed outlives a restart of the servers with their data, and ends when it is to.
#[tokio::test(flavor = "multi_thread")]
async fn records_outlive_a_restart() {
    let server = ZooKeeperServer::start();
    let builder = ZooKeeperBackend::builder(&server.url());
    let session = Duration::from_secs(20);
    let backend = builder
        .with_session_timeout(session)
        .connect()
        .await
        .unwrap();
    let (request, lease, _) = begin(&backend, &key(1)).await;
    backend
        .save_and_release(&keep(&request, &lease, "result"))
        .await
        .unwrap();
    begin(&backend, &key(2)).await.1.release().await.unwrap();
    server.restart();
    until("it works again", async || {
        match try_it(&backend, &key(3)).await {
            Ok(lease) => lease.release().await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
    let loaded = backend.load(&key(1)).await.unwrap().unwrap();
    assert_eq!(
        (loaded.state, &*loaded.bytes),
        (RecordState::Closed, &b"result"[..])
    );
    let (_, lease, previous) = begin(&backend, &key(2)).await;
    assert_eq!(previous.unwrap().bytes, "begun");
    lease.release().await.unwrap();
}
