//! Ways to reach a server, and to keep apart on it.

use std::{error::Error as _, time::Duration};

use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, RedisBackend, backend::redis::RedisBuilder,
};

use crate::{
    servers::{Certificates, RedisServer, resp::Client},
    support::{
        SLACK, UNDONE, connect, hold, key, name, served, try_it, until_nothing_is_left, wait,
    },
};

/// A lock is taken, handed over and released.
async fn it_works(server: &RedisServer, builder: RedisBuilder) {
    let backend = builder.connect().await.unwrap();
    let lease = hold(&backend, &key(1)).await;
    let waiting = wait(server, &backend, &key(1)).await;
    lease.renew().await.unwrap();
    lease.release().await.unwrap();
    let (next, _) = served(waiting, SLACK).await;
    assert!(next.fencing_token() > lease.fencing_token());
    next.release().await.unwrap();
    until_nothing_is_left(server, UNDONE).await;
}

async fn kind_of_refusal(builder: RedisBuilder) -> (BackendErrorKind, String) {
    let error = builder.connect().await.unwrap_err();
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        text += &format!("{one} {one:?} ");
        cause = one.source();
    }
    (error.kind(), text)
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_with_a_root_of_its_own() {
    let server = RedisServer::start_tls(&[]);
    let url = server.tls_url();
    let root = server.certificates().root_pem();
    it_works(
        &server,
        RedisBackend::builder(&url).with_root_certificates(root),
    )
    .await;

    // Nobody else vouches for it.
    let (kind, text) = kind_of_refusal(RedisBackend::builder(&url)).await;
    assert!(text.contains("UnknownIssuer"), "{kind:?} {text}");
    let other = RedisBackend::builder(&url).with_root_certificates(Certificates::new().root_pem());
    let (kind, text) = kind_of_refusal(other).await;
    assert!(matches!(
        kind,
        BackendErrorKind::Misconfigured | BackendErrorKind::Unavailable
    ));
    assert!(text.contains("certificate"), "{text}");

    // Certificates without TLS would be silently ignored.
    let root = server.certificates().root_pem();
    let (kind, text) =
        kind_of_refusal(RedisBackend::builder(&server.url()).with_root_certificates(root)).await;
    assert_eq!(kind, BackendErrorKind::Misconfigured);
    assert!(text.contains("rediss://"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_with_a_client_certificate() {
    let server = RedisServer::start_tls(&["--tls-auth-clients", "yes"]);
    let certificates = server.certificates();
    let builder =
        || RedisBackend::builder(&server.tls_url()).with_root_certificates(certificates.root_pem());
    let shown =
        builder().with_client_certificate(certificates.client_pem(), certificates.client_key());
    it_works(&server, shown).await;
    let (kind, text) = kind_of_refusal(builder()).await;
    assert_eq!(kind, BackendErrorKind::Unavailable, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_unix_socket() {
    let server = RedisServer::start();
    it_works(&server, RedisBackend::builder(&server.unix_url())).await;
    server.command(&[
        "ACL", "SETUSER", "someone", "on", ">secret", "+@all", "~*", "&*",
    ]);
    let url = server.unix_url() + "?user=someone&pass=secret";
    it_works(&server, RedisBackend::builder(&url)).await;
    let (kind, _) = kind_of_refusal(RedisBackend::builder("unix:///nowhere/redis.sock")).await;
    assert_eq!(kind, BackendErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_user_and_a_password() {
    let server = RedisServer::start_with(&["--requirepass", "p@ss:w/ord"]);
    let encoded = "p%40ss%3Aw%2Ford";
    for who in [format!(":{encoded}"), format!("default:{encoded}")] {
        let url = format!("redis://{who}@127.0.0.1:{}", server.port());
        it_works(&server, RedisBackend::builder(&url)).await;
    }
}

/// Databases and prefixes are worlds of their own; in one, all clients meet.
#[tokio::test(flavor = "multi_thread")]
async fn databases_and_prefixes_keep_apart() {
    let server = RedisServer::start();
    let in_seven = server.url() + "/7";
    let connect_to = async |url: &str, prefix: Option<&str>| {
        let builder = RedisBackend::builder(url);
        let builder = match prefix {
            Some(prefix) => builder.with_prefix(prefix),
            None => builder,
        };
        builder.connect().await.unwrap()
    };
    let backends = [
        connect(&server).await,
        connect_to(&in_seven, None).await,
        connect_to(&server.url(), Some("shop:")).await,
        connect_to(&server.url(), Some("")).await,
        connect_to(&(server.unix_url() + "?db=7"), Some("shop:")).await,
    ];
    let mut leases = Vec::new();
    for backend in &backends {
        leases.push(hold(backend, &key(1)).await);
        let refused = try_it(backend, &key(1)).await.unwrap_err();
        assert_eq!(refused.kind(), BackendErrorKind::Contended);
    }
    let mut client = Client::connect(server.address()).unwrap();
    let mut keys = |database: &str| {
        client.call(&["SELECT", database]).unwrap();
        let mut keys = client.call(&["KEYS", "*order*"]).unwrap().texts();
        keys.sort();
        keys
    };
    let plain = key(1).as_str().to_owned();
    let shop = format!("shop:{plain}");
    assert_eq!(keys("0"), [plain, shop.clone(), name(&key(1))]);
    assert_eq!(keys("7"), [shop, name(&key(1))]);

    // News cross no border: the channel of a process is its own, whatever its database.
    for (backend, lease) in backends.iter().zip(leases) {
        let request = crate::support::patient(&key(1), Duration::from_secs(60));
        let waiting = tokio::spawn({
            let backend = backend.clone();
            async move { backend.acquire(&request).await }
        });
        crate::support::until("it waits", async || {
            backend.inspect(&key(1)).await.unwrap().waiters == 1
        })
        .await;
        lease.release().await.unwrap();
        served(waiting, SLACK).await.0.release().await.unwrap();
    }
    assert_eq!(keys("0"), [""; 0]);
    assert_eq!(keys("7"), [""; 0]);
}
