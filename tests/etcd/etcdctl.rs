//! `etcdctl lock` on the same names: they wait for us, and we for them.

use std::time::Duration;

use tokio::time::sleep;
use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _, Mode};

use crate::{
    servers::{Etcd, Process},
    support::{
        LONG, SLACK, connect, hold, key, name, patient, served, try_it, until,
        until_nothing_is_left, wait, waiters,
    },
};

/// Another process that locks by etcd's own mutex, as long as it lives.
fn etcdctl_lock(server: &Etcd, name: &str) -> Process {
    let mut command = server.etcdctl_command(0);
    command.args(["lock", "--ttl", "2", name]);
    Process::spawn(&mut command, "scripts/test installs it")
}

/// Whether it holds: then it says its key.
async fn holds(process: &mut Process, name: &str, within: Duration) -> bool {
    let line = tokio::task::block_in_place(|| process.line_within(within));
    line.is_some_and(|line| line.starts_with(&format!("{name}/")))
}

#[tokio::test(flavor = "multi_thread")]
async fn we_wait_for_etcdctl() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let mut other = etcdctl_lock(&server, &name(&key(1)));
    assert!(holds(&mut other, &name(&key(1)), SLACK * 4).await);
    let refused = try_it(&backend, &key(1)).await.unwrap_err();
    assert_eq!(refused.kind(), BackendErrorKind::Contended);
    let state = backend.inspect(&key(1)).await.unwrap();
    assert_eq!(state.holders.len(), 1);
    assert_eq!(state.holders[0].mode, Mode::Exclusive);
    assert_eq!(state.holders[0].fencing_token, None);
    let reader = patient(&key(1), LONG).with_mode(Mode::Shared);
    let waiting = wait(&backend, &key(1)).await;
    let reading = crate::support::wait_with(&backend, reader).await;
    sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished() && !reading.is_finished());
    other.terminate();
    let (lease, took) = served(waiting, SLACK).await;
    println!("served {took:?} after its release");
    lease.release().await.unwrap();
    served(reading, SLACK).await.0.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_waits_for_us() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut held = Vec::new();
        for _ in 0..if mode == Mode::Shared { 2 } else { 1 } {
            let wish = patient(&key(1), LONG).with_mode(mode);
            held.push(backend.acquire(&wish).await.unwrap());
        }
        let mut other = etcdctl_lock(&server, &name(&key(1)));
        until("it waits", async || waiters(&backend, &key(1)).await == 1).await;
        // And we behind it.
        let behind = wait(&backend, &key(1)).await;
        while let Some(lease) = held.pop() {
            assert!(!holds(&mut other, &name(&key(1)), Duration::from_millis(200)).await);
            lease.release().await.unwrap();
        }
        assert!(holds(&mut other, &name(&key(1)), SLACK * 4).await);
        assert!(!behind.is_finished());
        other.terminate();
        let (lease, _) = served(behind, SLACK).await;
        lease.release().await.unwrap();
        assert!(other.wait(), "it ended well");
    }
    until_nothing_is_left(&server, SLACK).await;
}

/// In turn, as they came.
#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_and_we_stand_in_one_queue() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let held = hold(&backend, &key(1)).await;
    let mut others = Vec::new();
    let mut ours = Vec::new();
    for n in 0..3 {
        others.push(etcdctl_lock(&server, &name(&key(1))));
        until("it waits", async || {
            waiters(&backend, &key(1)).await == 2 * n + 1
        })
        .await;
        ours.push(wait(&backend, &key(1)).await);
    }
    held.release().await.unwrap();
    for (mut other, our) in others.into_iter().zip(ours) {
        assert!(holds(&mut other, &name(&key(1)), SLACK * 4).await);
        assert!(!our.is_finished());
        other.terminate();
        let (lease, _) = served(our, SLACK).await;
        lease.release().await.unwrap();
    }
    until_nothing_is_left(&server, SLACK).await;
}

/// One that dies goes with its lease.
#[tokio::test(flavor = "multi_thread")]
async fn an_etcdctl_that_is_killed_is_succeeded_when_its_lease_ends() {
    let server = Etcd::start();
    let backend = connect(&server).await;
    let mut other = etcdctl_lock(&server, &name(&key(1)));
    assert!(holds(&mut other, &name(&key(1)), SLACK * 4).await);
    let waiting = wait(&backend, &key(1)).await;
    other.kill();
    let (lease, took) = served(waiting, Duration::from_secs(3) + SLACK).await;
    println!("served {took:?} after its death");
    lease.release().await.unwrap();
}
