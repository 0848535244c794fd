//! Users, passwords, rights, and tokens that end.

use std::time::Duration;

use tokio::time::sleep;
use tower_lock::{BackendErrorKind, EtcdBackend, Lease as _, backend::LockingRecordStore as _};

use crate::{
    records::{begin, forget, record_name},
    servers::Etcd,
    support::{SLACK, hold, key, served, until_nothing_is_left, wait},
};

/// A server that asks who it is: `shop` may use the prefix `tower-lock/`, and `guest` nothing.
fn server(options: &[&str]) -> Etcd {
    let server = Etcd::start_with(options);
    for command in [
        "user add root:rootsecret",
        "user grant-role root root",
        "role add locks",
        "role grant-permission locks readwrite tower-lock/ --prefix",
        "user add shop:p@ss/word",
        "user grant-role shop locks",
        "user add guest:guestsecret",
    ] {
        let words: Vec<_> = command.split(' ').collect();
        if words[..2] == ["user", "grant-role"] && words[2] == "root" {
            // There before it is granted.
            let _ = server.try_etcdctl(&["role", "add", "root"]);
        }
        server.etcdctl(&words);
    }
    server.etcdctl(&["auth", "enable"]);
    server.log_in("root:rootsecret");
    server
}

fn url(server: &Etcd, user: &str) -> String {
    server.url().replace("etcd://", &format!("etcd://{user}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_rights_under_the_prefix_suffices() {
    let server = server(&[]);
    let url = url(&server, "shop:p%40ss%2Fword@");
    let backend = EtcdBackend::connect(&url).await.unwrap();
    let held = hold(&backend, &key(1)).await;
    let waiting = wait(&backend, &key(1)).await;
    held.renew().await.unwrap();
    held.release().await.unwrap();
    let (lease, _) = served(waiting, SLACK).await;
    lease.release().await.unwrap();
    for forgets in [false, true] {
        let (request, lease, previous) = begin(&backend, &key(2)).await;
        assert!(previous.is_none() != forgets);
        if forgets {
            let save = forget(&request, &lease);
            backend.save_and_release(&save).await.unwrap();
        } else {
            lease.release().await.unwrap();
        }
    }
    server.etcdctl(&["del", &record_name(&key(2))]);
    until_nothing_is_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_say_what_is_missing() {
    let server = server(&[]);
    for (user, part) in [
        ("", "none"),
        ("shop:secret@", "refused the user"),
        ("nobody:secret@", "refused the user"),
        ("guest:guestsecret@", "grant-permission"),
    ] {
        let error = EtcdBackend::connect(&url(&server, user)).await;
        let error = error.expect_err("it is refused");
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(part), "{user}: {error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
    let elsewhere = EtcdBackend::builder(&url(&server, "shop:p%40ss%2Fword@"))
        .with_prefix("elsewhere/")
        .connect();
    let error = elsewhere.await.expect_err("it is refused");
    assert!(error.to_string().contains("grant-permission"), "{error}");
    let open = Etcd::start();
    let error = EtcdBackend::connect(&url(&open, "shop:secret@")).await;
    let error = error.expect_err("it is refused");
    assert!(error.to_string().contains("not enabled"), "{error}");
}

/// Tokens end while nobody asks, and while somebody waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_ended_is_renewed() {
    let server = server(&["--auth-token-ttl", "1"]);
    let url = url(&server, "shop:p%40ss%2Fword@");
    let backend = EtcdBackend::connect(&url).await.unwrap();
    let held = hold(&backend, &key(1)).await;
    let waiting = wait(&backend, &key(1)).await;
    for _ in 0..3 {
        sleep(Duration::from_millis(1700)).await;
        held.renew().await.unwrap();
        hold(&backend, &key(2)).await.release().await.unwrap();
    }
    assert!(held.lost().get().is_none());
    held.release().await.unwrap();
    let (lease, _) = served(waiting, SLACK).await;
    lease.release().await.unwrap();
    until_nothing_is_left(&server, SLACK).await;
}

/// Rights that change make etcd refuse all tokens from before.
#[tokio::test(flavor = "multi_thread")]
async fn changed_rights_cost_nobody_a_lock() {
    let server = server(&[]);
    let url = url(&server, "shop:p%40ss%2Fword@");
    let backend = EtcdBackend::connect(&url).await.unwrap();
    let held = hold(&backend, &key(1)).await;
    let waiting = wait(&backend, &key(1)).await;
    server.etcdctl(&["role", "add", "other"]);
    server.etcdctl(&["role", "grant-permission", "other", "read", "other"]);
    held.renew().await.unwrap();
    hold(&backend, &key(2)).await.release().await.unwrap();
    held.release().await.unwrap();
    let (lease, _) = served(waiting, SLACK * 2).await;
    lease.release().await.unwrap();
}
