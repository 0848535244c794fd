//! The URLs of servers. What is wrong with one is said, and nothing of it is shown.

use std::{fmt::Debug, future::Future};

use tower_lock::{
    BackendError, BackendErrorKind, EtcdBackend, RedLockBackend, RedisBackend, ZooKeeperBackend,
};

use super::{
    Entry,
    input::Input,
    keys::block_on,
    watch::{SECRET, shows_no_secret},
};

pub const ENTRY: Entry = Entry {
    name: "urls",
    run,
    words: &[
        "redis://",
        "rediss://",
        "unix://",
        "redis+unix://",
        "valkey://",
        "redis+sentinel://",
        "rediss+sentinel://",
        "redis+cluster://",
        "rediss+cluster://",
        "redlock://",
        "redlocks://",
        "etcd://",
        "etcds://",
        "zookeeper://",
        "zookeepers://",
        "s3cr3t",
        ":s3cr3t@",
        "user:s3cr3t@",
        "@",
        ":",
        "/",
        "//",
        ",",
        "[::1]",
        "[",
        "]",
        ":0",
        ":6379",
        ":65536",
        "?db=1",
        "?db=s3cr3t",
        "?protocol=s3cr3t",
        "&user=s3cr3t",
        "&pass=s3cr3t",
        "sentinel_user=s3cr3t",
        "sentinel_password=s3cr3t",
        "#insecure",
        "#",
        "%",
        "%40",
        "%ff",
        "%00",
        "\u{e9}",
        "localhost",
        "a.b,c.d",
        " ",
        "..",
        "/0",
        "/16",
        "/s3cr3t",
        "\t",
    ],
};

/// The first byte says for which backend, the rest is the URL, or several, one a line.
///
/// Something else is wrong too, which is looked at after the URL: so nobody is connected to.
fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let which = input.byte();
    let text = String::from_utf8_lossy(input.rest()).into_owned();
    let line = text.lines().next().unwrap_or_default();
    block_on(async {
        match which {
            b's' => refused(RedLockBackend::builder_of(text.lines()), "redlock", |b| {
                b.with_root_certificates(SECRET).connect()
            }),
            b'l' => refused(RedLockBackend::builder(line), "redlock", |builder| {
                builder.with_root_certificates(SECRET).connect()
            }),
            b'e' => refused(EtcdBackend::builder(line), "etcd", |builder| {
                builder.with_root_certificates(SECRET).connect()
            }),
            b'z' => refused(ZooKeeperBackend::builder(line), "zookeeper", |builder| {
                builder.with_base("no path").connect()
            }),
            _ => refused(RedisBackend::builder(line), "redis", |builder| {
                builder.with_root_certificates(SECRET).connect()
            }),
        }
    });
}

fn refused<B: Debug, T, F>(builder: B, scheme: &str, connect: impl FnOnce(B) -> F)
where
    F: Future<Output = Result<T, BackendError>>,
{
    shows_no_secret(&format!("{builder:?}"));
    // It does not get as far as a wait.
    let connecting = std::pin::pin!(connect(builder));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = connecting.poll(&mut context) else {
        panic!("it takes what cannot work, or waits");
    };
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured);
    let text = error.to_string();
    shows_no_secret(&text);
    shows_no_secret(&format!("{error:?}"));
    if text.contains("URL") && text.contains("not usable") || text.contains("connect string") {
        assert!(text.contains("accepted") && text.contains(scheme), "{text}");
    }
}
