//! Keys from hostile or careless clients: nothing collides, nothing leaks from one tenant to
//! another, and nobody locks before they are known.
//!
//! What never gets as far as a backend is tested on one alone, which counts that.

use axum::{
    Extension, Router,
    body::Body,
    extract::{FromRequestParts, Path, Request},
    http::{HeaderValue, StatusCode, request::Parts},
    middleware::{self, Next},
    response::Response,
    routing::post,
};
use tower_lock::{
    LockKey, LockLayer, LockManager, Wait,
    key::{self, HeaderKey, KeyRejection, PathKey},
};

use crate::{
    backends::{On, on_each_backend},
    flaky::{Gate, call, flaky, order, outcome, post_to, start, until_waiting},
};

on_each_backend!(
    header_values_that_only_look_dangerous,
    path_values,
    tenants_by_extractors,
    tenants_by_closure,
    one_value_on_several_routes,
);

fn by_header(locks: &LockManager, gate: &Gate) -> Router {
    let gate = gate.clone();
    let layer = LockLayer::new(locks, HeaderKey::new("order", "x-order")).with_wait(Wait::Fail);
    Router::new().route(
        "/pay",
        post(move || async move { gate.pass().await }).route_layer(layer),
    )
}

fn with_header(values: &[&[u8]]) -> Request<Body> {
    let mut request = post_to("/pay");
    for value in values {
        let value = HeaderValue::from_bytes(value).unwrap();
        request.headers_mut().append("x-order", value);
    }
    request
}

/// Header values that are no key are refused with 400 and never reach the backend; the refusal
/// does not repeat them.
#[tokio::test]
async fn header_values_that_are_no_key() {
    let (backend, locks) = flaky();
    let gate = Gate::shut();
    let app = by_header(&locks, &gate);
    let long = [b'x'; 8192];
    let table: [(&[&[u8]], &str); 10] = [
        (&[], "key-missing"),
        (&[b""], "key-invalid"),
        (&[b"a b"], "key-invalid"),
        (&[b"hostile\tvalue"], "key-invalid"),
        (&[b"\xff"], "key-invalid"),
        (&["zw\u{f6}lf".as_bytes()], "key-invalid"),
        (&[b"hostile", b"hostile"], "key-invalid"),
        (&[b"hostile", b""], "key-invalid"),
        (&[&long[..256]], "key-invalid"),
        (&[&long], "key-invalid"),
    ];
    for (values, slug) in table {
        let response = call(&app, with_header(values)).await;
        assert_eq!(outcome(&response), (400, slug), "{values:?}");
        let text = crate::support::text(response).await;
        assert!(!text.contains("hostile") && !text.contains("xxx"), "{text}");
    }
    // CR, LF and NUL cannot be in a header at all.
    for bad in [&b"a\rb"[..], b"a\nb", b"a\0b"] {
        assert!(HeaderValue::from_bytes(bad).is_err());
    }
    assert_eq!(gate.inside.visits(), 0);
    let acquires = &backend.wire.acquires;
    assert_eq!(acquires.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// Header values that look like a backend's syntax are keys like any other, each its own.
async fn header_values_that_only_look_dangerous(on: On) {
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let app = by_header(&locks, &gate);
    let long = [b'x'; 255];
    let values: [&[u8]; 14] = [
        b"42",
        b"4:2",
        b"{42}",
        b"{",
        b"42;",
        b"2.42;",
        b"order:2.42;",
        b"*",
        b"../42",
        b"42'--",
        b"%00",
        b"#42",
        &long,
        &long[..254],
    ];
    let tasks: Vec<_> = values
        .iter()
        .map(|value| start(&app, with_header(&[value])))
        .collect();
    gate.until_inside(values.len()).await;
    assert_eq!(backend.len(), values.len());
    for value in values {
        let again = call(&app, with_header(&[value])).await;
        assert_eq!(outcome(&again), (409, "lock-busy"), "{value:?}");
    }
    gate.let_out(values.len());
    for task in tasks {
        assert_eq!(task.await.unwrap().status(), 200);
    }
    backend.freed().await;
}

/// Path values: whatever a client encodes, two different values are two keys and two spellings of
/// one value are one key.
async fn path_values(on: On) {
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let app = gate.orders(order(&locks).with_wait(Wait::Fail));
    let long = "x".repeat(8192);
    // One spelling each, then another spelling of the same value.
    let table = [
        ("42", Some("%34%32")),
        // axum's router takes an empty parameter inside of a route: a value like any other.
        ("", None),
        ("%0d%0a", Some("%0D%0A")),
        ("%00", None),
        ("a%2fb", Some("%61%2Fb")),
        ("a%252fb", None),
        ("4:2", Some("4%3a2")),
        ("%7b42%7d", None),
        ("2.42;", Some("2.42%3B")),
        ("order:2.42;", None),
        ("..", Some("%2e%2e")),
        ("%20", None),
        ("+", Some("%2B")),
        ("A", None),
        ("a", None),
        ("%e2%82%ac", Some("%E2%82%AC")),
        (&*long, None),
        (&long[1..], None),
    ];
    let path = |id: &str| format!("/orders/{id}/pay");
    let tasks: Vec<_> = table
        .iter()
        .map(|(id, _)| start(&app, post_to(&path(id))))
        .collect();
    gate.until_inside(table.len()).await;
    assert_eq!(backend.len(), table.len(), "two values share a key");
    for (id, other) in table {
        for spelling in [Some(id), other].into_iter().flatten() {
            let again = call(&app, post_to(&path(spelling))).await;
            assert_eq!(outcome(&again), (409, "lock-busy"), "{spelling}");
        }
    }
    let invalid = call(&app, post_to(&path("%ff"))).await;
    assert_eq!(outcome(&invalid), (400, "key-invalid"));
    gate.let_out(table.len());
    for task in tasks {
        assert_eq!(task.await.unwrap().status(), 200);
    }
    backend.freed().await;
}

/// Whose request it is; a request without one is answered with 401.
#[derive(Clone)]
struct Tenant(String);

impl<S: Send + Sync> FromRequestParts<S> for Tenant {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        let tenant = parts
            .headers
            .get("x-tenant")
            .ok_or(StatusCode::UNAUTHORIZED)?;
        Ok(Self(tenant.to_str().unwrap().to_owned()))
    }
}

async fn tenants_do_not_meet(on: On, layer: impl Fn(&LockManager) -> LockLayer) {
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let app = gate.orders(layer(&locks));
    let of = |tenant: &str| {
        let mut request = post_to("/orders/7/pay");
        request
            .headers_mut()
            .insert("x-tenant", tenant.parse().unwrap());
        request.extensions_mut().insert(Tenant(tenant.to_owned()));
        request
    };
    let tasks: Vec<_> = ["red", "blue"].map(|t| start(&app, of(t))).into();
    gate.until_inside(2).await;
    assert_eq!(backend.len(), 2);
    let same = start(&app, of("red"));
    until_waiting(&locks, 1).await;
    let nobody = call(&app, post_to("/orders/7/pay")).await;
    assert_eq!(outcome(&nobody), (401, ""));
    assert_eq!(backend.len(), 2);
    gate.let_out(3);
    for task in tasks.into_iter().chain([same]) {
        assert_eq!(task.await.unwrap().status(), 200);
    }
    assert_eq!(gate.inside.visits(), 3);
    backend.freed().await;
}

/// Two tenants, the same order number: a key scoped by an extractor keeps them apart.
async fn tenants_by_extractors(on: On) {
    tenants_do_not_meet(on, |locks| {
        LockLayer::new(
            locks,
            key::from_extractors(|Tenant(tenant): Tenant, Path(id): Path<u64>| {
                LockKey::from_values("order", [tenant, id.to_string()])
            }),
        )
    })
    .await;
}

/// The same by a closure over the head.
async fn tenants_by_closure(on: On) {
    tenants_do_not_meet(on, |locks| {
        LockLayer::new(
            locks,
            key::from_fn(|parts: &Parts| {
                let Some(Tenant(tenant)) = parts.extensions.get::<Tenant>() else {
                    return Err(KeyRejection::from(StatusCode::UNAUTHORIZED));
                };
                Ok(LockKey::from_values(
                    "order",
                    [tenant.as_str(), parts.uri.path()],
                ))
            }),
        )
    })
    .await;
}

/// The same value in two namespaces is two keys; in one namespace it is one key, whatever the
/// route is.
async fn one_value_on_several_routes(on: On) {
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let route = |namespace: &str| {
        let gate = gate.clone();
        post(move || async move { gate.pass().await }).route_layer(
            LockLayer::new(&locks, PathKey::new(namespace, "id")).with_wait(Wait::Fail),
        )
    };
    let app = Router::new()
        .route("/orders/{id}/pay", route("order"))
        .route("/orders/{id}/refund", route("order"))
        .route("/invoices/{id}/send", route("invoice"));
    let pay = start(&app, post_to("/orders/7/pay"));
    gate.until_inside(1).await;
    let refund = call(&app, post_to("/orders/7/refund")).await;
    assert_eq!(outcome(&refund), (409, "lock-busy"));
    let send = start(&app, post_to("/invoices/7/send"));
    gate.until_inside(2).await;
    gate.let_out(2);
    assert_eq!(pay.await.unwrap().status(), 200);
    assert_eq!(send.await.unwrap().status(), 200);
    backend.freed().await;
}

/// With authentication outside of the layer, a flood of strangers costs no key and no call of
/// the backend.
#[tokio::test]
async fn strangers_lock_nothing() {
    async fn known(request: Request, next: Next) -> Result<Response, StatusCode> {
        if request.headers().contains_key("authorization") {
            Ok(next.run(request).await)
        } else {
            Err(StatusCode::UNAUTHORIZED)
        }
    }
    let (backend, locks) = flaky();
    let app = Router::new().route(
        "/orders/{id}/pay",
        post(async |Extension(()): Extension<()>| "paid")
            .route_layer(order(&locks))
            .route_layer(middleware::from_fn(known))
            .layer(Extension(())),
    );
    for id in 0..1000 {
        let response = call(&app, post_to(&format!("/orders/{id}/pay"))).await;
        assert_eq!(outcome(&response), (401, ""));
    }
    assert_eq!(crate::flaky::Wire::count(&backend.wire.acquires), 0);
    let mut request = post_to("/orders/1/pay");
    request
        .headers_mut()
        .insert("authorization", "yes".parse().unwrap());
    assert_eq!(call(&app, request).await.status(), 200);
    assert_eq!(crate::flaky::Wire::count(&backend.wire.acquires), 1);
}
