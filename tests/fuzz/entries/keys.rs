//! Keys: what a request says, and what becomes of it.

use std::{convert::Infallible, future::Future, sync::OnceLock};

use axum::{Router, body::Body, extract::Path, response::IntoResponse as _, routing::post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use percent_encoding::percent_decode;
use tokio::runtime::{Builder, Runtime};
use tower::{Layer as _, ServiceExt as _, service_fn};
use tower_lock::{
    HeldLocks, KeyExtractor as _, LockKey, LockLayer, LockManager, MemoryBackend,
    key::{Extraction, HeaderKey, JsonKey, LockKeys, PathAndQueryKey, PathKey},
};

use super::{
    Entry,
    input::Input,
    watch::{SECRET, shows_no_secret},
};

pub const ENTRY: Entry = Entry {
    name: "keys",
    run,
    words: &[
        "%",
        "%2F",
        "%2f",
        "%34",
        "%ff",
        "%C3%A9",
        "+",
        "%20",
        "&",
        "=",
        "//",
        "..",
        "?",
        ";",
        "order",
        SECRET,
        "\n",
        "\0",
        "{\"id\":",
        "{\"id\":\"s3cr3t\"}",
        "null",
        "18446744073709551616",
        "-1",
        "1e3",
        "\\u0000",
        "\\ud800",
        "application/json",
        "application/vnd.x+json; a=b",
    ],
};

/// The first byte says which part: `k` the keys themselves, `q` path and query, `p` path parameters,
/// `h` a header, `j` a JSON body.
fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.byte() {
        b'q' => path_and_query(input),
        b'p' => block_on(path(input)),
        b'h' => block_on(header(input)),
        b'j' => block_on(json(input)),
        _ => lock_keys(input),
    }
}

/// One runtime for each thread that runs inputs.
pub fn block_on(future: impl Future<Output = ()>) {
    thread_local! {
        static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    }
    RUNTIME.with(|runtime| runtime.block_on(future));
}

/// A namespace and values, separated as the input says.
fn parts(input: &mut Input<'_>) -> (String, Vec<Vec<u8>>) {
    let namespace = String::from_utf8_lossy(input.line()).into_owned();
    let count = input.byte() % 5;
    let value = |_| {
        let length = input.byte();
        // Long ones are hashed.
        let repeat = if length >= 0xf0 { 40 } else { 1 };
        input.bytes(usize::from(length % 0xf0)).repeat(repeat)
    };
    let values = (0..count).map(value).collect();
    (namespace, values)
}

/// Two keys are equal if what they are made of is, and neither is the beginning of the other.
fn lock_keys(mut input: Input<'_>) {
    let one = parts(&mut input);
    // The same cut elsewhere is the likeliest to be taken for it.
    let other = match input.byte() & 3 {
        0 => (one.0.clone(), vec![one.1.concat()]),
        1 => (one.0.clone(), one.1.iter().rev().cloned().collect()),
        2 => {
            let mut all = one.1.concat();
            let cut = usize::from(input.byte()).min(all.len());
            let rest = all.split_off(cut);
            (one.0.clone(), vec![all, rest])
        }
        _ => parts(&mut input),
    };
    let keys = [&one, &other].map(|(namespace, values)| LockKey::from_values(namespace, values));
    let [first, second] = &keys;
    assert_eq!(
        one == other,
        first == second,
        "{:?}",
        [first.as_str(), second.as_str()]
    );
    let (a, b) = (first.as_str(), second.as_str());
    assert!(a == b || !(a.starts_with(b) || b.starts_with(a)), "{a} {b}");
    for (key, (namespace, values)) in keys.iter().zip([&one, &other]) {
        let text = key.as_str();
        let plain = |byte: u8| byte.is_ascii_graphic() && !b"/\\{}*?".contains(&byte);
        assert!(text.bytes().all(plain) && text.len() < 300, "{text}");
        assert_eq!(Some(key.namespace()), text.split(':').next());
        if !namespace.contains(SECRET) {
            shows_no_secret(&format!("{key:?}"));
        }
        let one_value = values
            .first()
            .and_then(|value| std::str::from_utf8(value).ok());
        if let Some(value) = one_value {
            assert_eq!(
                LockKey::new(namespace, value),
                LockKey::from_values(namespace, [value])
            );
        }
    }
}

type Decoded = (Vec<Vec<u8>>, Vec<(Vec<u8>, Vec<u8>)>);

/// What the docs say that a path and query are.
fn decoded(uri: &Uri) -> Decoded {
    let plain = |text: &str| percent_decode(text.as_bytes()).collect::<Vec<u8>>();
    let segments = uri.path().split('/').map(plain).collect();
    let query = uri
        .query()
        .unwrap_or("")
        .split('&')
        .filter(|pair| !pair.is_empty());
    let mut pairs: Vec<_> = query
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| {
            (
                plain(&name.replace('+', " ")),
                plain(&value.replace('+', " ")),
            )
        })
        .collect();
    pairs.sort_by(|one, other| one.0.cmp(&other.0));
    (segments, pairs)
}

fn path_and_query(mut input: Input<'_>) {
    let key = PathAndQueryKey::new("report");
    let of = |uri: &Uri| {
        let mut head = Request::get(uri.clone())
            .body(())
            .expect("a request")
            .into_parts()
            .0;
        match key.extract(&mut head) {
            Extraction::Ready(Ok(LockKeys::One(key))) => key,
            other => panic!("always a key: {other:?}"),
        }
    };
    let mut uri = || Uri::try_from(input.line()).ok();
    let (Some(one), Some(other)) = (uri(), uri()) else {
        return;
    };
    assert_eq!(
        decoded(&one) == decoded(&other),
        of(&one) == of(&other),
        "{one} {other}"
    );
}

fn locks() -> &'static LockManager {
    static LOCKS: OnceLock<LockManager> = OnceLock::new();
    LOCKS.get_or_init(|| LockManager::new(MemoryBackend::new()))
}

/// Answers with the key under which it runs, and with what it was sent.
async fn handler<B>(request: Request<B>) -> Result<Response<Body>, Infallible>
where
    B: http_body::Body<Data = Bytes> + Unpin,
{
    let held = HeldLocks::from_extensions(request.extensions());
    let key = held
        .iter()
        .next()
        .map(|lock| lock.key().as_str().to_owned());
    let body = request
        .into_body()
        .collect()
        .await
        .map(|body| body.to_bytes());
    let mut response = Body::from(body.unwrap_or_default()).into_response();
    if let Some(key) = key.and_then(|key| HeaderValue::try_from(key).ok()) {
        response.headers_mut().insert("x-key", key);
    }
    Ok(response)
}

async fn taken<B>(response: Response<B>) -> (StatusCode, HeaderMap, Bytes)
where
    B: http_body::Body<Data = Bytes>,
{
    let (head, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        panic!("a body that ends with an error");
    };
    (head.status, head.headers, body.to_bytes())
}

/// It is one for a program to read, and shows nothing of what was sent.
pub fn is_refusal(status: StatusCode, headers: &HeaderMap, body: &[u8]) {
    assert_eq!(headers[CONTENT_TYPE], "application/problem+json");
    let text = std::str::from_utf8(body).expect("text");
    shows_no_secret(text);
    shows_no_secret(&format!("{headers:?}"));
    let problem: serde_json::Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(problem["status"], status.as_u16());
    for member in ["type", "title", "detail"] {
        assert!(
            problem[member]
                .as_str()
                .is_some_and(|text| !text.is_empty()),
            "{text}"
        );
    }
}

/// Either it ran under this key, or it was refused as the client's mistake.
#[track_caller]
fn ran_or_refused(
    expected: Option<&LockKey>,
    (status, headers, body): &(StatusCode, HeaderMap, Bytes),
) {
    match expected {
        Some(key) => {
            assert_eq!(*status, StatusCode::OK);
            assert_eq!(headers["x-key"], key.as_str());
        }
        None => {
            assert_eq!(*status, StatusCode::BAD_REQUEST);
            is_refusal(*status, headers, body);
        }
    }
}

async fn path(mut input: Input<'_>) {
    let Ok(uri) = Uri::try_from(input.line()) else {
        return;
    };
    static ROUTER: OnceLock<Router> = OnceLock::new();
    let router = ROUTER.get_or_init(|| {
        let layer = |params: &[&str]| LockLayer::new(locks(), PathKey::several("order", params));
        let told = |Path(values): Path<Vec<String>>, request: Request<Body>| async move {
            let mut response = handler(request).await.into_response();
            let key = LockKey::from_values("order", values);
            let key = HeaderValue::try_from(key.as_str()).expect("ASCII");
            response.headers_mut().insert("x-expected", key);
            response
        };
        Router::new()
            .route("/o/{id}", post(told).route_layer(layer(&["id"])))
            .route(
                "/h/{hall}/{*seat}",
                post(told).route_layer(layer(&["hall", "seat"])),
            )
    });
    let request = Request::post(uri).body(Body::empty()).expect("a request");
    let response = router.clone().oneshot(request).await.expect("infallible");
    let taken = taken(response).await;
    match taken.0 {
        StatusCode::NOT_FOUND => {}
        StatusCode::OK => assert_eq!(taken.1["x-key"], taken.1["x-expected"]),
        _ => ran_or_refused(None, &taken),
    }
}

/// The count of headers, and these.
async fn header(mut input: Input<'_>) {
    let count = input.byte() % 3;
    let mut request = Request::post("/");
    let mut values = Vec::new();
    for _ in 0..count {
        if let Ok(value) = HeaderValue::from_bytes(input.line()) {
            request = request.header("x-order-id", value.clone());
            values.push(value);
        }
    }
    let service = LockLayer::new(locks(), HeaderKey::new("order", "x-order-id"));
    let service = service.layer(service_fn(handler::<Body>));
    let request = request.body(Body::empty()).expect("a request");
    let response = service.oneshot(request).await.expect("infallible");
    let key = match values.as_slice() {
        [value] => {
            let value = value.as_bytes();
            let right = (1..=255).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
            right.then(|| LockKey::from_values("order", [value]))
        }
        _ => None,
    };
    ran_or_refused(key.as_ref(), &taken(response).await);
}

/// The content type, and a body.
async fn json(mut input: Input<'_>) {
    let content_type = HeaderValue::from_bytes(input.line());
    let body = Bytes::copy_from_slice(input.rest());
    let key = JsonKey::new("order", "/id").with_max_body(4096);
    let service = LockLayer::buffered(locks(), key).layer(service_fn(handler));
    let mut request = Request::post("/");
    let mut is_json = false;
    if let Ok(value) = content_type {
        // What is JSON is the layer's to say; these two are, for sure.
        is_json = value == "application/json" || value == "application/vnd.x+json; a=b";
        request = request.header(CONTENT_TYPE, value);
    }
    let request = request.body(Body::from(body.clone())).expect("a request");
    let response = taken(service.oneshot(request).await.expect("infallible")).await;
    if response.0 == StatusCode::OK {
        assert_eq!(response.2, body, "another body");
    } else if body.len() > 4096 {
        assert_eq!(response.0, StatusCode::PAYLOAD_TOO_LARGE);
        return is_refusal(response.0, &response.1, &response.2);
    }
    let document = serde_json::from_slice::<serde_json::Value>(&body).ok();
    let key = document
        .as_ref()
        .and_then(|document| match document.pointer("/id")? {
            serde_json::Value::String(text) if !text.is_empty() => {
                Some(LockKey::from_values("order", [text]))
            }
            serde_json::Value::Number(number) if !number.is_f64() => {
                Some(LockKey::new("order", number))
            }
            serde_json::Value::Bool(flag) => Some(LockKey::new("order", flag)),
            _ => None,
        });
    if is_json || key.is_none() || response.0 == StatusCode::OK {
        ran_or_refused(key.as_ref(), &response);
    } else {
        ran_or_refused(None, &response);
    }
}
