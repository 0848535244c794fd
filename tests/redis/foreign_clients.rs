//! redis-py's `Lock` and npm's `redlock` on the keys of our locks: they exclude us and we them.

use std::time::{Duration, Instant};

use tower_lock::{BackendErrorKind, Lease as _, LockBackend as _};

use crate::{
    servers::{ForeignClient, RedisServer},
    support::{
        LONG, SLACK, UNDONE, connect, hold, key, name, patient, served, try_it, until,
        until_nothing_is_left, wait, waiters,
    },
};

/// How soon after a foreign release we must have it: the head asks every 25 ms at first, every
/// second in the end.
const POLLED: Duration = Duration::from_millis(1100);

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_and_we_exclude_each_other() {
    let server = RedisServer::start();
    let foreign = ForeignClient::redis_py(&server.url());
    exclude_each_other(&server, foreign).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn npm_redlock_and_we_exclude_each_other() {
    let server = RedisServer::start();
    let foreign = ForeignClient::redlock(&server.url());
    exclude_each_other(&server, foreign).await;
}

async fn exclude_each_other(server: &RedisServer, mut foreign: ForeignClient) {
    let backend = connect(server).await;
    let key = key("shared with others");
    let name = &name(&key);

    // We hold.
    let lease = hold(&backend, &key).await;
    assert!(!foreign.acquire(name, LONG, Duration::ZERO));
    assert!(!foreign.acquire(name, LONG, Duration::from_millis(50)));
    foreign.begin_acquire(name, LONG, LONG);
    assert!(foreign.is_silent_for(Duration::from_millis(50)));
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    assert!(foreign.answer());

    // It holds: not ours to have, wait for, extend or free.
    let refused = try_it(&backend, &key).await.unwrap_err();
    assert_eq!(refused.kind(), BackendErrorKind::Contended);
    assert!(
        refused
            .remaining()
            .is_some_and(|r| r <= LONG && r > LONG - SLACK * 10)
    );
    let state = backend.inspect(&key).await.unwrap();
    assert_eq!(state.holders.len(), 1);
    assert_eq!(state.holders[0].fencing_token, None);
    drop(lease);
    let first = wait(server, &backend, &key).await;
    let second = wait(server, &backend, &key).await;
    let given_up = wait(server, &backend, &key).await;
    given_up.abort();
    until("that one has left the queue", async || {
        waiters(server, &key) == 2
    })
    .await;
    assert!(foreign.extend(name, LONG));

    // It releases, and tells nobody: the head of our queue asks.
    assert!(foreign.release(name));
    let (lease, took) = served(first, POLLED + SLACK).await;
    println!("had it {took:?} after its release");
    assert!(!foreign.acquire(name, LONG, Duration::ZERO));
    lease.release().await.unwrap();
    // From ours to ours it goes at once, and never through the hands of who polls.
    let (lease, _) = served(second, SLACK).await;
    lease.release().await.unwrap();

    // It dies with the lock: we have it at the end of its ttl, as for one of ours.
    let ttl = Duration::from_millis(600);
    assert!(foreign.acquire(name, ttl, Duration::ZERO));
    let begun = Instant::now();
    let lease = backend.acquire(&patient(&key, LONG)).await.unwrap();
    let took = begun.elapsed();
    println!("had it {took:?} after it was acquired for {ttl:?}");
    assert!(took < ttl + SLACK, "{took:?}");
    // Too late it finds that it lost, and harms nobody.
    assert!(!foreign.release(name));
    lease.renew().await.unwrap();

    // Ours ends unrenewed: so has it.
    lease.release().await.unwrap();
    let short = backend.acquire(&patient(&key, ttl)).await.unwrap();
    assert!(foreign.acquire(name, LONG, ttl + SLACK));
    assert_eq!(
        short.renew().await.unwrap_err().kind(),
        BackendErrorKind::Lost
    );
    short.release().await.unwrap();
    assert!(
        foreign.extend(name, LONG),
        "a late release of ours freed its lock"
    );
    // An operator of ours may take it from them.
    assert!(backend.force_release(&key).await.unwrap());
    assert!(!foreign.release(name));
    until_nothing_is_left(server, UNDONE).await;
}

/// All three contend, each in its own way; who has it looks whether anybody else says so too.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_let_in_beside_another() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let key = key(1);
    let name = name(&key);
    let mut clients = [
        ForeignClient::redis_py(&server.url()),
        ForeignClient::redlock(&server.url()),
    ];
    for _ in 0..20 {
        for client in &mut clients {
            client.begin_acquire(&name, LONG, LONG);
        }
        let backend = backend.clone();
        let request = patient(&key, LONG);
        let ours = tokio::spawn(async move { backend.acquire(&request).await.unwrap() });
        // In turn, until each had it once: whoever has it keeps it for a while, alone.
        let mut waiting: Vec<_> = clients.iter_mut().collect();
        let mut ours = Some(ours);
        while !waiting.is_empty() || ours.is_some() {
            let holder = waiting.iter_mut().position(|client| client.has_answered());
            let we = ours.take_if(|ours| ours.is_finished());
            match (holder, we) {
                (None, None) => tokio::time::sleep(Duration::from_millis(1)).await,
                (Some(at), None) => {
                    let client = waiting.remove(at);
                    assert!(client.answer());
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    assert!(!waiting.iter_mut().any(|other| other.has_answered()));
                    assert!(ours.as_ref().is_none_or(|ours| !ours.is_finished()));
                    assert!(client.release(&name));
                }
                (None, Some(ours)) => {
                    let lease = ours.await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    assert!(!waiting.iter_mut().any(|other| other.has_answered()));
                    lease.release().await.unwrap();
                }
                (Some(_), Some(_)) => panic!("two hold it"),
            }
        }
    }
    until_nothing_is_left(&server, UNDONE).await;
}

/// Whatever stands there, it is somebody else's: no error, no harm, and at its end ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_a_foreign_holder() {
    let makes: [&[&str]; 5] = [
        &["RPUSH", "K", "a", "b"],
        &["HSET", "K", "field", "value"],
        &["ZADD", "K", "1", "member"],
        &["SET", "K", "1 not ours"],
        &["SET", "K", ""],
    ];
    let server = RedisServer::start();
    let backend = connect(&server).await;
    for (n, make) in makes.into_iter().enumerate() {
        let key = key(n);
        let name = name(&key);
        let command: Vec<_> = make
            .iter()
            .map(|&word| if word == "K" { &*name } else { word })
            .collect();
        server.command(&command);
        let dump = server.command(&["OBJECT", "ENCODING", &name]);
        let refused = try_it(&backend, &key).await.unwrap_err();
        assert_eq!(refused.kind(), BackendErrorKind::Contended, "{make:?}");
        assert_eq!(refused.remaining(), None);
        let state = backend.inspect(&key).await.unwrap();
        assert_eq!(state.holders.len(), 1, "{make:?}");
        let gate = backend
            .wait_free(&key, tower_lock::backend::WaitBound::Fail)
            .await;
        assert_eq!(gate.unwrap_err().kind(), BackendErrorKind::Contended);

        let first = wait(&server, &backend, &key).await;
        let second = wait(&server, &backend, &key).await;
        assert_eq!(server.command(&["OBJECT", "ENCODING", &name]), dump);
        server.command(&["DEL", &name]);
        for waiting in [first, second] {
            let (lease, _) = served(waiting, POLLED + SLACK).await;
            lease.release().await.unwrap();
        }

        // Put over a lock of ours, it ends that.
        let lease = hold(&backend, &key).await;
        server.command(&["DEL", &name]);
        server.command(&command);
        assert_eq!(
            lease.renew().await.unwrap_err().kind(),
            BackendErrorKind::Lost
        );
        lease.release().await.unwrap();
        drop(lease);
        assert!(backend.force_release(&key).await.unwrap());
        hold(&backend, &key).await.release().await.unwrap();
    }
    until_nothing_is_left(&server, UNDONE).await;
}
