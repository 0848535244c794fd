//! Requests to a service in this process, with no HTTP server in between: what is timed is the
//! service.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, header::CONTENT_TYPE};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use redis::{Cmd, Value, aio::MultiplexedConnection};
use tower::{Service, ServiceExt};

use crate::locks::Lock;

/// What each request is known by, as a string of RFC 9651.
pub(crate) const KEY: &str = "idempotency-key";

const PAYLOAD: &[u8] =
    br#"{"cart":"7f0d1c52","total":{"amount":1999,"currency":"EUR"},"to":"12 Some Street"}"#;

/// A checkout.
pub(crate) fn request(key: &str) -> Request<Full<Bytes>> {
    Request::post("/checkout")
        .header(CONTENT_TYPE, "application/json")
        .header(KEY, quoted(key))
        .body(Full::new(Bytes::from_static(PAYLOAD)))
        .expect("a request")
}

/// The key as the header has it.
pub(crate) fn quoted(key: &str) -> String {
    format!("\"{key}\"")
}

/// A handler that answers with these bytes, and counts how often it ran.
#[derive(Clone)]
pub(crate) struct Answer {
    body: Bytes,
    runs: Arc<AtomicUsize>,
}

impl Answer {
    pub(crate) fn of(length: usize) -> Self {
        Self {
            body: vec![b'a'; length].into(),
            runs: Arc::default(),
        }
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs.load(Ordering::Relaxed)
    }
}

impl<B> Service<Request<B>> for Answer {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        self.runs.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new(Full::new(self.body.clone()))))
    }
}

/// A handler that sends one command and answers with the last bytes of the reply.
#[derive(Clone)]
pub(crate) struct Ask {
    connection: MultiplexedConnection,
    /// For each key of a request.
    commands: Arc<HashMap<String, Cmd>>,
}

impl Ask {
    pub(crate) fn new(
        connection: MultiplexedConnection,
        commands: impl Iterator<Item = (String, Cmd)>,
    ) -> Self {
        let quoted = commands.map(|(key, command)| (quoted(&key), command));
        Self {
            connection,
            commands: Arc::new(quoted.collect()),
        }
    }
}

impl<B: Send + 'static> Service<Request<B>> for Ask {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self {
            mut connection,
            commands,
        } = self.clone();
        Box::pin(async move {
            let key = request.headers()[KEY].to_str().expect("it is ASCII");
            let reply = connection.send_packed_command(&commands[key]).await;
            let body = match reply.expect("an answer") {
                Value::Array(mut items) => items.pop(),
                one => Some(one),
            };
            match body {
                Some(Value::BulkString(bytes)) => Ok(Response::new(Full::new(bytes.into()))),
                other => panic!("no bytes: {other:?}"),
            }
        })
    }
}

/// A service that is asked again and again: an acquire is a request and its response to the end,
/// and a release nothing.
#[derive(Clone)]
pub(crate) struct Via<S> {
    service: S,
    /// The response has at least so many bytes.
    length: usize,
    /// Of a key for each request, where they are not repeated.
    asked: Option<Arc<AtomicUsize>>,
}

impl<S> Via<S> {
    /// The same request again and again.
    pub(crate) fn repeated(service: S, length: usize) -> Self {
        Self {
            service,
            length,
            asked: None,
        }
    }

    /// A request with a new key each time.
    pub(crate) fn first(service: S, length: usize) -> Self {
        Self {
            asked: Some(Arc::default()),
            ..Self::repeated(service, length)
        }
    }
}

impl<S, R> Lock for Via<S>
where
    S: Service<Request<Full<Bytes>>, Response = Response<R>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: fmt::Debug,
    R: Body<Data = Bytes> + Send,
    R::Error: fmt::Debug,
{
    type Held = ();

    async fn acquire(&self, key: &str) {
        let request = match &self.asked {
            None => request(key),
            Some(asked) => {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                request(&format!("{key}-{number}"))
            }
        };
        let response = self.service.clone().oneshot(request).await;
        let response = response.expect("no service fails");
        assert!(response.status().is_success(), "{}", response.status());
        let body = response.into_body().collect().await;
        let body = body.expect("it has an end").to_bytes();
        assert!(body.len() >= self.length, "{} bytes", body.len());
        // One that never waits would keep the runtime to itself.
        tokio::task::consume_budget().await;
    }

    async fn release(&self, (): ()) {}
}
