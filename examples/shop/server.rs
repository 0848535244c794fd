//! One instance of the shop: the routes, the lock on one of them, and the end.

use std::{
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Extension, Json, Router,
    extract::{Path, Query, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot};
use tower_lock::{
    HeldLock, IdempotencyKey, IdempotencyLayer, LockKey, LockLayer, LockManager, LockPolicy,
    OnLost, SingleFlightLayer, idempotency::FirstRun, key, single_flight::Flight,
};

use crate::{
    BoxError,
    args::{self, Serve},
    backend, leash, signal,
    store::{Payment, Store, StoreError},
};

/// How long requests in flight may take to end once the instance is told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// What the handlers share.
#[derive(Clone, Debug)]
struct Shop {
    instance: Arc<str>,
    locks: LockManager,
    store: Store,
}

/// Serves until it is told to stop, then drains.
pub(crate) async fn run(args: Serve) -> Result<(), BoxError> {
    if args.leashed {
        leash::exit_with_stdin()?;
    }
    let locks = backend::connect(&args.backend, args.ttl).await?;
    let temporary = tempfile::tempdir()?;
    let file = args.db.clone();
    let store = Store::open(&file.unwrap_or_else(|| temporary.path().join("orders.db")))?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let address = listener.local_addr()?;
    let shop = Shop {
        instance: address.to_string().into(),
        locks: locks.clone(),
        store,
    };
    let app = app(shop, &args)?;
    say(&greeting(&address.to_string(), args.no_lock));

    let (stop, stopping) = oneshot::channel::<()>();
    let server = axum::serve(listener, app).with_graceful_shutdown(async {
        let _ = stopping.await;
    });
    let mut server = tokio::spawn(server.into_future());
    tokio::select! {
        () = signal::stop() => {}
        ended = &mut server => return Ok(ended??),
    }

    say("Draining: no new connections, and waiters are refused.");
    drop(stop);
    // Both at once: a request that waits for a lock would keep the server from ending.
    let drained = async { tokio::join!(locks.shutdown(GRACE), &mut server) };
    match tokio::time::timeout(GRACE + Duration::from_secs(1), drained).await {
        Ok((_, ended)) => Ok(ended??),
        Err(_) => Err("some requests did not end in time".into()),
    }
}

/// The routes. Only the payment locks, and only its POST: a 405 costs nothing.
fn app(shop: Shop, args: &Serve) -> Result<Router, BoxError> {
    let mut pay = post(pay);
    if !args.no_lock {
        // The key is made of the parsed number, so that `/orders/7` and `/orders/07`, which are
        // one row, are one lock as well.
        let order = key::from_extractors(|Path(id): Path<u32>| LockKey::new("order", id));
        let policy = LockPolicy::new()
            .with_ttl(args.ttl)
            .with_wait(args.wait)
            .with_on_lost(match args.on_lost {
                args::OnLost::Abort => OnLost::Abort,
                args::OnLost::Signal => OnLost::Signal,
            });
        pay = pay.route_layer(LockLayer::new(&shop.locks, order).try_with_policy(policy)?);
    }
    let mut routes = Router::new().route(
        "/orders/{id}/pay",
        pay.route_layer(middleware::from_fn(stamp)),
    );
    // One customer is all there is. Where the backend keeps no records there is no checkout.
    let key = IdempotencyKey::header().global_keys();
    match IdempotencyLayer::try_new(&shop.locks, key) {
        Ok(layer) => {
            let layer = layer.with_ttl(args.ttl).with_wait(args.wait);
            routes = routes.route("/checkout", post(checkout).route_layer(layer));
        }
        Err(error) => eprintln!("shop: no /checkout: {error}"),
    }
    let report_id = key::from_extractors(|Path(id): Path<u32>| LockKey::new("report", id));
    match SingleFlightLayer::try_new(&shop.locks, report_id) {
        Ok(layer) => routes = routes.route("/reports/{id}", get(report).route_layer(layer)),
        Err(error) => eprintln!("shop: no /reports: {error}"),
    }
    Ok(routes
        .route("/orders/{id}", get(order))
        .route("/locks", get(locks))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(shop))
}

/// When a request came, before it waited for the lock; in µs since 1970.
#[derive(Clone, Copy, Debug)]
struct Arrived(i64);

async fn stamp(mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Arrived(now()));
    next.run(request).await
}

#[derive(Debug, Deserialize)]
struct PayQuery {
    /// How long the payment works between its read and its write.
    #[serde(default)]
    ms: u64,
}

#[derive(Debug, Serialize)]
struct Receipt {
    order: u32,
    paid_count: i64,
    fencing_token: Option<u64>,
    instance: String,
    waited_ms: u64,
}

/// `POST /orders/{id}/pay?ms=50`: claims the order, reads it, works, and writes it back.
async fn pay(
    State(shop): State<Shop>,
    Path(order): Path<u32>,
    Query(query): Query<PayQuery>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    lock: Option<HeldLock>,
) -> Result<Json<Receipt>, Refused> {
    let granted = now();
    let fence = lock.as_ref().map(HeldLock::fencing_token);
    if let Some(fence) = fence {
        shop.store.claim(order, fence).await?;
    }
    let before = shop.store.order(order).await?;
    tokio::time::sleep(Duration::from_millis(query.ms)).await;
    let payment = Payment {
        order,
        instance: shop.instance.to_string(),
        arrived,
        granted,
        written: now(),
        paid_count: before.paid_count + 1,
        fence: fence.map(|token| token.as_i64()),
    };
    shop.store.pay(payment).await?;
    Ok(Json(Receipt {
        order,
        paid_count: before.paid_count + 1,
        fencing_token: fence.map(|token| token.get()),
        instance: shop.instance.to_string(),
        waited_ms: lock.map_or(0, |lock| millis(lock.waited())),
    }))
}

#[derive(Debug, Serialize)]
struct Charged {
    charge: i64,
    instance: String,
    fencing_token: u64,
}

/// `POST /checkout?ms=50`, with an `Idempotency-Key`: charges a card, which may happen once.
async fn checkout(
    State(shop): State<Shop>,
    Query(query): Query<PayQuery>,
    run: FirstRun,
) -> Result<(StatusCode, Json<Charged>), Refused> {
    tokio::time::sleep(Duration::from_millis(query.ms)).await;
    let instance = shop.instance.to_string();
    let key = run.key().as_str().to_owned();
    let charge = shop.store.charge(key, instance.clone()).await?;
    let charged = Charged {
        charge,
        instance,
        fencing_token: run.fencing_token().get(),
    };
    Ok((StatusCode::CREATED, Json(charged)))
}

/// `GET /reports/{id}?ms=500`: the cached report, which takes so long to build that only one request
/// should: the others wait for it, and find it in the cache.
async fn report(
    State(shop): State<Shop>,
    Path(id): Path<u32>,
    Query(query): Query<PayQuery>,
    flight: Flight,
) -> Result<Json<Value>, Refused> {
    let cached = shop.store.report(id).await?;
    let text = match &cached {
        Some(text) => text.clone(),
        None => {
            tokio::time::sleep(Duration::from_millis(query.ms)).await;
            let text = format!("built by {}", shop.instance);
            shop.store.keep_report(id, text.clone()).await?;
            text
        }
    };
    Ok(Json(json!({
        "report": id,
        "text": text,
        "was_cached": cached.is_some(),
        "flight": format!("{flight:?}").to_lowercase(),
        "rebuilds": shop.store.rebuilds(id).await?,
    })))
}

/// `GET /orders/{id}`: what is stored.
async fn order(State(shop): State<Shop>, Path(id): Path<u32>) -> Result<Json<Value>, Refused> {
    let order = shop.store.order(id).await?;
    Ok(Json(json!({
        "order": id,
        "paid_count": order.paid_count,
        "refused_stale_writes": order.refused_stale_writes,
    })))
}

/// `GET /locks`: what this instance holds, who waits here, and what the backend says of each
/// key. Keys hold values of requests, so a real service shows this to operators only.
async fn locks(State(shop): State<Shop>) -> Result<Json<Value>, Refused> {
    let state = shop.locks.inspect();
    let mut held = Vec::new();
    for lock in &state.held {
        let backend = shop.locks.inspect_key(&lock.key).await?;
        held.push(json!({
            "key": lock.key.as_str(),
            "backend_name": backend.name,
            "mode": format!("{:?}", lock.mode).to_lowercase(),
            "fencing_token": lock.fencing_token.get(),
            "held_ms": millis(lock.held_for),
            "remaining_ms": millis(lock.remaining),
        }));
    }
    let mut waiting = Vec::new();
    for queue in &state.waiting {
        let backend = shop.locks.inspect_key(&queue.key).await?;
        waiting.push(json!({
            "key": queue.key.as_str(),
            "backend_name": backend.name,
            "waiters": queue.waiters,
            "waiters_everywhere": backend.waiters,
        }));
    }
    Ok(Json(
        json!({ "instance": &*shop.instance, "held": held, "waiting": waiting }),
    ))
}

/// What a client hears when the store or the backend did not do its part.
#[derive(Debug)]
enum Refused {
    Stale,
    Failed,
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Stale => Self::Stale,
            error => {
                eprintln!("shop: {error}");
                Self::Failed
            }
        }
    }
}

impl From<tower_lock::BackendError> for Refused {
    fn from(error: tower_lock::BackendError) -> Self {
        eprintln!("shop: {error}");
        Self::Failed
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            Self::Stale => (StatusCode::CONFLICT, "the lock was lost before the write"),
            Self::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "internal error"),
        };
        (status, Json(json!({ "error": error }))).into_response()
    }
}

fn greeting(address: &str, no_lock: bool) -> String {
    let how = if no_lock {
        "without the lock"
    } else {
        "one payment per order at a time"
    };
    format!(
        "Listening on http://{address}, {how}.

  Pay an order:           curl -X POST 'http://{address}/orders/7/pay?ms=50'
  Pay it twice at once:   curl -Z --parallel-immediate --no-progress-meter -X POST 'http://{address}/orders/7/pay?ms=2000&n=[1-2]'
  Do not wait for it:     curl -i -X POST -H 'Prefer: wait=0' 'http://{address}/orders/7/pay'
  Check out, again too:   curl -i -X POST -H 'Idempotency-Key: 8e03978e' 'http://{address}/checkout?ms=50'
  A report, built once:   curl -Z --parallel-immediate --no-progress-meter 'http://{address}/reports/7?ms=2000&n=[1-9]'
  See the order:          curl 'http://{address}/orders/7'
  See who holds what:     curl 'http://{address}/locks'

Ctrl-C drains and ends."
    )
}

/// Prints a line, and does not mind when nobody reads it any more.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
