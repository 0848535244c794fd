//! What the tests share.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response},
};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
    time::timeout,
};
use tower::{Service, ServiceExt};

/// Longer than anything takes that works, on a busy machine too.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A lease that ends after every test: what is free before was released.
pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);

/// Sends one request to a router.
pub(crate) async fn send(app: &Router, method: &str, path: &str) -> Response<Body> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(Body::empty())
        .expect("a request");
    app.clone().oneshot(request).await.expect("infallible")
}

/// The body as text.
pub(crate) async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.expect("a body");
    String::from_utf8(bytes.to_bytes().to_vec()).expect("text")
}

/// Waits for what has no event of its own.
#[track_caller]
pub(crate) fn until<'a>(
    what: &'a str,
    mut is: impl FnMut() -> bool + 'a,
) -> impl Future<Output = ()> + 'a {
    let caller = std::panic::Location::caller();
    async move {
        let end = std::time::Instant::now() + SOON;
        while !is() {
            assert!(std::time::Instant::now() < end, "never: {what} ({caller})");
            // Other threads need time to do it; a paused clock only moves on.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Awaits an event that must come.
pub(crate) async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    match timeout(SOON, event).await {
        Ok(value) => value,
        Err(_) => panic!("never: {what}"),
    }
}

/// A handler that tells when it begins and ends, and goes on when it is told to.
#[derive(Clone)]
pub(crate) struct Stage(Arc<Steps>);

struct Steps {
    entered: Semaphore,
    go: Semaphore,
    left: Semaphore,
    begun: AtomicUsize,
    finished: AtomicUsize,
}

struct Leaves(Arc<Steps>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.left.add_permits(1);
    }
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Steps {
            entered: Semaphore::new(0),
            go: Semaphore::new(0),
            left: Semaphore::new(0),
            begun: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
        }))
    }

    /// The handler's part.
    pub(crate) async fn act(&self) {
        let _leaves = Leaves(self.0.clone());
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        self.0.entered.add_permits(1);
        self.0.go.acquire().await.expect("open").forget();
        self.0.finished.fetch_add(1, Ordering::SeqCst);
    }

    /// One more handler has begun.
    pub(crate) async fn entered(&self) {
        soon("a handler begins", self.0.entered.acquire())
            .await
            .expect("open")
            .forget();
    }

    /// One handler may go on.
    pub(crate) fn let_go(&self) {
        self.0.go.add_permits(1);
    }

    /// One more handler has finished or was dropped.
    pub(crate) async fn left(&self) {
        soon("a handler is over", self.0.left.acquire())
            .await
            .expect("open")
            .forget();
    }

    /// How many began.
    pub(crate) fn begun(&self) -> usize {
        self.0.begun.load(Ordering::SeqCst)
    }

    /// How many reached their end.
    pub(crate) fn finished(&self) -> usize {
        self.0.finished.load(Ordering::SeqCst)
    }
}

/// Serves a router over HTTP/1 and HTTP/2 on a free port.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Serves a router over HTTP/1 to clients that may close their half of the connection.
pub(crate) async fn serve_half_close(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let app = app.clone();
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                    let mut app = app.clone();
                    async move {
                        Ok::<_, Infallible>(app.call(request.map(Body::new)).await.expect("ok"))
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .half_close(true)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    address
}

/// An HTTP/1 connection on which this was sent.
pub(crate) async fn h1(address: SocketAddr, sent: impl AsRef<[u8]>) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(sent.as_ref()).await.expect("sent");
    stream
}

/// A request head without a body, after which the server closes.
pub(crate) fn h1_head(method: &str, path: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    )
}

/// Everything that the server sends until it closes.
pub(crate) async fn h1_answer(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    soon("the answer", stream.read_to_end(&mut answer))
        .await
        .expect("read");
    String::from_utf8_lossy(&answer).into_owned()
}

/// An HTTP/2 connection and its driver.
pub(crate) async fn h2(address: SocketAddr) -> (http2::SendRequest<Empty<Bytes>>, JoinHandle<()>) {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .expect("a handshake");
    let driver = tokio::spawn(async move {
        let _ = connection.await;
    });
    (sender, driver)
}

/// How a client leaves before it has its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leave {
    /// It closes the HTTP/1 connection.
    H1Close,
    /// It resets the HTTP/2 stream; the connection stays.
    H2Reset,
    /// It closes the HTTP/2 connection.
    H2Close,
}

pub(crate) const LEAVES: [Leave; 3] = [Leave::H1Close, Leave::H2Reset, Leave::H2Close];

type Answer = Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>;

/// A client that waits for its answer, and can leave.
pub(crate) enum Caller {
    H1(TcpStream),
    H2 {
        sender: http2::SendRequest<Empty<Bytes>>,
        driver: JoinHandle<()>,
        answer: Option<Answer>,
        reset: bool,
    },
    Gone(#[expect(dead_code)] Option<http2::SendRequest<Empty<Bytes>>>),
}

impl Caller {
    /// Posts to this path.
    pub(crate) async fn post(address: SocketAddr, leave: Leave, path: &str) -> Self {
        if let Leave::H1Close = leave {
            return Self::H1(h1(address, h1_head("POST", path)).await);
        }
        let (mut sender, driver) = h2(address).await;
        let request = Request::post(format!("http://test{path}"))
            .body(Empty::new())
            .expect("a request");
        let answer = sender.send_request(request);
        Self::H2 {
            sender,
            driver,
            answer: Some(Box::pin(answer)),
            reset: matches!(leave, Leave::H2Reset),
        }
    }

    /// Leaves without the answer.
    pub(crate) fn leave(&mut self) {
        *self = match std::mem::replace(self, Self::Gone(None)) {
            Self::H2 {
                sender,
                driver,
                answer,
                reset,
            } => {
                drop(answer);
                if !reset {
                    driver.abort();
                }
                Self::Gone(Some(sender))
            }
            Self::H1(_) | Self::Gone(_) => Self::Gone(None),
        };
    }

    /// The status of the answer.
    pub(crate) async fn status(&mut self) -> u16 {
        match self {
            Self::H1(stream) => {
                let answer = h1_answer(stream).await;
                let status = answer.strip_prefix("HTTP/1.1 ").expect("an answer");
                status[..3].parse().expect("a status")
            }
            Self::H2 { answer, .. } => {
                let answer = answer.take().expect("one answer");
                let response = soon("the answer", answer).await.expect("an answer");
                response.status().as_u16()
            }
            Self::Gone(_) => panic!("it has left"),
        }
    }
}
