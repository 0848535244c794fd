//! Many callers of one process leave at once.

use std::time::Duration;

use tokio::{task::JoinSet, time::Instant};
use tower_lock::{Lease as _, LockBackend as _, RedisBackend};

use crate::{
    servers::{RedisServer, TcpProxy, patience::quiet},
    support::{LONG, connect_with, hold, key, patient, until, until_nothing_is_left, waiters},
};

const CALLERS: usize = 1000;

const TIMEOUT: Duration = Duration::from_secs(1);

/// So many who stand in the queue.
async fn callers(server: &RedisServer, backend: &RedisBackend) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let request = patient(&key(1), LONG);
        let backend = backend.clone();
        callers.spawn(async move {
            backend.acquire(&request).await.unwrap();
        });
    }
    until("all wait", async || {
        waiters(server, &key(1)) == CALLERS as i64
    })
    .await;
    callers
}

#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_may_leave_at_once() {
    let server = RedisServer::start();
    let backend = connect_with(&server.url(), TIMEOUT).await;
    let held = hold(&backend, &key(1)).await;
    let mut callers = callers(&server, &backend).await;
    server.reset_calls();
    server.pause();
    callers.shutdown().await;
    // So long that no answer is waited for any more, and the connection counts as dead.
    until("the server counts as away", async || {
        let begun = Instant::now();
        backend.inspect(&key(1)).await.is_err() && begun.elapsed() < TIMEOUT / 10
    })
    .await;
    server.resume();
    // Each undo takes its owner out of the queue.
    let undone = quiet(|| server.calls("zrem")).await;
    println!("{undone} undos for {CALLERS} that left");
    assert_eq!(waiters(&server, &key(1)), 0);
    assert!(undone >= CALLERS as u64, "{undone} undos");
    assert!(undone < CALLERS as u64 * 3 / 2, "{undone} undos");
    held.release().await.unwrap();
    until_nothing_is_left(&server, Duration::from_secs(3)).await;
}

/// A user who may not end connections at the server: the one that fell silent lives on, as far as
/// anybody can see, and nobody goes on waiting for it.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_leave_do_not_queue_for_a_connection_that_is_given_up() {
    let server = RedisServer::start();
    let rights = ["~*", "&*", "+@all", "-client|kill"];
    let mut user = vec!["ACL", "SETUSER", "restricted", "on", ">secret"];
    user.extend(rights);
    server.command(&user);
    let proxy = TcpProxy::start(server.address());
    let url = format!("redis://restricted:secret@{}", proxy.address());
    let backend = connect_with(&url, TIMEOUT).await;
    let other = connect_with(&server.url(), TIMEOUT).await;
    let held = hold(&other, &key(1)).await;
    let mut callers = callers(&server, &backend).await;
    proxy.strand();
    let begun = Instant::now();
    callers.shutdown().await;
    until("nobody waits", async || waiters(&server, &key(1)) == 0).await;
    // One by one, an answer's time each, would take until the queue is gone by itself.
    let took = begun.elapsed();
    println!("all have left {took:?} after their connection fell silent");
    assert!(took < Duration::from_secs(8), "{took:?}");
    proxy.heal();
    held.release().await.unwrap();
    until_nothing_is_left(&server, Duration::from_secs(3)).await;
}
