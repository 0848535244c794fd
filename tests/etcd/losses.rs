//! Locks that are taken away, and what their holders hear.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _, Loss, Mode};

use crate::{
    servers::Etcd,
    support::{
        LONG, SLACK, connect, hold, hold_for, key, name, patient, served, until_nothing_is_left,
        wait,
    },
};

/// Told by the server, not by the next renewal.
async fn hears(lease: &tower_lock::backend::etcd::EtcdLease) -> Loss {
    timeout(SLACK, lease.lost().wait())
        .await
        .expect("its holder is told at once")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_lease_is_lost_at_once_and_the_next_lock_is_served_without_a_restart() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let held = [hold(&backend, &key(1)).await, hold(&backend, &key(2)).await];
    let waiting = wait(&backend, &key(1)).await;
    // Watched by now.
    sleep(Duration::from_millis(300)).await;
    let leases = server.leases();
    assert_eq!(leases.len(), 1, "one for all of a ttl: {leases:?}");
    server.etcdctl(&["lease", "revoke", &leases[0]]);
    for lease in &held {
        assert_eq!(hears(lease).await, Loss::Revoked);
        let renewed = lease.renew().await.map_err(|error| error.kind());
        assert_eq!(renewed, Err(BackendErrorKind::Lost));
    }
    // Its place went with the lease too; it stands anew, by a new one.
    let (next, _) = served(waiting, SLACK).await;
    assert!(next.fencing_token() > held[1].fencing_token());
    hold(&backend, &key(2)).await.release().await.unwrap();
    for lease in held {
        lease.release().await.unwrap();
    }
    next.renew().await.unwrap();
    next.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_an_operator_takes_away_is_lost_at_once() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let other = connect(&server).await;
    let (one, two) = (hold(&backend, &key(1)).await, hold(&backend, &key(2)).await);
    assert!(other.force_release(&key(1)).await.unwrap());
    assert_eq!(hears(&one).await, Loss::ForceReleased);
    server.etcdctl(&["del", &format!("{}/", name(&key(2))), "--prefix"]);
    assert_eq!(hears(&two).await, Loss::Revoked);
    assert!(!other.force_release(&key(1)).await.unwrap());
    hold(&other, &key(1)).await.release().await.unwrap();
    hold(&other, &key(2)).await.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// Also one who has held for no time at all; but for a server that is busy at that moment, which
/// may tell the one who waits first.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_is_heard_of_before_the_next_one_holds() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let other = connect(&server).await;
    let mut told = 0;
    for _ in 0..5 {
        let held = hold(&backend, &key(1)).await;
        let waiting = wait(&other, &key(1)).await;
        assert!(other.force_release(&key(1)).await.unwrap());
        let (next, _) = served(waiting, SLACK).await;
        told += u32::from(held.lost().get().is_some());
        assert_eq!(hears(&held).await, Loss::ForceReleased);
        next.release().await.unwrap();
    }
    assert!(told >= 3, "{told} of 5 were told in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_readers_hear_of_a_forced_release() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let shared = || patient(&key(1), LONG).with_mode(Mode::Shared);
    let one = backend.acquire(&shared()).await.unwrap();
    let two = backend.acquire(&shared()).await.unwrap();
    let writer = wait(&backend, &key(1)).await;
    assert!(backend.force_release(&key(1)).await.unwrap());
    assert_eq!(hears(&one).await, Loss::ForceReleased);
    assert_eq!(hears(&two).await, Loss::ForceReleased);
    let (writer, _) = served(writer, SLACK).await;
    writer.release().await.unwrap();
}

/// The lease at the server lives on with others of its ttl; the lock ends all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_nobody_renews_ends_although_its_process_lives() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let ttl = Duration::from_secs(2);
    let lapses = hold_for(&backend, &key(1), ttl).await;
    let kept = hold_for(&backend, &key(2), ttl).await;
    let (kept, keeper) = crate::support::keep(kept, ttl);
    let waiting = wait(&backend, &key(1)).await;
    let (next, _) = served(waiting, ttl + SLACK).await;
    assert_eq!(lapses.lost().get(), Some(Loss::Expired));
    assert!(lapses.valid_until() <= tokio::time::Instant::now());
    sleep(ttl).await;
    assert!(kept.lost().get().is_none());
    keeper.abort();
    let _ = keeper.await;
    next.release().await.unwrap();
    kept.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}
