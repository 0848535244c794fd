//! What stands in a store: whatever that is, nothing but a response of ours is replayed.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::{runtime::Builder, time::timeout};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tower_lock::{
    BackendError, FencingToken, IdempotencyKey, IdempotencyLayer, LockBackend, LockKey,
    LockManager, MemoryBackend, SingleFlightLayer,
    backend::{
        AcquireRequest, Capabilities, DynRecords, Found, KeyState, LockingRecordStore, WaitBound,
        memory::MemoryLease,
    },
    idempotency::{FingerprintOf, OnCrash, Stored, StoredOutcome, StoredResponse},
    key,
    record::{Opening, Orphans, Record, RecordLimits, RecordState, RecordStore, Save},
};

use super::{
    Entry,
    input::Input,
    keys::is_refusal,
    watch::{SECRET, shows_no_secret},
};

pub const ENTRY: Entry = Entry {
    name: "stored",
    run,
    words: &[
        "TL\x01",
        "TF\x01",
        "TL\x01\x01",
        "TF\x01\x02",
        "\x01\x01a\x01\x02b",
        "\0\u{c8}",
        "content-length",
        "\x02",
        "transfer-encoding",
        "grpc-status",
        "\u{ff}\u{ff}",
        SECRET,
        "\0",
        "\x7f",
        "age",
        "cache-status",
    ],
};

const BODY: &[u8] = b"the body";

/// The first byte says which layer (`i` idempotency, else single flight) and, by its case, whether the
/// record says that it is a result; the second how the bytes are made, see [`bytes`].
fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let layer = input.byte();
    let state = match layer.is_ascii_uppercase() {
        true => RecordState::Open,
        false => RecordState::Closed,
    };
    let is_idempotency = layer.eq_ignore_ascii_case(&b'i');
    let is_held = input.byte() & 1 == 1;
    let bytes = bytes(is_idempotency, &mut input);
    one_form(&bytes);
    let token = FencingToken::new(7).expect("a token");
    let record = Record::new(state, token, bytes.clone());
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime").block_on(async {
        let store = Nonsense {
            below: MemoryBackend::new(),
            says: Arc::new(Mutex::new(Some((record, is_held)))),
        };
        let locks = LockManager::builder(store)
            .renew_on_current_runtime()
            .build();
        if is_idempotency {
            idempotency(&locks, state, is_held, bytes).await;
        } else {
            single_flight(&locks, bytes).await;
        }
    });
}

/// Of each value there is one form.
fn one_form(bytes: &Bytes) {
    match Stored::decode(bytes.clone()) {
        Ok(stored) => assert_eq!(stored.encode(), bytes),
        Err(error) => shows_no_secret(&format!("{error} {error:?}")),
    }
}

/// By the third byte: what is in the input as it is; or a good record whose parts are in the input; or
/// the same, with changes.
fn bytes(is_idempotency: bool, input: &mut Input<'_>) -> Bytes {
    let kind = input.byte() % 3;
    if kind == 0 {
        return Bytes::copy_from_slice(input.rest());
    }
    let outcome = match input.byte() % 4 {
        0 => StoredOutcome::Begun,
        1 => StoredOutcome::Tombstone {
            original_status: StatusCode::CREATED,
        },
        _ => StoredOutcome::Response(response(input)),
    };
    let stored = Stored::new(fingerprint(), outcome).encode();
    let mut bytes = if is_idempotency {
        stored.to_vec()
    } else {
        flight(&stored, input)
    };
    while kind == 2 && !input.is_empty() && !bytes.is_empty() {
        let at = usize::from(input.byte()) % bytes.len();
        match input.byte() {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, input.byte()),
            2 => drop(bytes.remove(at)),
            other => bytes[at] ^= other,
        }
    }
    bytes.into()
}

/// What single flight keeps: `TF`, the version, what follows, when it was made and for how long it is
/// fresh, and the response as after the fingerprint of the other.
fn flight(stored: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let (Some(kind @ 1..=2), Some(response)) = (stored.get(3).copied(), stored.get(36..)) else {
        return b"TF\x01\x00".to_vec();
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default().as_millis() as u64;
    let age = [0, 1000, 3_600_000, now, u64::MAX][usize::from(input.byte() % 5)];
    let fresh = [0, 1000, 60_000, u64::MAX][usize::from(input.byte() % 4)];
    let mut bytes = vec![b'T', b'F', 1, kind];
    for mut number in [now.wrapping_sub(age), fresh] {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
    bytes.extend(response);
    bytes
}

fn response(input: &mut Input<'_>) -> StoredResponse {
    let status = StatusCode::from_u16(100 + u16::from(input.byte()) * 4).unwrap_or_default();
    let mut headers = || {
        let mut headers = HeaderMap::new();
        for _ in 0..input.byte() % 4 {
            let name = HeaderName::from_bytes(input.line());
            let value = HeaderValue::from_bytes(input.line());
            if let (Ok(name), Ok(mut value)) = (name, value) {
                value.set_sensitive(name == "authorization");
                headers.append(name, value);
            }
        }
        headers
    };
    let (first, second) = (headers(), headers());
    let length = input.byte().into();
    let mut response = StoredResponse::new(status, Bytes::copy_from_slice(input.bytes(length)));
    response.headers = first;
    response.trailers = (!second.is_empty()).then(|| Box::new(second));
    response
}

fn request() -> Request<Body> {
    let request = Request::post("/checkout").header("idempotency-key", "8e03978e");
    request.body(Body::from(BODY)).expect("a request")
}

fn fingerprint() -> tower_lock::idempotency::Fingerprint {
    let (head, _) = request().into_parts();
    FingerprintOf::body()
        .fingerprint(&head, BODY)
        .expect("it has one")
}

/// Says once that this stands there. Afterwards it is a good store.
#[derive(Clone, Debug)]
struct Nonsense {
    below: MemoryBackend,
    /// And whether somebody holds the key.
    says: Arc<Mutex<Option<(Record, bool)>>>,
}

impl Nonsense {
    fn says(&self) -> Option<(Record, bool)> {
        self.says.lock().expect("nobody panics with it").take()
    }
}

impl LockBackend for Nonsense {
    type Lease = MemoryLease;

    fn capabilities(&self) -> Capabilities {
        self.below.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<MemoryLease, BackendError> {
        self.below.acquire(request).await
    }

    async fn wait_free(&self, key: &LockKey, wait: WaitBound) -> Result<(), BackendError> {
        self.below.wait_free(key, wait).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<KeyState, BackendError> {
        self.below.inspect(key).await
    }

    async fn force_release(&self, key: &LockKey) -> Result<bool, BackendError> {
        self.below.force_release(key).await
    }

    fn records(&self) -> Option<&dyn DynRecords> {
        Some(self)
    }
}

impl RecordStore for Nonsense {
    fn limits(&self) -> RecordLimits {
        self.below.limits()
    }

    async fn load(&self, key: &LockKey) -> Result<Option<Record>, BackendError> {
        match self.says() {
            Some((record, _)) => Ok(Some(record)),
            None => self.below.load(key).await,
        }
    }

    async fn save(&self, save: &Save) -> Result<(), BackendError> {
        self.below.save(save).await
    }
}

impl LockingRecordStore for Nonsense {
    async fn acquire_or_load(
        &self,
        request: &AcquireRequest,
        open: Option<&Opening>,
    ) -> Result<Found<MemoryLease>, BackendError> {
        let Some((record, is_held)) = self.says() else {
            return self.below.acquire_or_load(request, open).await;
        };
        if is_held {
            let remaining = Some(Duration::from_secs(1));
            return Ok(Found::Held {
                open: Some(record),
                remaining,
            });
        }
        let keeps = open.is_some_and(|open| match open.orphans {
            Orphans::Replace => false,
            Orphans::ReplaceEqual => open.bytes != record.bytes,
            Orphans::Keep => true,
        });
        if record.is_closed() || keeps {
            return Ok(Found::Record(record));
        }
        let found = self.below.acquire_or_load(request, open).await?;
        Ok(match found {
            Found::Lease { lease, .. } => Found::Lease {
                lease,
                previous: Some(record),
            },
            other => other,
        })
    }

    async fn save_and_release(&self, save: &Save) -> Result<(), BackendError> {
        self.below.save_and_release(save).await
    }
}

const OWN: &str = "of the handler";

fn handler<B: Send + 'static>(
    runs: &Arc<AtomicUsize>,
) -> impl Service<Request<B>, Response = Response<Body>, Error = Infallible, Future: Send>
+ Clone
+ Send
+ use<B> {
    let runs = runs.clone();
    service_fn(move |_: Request<B>| {
        runs.fetch_add(1, Ordering::SeqCst);
        async { Ok(Response::new(Body::from(OWN))) }
    })
}

struct Taken {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

async fn call<S, B>(service: S) -> Taken
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Data = Bytes>,
{
    let called = timeout(Duration::from_secs(60), service.oneshot(request()));
    let response = called.await.expect("it ends").expect("infallible");
    let (head, body) = response.into_parts();
    let Ok(body) = body.collect().await else {
        panic!("a body that ends with an error");
    };
    let trailers = body.trailers().cloned();
    let (status, headers) = (head.status, head.headers);
    Taken {
        status,
        headers,
        body: body.to_bytes(),
        trailers,
    }
}

impl Taken {
    fn is(&self, response: &StoredResponse) {
        assert_eq!((self.status, &self.body), (response.status, &response.body));
        assert_eq!(self.trailers.as_ref(), response.trailers.as_deref());
    }
}

async fn idempotency(locks: &LockManager, state: RecordState, is_held: bool, bytes: Bytes) {
    let runs = Arc::default();
    let layer = IdempotencyLayer::new(locks, IdempotencyKey::header().global_keys());
    let service = layer.with_on_crash(OnCrash::Refuse).layer(handler(&runs));
    let first = call(service.clone()).await;
    let stored = Stored::decode(bytes)
        .ok()
        .filter(|stored| stored.fingerprint == fingerprint());
    match stored.map(|stored| stored.outcome) {
        Some(StoredOutcome::Response(response)) => {
            first.is(&response);
            assert_eq!(first.headers["idempotent-replayed"], "true");
        }
        // Not understood, of another request, or without a response.
        _ => {
            assert!(
                matches!(first.status.as_u16(), 409 | 422),
                "{}",
                first.status
            );
            is_refusal(first.status, &first.headers, &first.body);
            assert!(!first.headers.contains_key("idempotent-replayed"));
        }
    }
    // Nothing ran where there was something.
    assert_eq!(runs.load(Ordering::SeqCst), 0, "{state:?} {is_held}");
    let second = call(service).await;
    assert!(second.status.is_success() || second.status.is_client_error());
}

async fn single_flight(locks: &LockManager, bytes: Bytes) {
    let runs = Arc::default();
    let by = key::from_fn(|_: &http::request::Parts| LockKey::new("report", 7));
    let layer = SingleFlightLayer::new(locks, by).with_methods([http::Method::POST]);
    let service = layer
        .share_response(Duration::from_secs(60))
        .layer(handler(&runs));
    for _ in 0..2 {
        let taken = call(service.clone()).await;
        if taken.body != OWN {
            taken.is(&kept(&bytes).expect("a response that nobody kept"));
        }
    }
}

/// The response that stands there, by the form in which the other layer keeps one.
fn kept(bytes: &[u8]) -> Option<StoredResponse> {
    let kind = *bytes.strip_prefix(b"TF\x01")?.first()?;
    let mut rest = bytes.get(4..)?;
    for _ in 0..2 {
        let end = rest.iter().position(|byte| byte & 0x80 == 0)?;
        rest = &rest[end + 1..];
    }
    let other = [&b"TL\x01"[..], &[kind], &[0; 32], rest].concat();
    match Stored::decode(other.into()).ok()?.outcome {
        StoredOutcome::Response(response) => Some(response),
        _ => None,
    }
}
