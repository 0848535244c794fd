//! Servers and users that will not do say so, clearly, and give no secret away.

use std::{error::Error, fmt::Debug, time::Duration};

use tower_lock::{BackendError, BackendErrorKind, Lease as _, LockBackend as _, RedisBackend};

use crate::{
    servers::{self, RedisServer},
    support::{
        LONG, SLACK, UNDONE, connect, connect_with, hold, key, patient, served, timed, try_it,
        until, until_nothing_is_left, wait,
    },
};

const SECRET: &str = "a-very-secret-password";

/// The rights that the page on Redis tells operators to set: those that are needed, and those by
/// which undoing needs no tombstones.
fn documented_rights() -> (Vec<&'static str>, Vec<&'static str>) {
    servers::documented_rights(include_str!("../../src/docs/redis.md"))
}

/// All that an error says, to whoever prints it in any way.
fn everything(error: &BackendError) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    text
}

#[track_caller]
fn assert_no_secret(text: &str) {
    assert!(!text.contains(SECRET), "{text}");
}

async fn refusal(url: &str) -> BackendError {
    let (result, took) = timed(RedisBackend::connect(url)).await;
    assert!(took < Duration::from_secs(1) + SLACK, "{took:?}");
    let error = result.unwrap_err();
    assert_no_secret(&everything(&error));
    error
}

fn set_user(server: &RedisServer, name: &str, rights: &[&str]) -> String {
    let password = format!(">{SECRET}");
    let mut command = vec!["ACL", "SETUSER", name, "reset", "on", &password];
    command.extend(rights);
    server.command(&command);
    format!("redis://{name}:{SECRET}@127.0.0.1:{}", server.port())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_replica_is_refused_by_name() {
    // Which waits for more replicas before it serves the first, by default.
    let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let replica = RedisServer::start();
    let backend = connect(&replica).await;
    let port = master.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    until("it follows", async || {
        replica.info("master_link_status") == "up"
    })
    .await;
    let error = refusal(&replica.url()).await;
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    assert!(error.to_string().contains("read-only replica"), "{error}");

    // One that was a master when we connected.
    let (result, took) = timed(try_it(&backend, &key(1))).await;
    let error = result.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("read-only replica"), "{error}");
    assert!(took < Duration::from_secs(1) + SLACK, "{took:?}");
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    until("it works again", async || {
        try_it(&backend, &key(1)).await.is_ok()
    })
    .await;
    until_nothing_is_left(&replica, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_says_so_and_still_lets_go() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let leases = [hold(&backend, &key(1)).await, hold(&backend, &key(2)).await];
    let waiting = wait(&server, &backend, &key(2)).await;
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    server.try_command(&["SET", "fill", &"x".repeat(1 << 20)]);

    let error = try_it(&backend, &key(3)).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(error.to_string().contains("OOM"), "{error}");
    let error = backend.acquire(&patient(&key(4), LONG)).await.unwrap_err();
    assert!(error.to_string().contains("OOM"), "{error}");
    let error = RedisBackend::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert!(error.to_string().contains("OOM"), "{error}");

    // What takes no memory goes on: nobody loses a lock over it, or keeps one.
    for lease in leases {
        lease.renew().await.unwrap();
        lease.release().await.unwrap();
    }
    let (next, _) = served(waiting, SLACK).await;
    next.renew().await.unwrap();
    next.release().await.unwrap();
    until_nothing_is_left(&server, UNDONE).await;

    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    hold(&backend, &key(3)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough_and_needed() {
    let server = RedisServer::start();
    let (needed, optional) = documented_rights();
    assert!(needed.len() > 10 && !optional.is_empty());
    let all = [&needed[..], &optional[..]].concat();
    everything_works(&server, &set_user(&server, "all", &all)).await;
    assert_eq!(server.command(&["ACL", "LOG"]).texts(), [""; 0]);
    everything_works(&server, &set_user(&server, "least", &needed)).await;
    for right in &optional {
        let rest: Vec<_> = all.iter().copied().filter(|r| r != right).collect();
        everything_works(&server, &set_user(&server, "less", &rest)).await;
    }

    let mut unnamed = Vec::new();
    for &right in &needed {
        let rest: Vec<_> = needed.iter().copied().filter(|r| *r != right).collect();
        let url = set_user(&server, "lacking", &rest);
        let Err(error) = RedisBackend::connect(&url).await else {
            unnamed.push(format!("without {right} it connects"));
            continue;
        };
        assert_no_secret(&everything(&error));
        let text = error.to_string();
        let named = match right.split_at(1) {
            ("+", command) => {
                text.contains(&command.to_uppercase()) && text.contains(&format!("`{right}`"))
            }
            ("~", _) => text.contains("~<prefix>*") && text.contains("~{<prefix>*"),
            _ => text.contains("&<prefix>inbox:*"),
        };
        if !named || error.kind() != BackendErrorKind::Misconfigured {
            unnamed.push(format!("without {right}: {text}"));
        }
    }
    assert!(unnamed.is_empty(), "{unnamed:#?}");

    // Another database takes one more.
    let error = refusal(&(set_user(&server, "least", &needed) + "/3")).await;
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    assert!(error.to_string().contains("`+select`"), "{error}");
    let selecting = set_user(&server, "selecting", &[&needed[..], &["+select"]].concat());
    let backend = RedisBackend::connect(&(selecting + "/3")).await.unwrap();
    hold(&backend, &key(1)).await.release().await.unwrap();
    let error = refusal(&(server.url() + "/99")).await;
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    assert!(error.to_string().contains("database"), "{error}");
}

/// Every verb, once, and that the server refused none of it.
async fn everything_works(server: &RedisServer, url: &str) {
    let backend = connect_with(url, Duration::from_secs(1)).await;
    // What connecting asks, it may be refused.
    server.command(&["ACL", "LOG", "RESET"]);
    for mode in [tower_lock::Mode::Exclusive, tower_lock::Mode::Shared] {
        let request = patient(&key(1), LONG).with_mode(mode);
        let lease = backend.acquire(&request).await.unwrap();
        lease.renew().await.unwrap();
        let first = wait(server, &backend, &key(1)).await;
        let second = wait(server, &backend, &key(1)).await;
        second.abort();
        assert_eq!(backend.inspect(&key(1)).await.unwrap().holders.len(), 1);
        lease.release().await.unwrap();
        let (next, _) = served(first, SLACK).await;
        assert!(backend.force_release(&key(1)).await.unwrap());
        drop(next);
    }
    backend
        .wait_free(&key(1), tower_lock::backend::WaitBound::Forever)
        .await
        .unwrap();
    until_nothing_is_left(server, UNDONE).await;
    let refused = server.command(&["ACL", "LOG"]).texts();
    let by_connecting = ["client|id", "client|kill", "info"];
    for entry in refused {
        assert!(by_connecting.iter().any(|c| entry.contains(c)), "{entry}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_let_in_learns_why_and_no_secret_is_told() {
    let server = RedisServer::start_with(&["--requirepass", SECRET]);
    let at = format!("127.0.0.1:{}", server.port());
    for (who, says) in [
        ("".to_owned(), "password"),
        (":wrong@".to_owned(), "password"),
        (format!("nobody:{SECRET}@"), "password"),
        (format!("default:{SECRET}x@"), "password"),
    ] {
        let error = refusal(&format!("redis://{who}{at}")).await;
        assert_eq!(
            error.kind(),
            BackendErrorKind::Misconfigured,
            "{who}: {error}"
        );
        assert!(error.to_string().contains(says), "{who}: {error}");
    }
    let backend = connect_with(&format!("redis://:{SECRET}@{at}"), Duration::from_secs(1)).await;
    let lease = hold(&backend, &key("a-very-secret-order")).await;
    let shown: [&dyn Debug; 3] = [&backend, &lease, &RedisBackend::builder(&server.url())];
    for shown in shown {
        let text = format!("{shown:?}{shown:#?}");
        assert_no_secret(&text);
        assert!(!text.contains("a-very-secret-order"), "{text}");
    }
    let builder = RedisBackend::builder(&format!("rediss://:{SECRET}@{at}"))
        .with_client_certificate(SECRET, SECRET)
        .with_root_certificates(SECRET);
    assert_no_secret(&format!("{builder:?}{builder:#?}"));
    let error = builder.connect().await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert_no_secret(&everything(&error));

    let refused = try_it(&backend, &key("a-very-secret-order"))
        .await
        .unwrap_err();
    assert!(!everything(&refused).contains("a-very-secret-order"));
    server.kill();
    let error = try_it(&backend, &key("a-very-secret-order"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    assert_no_secret(&everything(&error));
    assert!(!everything(&error).contains("a-very-secret-order"));
    // Nobody listens there.
    let error = refusal(&format!("redis://:{SECRET}@{at}")).await;
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_url_or_prefix_is_refused_at_once() {
    for url in [
        "".to_owned(),
        "127.0.0.1".to_owned(),
        format!("http://user:{SECRET}@127.0.0.1"),
        format!("redis://user:{SECRET}@127.0.0.1:notaport"),
        format!("redis://user:{SECRET}@127.0.0.1/notanumber"),
    ] {
        let error = refusal(&url).await;
        assert_eq!(
            error.kind(),
            BackendErrorKind::Misconfigured,
            "{url}: {error}"
        );
        assert!(error.to_string().contains("redis://"), "{url}: {error}");
    }
    for prefix in ["a b", "{a}", "ä", &"x".repeat(129)] {
        let builder = RedisBackend::builder("redis://127.0.0.1:1").with_prefix(prefix);
        let error = builder.connect().await.unwrap_err();
        assert_eq!(
            error.kind(),
            BackendErrorKind::Misconfigured,
            "{prefix}: {error}"
        );
        assert!(error.to_string().contains("prefix"), "{prefix}: {error}");
    }
}

/// A key beside a lock that is not ours is named as the reason, and the lock is not granted.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_data_beside_a_lock_is_an_error_that_says_so() {
    let server = RedisServer::start();
    let backend = connect(&server).await;
    let queue = format!("{{{}}}:q", crate::support::name(&key(1)));
    server.command(&["SET", &queue, "not a queue"]);
    let error = backend.acquire(&patient(&key(1), LONG)).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    server.command(&["DEL", &queue]);
    hold(&backend, &key(1)).await.release().await.unwrap();
    until_nothing_is_left(&server, UNDONE).await;
}
