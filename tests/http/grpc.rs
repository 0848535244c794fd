//! gRPC through tonic, over real HTTP/2: a locked method, refusals that a client understands, a
//! stream that keeps its lock to its end, and a wait within the client's deadline. The messages are
//! plain text, so no code is generated.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    Router, body::Body, extract::Request as HttpRequest, response::Response as HttpResponse,
    routing::post,
};
use bytes::{Buf, BufMut};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;
use tonic::{
    Code, Request, Response, Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};
use tower::service_fn;
use tower_lock::{HeldLock, LockKey, LockLayer, LockManager, ReleaseOn, Wait, key::HeaderKey};

use crate::{
    backends::{Backend, On, on_each_backend},
    flaky::{Gate, serve, until, until_waiting},
    support::soon,
};

on_each_backend!(
    a_locked_method,
    refusals_that_a_client_understands,
    a_full_queue_and_a_lost_lock,
    a_deadline_bounds_the_wait,
    a_stream_keeps_its_lock,
);

/// Messages are text as it is.
#[derive(Clone, Copy, Default)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, item: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(item.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        let text = String::from_utf8(bytes.to_vec());
        text.map(Some).map_err(|_| Status::internal("no text"))
    }
}

/// A stream of what is sent into a channel.
struct Feed(mpsc::UnboundedReceiver<String>);

impl futures_core::Stream for Feed {
    type Item = Result<String, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|item| item.map(Ok))
    }
}

/// `/shop.Orders/Pay` goes through the gate and answers with its token's key.
async fn pay(gate: Gate, request: HttpRequest) -> HttpResponse {
    let method = service_fn(move |request: Request<String>| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            // The lock comes through to tonic's own request.
            let held = request.extensions().get::<HeldLock>().cloned();
            let held = held.ok_or_else(|| Status::internal("not locked"))?;
            let answer = format!("{} {}", request.get_ref(), held.is_held());
            Ok::<_, Status>(Response::new(answer))
        }
    });
    tonic::server::Grpc::new(Text)
        .unary(method, request)
        .await
        .map(Body::new)
}

/// `/shop.Orders/Watch` streams what the test feeds it.
async fn watch(feed: Feed, request: HttpRequest) -> HttpResponse {
    let mut feed = Some(feed);
    let method = service_fn(move |_: Request<String>| {
        let feed = feed.take().expect("one call");
        async move { Ok::<_, Status>(Response::new(feed)) }
    });
    tonic::server::Grpc::new(Text)
        .server_streaming(method, request)
        .await
        .map(Body::new)
}

/// What the tests have of a running service.
struct Shop {
    backend: Backend,
    locks: LockManager,
    gate: Gate,
    feeds: mpsc::UnboundedSender<Feed>,
    sender: http2::SendRequest<tonic::body::Body>,
}

async fn shop(on: On, change: impl Fn(LockLayer) -> LockLayer) -> Shop {
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let (feeds, coming) = mpsc::unbounded_channel();
    let coming = std::sync::Arc::new(tokio::sync::Mutex::new(coming));
    let layer = || change(LockLayer::new(&locks, HeaderKey::new("order", "x-order")));
    let inside = gate.clone();
    let app = Router::new()
        .route(
            "/shop.Orders/Pay",
            post(move |request: HttpRequest| pay(inside.clone(), request)).route_layer(layer()),
        )
        .route(
            "/shop.Orders/Watch",
            post(move |request: HttpRequest| async move {
                let feed = coming.lock().await.recv().await.expect("a feed");
                watch(feed, request).await
            })
            .route_layer(layer().with_release_on(ReleaseOn::BodyEnd {
                max: Duration::from_secs(60),
            })),
        );
    let stream = tokio::net::TcpStream::connect(serve(app).await)
        .await
        .unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    Shop {
        backend,
        locks,
        gate,
        feeds,
        sender,
    }
}

fn about(order: &str) -> Request<String> {
    let mut request = Request::new("pay".to_owned());
    if !order.is_empty() {
        request
            .metadata_mut()
            .insert("x-order", order.parse().unwrap());
    }
    request
}

impl Shop {
    fn client(
        &self,
    ) -> tonic::client::Grpc<
        impl tonic::client::GrpcService<
            tonic::body::Body,
            ResponseBody = hyper::body::Incoming,
            Error = hyper::Error,
            Future: Send,
        > + use<>,
    > {
        let sender = self.sender.clone();
        tonic::client::Grpc::with_origin(
            service_fn(move |request| sender.clone().send_request(request)),
            "http://localhost".parse().unwrap(),
        )
    }

    async fn pay(&self, request: Request<String>) -> Result<String, Status> {
        let mut client = self.client();
        client.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static("/shop.Orders/Pay");
        let response = client.unary(request, path, Text).await?;
        Ok(response.into_inner())
    }
}

/// The code and the pushback of a refusal.
fn refusal(status: &Status) -> (Code, Option<i64>) {
    let pushback = status.metadata().get("grpc-retry-pushback-ms");
    let pushback = pushback.map(|ms| ms.to_str().unwrap().parse().unwrap());
    (status.code(), pushback)
}

async fn a_locked_method(on: On) {
    let shop = shop(on, |layer| layer).await;
    shop.gate.let_out(1);
    assert_eq!(shop.pay(about("7")).await.unwrap(), "pay true");
    shop.backend.freed().await;
}

/// A client sees why it was refused and when to come again, never tonic's `Unknown` of a status
/// that gRPC does not know; no text of it holds the key.
async fn refusals_that_a_client_understands(on: On) {
    let shop = shop(on, |layer| layer.with_wait(Wait::Fail)).await;
    let key = LockKey::new("order", "secret-7");
    let held = shop.locks.acquire(key, &Default::default()).await.unwrap();
    let busy = shop.pay(about("secret-7")).await.unwrap_err();
    let (code, pushback) = refusal(&busy);
    assert_eq!(code, Code::Aborted);
    assert!(pushback.unwrap() >= 100, "{pushback:?}");
    assert!(busy.message().starts_with("lock-busy: "), "{busy}");
    assert!(!format!("{busy:?}").contains("secret-7"));

    let missing = shop.pay(about("")).await.unwrap_err();
    assert_eq!(refusal(&missing), (Code::InvalidArgument, Some(-1)));
    held.release().await.unwrap();
    shop.locks.shutdown(Duration::ZERO).await;
    let draining = shop.pay(about("7")).await.unwrap_err();
    assert_eq!(refusal(&draining).0, Code::Unavailable);
    assert!(refusal(&draining).1.unwrap() >= 100);
    shop.backend.freed().await;
}

async fn a_full_queue_and_a_lost_lock(on: On) {
    let shop = shop(on, |layer| {
        layer.with_wait(Wait::Forever).with_max_waiters(1)
    })
    .await;
    let key = LockKey::new("order", 7);
    let next = async {
        shop.gate.until_inside(1).await;
        shop.pay(about("7")).await
    };
    let calls = async { tokio::join!(shop.pay(about("7")), next) };
    let test = async {
        shop.gate.until_inside(1).await;
        until_waiting(&shop.locks, 1).await;
        let full = shop.pay(about("7")).await.unwrap_err();
        assert_eq!(refusal(&full).0, Code::ResourceExhausted);
        assert!(refusal(&full).1.unwrap() >= 100);
        assert!(shop.locks.force_release(&key).await.unwrap());
        // Alone: the first one would be let out before it.
        until("the next one is inside", || {
            (shop.gate.inside.visits(), shop.gate.inside.now()) == (2, 1)
        })
        .await;
        shop.gate.let_out(1);
    };
    let all = async { tokio::join!(calls, test) };
    let ((lost, served), ()) = soon("all are answered", all).await;
    assert_eq!(served.unwrap(), "pay true");
    let lost = lost.unwrap_err();
    // Whether it took effect is unknown, so it says so and is not to be repeated.
    assert_eq!(refusal(&lost), (Code::Unknown, Some(-1)));
    assert!(lost.message().starts_with("lock-lost: "), "{lost}");
    shop.backend.freed().await;
}

/// The deadline that a client sends bounds its wait: it is refused by then, not after the route's
/// own minute.
async fn a_deadline_bounds_the_wait(on: On) {
    let shop = shop(on, |layer| layer.with_wait(Duration::from_secs(60))).await;
    let key = LockKey::new("order", 7);
    let held = shop.locks.acquire(key, &Default::default()).await.unwrap();
    let began = Instant::now();
    let mut request = about("7");
    request.set_timeout(Duration::from_millis(200));
    let status = shop.pay(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    assert!(status.message().starts_with("lock-timeout: "), "{status}");
    let waited = began.elapsed();
    assert!(
        waited >= Duration::from_millis(190) && waited < Duration::from_secs(20),
        "{waited:?}"
    );
    held.release().await.unwrap();
    shop.backend.freed().await;
}

/// A stream keeps its lock until its last message and status; one whose lock is lost ends with an
/// error, never as if it were complete.
async fn a_stream_keeps_its_lock(on: On) {
    let shop = shop(on, |layer| layer).await;
    for lost in [false, true] {
        let (feed, source) = mpsc::unbounded_channel();
        shop.feeds.send(Feed(source)).ok().unwrap();
        let mut client = shop.client();
        client.ready().await.unwrap();
        let path = http::uri::PathAndQuery::from_static("/shop.Orders/Watch");
        let response = client
            .server_streaming(about("7"), path, Text)
            .await
            .unwrap();
        let mut messages = response.into_inner();
        for n in ["one", "two"] {
            feed.send(n.to_owned()).unwrap();
            assert_eq!(messages.message().await.unwrap().unwrap(), n);
            assert_eq!(shop.backend.len(), 1, "it is held between messages");
        }
        if lost {
            let key = LockKey::new("order", 7);
            assert!(shop.locks.force_release(&key).await.unwrap());
            assert!(messages.message().await.is_err(), "no clean end");
        } else {
            drop(feed);
            assert_eq!(messages.message().await.unwrap(), None);
        }
        until("it is released", || shop.backend.is_empty()).await;
        until("the manager knows", || shop.locks.inspect().held.is_empty()).await;
    }
}
