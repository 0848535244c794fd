//! etcd over TLS.

use tower_lock::{BackendErrorKind, EtcdBackend, Lease as _};

use crate::{
    servers::Etcd,
    support::{SLACK, hold, key, served, wait},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_root_certificate_of_ones_own() {
    let server = Etcd::start_tls(&[]);
    let builder = EtcdBackend::builder(&server.url())
        .with_root_certificates(server.certificates().root_pem());
    let backend = builder.connect().await.unwrap();
    let held = hold(&backend, &key(1)).await;
    let waiting = wait(&backend, &key(1)).await;
    held.release().await.unwrap();
    served(waiting, SLACK).await.0.release().await.unwrap();
    // Trusting the public web's is not enough, and saying nothing of TLS even less.
    for url in [server.url(), server.url().replace("etcds", "etcd")] {
        let error = EtcdBackend::connect(&url).await.expect_err("refused");
        assert!(error.to_string().contains("TLS"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_trusted_is_named() {
    let server = Etcd::start_tls(&[]);
    let error = EtcdBackend::connect(&server.url())
        .await
        .expect_err("refused");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("certificates"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate() {
    let server = Etcd::start_tls(&["--client-cert-auth"]);
    let certificates = server.certificates();
    let with_root =
        || EtcdBackend::builder(&server.url()).with_root_certificates(certificates.root_pem());
    let error = with_root().connect().await.expect_err("it is refused");
    assert!(error.to_string().contains("client certificate"), "{error}");
    let shown =
        with_root().with_client_certificate(certificates.client_pem(), certificates.client_key());
    let backend = shown.connect().await.unwrap();
    hold(&backend, &key(1)).await.release().await.unwrap();
}
