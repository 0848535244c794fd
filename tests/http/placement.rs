//! Where the layer stands, and what it costs there.
//!
//! On a route's methods, a request that reaches no handler (wrong method, unknown path) and one
//! that changes nothing (`HEAD`, `OPTIONS`) never asks the backend; elsewhere it asks once at
//! most, and leaves nothing. Keys are those of the path that the client sent, whatever router is
//! nested where, and however the path is written.

use axum::{
    Router,
    http::{Method, Request},
    routing::get,
};
use tower::{Layer, ServiceExt};
use tower_lock::{
    HeldLock, LockLayer, LockManager,
    key::{KeyExtractor, PathAndQueryKey, PathKey},
};

use crate::{
    counting::CountingBackend,
    support::{send, text},
};

async fn handler(held: Option<HeldLock>) -> String {
    held.map_or_else(|| "unlocked".into(), |held| held.key().as_str().to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// `MethodRouter::route_layer`.
    OnMethods,
    /// `MethodRouter::layer`.
    AroundMethods,
    /// `Router::route_layer`.
    OnRoutes,
    /// `Router::layer`.
    AroundRouter,
}

fn app(place: Place, locks: &LockManager) -> Router {
    let layer = LockLayer::new(locks, PathKey::new("order", "id")).with_methods([
        Method::GET,
        Method::POST,
        Method::DELETE,
    ]);
    let methods = get(handler).post(handler);
    let other = get(handler);
    let app = |methods| {
        Router::new()
            .route("/orders/{id}", methods)
            .route("/post-only/{id}", axum::routing::post(handler))
            .route("/other/{id}", other)
    };
    match place {
        Place::OnMethods => app(methods.route_layer(layer)),
        Place::AroundMethods => app(methods.layer(layer)),
        Place::OnRoutes => app(methods).route_layer(layer),
        Place::AroundRouter => app(methods).layer(layer),
    }
}

#[tokio::test]
async fn requests_without_a_handler_cost_nothing_or_little() {
    for place in [
        Place::OnMethods,
        Place::AroundMethods,
        Place::OnRoutes,
        Place::AroundRouter,
    ] {
        for (method, path, status, most) in [
            ("HEAD", "/orders/7", 200, 0),
            ("OPTIONS", "/orders/7", 405, 0),
            ("HEAD", "/post-only/7", 405, 0),
            ("PUT", "/orders/7", 405, 0),
            ("DELETE", "/orders/7", 405, 1),
            ("GET", "/nowhere/7", 404, 0),
            ("POST", "/nowhere", 404, 0),
            ("DELETE", "/orders/7/more", 404, 0),
            // What they are compared with.
            ("GET", "/orders/7", 200, 1),
            ("POST", "/orders/7", 200, 1),
        ] {
            let backend = CountingBackend::local();
            let locks = LockManager::new(backend.clone());
            let response = send(&app(place, &locks), method, path).await;
            let what = format!("{place:?}: {method} {path}");
            assert_eq!(response.status(), status, "{what}");
            if status == 405 {
                assert!(response.headers().contains_key("allow"), "{what}");
            }
            let asked = backend.acquires();
            match status {
                200 => assert_eq!(asked, most, "{what}"),
                _ if place == Place::OnMethods => assert_eq!(asked, 0, "{what}"),
                _ => assert!(asked <= most, "{what}: {asked}"),
            }
            assert!(backend.is_empty(), "{what}");
        }
    }
}

#[tokio::test]
async fn around_the_whole_router_a_request_asks_once_at_most() {
    let backend = CountingBackend::local();
    let locks = LockManager::new(backend.clone());
    let key = PathAndQueryKey::new("all");
    let app = Router::new().route("/orders/{id}", get(handler));
    let app = LockLayer::new(&locks, key).layer(app);
    for (n, (method, path, status)) in [
        ("POST", "/orders/7", 405),
        ("POST", "/nowhere", 404),
        ("DELETE", "/orders/7", 405),
    ]
    .into_iter()
    .enumerate()
    {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), status, "{method} {path}");
        assert_eq!(backend.acquires(), n + 1, "{method} {path}");
    }
    for method in ["HEAD", "OPTIONS", "GET", "TRACE"] {
        let request = Request::builder().method(method).uri("/orders/7");
        let request = request.body(axum::body::Body::empty()).expect("a request");
        app.clone().oneshot(request).await.expect("infallible");
    }
    assert_eq!(backend.acquires(), 3);
    assert!(backend.is_empty());
}

/// An application that has the same routes in two places and shows the key of a request.
fn nested(locks: &LockManager, key: impl KeyExtractor + Clone) -> Router {
    let layer = || LockLayer::new(locks, key.clone()).with_methods([Method::GET]);
    let inner = || {
        Router::new()
            .route("/orders/{id}", get(handler).route_layer(layer()))
            .route("/orders/{id}/", get(handler).route_layer(layer()))
            .route("/files/{*id}", get(handler).route_layer(layer()))
            // The whole of a nested router under one layer.
            .merge(
                Router::new()
                    .route("/whole/{id}", get(handler))
                    .layer(layer()),
            )
    };
    Router::new().nest("/a", inner()).nest("/b", inner())
}

async fn key_of(app: &Router, path: &str) -> String {
    let response = send(app, "GET", path).await;
    assert_eq!(response.status(), 200, "{path}");
    let key = text(response).await;
    assert_ne!(key, "unlocked", "{path}");
    key
}

#[tokio::test]
async fn original_paths_are_keys_whatever_is_nested() {
    let locks = LockManager::new(CountingBackend::local());
    let app = nested(&locks, PathAndQueryKey::new("path"));
    for (one, other, same) in [
        ("/a/orders/42", "/b/orders/42", false),
        ("/a/whole/42", "/b/whole/42", false),
        ("/a/orders/42", "/a/orders/%34%32", true),
        ("/a/whole/42", "/a/whole/%34%32", true),
        // A slash at the end, doubled slashes, dots and case are what they are.
        ("/a/orders/42", "/a/orders/42/", false),
        ("/a/files/x/y", "/a/files/x//y", false),
        ("/a/files/x/y", "/a/files/x/z/../y", false),
        ("/a/files/x/y", "/a/files/x/./y", false),
        ("/a/orders/ab", "/a/orders/AB", false),
        // A slash within a segment is not one between two.
        ("/a/files/x/y", "/a/files/x%2Fy", false),
        ("/a/files/x%2fy", "/a/files/x%2Fy", true),
    ] {
        let (first, second) = (key_of(&app, one).await, key_of(&app, other).await);
        assert_eq!(first == second, same, "{one} {first} and {other} {second}");
    }
}

#[tokio::test]
async fn path_parameters_are_keys_as_handlers_see_them() {
    let locks = LockManager::new(CountingBackend::local());
    let app = nested(&locks, PathKey::new("order", "id"));
    for (one, other, same) in [
        // The parameter alone counts: the namespace tells what it is.
        ("/a/orders/42", "/b/orders/42", true),
        ("/a/orders/42", "/a/whole/42", true),
        ("/a/orders/42", "/a/orders/%34%32", true),
        ("/a/orders/42", "/a/orders/42/", true),
        ("/a/orders/ab", "/a/orders/AB", false),
        ("/a/orders/42", "/a/orders/042", false),
        ("/a/orders/42", "/a/orders/42?x=1", true),
        ("/a/orders/x%2Fy", "/a/orders/x%2fy", true),
        ("/a/orders/%2E%2E", "/a/orders/..", true),
        ("/a/files/x/y", "/a/files/x//y", false),
        ("/a/files/x/y", "/a/files/x/z/../y", false),
    ] {
        let (first, second) = (key_of(&app, one).await, key_of(&app, other).await);
        assert_eq!(first == second, same, "{one} {first} and {other} {second}");
    }
    // No such route, so no such key: a router does not clean paths either.
    for path in ["/a//orders/42", "/A/orders/42", "/a/orders/", "/orders/42"] {
        assert_eq!(send(&app, "GET", path).await.status(), 404, "{path}");
    }
}
