//! Connections are killed while the server lives on, and scripts are forgotten.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tower_lock::{
    BackendErrorKind, FencingToken, Lease as _, LockBackend as _, LockKey, RedisBackend,
    backend::redis::RedisLease,
};

use crate::{
    servers::RedisServer,
    support::{
        LONG, SLACK, UNDONE, all_served, connect, hold, key, patient, served, until,
        until_nothing_is_left, wait, waiters,
    },
};

fn kill(server: &RedisServer, kind: &str) {
    server.command(&["CLIENT", "KILL", "TYPE", kind]);
}

/// Until it is known to have been released, which may be said twice.
async fn release(lease: &RedisLease) {
    while let Err(error) = lease.release().await {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    }
}

/// Until it has it: a busy machine may be so slow to connect again that the kills outrun it.
async fn acquire(backend: &RedisBackend, key: &LockKey) -> RedisLease {
    loop {
        match backend.acquire(&patient(key, LONG)).await {
            Ok(lease) => return lease,
            Err(error) => assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_the_end_of_the_command_connections() {
    let server = RedisServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    let lease = hold(&one, &key(1)).await;
    let first = wait(&server, &two, &key(1)).await;
    let second = wait(&server, &one, &key(1)).await;
    kill(&server, "normal");
    release(&lease).await;
    let (first, _) = served(first, SLACK).await;
    assert_eq!(waiters(&server, &key(1)), 1);
    kill(&server, "normal");
    release(&first).await;
    let (second, _) = served(second, SLACK).await;
    second.release().await.unwrap();
    until_nothing_is_left(&server, UNDONE).await;
}

/// The offer that is published while nobody listens is lost, the waiter is not.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_survive_the_end_of_the_inbox() {
    let server = RedisServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    for _ in 0..5 {
        let lease = hold(&one, &key(1)).await;
        let first = wait(&server, &two, &key(1)).await;
        let second = wait(&server, &one, &key(1)).await;
        kill(&server, "pubsub");
        lease.release().await.unwrap();
        all_served([first, second], SLACK * 2).await;
        until_nothing_is_left(&server, UNDONE).await;
    }
}

/// Everybody is granted once, one after the other, whatever is killed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_kills_costs_no_exclusion_no_order_of_tokens_and_leaves_nothing() {
    const KEYS: usize = 4;
    const WORKERS: usize = 16;
    let server = Arc::new(RedisServer::start());
    let backends = [connect(&server).await, connect(&server).await];
    let over = Arc::new(AtomicBool::new(false));
    let storm = tokio::spawn({
        let (server, over) = (server.clone(), over.clone());
        async move {
            for kind in ["normal", "pubsub"].into_iter().cycle().take(60) {
                kill(&server, kind);
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            over.store(true, Ordering::SeqCst);
        }
    });
    // The last token of each key, locked for as long as a worker holds the key.
    let last: Arc<HashMap<usize, Mutex<Option<FencingToken>>>> =
        Arc::new((0..KEYS).map(|n| (n, Mutex::default())).collect());
    let workers: Vec<_> = (0..WORKERS)
        .map(|n| {
            let (backend, last, over) = (backends[n % 2].clone(), last.clone(), over.clone());
            tokio::spawn(async move {
                let mut grants = 0;
                while !over.load(Ordering::SeqCst) {
                    let key_number = (n + grants) % KEYS;
                    let lease = acquire(&backend, &key(key_number)).await;
                    let token = lease.fencing_token();
                    witness(&last[&key_number], token);
                    release(&lease).await;
                    grants += 1;
                }
                grants
            })
        })
        .collect();
    storm.await.unwrap();
    let mut grants = 0;
    for worker in workers {
        grants += worker.await.unwrap();
    }
    println!("{grants} grants under 60 kills");
    assert!(grants > WORKERS);
    until_nothing_is_left(&server, Duration::from_secs(2)).await;
}

/// What a holder does: nobody else may do it at the same time, or with a later token before.
fn witness(last: &Mutex<Option<FencingToken>>, token: FencingToken) {
    let mut last = last.try_lock().expect("two hold at once");
    assert!(last.is_none_or(|last| last < token), "tokens do not grow");
    *last = Some(token);
    std::thread::sleep(Duration::from_micros(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn forgotten_scripts_are_brought_along_again() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for round in 0..3 {
        server.command(&["SCRIPT", "FLUSH"]);
        let lease = hold(&backend, &key(round)).await;
        let waiting = wait(&server, &backend, &key(round)).await;
        server.command(&["SCRIPT", "FLUSH"]);
        lease.renew().await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]);
        lease.release().await.unwrap();
        let (next, _) = served(waiting, SLACK).await;
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(backend.inspect(&key(round)).await.unwrap().holders.len(), 1);
        server.command(&["SCRIPT", "FLUSH"]);
        assert!(backend.force_release(&key(round)).await.unwrap());
        // Awaited: what a dropped lease does in the background may come after the counting begins.
        next.release().await.unwrap();
    }
    until_nothing_is_left(&server, UNDONE).await;
    // Once known, they are not sent again.
    hold(&backend, &key(0)).await.release().await.unwrap();
    server.reset_calls();
    for round in 0..10 {
        hold(&backend, &key(round)).await.release().await.unwrap();
    }
    assert_eq!(server.calls("eval"), 0);
    assert_eq!(server.calls("evalsha"), 20);
}

/// A runtime that is new to the backend has no connection of its own yet: its asks go over another
/// one, then over theirs, and none passes those before it.
#[test]
fn the_first_asks_of_a_runtime_stay_in_order() {
    const ASKS: usize = 60;
    let server = RedisServer::start();
    let before = one_thread();
    let backend = before.block_on(connect(&server));
    for round in 0..20 {
        let key = key(round);
        let lease = before.block_on(hold(&backend, &key));
        let served = Arc::new(Mutex::new(Vec::new()));
        one_thread().block_on(async {
            let mut asks = Vec::new();
            for number in 0..ASKS {
                let (backend, served) = (backend.clone(), served.clone());
                let request = patient(&key, LONG);
                asks.push(tokio::spawn(async move {
                    let lease = backend.acquire(&request).await.unwrap();
                    served.lock().unwrap().push(number);
                    lease.release().await.unwrap();
                }));
                // Time for its ask to be sent; at one of them there is a connection.
                for _ in 0..fastrand::usize(1..20) {
                    tokio::task::yield_now().await;
                }
            }
            until("all wait", async || waiters(&server, &key) == ASKS as i64).await;
            lease.release().await.unwrap();
            for ask in asks {
                ask.await.unwrap();
            }
        });
        assert!(served.lock().unwrap().is_sorted(), "{served:?}");
    }
}

fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}
