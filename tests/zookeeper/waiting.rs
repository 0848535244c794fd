//! The queue: who is woken, who is refused, and what the server has to do for it.

use std::time::Duration;

use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _, Mode, backend::AcquireRequest};

use crate::{
    servers::ZooKeeperServer,
    support::{
        LONG, SLACK, begin, connect, hold, key, path, patient, served, standing, try_it, until,
        until_nothing_is_left, wait,
    },
};

const NOTIFICATIONS: &str = "zk_sum_node_deleted_watch_count";

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_one_of_a_hundred_waiters() {
    let server = ZooKeeperServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    let lease = hold(&one, &key(1)).await;
    let mut waiting = Vec::new();
    for n in 0..100 {
        let backend = if n % 2 == 0 { &two } else { &one };
        waiting.push(wait(&server, backend, &key(1)).await);
    }
    // One for each waiter, on the one before it, and the holder's own on its node.
    until("all have set their watches", async || {
        server.figure("zk_watch_count") as u64 == 101
    })
    .await;

    let before = server.figure(NOTIFICATIONS);
    lease.release().await.unwrap();
    let (lease, took) = served(waiting.remove(0), SLACK).await;
    println!("served {took:?} after the release, with 99 others waiting");
    let notifications = server.figure(NOTIFICATIONS) - before;
    // Its successor, and its own process.
    assert!(notifications <= 2.0, "{notifications} notifications");
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));

    // All are served in their order, each by the release of the one before it.
    lease.release().await.unwrap();
    let before = server.figure(NOTIFICATIONS);
    let mut token = lease.fencing_token();
    let mut soon = 0;
    for waiting in waiting {
        let (lease, took) = served(waiting, SLACK).await;
        soon += u32::from(took < Duration::from_millis(400));
        assert!(lease.fencing_token() > token);
        token = lease.fencing_token();
        lease.release().await.unwrap();
    }
    let notifications = server.figure(NOTIFICATIONS) - before;
    assert!(notifications <= 2.0 * 99.0, "{notifications} notifications");
    // Not by the looks that whoever is the next takes once a second.
    assert!(soon > 80, "{soon} of 99 were served soon");
    until_nothing_is_left(&server, Duration::from_secs(8)).await;
    assert_eq!(server.figure("zk_watch_count") as u64, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_leaves_nothing_and_keeps_nobody_waiting() {
    let server = ZooKeeperServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    let lease = hold(&one, &key(1)).await;
    let waiting = wait(&server, &one, &key(1)).await;
    for _ in 0..100 {
        let error = try_it(&two, &key(1)).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Contended);
        assert_eq!(standing(&server, &key(1)), 2);
    }
    // Between the release and the waiter's grant there is no gap for one either.
    let tries = tokio::spawn({
        let two = two.clone();
        async move {
            for _ in 0..200 {
                let outcome = try_it(&two, &key(1)).await;
                assert_eq!(outcome.unwrap_err().kind(), BackendErrorKind::Contended);
            }
        }
    });
    lease.release().await.unwrap();
    let (lease, _) = served(waiting, SLACK).await;
    tries.await.unwrap();
    lease.release().await.unwrap();
    // Many at once on a free key: one at most has it, and nobody waits for one that has left.
    let tries: Vec<_> = (0..32)
        .map(|n| {
            let backend = if n % 2 == 0 { &one } else { &two };
            begin(backend, AcquireRequest::new(key(1), LONG))
        })
        .collect();
    let last = begin(&two, patient(&key(1)));
    let mut held = 0;
    for one in tries {
        if let Ok(lease) = one.await.unwrap() {
            held += 1;
            lease.release().await.unwrap();
        }
    }
    println!("{held} of 32 had it");
    let (lease, _) = served(last, SLACK * 2).await;
    lease.release().await.unwrap();
    until_nothing_is_left(&server, Duration::from_secs(8)).await;
}

/// A reader waits for the nearest writer before it, and is not woken by other readers.
#[tokio::test(flavor = "multi_thread")]
async fn readers_behind_a_writer_are_woken_by_it_alone() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let shared = || patient(&key(1)).with_mode(Mode::Shared);
    let first = backend.acquire(&shared()).await.unwrap();
    let second = backend.acquire(&shared()).await.unwrap();
    let writer = wait(&server, &backend, &key(1)).await;
    let mut readers = Vec::new();
    for n in 0..10 {
        readers.push(begin(&backend, shared()));
        until("it is in the queue", async || {
            standing(&server, &key(1)) == 4 + n
        })
        .await;
    }
    let state = backend.inspect(&key(1)).await.unwrap();
    assert_eq!((state.holders.len(), state.waiters), (2, 11));
    assert_eq!(state.holders[0].mode, Mode::Shared);
    assert_eq!(state.name, path(&key(1)));
    first.release().await.unwrap();
    second.release().await.unwrap();
    let (writer, _) = served(writer, SLACK).await;
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    assert!(writer.fencing_token() > second.fencing_token());
    writer.release().await.unwrap();
    let mut held = Vec::new();
    for reader in readers {
        held.push(served(reader, SLACK).await.0);
    }
    // An operator takes it from all of them.
    assert!(backend.force_release(&key(1)).await.unwrap());
    for lease in held {
        assert!(
            tokio::time::timeout(SLACK, lease.lost().wait())
                .await
                .is_ok()
        );
    }
    until_nothing_is_left(&server, Duration::from_secs(8)).await;
}
