//! What is left on the server when nobody holds or waits, and what happens to locks when somebody
//! removes what they stand on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tower_lock::{Lease as _, ZooKeeperBackend};

use crate::{
    servers::ZooKeeperServer,
    support::{
        SESSION, connect, connect_with, hold, key, path, standing, try_it, until, until_it_works,
        until_nothing_is_left, wait,
    },
};

/// More than the server deletes of itself in half a minute.
const KEYS: u32 = 6_000;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_many_keys() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let before = server.figure("zk_znode_count");
    let next = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (backend, next) = (backend.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= KEYS {
                        return;
                    }
                    hold(&backend, &key(n)).await.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let took = until_nothing_is_left(&server, Duration::from_secs(15)).await;
    println!("nothing was left {took:?} after the last release");
    assert_eq!(server.figure("zk_znode_count"), before);
    assert_eq!(server.figure("zk_watch_count"), 0.0);
    // With the backend its session goes, and all that was its.
    drop(backend);
    until("no session is left", async || {
        server.ephemerals().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_is_dropped_leaves_nothing_at_once() {
    let server = ZooKeeperServer::start();
    // So long that the end of the session deletes nothing meanwhile.
    let backend = connect_with(&server.url(), Duration::from_secs(30)).await;
    let lease = hold(&backend, &key(1)).await;
    hold(&backend, &key(2)).await.release().await.unwrap();
    let waiting = wait(&server, &backend, &key(1)).await;
    waiting.abort();
    let _ = waiting.await;
    drop((backend, lease));
    let took = until_nothing_is_left(&server, Duration::from_secs(8)).await;
    println!("nothing was left after {took:?}");
    until("no session is left", async || {
        server.ephemerals().is_empty()
    })
    .await;
}

/// Whoever made a key's node: the last who used it deletes it, but for one that somebody made on
/// purpose.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_two_processes_deletes_what_the_first_made() {
    let server = ZooKeeperServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    let mut operator = server.session();
    assert_eq!(operator.create(&path(&key("kept"))), 0);
    for key in [key(1), key("kept")] {
        let lease = hold(&one, &key).await;
        let waiting = wait(&server, &two, &key).await;
        lease.release().await.unwrap();
        let next = waiting.await.unwrap().unwrap();
        // The first finds it in use.
        tokio::time::sleep(Duration::from_secs(4)).await;
        next.release().await.unwrap();
    }
    until("it is deleted", async || {
        !server.session().exists(&path(&key(1)))
    })
    .await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(server.session().exists(&path(&key("kept"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_somebody_deleted_are_made_again() {
    let server = ZooKeeperServer::start();
    let builder = ZooKeeperBackend::builder(&server.url()).with_base("/shop/locks");
    let backend = builder
        .with_session_timeout(SESSION)
        .connect()
        .await
        .unwrap();
    let mut operator = server.session();
    let parent = format!("/shop/locks/{}", key(1).as_str());
    for _ in 0..5 {
        hold(&backend, &key(1)).await.release().await.unwrap();
        assert_eq!(operator.delete(&parent), 0);
    }
    // And the base, while its session's own node comes back again and again.
    until("the base is gone", async || {
        let mut operator = server.session();
        for child in operator.children("/shop/locks") {
            operator.delete(&format!("/shop/locks/{child}"));
        }
        operator.delete("/shop/locks") == 0
    })
    .await;
    until_it_works(&backend, &key(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_node_was_deleted_stands_again() {
    let server = ZooKeeperServer::start();
    // Two sessions, as watches of one on the same node are one.
    let (one, two) = (connect(&server).await, connect(&server).await);
    let lease = hold(&one, &key(1)).await;
    let waiting = wait(&server, &two, &key(1)).await;
    // It has seen its own node in the queue then, and looks again when the lock is free.
    until("it watches the one before it", async || {
        server.figure("zk_watch_count") == 2.0
    })
    .await;
    let mut operator = server.session();
    let mut nodes = operator.children(&path(&key(1)));
    nodes.sort_by_key(|name| name.rsplit('-').next().map(str::to_owned));
    assert_eq!(
        operator.delete(&format!("{}/{}", path(&key(1)), nodes[1])),
        0
    );
    assert_eq!(standing(&server, &key(1)), 1);
    lease.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(try_it(&one, &key(1)).await.is_err());
    next.release().await.unwrap();
}
