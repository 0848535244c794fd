//! npm's `redlock` and Python's `redlock-py` on the same nodes and keys: they exclude us and we
//! them.

use std::time::Duration;

use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _};

use crate::{
    servers::ForeignClient,
    support::{
        LONG, SLACK, UNDONE, deploy, hold, key, kind, name, not_renewed, patient, renewed, served,
        try_it, until_nothing_is_left, wait,
    },
};

/// How soon after a foreign release we must have it: the first of a process asks every 25 ms at
/// first, every second in the end.
const POLLED: Duration = Duration::from_millis(1100);

#[tokio::test(flavor = "multi_thread")]
async fn npm_redlock_and_we_exclude_each_other() {
    exclude_each_other(ForeignClient::redlock_of).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_py_and_we_exclude_each_other() {
    exclude_each_other(ForeignClient::redlock_py).await;
}

async fn exclude_each_other(start: impl FnOnce(&[String]) -> ForeignClient) {
    let (servers, backend) = deploy(3).await;
    let mut foreign = start(&servers.urls());
    let key = key("shared with others");
    let name = &name(&key);

    // We hold.
    let lease = hold(&backend, &key).await;
    assert!(!foreign.acquire(name, LONG, Duration::ZERO));
    renewed(&lease).await;
    // Its attempts took nothing away, on no node.
    servers.node(2).pause();
    renewed(&lease).await;
    servers.node(2).resume();
    lease.release().await.unwrap();

    // It holds: not ours to have, wait for or free.
    assert!(foreign.acquire(name, LONG, Duration::ZERO));
    let refused = try_it(&backend, &key).await.unwrap_err();
    assert_eq!(refused.kind(), BackendErrorKind::Contended);
    assert!(refused.remaining().is_some_and(|left| left <= LONG));
    let state = backend.inspect(&key).await.unwrap();
    assert_eq!(state.holders.len(), 1);
    assert_eq!(state.holders[0].fencing_token, None);
    let waiting = wait(&backend, &key).await;
    assert!(foreign.release(name));
    let (lease, took) = served(waiting, POLLED + SLACK).await;
    println!("had it {took:?} after its release");
    assert!(!foreign.acquire(name, LONG, Duration::ZERO));
    lease.release().await.unwrap();

    // It dies with the lock: we have it at the end of its ttl.
    let ttl = Duration::from_millis(700);
    assert!(foreign.acquire(name, ttl, Duration::ZERO));
    let lease = backend.acquire(&patient(&key, LONG)).await.unwrap();
    // Too late it finds that it lost, and harms nobody.
    let _ = foreign.release(name);
    renewed(&lease).await;
    lease.release().await.unwrap();

    // Ours ends unrenewed: it has it.
    let short = backend.acquire(&patient(&key, ttl)).await.unwrap();
    assert!(foreign.acquire(name, LONG, ttl + SLACK));
    assert_eq!(not_renewed(&short).await, BackendErrorKind::Lost);
    short.release().await.unwrap();
    drop(short);
    assert_eq!(
        kind(try_it(&backend, &key).await),
        BackendErrorKind::Contended
    );
    // An operator of ours may take it from them.
    assert!(backend.force_release(&key).await.unwrap());
    hold(&backend, &key).await.release().await.unwrap();
    until_nothing_is_left(&servers, UNDONE).await;
}
