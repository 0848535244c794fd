//! Floods stay bounded: too many requests for one key, for one process, or for ever new keys.

use std::{
    convert::Infallible,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tower::{Layer, Service, service_fn};
use tower_lock::{LockKey, LockLayer, Wait, key};

use crate::{
    backends::{On, on_each_backend},
    flaky::{Gate, call, memory, order, outcome, post_to, start, until, until_waiting},
};

on_each_backend!(ten_thousand_requests_on_one_key,);

/// Ten thousand requests for one key: as many wait as may, the rest is refused at once with 429,
/// other keys do not notice, and nothing is left.
async fn ten_thousand_requests_on_one_key(on: On) {
    const FLOOD: usize = 10_000;
    const CAP: usize = 64;
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let app = gate.orders(order(&locks).with_wait(Wait::Forever));
    let holder = start(&app, post_to("/orders/hot/pay"));
    gate.until_inside(1).await;

    let flood: Vec<_> = (0..FLOOD)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move {
                let began = Instant::now();
                let response = call(&app, post_to("/orders/hot/pay")).await;
                (began.elapsed(), response)
            })
        })
        .collect();
    let refused = || flood.iter().filter(|task| task.is_finished()).count();
    until("all but the waiters are refused", || {
        refused() == FLOOD - CAP
    })
    .await;
    until_waiting(&locks, CAP).await;
    assert_eq!(locks.inspect().waiting.len(), 1, "one key has waiters");
    assert_eq!(backend.len(), 1, "the backend knows one key");

    // The others pass as if nothing were.
    let others: Vec<_> = (0..100)
        .map(|id| start(&app, post_to(&format!("/orders/{id}/pay"))))
        .collect();
    gate.until_inside(101).await;
    assert_eq!(locks.inspect().waiting.len(), 1);

    gate.let_out(101 + CAP);
    for other in others {
        assert_eq!(other.await.unwrap().status(), 200);
    }
    assert_eq!(holder.await.unwrap().status(), 200);
    let (mut served, mut times) = (0, Vec::new());
    for task in flood {
        let (time, response) = task.await.unwrap();
        match outcome(&response) {
            (200, "") => served += 1,
            (429, "too-many-waiters") => {
                assert!(response.headers().contains_key("retry-after"));
                times.push(time);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(served, CAP);
    times.sort();
    // The last tenth is the machine's, which may have other things to do.
    let p90 = times[times.len() * 90 / 100];
    assert!(p90 < Duration::from_millis(10), "p90 of a refusal: {p90:?}");
    backend.freed().await;
    assert_eq!(locks.inspect(), Default::default());
}

/// Many keys with few waiters each: the process has a bound of its own, answered with 503.
#[tokio::test]
async fn a_process_takes_so_many_waiters_and_no_more() {
    const KEYS: usize = 20;
    const CAP: usize = 10;
    let backend = tower_lock::MemoryBackend::new();
    let locks = tower_lock::LockManager::builder(backend.clone())
        .renew_on_current_runtime()
        .max_waiters(CAP)
        .build();
    let gate = Gate::shut();
    let app = gate.orders(order(&locks).with_wait(Wait::Forever));
    let path = |id: usize| format!("/orders/{id}/pay");
    let mut tasks: Vec<_> = (0..KEYS)
        .map(|id| start(&app, post_to(&path(id))))
        .collect();
    gate.until_inside(KEYS).await;
    tasks.extend((0..CAP).map(|id| start(&app, post_to(&path(id)))));
    until_waiting(&locks, CAP).await;

    for id in 0..KEYS {
        let response = call(&app, post_to(&path(id))).await;
        assert_eq!(outcome(&response), (503, "overloaded"));
        assert!(response.headers().contains_key("retry-after"));
    }
    assert_eq!(locks.inspect().waiting.len(), CAP);

    // A free key needs no wait, so it is served all the same.
    tasks.push(start(&app, post_to("/orders/free/pay")));
    gate.until_inside(KEYS + 1).await;
    gate.let_out(KEYS + CAP + 1);
    for task in tasks {
        assert_eq!(task.await.unwrap().status(), 200);
    }
    assert!(backend.is_empty());
    assert_eq!(locks.inspect(), Default::default());
}

/// A million keys, each used once: no map remembers one of them. A map that did, and that nothing
/// shows, would still show in the memory that this thread allocated, on which all of it runs.
#[test]
fn a_million_keys_leave_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let allocated = allocation_counter::measure(|| runtime.block_on(a_million_keys()));
    let kept = allocated.bytes_current;
    assert!(kept < 10 << 20, "{kept} bytes are left");
}

async fn a_million_keys() {
    const KEYS: u32 = 1_000_000;
    let (backend, locks) = memory();
    let layer = LockLayer::new(
        &locks,
        key::from_fn(|parts: &http::request::Parts| {
            let n = parts.extensions.get::<u32>().expect("a number");
            LockKey::new("key", n)
        }),
    );
    let mut service = layer.layer(service_fn(|_: Request<()>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())))
    }));
    let mut most = 0;
    for n in 0..KEYS {
        let mut request = Request::new(());
        *request.method_mut() = http::Method::POST;
        request.extensions_mut().insert(n);
        assert_eq!(service.call(request).await.unwrap().status(), 200);
        most = most.max(backend.len());
    }
    assert_eq!(most, 0, "a key outlived its request");
    assert!(backend.is_empty());
    assert_eq!(locks.inspect(), Default::default());
}

/// Over Redis, where each takes a round trip: nothing is left but the counters of tokens, which
/// are as many for any number of keys.
#[cfg(feature = "redis")]
#[tokio::test]
async fn ten_thousand_keys_leave_counters_in_redis() {
    const KEYS: usize = 10_000;
    let (backend, locks) = crate::backends::On::Redis.rig().await;
    let gate = Gate::shut();
    gate.let_out(KEYS);
    let app = gate.orders(order(&locks));
    for some in 0..KEYS / 100 {
        let tasks: Vec<_> = (0..100)
            .map(|n| start(&app, post_to(&format!("/orders/{some}-{n}/pay"))))
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap().status(), 200);
        }
    }
    backend.freed().await;
    assert_eq!(locks.inspect(), Default::default());
    let crate::backends::Backend::Redis(place) = backend else {
        unreachable!("it was asked for")
    };
    let counters = place.counters();
    assert!((200..=256).contains(&counters), "{counters}");
}
