//! Request bodies: buffered within bounds and handed on unchanged, not invited when the request is
//! refused anyway, and no obstacle to the answer when they are left unread.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::DefaultBodyLimit,
    routing::post,
};
use http::{Request, request::Parts};
use http_body_util::StreamBody;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tower_lock::{
    HeldLock, LockKey, LockLayer, LockManager, Wait,
    key::{self, HeaderKey},
};

use crate::{
    backends::{On, on_each_backend},
    flaky::{call, outcome, serve},
    support::text,
};

on_each_backend!(
    a_buffered_body,
    the_handlers_own_limit,
    expect_100_continue,
    a_refusal_with_an_unread_body,
    the_key_is_the_body,
);

const CAP: usize = 1000;

/// A key of the whole body.
fn by_content(locks: &LockManager) -> LockLayer<tower_lock::FromBody> {
    LockLayer::buffered(
        locks,
        key::body_from_fn(CAP, |_: &Parts, body: &Bytes| {
            LockKey::from_values("upload", [body])
        }),
    )
}

/// A body of this many chunks of 100 bytes that counts how many were read.
fn counted(chunks: usize) -> (Body, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let mut left = chunks;
    let counter = read.clone();
    let stream = body_of(move || {
        left = left.checked_sub(1)?;
        counter.fetch_add(1, Ordering::SeqCst);
        Some(Bytes::from(vec![left as u8; 100]))
    });
    (Body::new(stream), read)
}

fn body_of(
    next: impl FnMut() -> Option<Bytes> + Send + Unpin + 'static,
) -> impl http_body::Body<Data = Bytes, Error = std::convert::Infallible> {
    struct Chunks<F>(F);
    impl<F: FnMut() -> Option<Bytes> + Unpin> futures_core::Stream for Chunks<F> {
        type Item = Result<http_body::Frame<Bytes>, std::convert::Infallible>;

        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Ready((self.0)().map(|data| Ok(http_body::Frame::data(data))))
        }
    }
    StreamBody::new(Chunks(next))
}

/// The handler gets the identical bytes, in whatever pieces they came; beyond the cap it is a 413,
/// without reading where the length says so, and soon after the cap where it does not.
async fn a_buffered_body(on: On) {
    let (backend, locks) = on.rig().await;
    let app = Router::new().route(
        "/upload",
        post(|held: HeldLock, body: Bytes| async move {
            assert_eq!(held.key(), &LockKey::from_values("upload", [&body]));
            body
        })
        .route_layer(by_content(&locks)),
    );
    for chunks in [0, 1, 10] {
        let (body, _) = counted(chunks);
        let response = call(&app, Request::post("/upload").body(body).unwrap()).await;
        let echo = axum::body::to_bytes(response.into_body(), usize::MAX)
            .await
            .unwrap();
        let (body, _) = counted(chunks);
        assert_eq!(echo, axum::body::to_bytes(body, usize::MAX).await.unwrap());
    }
    let (body, read) = counted(1000);
    let request = Request::post("/upload").header("content-length", 100_000);
    let response = call(&app, request.body(body).unwrap()).await;
    assert_eq!(outcome(&response), (413, "body-too-large"));
    assert_eq!(read.load(Ordering::SeqCst), 0, "its length says enough");
    let (body, read) = counted(1000);
    let response = call(&app, Request::post("/upload").body(body).unwrap()).await;
    assert_eq!(outcome(&response), (413, "body-too-large"));
    let read = read.load(Ordering::SeqCst);
    assert!(read <= CAP / 100 + 1, "{read} chunks were read");
    backend.freed().await;
}

/// The handler's own limit still counts, below the layer's.
async fn the_handlers_own_limit(on: On) {
    let (backend, locks) = on.rig().await;
    let app = Router::new().route(
        "/upload",
        post(|body: Bytes| async move { body })
            .layer(DefaultBodyLimit::max(250))
            .route_layer(by_content(&locks)),
    );
    for (chunks, status) in [(2, 200), (3, 413)] {
        let (body, _) = counted(chunks);
        let response = call(&app, Request::post("/upload").body(body).unwrap()).await;
        assert_eq!(
            outcome(&response),
            (status, ""),
            "the answer is the handler's"
        );
    }
    backend.freed().await;
}

/// What a server sends on one connection until it closes it, for these bytes of a client.
async fn exchange(address: std::net::SocketAddr, request: &[u8]) -> String {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let request = request.to_vec();
    // The server may close before it has read all: that is no error of this test.
    let writing = tokio::spawn(async move {
        let _ = writer.write_all(&request).await;
        writer
    });
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = tokio::time::timeout(Duration::from_secs(10), reader.read(&mut buffer)).await;
        match read.expect("an answer") {
            Ok(0) | Err(_) => break,
            Ok(n) => answer.extend_from_slice(&buffer[..n]),
        }
        // A whole answer with a body ends with the document's brace, or the text of the handler.
        if answer.ends_with(b"}") || answer.ends_with(b"stored") {
            break;
        }
    }
    drop(writing.await);
    String::from_utf8(answer).unwrap()
}

/// `POST /upload` over a real connection: held by `key` "busy" for as long as the guard lives.
async fn uploads(on: On) -> (std::net::SocketAddr, tower_lock::LockGuard) {
    let (_, locks) = on.rig().await;
    let busy = LockKey::new("upload", "busy");
    let guard = locks.acquire(busy, &Default::default()).await.unwrap();
    let layer = LockLayer::new(&locks, HeaderKey::new("upload", "x-upload")).with_wait(Wait::Fail);
    let store = |body: Bytes| async move {
        assert!(!body.is_empty());
        "stored"
    };
    let app = Router::new()
        .route("/upload", post(store).route_layer(layer))
        .route("/buffered", post(store).route_layer(by_content(&locks)));
    (serve(app).await, guard)
}

/// A client that asks before it sends its body: refused, it is not invited to send it; accepted,
/// it is invited exactly once.
async fn expect_100_continue(on: On) {
    let (address, _guard) = uploads(on).await;
    let head = |path: &str, key: &str, length: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\n{key}content-length: {length}\r\nexpect: 100-continue\r\n\r\n"
        )
    };
    let refused = [
        (head("/upload", "", 5), "400"),
        (head("/upload", "x-upload: busy\r\n", 5), "409"),
        (head("/buffered", "", CAP + 1), "413"),
    ];
    for (request, status) in refused {
        let answer = exchange(address, request.as_bytes()).await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{answer}");
        assert!(!answer.contains("100 Continue"), "{answer}");
    }
    for (path, key) in [("/upload", "x-upload: free\r\n"), ("/buffered", "")] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(head(path, key, 5).as_bytes())
            .await
            .unwrap();
        let mut invitation = [0; 25];
        stream.read_exact(&mut invitation).await.unwrap();
        assert_eq!(&invitation, b"HTTP/1.1 100 Continue\r\n\r\n", "{path}");
        stream.write_all(b"hello").await.unwrap();
        let mut answer = String::new();
        let mut buffer = [0; 1024];
        while !answer.ends_with("stored") {
            let n = stream.read(&mut buffer).await.unwrap();
            assert!(n > 0, "{answer}");
            answer.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
        }
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(!answer.contains("100 Continue"), "invited twice");
    }
}

/// A refusal reaches a client that is still sending: 200 kB that nobody reads do not hide the
/// 409. The connection is closed then: nobody reads the rest of that body.
async fn a_refusal_with_an_unread_body(on: On) {
    let (address, _guard) = uploads(on).await;
    let mut request =
        b"POST /upload HTTP/1.1\r\nhost: a\r\nx-upload: busy\r\ncontent-length: 200000\r\n\r\n"
            .to_vec();
    request.resize(request.len() + 200_000, b'x');
    for _ in 0..20 {
        let answer = exchange(address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 409 "), "{answer:?}");
        assert!(answer.contains("lock-busy"), "{answer}");
    }
}

/// Two uploads with the same bytes are one at a time; with others, at once.
async fn the_key_is_the_body(on: On) {
    let (backend, locks) = on.rig().await;
    let gate = crate::flaky::Gate::shut();
    let inside = gate.clone();
    let app = Router::new().route(
        "/upload",
        post(move |body: String| async move {
            inside.pass().await;
            body
        })
        .route_layer(by_content(&locks).with_wait(Wait::Fail)),
    );
    let upload = |body: &'static str| Request::post("/upload").body(Body::from(body)).unwrap();
    let first = crate::flaky::start(&app, upload("a"));
    gate.until_inside(1).await;
    assert_eq!(outcome(&call(&app, upload("a")).await), (409, "lock-busy"));
    let other = crate::flaky::start(&app, upload("b"));
    gate.until_inside(2).await;
    gate.let_out(2);
    assert_eq!(text(first.await.unwrap()).await, "a");
    assert_eq!(text(other.await.unwrap()).await, "b");
    backend.freed().await;
}
