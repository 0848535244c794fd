//! Many callers of one process at once: what it asks of a slow server does not grow with them.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_lock::{Lease as _, LockBackend as _};

use crate::{
    servers::RedisServer,
    support::{LONG, connect_with, hold, key, patient, until, until_nothing_is_left, waiters},
};

const CALLERS: usize = 2000;

#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_may_leave_at_once() {
    let server = RedisServer::start();
    let backend = connect_with(&server.url(), Duration::from_millis(500)).await;
    let held = hold(&backend, &key(1)).await;
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let request = patient(&key(1), LONG);
        let backend = backend.clone();
        callers.spawn(async move { backend.acquire(&request).await });
    }
    until("all wait", async || {
        waiters(&server, &key(1)) == CALLERS as i64
    })
    .await;
    server.reset_calls();
    server.pause();
    callers.shutdown().await;
    // So long that no answer is waited for any more, and the connection counts as dead.
    until("the server counts as away", async || {
        let begun = tokio::time::Instant::now();
        backend.inspect(&key(1)).await.is_err() && begun.elapsed() < Duration::from_millis(50)
    })
    .await;
    server.resume();
    until("nobody waits", async || waiters(&server, &key(1)) == 0).await;
    // Each undo takes its owner out of the queue.
    let undone = server.calls("zrem");
    println!("{undone} undos for {CALLERS} that left");
    assert!(undone < CALLERS as u64 * 3 / 2, "{undone} undos");
    until("it works again", async || {
        backend.inspect(&key(1)).await.is_ok()
    })
    .await;
    held.release().await.unwrap();
    until_nothing_is_left(&server, Duration::from_secs(10)).await;
}
