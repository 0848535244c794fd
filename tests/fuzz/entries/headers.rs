//! Heads of requests and of responses, over whole layers.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, COOKIE, SET_COOKIE, VARY},
};
use http_body_util::BodyExt as _;
use tokio::{
    runtime::Builder,
    time::{Instant, timeout},
};
use tower::{Layer, Service, ServiceExt as _, service_fn};
use tower_lock::{
    IdempotencyKey, IdempotencyLayer, LockKey, LockLayer, LockManager, LockPolicy, MemoryBackend,
    SingleFlightLayer, Wait, key,
};

use super::{
    Entry,
    input::Input,
    keys::is_refusal,
    watch::{SECRET, shows_no_secret},
};

pub const ENTRY: Entry = Entry {
    name: "headers",
    run,
    words: &[
        "\n",
        "\n\n",
        ":",
        ",",
        ";",
        "=",
        "\"",
        "\\",
        " ",
        "\t",
        "idempotency-key:",
        "prefer:",
        "grpc-timeout:",
        "content-type:application/grpc\n",
        "application/grpc-web-text",
        "cache-control:",
        "vary:",
        "accept",
        "authorization:",
        "origin:x\n",
        "if-none-match:*\n",
        "range:bytes=0-1\n",
        "age:",
        "expires:0\n",
        "set-cookie:a=b\n",
        "wait=",
        "wait=0",
        "wait=\"3\"",
        "wait=18446744073709551616",
        "respond-async",
        "1H",
        "99999999H",
        "0n",
        "5m",
        "no-store",
        "no-cache",
        "private",
        "public",
        "max-age=",
        "s-maxage=1",
        "must-revalidate",
        "*",
        "grpc-status:0\n",
        "content-length:99\n",
        "transfer-encoding:chunked\n",
        "connection:close\n",
        "upgrade:x\n",
        "text/event-stream",
        SECRET,
        "\"s3cr3t\"",
        "\u{e9}",
        "\x7f",
    ],
};

/// The route's own wait, and the longest that a client may ask for.
const WAIT: Duration = Duration::from_secs(2);
const MAX_WAIT: Duration = Duration::from_secs(5);

/// A byte for the layer (`l` lock, `i` idempotency, else single flight), one for the method, the
/// target, headers of the request until an empty line, the status of the response in a byte, and its
/// headers until an empty line. The body is the rest.
fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let layer = input.byte();
    let Some(head) = Head::read(&mut input) else {
        return;
    };
    let answer = Answer {
        // Nobody answers with what is no response, or with 101 to those who do not ask for it.
        status: StatusCode::from_u16(200 + u16::from(input.byte()) * 2).expect("from 200 to 710"),
        headers: headers(&mut input),
        body: Bytes::copy_from_slice(input.rest()),
    };
    // Time is simulated: what waits for long takes none.
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime").block_on(async {
        let locks = LockManager::builder(MemoryBackend::new())
            .renew_on_current_runtime()
            .build();
        match layer {
            b'l' => lock(&locks, &head).await,
            b'i' => idempotency(&locks, &head, &answer).await,
            _ => single_flight(&locks, &head, &answer).await,
        }
    });
}

struct Head {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl Head {
    fn read(input: &mut Input<'_>) -> Option<Self> {
        let method = match input.byte() {
            b'G' => Method::GET,
            b'H' => Method::HEAD,
            b'O' => Method::OPTIONS,
            b'X' => Method::from_bytes(b"XYZZY").ok()?,
            _ => Method::POST,
        };
        let uri = Uri::try_from(input.line()).ok()?;
        let headers = headers(input);
        Some(Self {
            method,
            uri,
            headers,
        })
    }

    fn request(&self) -> Request<Body> {
        let mut request = Request::new(Body::from("the body"));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// Lines of `name:value` until an empty one; those that are no headers are left out.
fn headers(input: &mut Input<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    loop {
        let line = input.line();
        if line.is_empty() {
            return headers;
        }
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// A service that answers so, and counts how often it does.
fn handler<B: Send + 'static>(
    answer: &Answer,
    runs: &Arc<AtomicUsize>,
) -> impl Service<Request<B>, Response = Response<Body>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ use<B> {
    let (status, headers, body) = (answer.status, answer.headers.clone(), answer.body.clone());
    let runs = runs.clone();
    service_fn(move |_: Request<B>| {
        runs.fetch_add(1, Ordering::SeqCst);
        let mut response = Response::new(Body::from(body.clone()));
        *response.status_mut() = status;
        *response.headers_mut() = headers.clone();
        async move { Ok(response) }
    })
}

struct Taken {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

async fn call<S, B>(service: &S, head: &Head) -> Taken
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Data = Bytes>,
{
    // By the simulated clock.
    let called = timeout(
        Duration::from_secs(60),
        service.clone().oneshot(head.request()),
    );
    let response = called.await.expect("it ends").expect("infallible");
    let (head, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        panic!("a body that ends with an error");
    };
    let (status, headers) = (head.status, head.headers);
    Taken {
        status,
        headers,
        body: body.to_bytes(),
    }
}

impl Taken {
    /// Refused, as such a client understands it.
    fn is_refused(&self, statuses: &[u16]) {
        if self.headers.contains_key("grpc-status") {
            shows_no_secret(&format!("{:?}", self.headers));
            return;
        }
        assert!(statuses.contains(&self.status.as_u16()), "{}", self.status);
        is_refusal(self.status, &self.headers, &self.body);
    }
}

/// How long a request waits for what is not to be had, and what it is told of that.
async fn lock(locks: &LockManager, head: &Head) {
    let key = LockKey::new("order", 7);
    let policy = LockPolicy::new().with_wait(Wait::Fail);
    let holder = locks
        .acquire(key.clone(), &policy)
        .await
        .expect("it is free");
    let layer = LockLayer::new(
        locks,
        key::from_fn(move |_: &http::request::Parts| key.clone()),
    )
    .with_wait(WAIT)
    .with_max_prefer_wait(MAX_WAIT)
    .with_methods([Method::POST, Method::GET]);
    let answer = Answer {
        status: StatusCode::OK,
        headers: HeaderMap::new(),
        body: Bytes::new(),
    };
    let runs = Arc::default();
    let service = layer.layer(handler(&answer, &runs));
    let begun = Instant::now();
    let taken = call(&service, head).await;
    assert!(
        begun.elapsed() <= MAX_WAIT + Duration::from_millis(50),
        "{:?}",
        begun.elapsed()
    );
    if runs.load(Ordering::SeqCst) == 1 {
        // Of a method that is not locked, or an upgrade.
        assert_eq!(taken.status, StatusCode::OK);
        assert!(begun.elapsed().is_zero());
    } else {
        taken.is_refused(&[409, 503]);
        if let Some(applied) = taken.headers.get("preference-applied") {
            let text = applied.to_str().expect("ASCII");
            let seconds: u64 = text
                .strip_prefix("wait=")
                .and_then(|n| n.parse().ok())
                .expect(text);
            assert!(seconds <= MAX_WAIT.as_secs(), "{text}");
        }
    }
    drop(holder);
}

/// A key runs once; what is no key runs never.
async fn idempotency(locks: &LockManager, head: &Head, answer: &Answer) {
    let layer = IdempotencyLayer::new(locks, IdempotencyKey::header().global_keys());
    let layer = layer.with_methods([Method::POST, Method::GET]);
    let runs = Arc::default();
    let service = layer.layer(handler(answer, &runs));
    let first = call(&service, head).await;
    let ran = runs.load(Ordering::SeqCst);
    let second = call(&service, head).await;
    let all = runs.load(Ordering::SeqCst);
    if ran == 0 {
        assert_eq!(all, 0, "refused, then not");
        for taken in [first, second] {
            // 413 is of the body, which is short.
            taken.is_refused(&[400]);
        }
    } else if all == 1 {
        if second.headers.contains_key("idempotent-replayed")
            && !answer.headers.contains_key("idempotent-replayed")
        {
            assert_eq!((first.status, &first.body), (second.status, &second.body));
            assert_eq!(second.body, answer.body);
            for name in ["connection", "transfer-encoding", "upgrade"] {
                assert!(
                    !second.headers.contains_key(name),
                    "{name} is of another connection"
                );
            }
        } else if !second.headers.contains_key("idempotent-replayed") {
            second.is_refused(&[409]);
        }
    } else {
        // Not one of its methods, or a response that is not kept.
        assert_eq!(
            (first.status, second.status),
            (answer.status, answer.status)
        );
    }
}

/// What is for one client is not given to another.
async fn single_flight(locks: &LockManager, head: &Head, answer: &Answer) {
    let layer = SingleFlightLayer::new(
        locks,
        key::from_fn(|_: &http::request::Parts| LockKey::new("report", 7)),
    )
    .share_response(Duration::from_secs(60))
    .with_vary([ACCEPT]);
    let runs = Arc::default();
    let service = layer.layer(handler(answer, &runs));
    for _ in 0..2 {
        let taken = call(&service, head).await;
        assert_eq!((taken.status, &taken.body), (answer.status, &answer.body));
    }
    if !may_be_shared(head, answer) {
        assert_eq!(
            runs.load(Ordering::SeqCst),
            2,
            "shared: {:?}",
            answer.headers
        );
    }
}

/// Lists without quotes are simple to read.
fn names(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let values = headers.get_all(name).iter();
    // What is no text is no name that is known, and those beside it count.
    let text = values.map(|value| String::from_utf8_lossy(value.as_bytes()));
    let all = text.filter(|text| !text.contains('"')).flat_map(|text| {
        let names = text.split(',');
        let names = names.map(|one| one.trim().to_ascii_lowercase());
        names.collect::<Vec<_>>()
    });
    all.collect()
}

/// The names of directives, without their arguments.
fn directives(headers: &HeaderMap) -> Vec<String> {
    let all = names(headers, &CACHE_CONTROL).into_iter();
    let all = all.map(|one| one.split('=').next().unwrap_or_default().trim().to_owned());
    all.collect()
}

fn may_be_shared(head: &Head, answer: &Answer) -> bool {
    let told = directives(&answer.headers);
    let forbids = |name: &String| matches!(name.as_str(), "no-store" | "private" | "no-cache");
    let varies = names(&answer.headers, &VARY);
    let wants_none = directives(&head.headers)
        .iter()
        .any(|name| name == "no-store");
    let names_somebody =
        head.headers.contains_key(AUTHORIZATION) || head.headers.contains_key(COOKIE);
    let is_public = told
        .iter()
        .any(|name| name == "public" || name == "s-maxage");
    let quotes = answer
        .headers
        .get_all(CACHE_CONTROL)
        .iter()
        .any(|value| value.as_bytes().contains(&b'"'));
    !(told.iter().any(forbids)
        || varies
            .iter()
            .any(|name| !name.is_empty() && name != "accept")
        || answer.headers.contains_key(SET_COOKIE)
        || answer.status.is_server_error()
        || wants_none
        || (names_somebody && !is_public && !quotes))
}
