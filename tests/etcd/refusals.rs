//! What cannot work is refused when the backend connects, and says what is needed.

use std::time::Duration;

use tower_lock::{BackendError, BackendErrorKind, EtcdBackend, backend::etcd::EtcdBuilder};

use crate::servers::Etcd;

async fn refusal(builder: EtcdBuilder) -> BackendError {
    let error = builder.connect().await.expect_err("it cannot connect");
    assert!(!format!("{error:?}{error}").contains("secret"), "{error:?}");
    error
}

#[tokio::test]
async fn settings_that_cannot_work() {
    let builder = |url: &str| EtcdBackend::builder(url);
    let local = "etcd://127.0.0.1:1";
    for (builder, part) in [
        (builder("redis://127.0.0.1"), "etcd://"),
        (builder("etcd://user:secret@"), "etcd://"),
        (builder(local).with_prefix("a secret"), "prefix"),
        (builder(local).with_prefix("x".repeat(129)), "prefix"),
        (
            builder(local).with_operation_timeout(Duration::from_millis(29)),
            "timeout",
        ),
        (builder(local).with_root_certificates("secret"), "etcds://"),
        (
            builder(local).with_client_certificate("secret", "secret"),
            "etcds://",
        ),
        (
            builder("etcds://127.0.0.1:1").with_root_certificates("secret"),
            "PEM",
        ),
        (
            builder("etcds://127.0.0.1:1").with_client_certificate("secret", "secret"),
            "PEM",
        ),
    ] {
        let error = refusal(builder).await;
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let url = "etcd://user:secret@127.0.0.1:1,127.0.0.1:2";
    let builder = EtcdBackend::builder(url).with_operation_timeout(Duration::from_millis(600));
    let error = refusal(builder).await;
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
}

/// Neither a user nor a password nor the URL is shown.
#[tokio::test(flavor = "multi_thread")]
async fn debug_shows_no_secrets() {
    let builder = EtcdBackend::builder("etcds://user:secret@127.0.0.1")
        .with_client_certificate("secret", "secret");
    assert!(!format!("{builder:?}").contains("secret"), "{builder:?}");
    let server = Etcd::start();
    let backend = EtcdBackend::builder(&server.url())
        .with_prefix("secret/")
        .connect();
    let backend = backend.await.unwrap();
    assert!(!format!("{backend:?}").contains("secret"), "{backend:?}");
}
