//! `Prefer: wait=N`: how long a client waits, and that it is told what it got.

use std::time::Duration;

use axum::{Router, body::Body, routing::post};
use http::Request;
use tokio::time::Instant;
use tower_lock::{LockKey, LockManager, Wait};

use crate::{
    backends::{On, on_each_backend},
    flaky::{call, order, outcome},
};

on_each_backend!(how_long_a_client_waits(paused), a_served_client_is_told_too,);

const SECOND: Duration = Duration::from_secs(1);

fn app(locks: &LockManager) -> Router {
    let route = |layer| post("paid").route_layer(layer);
    Router::new()
        .route("/usual/{id}", route(order(locks).with_wait(SECOND * 5)))
        .route(
            "/longer/{id}",
            route(
                order(locks)
                    .with_wait(SECOND * 5)
                    .with_max_prefer_wait(SECOND * 20),
            ),
        )
        .route("/try/{id}", route(order(locks).with_wait(Wait::Fail)))
        .route(
            "/tries/{id}",
            route(
                order(locks)
                    .with_wait(Wait::Fail)
                    .with_max_prefer_wait(SECOND * 3),
            ),
        )
}

fn request(path: &str, prefer: Option<&str>) -> Request<Body> {
    let mut request = Request::post(path);
    if let Some(prefer) = prefer {
        request = request.header("prefer", prefer);
    }
    request.body(Body::empty()).unwrap()
}

/// On a key that stays held: how long each request waits, what it is answered, and what it is told.
async fn how_long_a_client_waits(on: On) {
    let (backend, locks) = on.rig().await;
    let app = app(&locks);
    let policy = tower_lock::LockPolicy::new().with_max_hold(SECOND * 86_400);
    let held = locks
        .acquire(LockKey::new("order", 7), &policy)
        .await
        .unwrap();
    let table = [
        // On a route that waits for 5 s.
        ("/usual/7", None, 5, None),
        ("/usual/7", Some("wait=0"), 0, Some("wait=0")),
        ("/usual/7", Some("wait=2"), 2, Some("wait=2")),
        ("/usual/7", Some("respond-async, wait=2"), 2, Some("wait=2")),
        ("/usual/7", Some("wait=9999"), 5, Some("wait=5")),
        (
            "/usual/7",
            Some("wait=99999999999999999999999"),
            5,
            Some("wait=5"),
        ),
        ("/usual/7", Some("wait=soon"), 5, None),
        ("/usual/7", Some("wait=-1"), 5, None),
        ("/usual/7", Some("wait"), 5, None),
        ("/usual/7", Some("return=minimal"), 5, None),
        // On one that lets clients have more.
        ("/longer/7", Some("wait=10"), 10, Some("wait=10")),
        ("/longer/7", Some("wait=9999"), 20, Some("wait=20")),
        ("/longer/7", None, 5, None),
        // On routes that do not wait by themselves.
        ("/try/7", Some("wait=2"), 0, Some("wait=0")),
        ("/try/7", None, 0, None),
        ("/tries/7", Some("wait=2"), 2, Some("wait=2")),
        ("/tries/7", Some("wait=9999"), 3, Some("wait=3")),
        ("/tries/7", None, 0, None),
    ];
    // Real seconds are few, and a machine can be late: two seconds are told from five by the clock,
    // and none at all by the answer.
    let (most, late) = if on.is_here() {
        (u32::MAX, SECOND / 20)
    } else {
        (2, SECOND * 29 / 10)
    };
    let rows = table.iter().filter(|row| row.2 <= most);
    let waiting: Vec<_> = rows
        .map(|&(path, prefer, seconds, applied)| {
            let app = app.clone();
            let waits = tokio::spawn(async move {
                let began = Instant::now();
                let response = call(&app, request(path, prefer)).await;
                (response, began.elapsed())
            });
            (path, prefer, seconds, applied, waits)
        })
        .collect();
    assert!(waiting.len() > 5);
    for (path, prefer, seconds, applied, waits) in waiting {
        let (response, waited) = waits.await.unwrap();
        let expected = SECOND * seconds;
        let row = format!("{path} {prefer:?}");
        assert!(
            waited >= expected && waited < expected + late,
            "{row}: {waited:?}"
        );
        let slug = if seconds == 0 {
            "lock-busy"
        } else {
            "lock-timeout"
        };
        assert_eq!(outcome(&response), (409, slug), "{row}");
        let told: Vec<_> = response
            .headers()
            .get_all("preference-applied")
            .iter()
            .collect();
        assert_eq!(told, applied.as_slice(), "{row}");
    }
    held.release().await.unwrap();
    backend.freed().await;
}

/// A request that is served is told as well.
async fn a_served_client_is_told_too(on: On) {
    let (_, locks) = on.rig().await;
    let app = app(&locks);
    for (prefer, applied) in [(Some("wait=2"), Some("wait=2")), (None, None)] {
        let response = call(&app, request("/usual/7", prefer)).await;
        assert_eq!(response.status(), 200);
        let told: Vec<_> = response
            .headers()
            .get_all("preference-applied")
            .iter()
            .collect();
        assert_eq!(told, applied.as_slice());
    }
}
