//! Servers and users that will not do say so, clearly, and give no secret away.

use std::{error::Error, net::TcpListener, time::Duration};

use tower_lock::{
    BackendError, BackendErrorKind, FencingToken, Guarantee, Lease as _, LockBackend as _,
    LockLayer, LockManager, LockPolicy, ZooKeeperBackend,
    backend::{AcquireRequest, WaitBound, zookeeper::NodeLayout},
    key::from_fn,
};

use crate::{
    servers::ZooKeeperServer,
    support::{SESSION, SLACK, connect, connect_with, hold, key, path, timed, try_it},
};

const SECRET: &str = "a-very-secret-password";

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
fn says(error: &BackendError, kind: BackendErrorKind, part: &str) {
    let text = everything(error);
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(part), "{text}");
    assert!(!text.contains(SECRET), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chroot_that_is_not_there_is_refused_by_name() {
    let server = ZooKeeperServer::start();
    let url = server.url() + "/shop";
    let error = ZooKeeperBackend::connect(&url).await.unwrap_err();
    says(&error, BackendErrorKind::Misconfigured, "chroot");
    server.session().create("/shop");
    let backend = connect_with(&url, SESSION).await;
    let lease = hold(&backend, &key(1)).await;
    let state = backend.inspect(&key(1)).await.unwrap();
    assert_eq!(state.name, format!("/shop{}", path(&key(1))));
    assert_eq!(server.session().children(&state.name).len(), 1);
    // Without the chroot they are other locks.
    hold(&connect(&server).await, &key(1)).await;
    lease.renew().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_not_the_user_may_not_touch_its_locks() {
    let server = ZooKeeperServer::start();
    let address = server.address();
    let url = format!("zookeeper://shop:{SECRET}@{address}");
    let builder = ZooKeeperBackend::builder(&url).with_session_timeout(SESSION);
    assert!(!format!("{builder:?} {builder:#?}").contains(SECRET));
    let backend = builder.connect().await.unwrap();
    assert!(!format!("{backend:?} {backend:#?}").contains(SECRET));
    let lease = hold(&backend, &key(1)).await;
    assert!(!format!("{lease:?} {lease:#?}").contains(SECRET));

    // A wrong password makes one somebody else.
    let wrong = format!("zookeeper://shop:wrong-{SECRET}@{address}");
    for url in [&wrong, &server.url()] {
        let error = ZooKeeperBackend::connect(url).await.unwrap_err();
        says(&error, BackendErrorKind::Misconfigured, "NoAuth");
    }
    let nobody = server.session().delete(&path(&key(1)));
    assert_eq!(nobody, -102, "NoAuth");
    // Given apart from the connect string, it is the same user.
    let again = ZooKeeperBackend::builder(&server.url())
        .with_digest_auth("shop", SECRET)
        .connect()
        .await
        .unwrap();
    let error = try_it(&again, &key(1)).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Contended);
    lease.release().await.unwrap();
    hold(&again, &key(1)).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_refused_before_anything_is_asked() {
    let builder = || ZooKeeperBackend::builder("zookeeper://127.0.0.1:1");
    let short = Duration::from_millis(1);
    for (builder, part) in [
        (ZooKeeperBackend::builder("127.0.0.1"), "zookeeper://["),
        (
            ZooKeeperBackend::builder("redis://127.0.0.1"),
            "zookeeper://[",
        ),
        (builder().with_base("locks"), "base"),
        (builder().with_base("/"), "base"),
        (builder().with_base("/a//b"), "base"),
        (builder().with_base("/zookeeper/locks"), "base"),
        (builder().with_session_timeout(short), "session timeout"),
        (
            builder().with_operation_timeout(short / 2),
            "operation timeout",
        ),
        (builder().with_digest_auth("a:b", SECRET), "colon"),
        (builder().with_digest_auth("shop", ""), "password"),
    ] {
        let (result, took) = timed(builder.connect()).await;
        says(&result.unwrap_err(), BackendErrorKind::Misconfigured, part);
        assert!(took < SLACK, "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_server_is_unavailable_within_the_session_timeout() {
    // Nobody listens there; and somebody, who never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    for url in [
        format!("zookeeper://{silent}"),
        "zookeeper://127.0.0.1:1".to_owned(),
    ] {
        let session = Duration::from_secs(1);
        let builder = ZooKeeperBackend::builder(&url).with_session_timeout(session);
        let (result, took) = timed(builder.connect()).await;
        says(
            &result.unwrap_err(),
            BackendErrorKind::Unavailable,
            "no connection",
        );
        assert!(took < session + SLACK, "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_session_cannot_give_is_refused() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let ttl = SESSION - Duration::from_millis(1);
    let refused = backend.acquire(&AcquireRequest::new(key(1), ttl)).await;
    says(
        &refused.unwrap_err(),
        BackendErrorKind::Unsupported,
        "session timeout of 6s",
    );
    let many = AcquireRequest::new(key(1), SESSION).with_tokens(2);
    let refused = backend.acquire(&many).await.unwrap_err();
    says(&refused, BackendErrorKind::Unsupported, "reserved");

    // Routes hear of it when they are built.
    let locks = LockManager::new(backend.clone());
    let layer = || LockLayer::new(&locks, from_fn(|_| key(1)));
    let policy = LockPolicy::new().with_ttl(ttl);
    let error = layer().try_with_policy(policy).expect_err("too short");
    assert!(error.to_string().contains("ttl"), "{error}");
    let correct = LockPolicy::new().with_guarantee(Guarantee::Correctness);
    assert!(layer().try_with_policy(correct).is_ok());

    // The servers keep sessions within bounds of their own.
    let greedy = connect_with(&server.url(), Duration::from_secs(90)).await;
    assert_eq!(greedy.session_timeout(), Duration::from_secs(60));
    assert_eq!(greedy.capabilities().min_ttl, Some(Duration::from_secs(60)));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_above_their_floor() {
    let server = ZooKeeperServer::start();
    let floor = FencingToken::new(1_795_244_020_729_259).unwrap();
    let connect = |floor| {
        let builder = ZooKeeperBackend::builder(&server.url()).with_token_floor(floor);
        builder.with_session_timeout(SESSION).connect()
    };
    let backend = connect(floor).await.unwrap();
    let lease = hold(&backend, &key(1)).await;
    assert!(lease.fencing_token() > floor);
    let state = backend.inspect(&key(1)).await.unwrap();
    assert_eq!(state.holders[0].fencing_token, Some(lease.fencing_token()));
    lease.release().await.unwrap();
    let next = hold(&backend, &key(1)).await;
    assert!(next.fencing_token() > lease.fencing_token());
    // None is beyond what databases can store.
    let highest = connect(FencingToken::MAX).await.unwrap();
    let error = try_it(&highest, &key(2)).await.unwrap_err();
    says(&error, BackendErrorKind::Misconfigured, "token floor");
}

/// Nodes of two layouts do not see each other: both would hold.
#[tokio::test(flavor = "multi_thread")]
async fn keys_with_nodes_of_another_layout_are_refused() {
    let server = ZooKeeperServer::start();
    let layouts = [
        NodeLayout::Curator,
        NodeLayout::CuratorReadWrite,
        NodeLayout::Kazoo,
    ];
    for (n, mine) in layouts.into_iter().enumerate() {
        let connect = |layout| {
            let builder = ZooKeeperBackend::builder(&server.url()).with_layout(layout);
            builder.with_session_timeout(SESSION).connect()
        };
        let backend = connect(mine).await.unwrap();
        let lease = hold(&backend, &key(n)).await;
        for other in layouts.into_iter().filter(|&other| other != mine) {
            let other = connect(other).await.unwrap();
            for wait in [WaitBound::Fail, WaitBound::Forever] {
                let request = AcquireRequest::new(key(n), SESSION).with_wait(wait);
                let error = other.acquire(&request).await.unwrap_err();
                says(&error, BackendErrorKind::Misconfigured, "another layout");
            }
            let error = other.wait_free(&key(n), WaitBound::Fail).await.unwrap_err();
            says(&error, BackendErrorKind::Misconfigured, "another layout");
        }
        assert_eq!(server.session().children(&path(&key(n))).len(), 1);
        lease.renew().await.unwrap();
    }
}
