//! kazoo's and Curator's own locks on the paths of ours: our waiters queue behind theirs, and theirs
//! behind ours.

use std::time::Duration;

use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, Mode, ZooKeeperBackend,
    backend::{AcquireRequest, WaitBound, zookeeper::NodeLayout},
};

use crate::{
    servers::{ForeignClient, ZooKeeperServer, zookeeper::TICK},
    support::{
        LONG, SESSION, SLACK, begin, hold, key, path, patient, served, standing, try_it, until,
    },
};

/// The session timeout of theirs.
const THEIRS: Duration = Duration::from_secs(4);

async fn connect(server: &ZooKeeperServer, layout: NodeLayout) -> ZooKeeperBackend {
    let builder = ZooKeeperBackend::builder(&server.url()).with_layout(layout);
    let builder = builder.with_session_timeout(SESSION);
    builder.connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn curators_mutex_and_we_exclude_each_other() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server, NodeLayout::Curator).await;
    let foreign = || ForeignClient::curator(server.address(), "Mutex");
    exclude_each_other(&server, &backend, foreign).await;
    // A mutex waits for our shared holders too, and they for it.
    let foreign = foreign();
    shared_excludes_exclusive(&server, &backend, foreign).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curators_read_write_lock_and_we_exclude_each_other() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server, NodeLayout::CuratorReadWrite).await;
    let writer = || ForeignClient::curator(server.address(), "Write");
    exclude_each_other(&server, &backend, writer).await;
    shared_excludes_exclusive(&server, &backend, writer()).await;
    let reader = ForeignClient::curator(server.address(), "Read");
    shares(&server, &backend, reader).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoos_lock_and_we_exclude_each_other() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server, NodeLayout::Kazoo).await;
    let foreign = || ForeignClient::kazoo(server.address(), "Lock");
    exclude_each_other(&server, &backend, foreign).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoos_read_and_write_locks_and_we_exclude_each_other() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server, NodeLayout::Kazoo).await;
    let writer = || ForeignClient::kazoo(server.address(), "WriteLock");
    exclude_each_other(&server, &backend, writer).await;
    shared_excludes_exclusive(&server, &backend, writer()).await;
    let reader = ForeignClient::kazoo(server.address(), "ReadLock");
    shares(&server, &backend, reader).await;
}

async fn exclude_each_other(
    server: &ZooKeeperServer,
    backend: &ZooKeeperBackend,
    start: impl Fn() -> ForeignClient,
) {
    let (mut one, mut two) = (start(), start());
    let key = key(1);
    let path = &path(&key);
    let in_queue = async |count| {
        until("it is in the queue", async || {
            standing(server, &key) == count
        })
        .await;
    };

    // We hold: they wait behind us, and we behind them.
    let lease = hold(backend, &key).await;
    assert!(!one.acquire(path, THEIRS, Duration::from_millis(100)));
    in_queue(1).await;
    one.begin_acquire(path, THEIRS, LONG);
    in_queue(2).await;
    let ours = begin(backend, patient(&key));
    in_queue(3).await;
    two.begin_acquire(path, THEIRS, LONG);
    in_queue(4).await;
    assert!(one.is_silent_for(Duration::from_millis(50)));
    let state = backend.inspect(&key).await.unwrap();
    assert_eq!((state.holders.len(), state.waiters), (1, 3));
    assert_eq!(state.holders[0].fencing_token, Some(lease.fencing_token()));

    // It goes through the queue in the order of arrival.
    lease.release().await.unwrap();
    assert!(one.answer());
    assert!(two.is_silent_for(Duration::from_millis(100)) && !ours.is_finished());
    let error = try_it(backend, &key).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Contended);
    let state = backend.inspect(&key).await.unwrap();
    assert_eq!(state.holders[0].fencing_token, None);
    assert!(one.release(path));
    let (next, took) = served(ours, SLACK).await;
    println!("had it {took:?} after its release");
    assert!(next.fencing_token() > lease.fencing_token());
    assert!(two.is_silent_for(Duration::from_millis(100)));
    next.release().await.unwrap();
    assert!(two.answer());

    // It dies with the lock: we have it when its session has ended.
    let ours = begin(backend, patient(&key));
    in_queue(2).await;
    let free = backend.wait_free(&key, WaitBound::Fail).await;
    assert_eq!(free.unwrap_err().kind(), BackendErrorKind::Contended);
    two.kill();
    let (next, took) = served(ours, THEIRS + 2 * TICK + SLACK).await;
    println!("had it {took:?} after it was killed");
    next.release().await.unwrap();

    // An operator of ours may take it from them.
    assert!(one.acquire(path, THEIRS, THEIRS));
    assert!(backend.force_release(&key).await.unwrap());
    hold(backend, &key).await.release().await.unwrap();
}

async fn shared_excludes_exclusive(
    server: &ZooKeeperServer,
    backend: &ZooKeeperBackend,
    mut foreign: ForeignClient,
) {
    let key = key(2);
    let path = &path(&key);
    let shared = || patient(&key).with_mode(Mode::Shared);
    let readers = [
        backend.acquire(&shared()).await.unwrap(),
        backend.acquire(&shared()).await.unwrap(),
    ];
    foreign.begin_acquire(path, THEIRS, LONG);
    until("it is in the queue", async || standing(server, &key) == 3).await;
    let late = begin(backend, shared());
    until("the late one is too", async || standing(server, &key) == 4).await;
    for reader in &readers {
        assert!(foreign.is_silent_for(Duration::from_millis(100)));
        reader.release().await.unwrap();
    }
    assert!(foreign.answer());
    let beside = AcquireRequest::new(key.clone(), LONG).with_mode(Mode::Shared);
    let error = backend.acquire(&beside).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Contended);
    assert!(!late.is_finished());
    assert!(foreign.release(path));
    served(late, SLACK).await.0.release().await.unwrap();
}

/// Their readers and ours hold together, and keep our writer out.
async fn shares(server: &ZooKeeperServer, backend: &ZooKeeperBackend, mut foreign: ForeignClient) {
    let key = key(3);
    let path = &path(&key);
    let shared = patient(&key).with_mode(Mode::Shared);
    let ours = backend.acquire(&shared).await.unwrap();
    assert!(foreign.acquire(path, THEIRS, THEIRS));
    let writer = begin(backend, patient(&key));
    until("the writer is in the queue", async || {
        standing(server, &key) == 3
    })
    .await;
    ours.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!writer.is_finished());
    assert!(foreign.release(path));
    let (writer, _) = served(writer, SLACK).await;
    foreign.begin_acquire(path, THEIRS, LONG);
    assert!(foreign.is_silent_for(Duration::from_millis(100)));
    writer.release().await.unwrap();
    assert!(foreign.answer());
    assert!(foreign.release(path));
}
