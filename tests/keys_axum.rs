//! Keys from axum's router and extractors, under real routers.
#![cfg(feature = "axum")]

use std::{
    future::poll_fn,
    panic::{Location, PanicHookInfo, catch_unwind},
    sync::{Arc, Mutex},
    task::Poll,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{FromRequestParts, Path, Query, Request, State},
    http::{Method, StatusCode, Uri, request::Parts},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tower::{Layer, ServiceExt};
use tower_lock::{
    KeyExtractor, LockKey,
    key::{self, Extraction, KeyRejection, LockKeys, PathAndQueryKey, PathKey},
};

type Key = Arc<dyn KeyExtractor>;

/// As the lock layer does, without a lock: extract, then run the handler with the same head.
async fn probe(State(key): State<Key>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let result = match key.extract(&mut parts) {
        Extraction::Ready(result) => result,
        Extraction::Pending(future) => {
            let (head, result) = future.await;
            parts = head;
            result
        }
    };
    let (mut response, outcome) = match result {
        Ok(keys) => {
            let request = Request::from_parts(parts, body);
            (next.run(request).await, Outcome::Keys(keys))
        }
        Err(KeyRejection::Response(response)) => {
            return response.into_response().map(Body::new);
        }
        Err(KeyRejection::Invalid { what }) => (refused(), Outcome::Invalid(what)),
        Err(KeyRejection::Misconfigured { what }) => (refused(), Outcome::Misconfigured(what)),
        Err(other) => panic!("{other:?}"),
    };
    response.extensions_mut().insert(outcome);
    response
}

fn refused() -> Response {
    StatusCode::IM_A_TEAPOT.into_response()
}

/// What the middleware found, in the extensions of the response.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Keys(LockKeys),
    Invalid(String),
    Misconfigured(String),
}

fn locked(key: LockKey) -> Option<Outcome> {
    Some(Outcome::Keys(key.into()))
}

fn skipped() -> Option<Outcome> {
    Some(Outcome::Keys(LockKeys::Skip))
}

fn shared(key: impl KeyExtractor) -> Key {
    Arc::new(key)
}

macro_rules! probe {
    ($key:expr) => {
        from_fn_with_state(shared($key), probe)
    };
}

async fn send(app: &Router, uri: &str) -> Response {
    let request = Request::post(uri).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap()
}

/// The outcome; `None` if the middleware did not run.
async fn outcome(app: &Router, uri: &str) -> Option<Outcome> {
    send(app, uri).await.extensions().get().cloned()
}

async fn misconfigured(app: &Router, uri: &str) -> String {
    match outcome(app, uri).await {
        Some(Outcome::Misconfigured(what)) => what,
        other => panic!("{other:?}"),
    }
}

async fn text(response: Response) -> String {
    let bytes = to_bytes(response.into_body(), 1024).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn order(id: impl std::fmt::Display) -> LockKey {
    LockKey::new("order", id)
}

// ---- PathKey ----

#[tokio::test]
async fn a_path_parameter_is_a_key_whatever_the_action() {
    let by_id = || probe!(PathKey::new("order", "id"));
    let app = Router::new()
        .route("/orders/{id}/pay", post(|| async {}).route_layer(by_id()))
        .route(
            "/orders/{id}/refund",
            post(|| async {}).route_layer(by_id()),
        );
    assert_eq!(outcome(&app, "/orders/42/pay").await, locked(order(42)));
    assert_eq!(
        outcome(&app, "/orders/42/refund?x=1").await,
        locked(order(42))
    );
}

#[tokio::test]
async fn a_path_parameter_is_decoded_as_the_handler_sees_it() {
    let handler = post(|Path(id): Path<String>| async { id });
    let app = Router::new().route(
        "/orders/{id}",
        handler.route_layer(probe!(PathKey::new("order", "id"))),
    );
    for (path, id) in [
        ("/orders/42", "42"),
        ("/orders/%34%32", "42"),
        ("/orders/4%32", "42"),
        ("/orders/Ab", "Ab"),
        ("/orders/a%2Fb", "a/b"),
        ("/orders/%C3%A9", "\u{e9}"),
        ("/orders/..", ".."),
        ("/orders/a+b", "a+b"),
        ("/orders/%0d%0a%00", "\r\n\0"),
    ] {
        let response = send(&app, path).await;
        let found = response.extensions().get().cloned();
        assert_eq!(found, locked(order(id)), "{path}");
        assert_eq!(text(response).await, id, "{path}");
    }
    match outcome(&app, "/orders/%ff").await {
        Some(Outcome::Invalid(what)) => assert!(what.contains("UTF-8"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn routers_routes_and_nests_know_the_parameters() {
    let by_id = || probe!(PathKey::new("order", "id"));
    let inner = Router::new()
        .route("/orders/{id}", post(|| async {}))
        .route_layer(by_id());
    let app = Router::new()
        .nest("/a", inner.clone())
        .nest("/shops/{shop}", inner.clone())
        .nest_service("/service", inner)
        .nest_service("/under/{id}", by_id().layer(post(|| async {})));
    for path in [
        "/a/orders/7",
        "/shops/1/orders/7",
        "/service/orders/7",
        "/under/7/x",
    ] {
        assert_eq!(outcome(&app, path).await, locked(order(7)), "{path}");
    }
}

#[tokio::test]
async fn several_parameters_make_one_key_in_the_order_of_the_extractor() {
    let seat = PathKey::several("seat", ["hall", "seat"]);
    let app = Router::new()
        .route("/halls/{hall}/seats/{seat}", post(|| async {}))
        .route("/seats/{seat}/of/{hall}", post(|| async {}))
        .route_layer(probe!(seat));
    let expected = locked(LockKey::from_values("seat", ["1", "23"]));
    assert_eq!(outcome(&app, "/halls/1/seats/23").await, expected);
    assert_eq!(outcome(&app, "/seats/23/of/1").await, expected);
    assert_ne!(outcome(&app, "/halls/12/seats/3").await, expected);
}

#[tokio::test]
async fn a_wildcard_is_a_parameter() {
    let app = Router::new()
        .route("/files/{*path}", post(|| async {}))
        .route_layer(probe!(PathKey::new("file", "path")));
    let found = outcome(&app, "/files/a/b.txt").await;
    assert_eq!(found, locked(LockKey::new("file", "a/b.txt")));
}

#[tokio::test]
async fn no_route_is_no_lock() {
    let layer = || probe!(PathKey::new("order", "id"));
    let app = Router::new()
        .route("/orders/{id}", post(|| async {}))
        .nest("/a", Router::new().route("/orders/{id}", post(|| async {})))
        .layer(layer());
    for path in ["/none", "/orders", "/orders/1/x", "/a", "/a/none"] {
        let response = send(&app, path).await;
        assert_eq!(response.status(), 404, "{path}");
        assert_eq!(response.extensions().get().cloned(), skipped(), "{path}");
    }
    let on_routes = Router::new()
        .route("/orders/{id}", post(|| async {}))
        .route_layer(layer());
    assert_eq!(outcome(&on_routes, "/none").await, None);
}

#[tokio::test]
async fn a_wrong_method_reaches_no_extractor_on_the_recommended_place() {
    let handler = get(|| async {}).route_layer(probe!(PathKey::new("order", "id")));
    let app = Router::new().route("/orders/{id}", handler);
    let response = send(&app, "/orders/7").await;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(response.extensions().get::<Outcome>().is_none());
}

#[tokio::test]
async fn a_misspelt_parameter_does_not_unlock_the_route() {
    let routes = |key: PathKey| {
        Router::new()
            .route("/orders/{id}", post(|| async {}))
            .route("/orders", post(|| async {}))
            .route_layer(probe!(key))
    };
    let app = routes(PathKey::new("order", "order_id"));
    let what = misconfigured(&app, "/orders/secret").await;
    assert!(
        what.contains("`{order_id}`") && what.contains("/orders/{id}"),
        "{what}"
    );
    assert!(!what.contains("secret"), "{what}");
    misconfigured(&app, "/orders").await;

    let app = routes(PathKey::new("order", "id").optional());
    assert_eq!(outcome(&app, "/orders").await, skipped());
    assert_eq!(outcome(&app, "/orders/7").await, locked(order(7)));
    let app = routes(PathKey::several("order", ["id", "shop"]).optional());
    assert_eq!(outcome(&app, "/orders/7").await, skipped());
}

#[tokio::test]
async fn a_layer_outside_of_the_router_does_not_unlock_its_routes() {
    let inner = Router::new().route("/orders/{id}", post(|| async {}));
    for key in [
        PathKey::new("order", "id"),
        PathKey::new("order", "id").optional(),
    ] {
        let app = probe!(key).layer(inner.clone());
        let request = Request::post("/orders/7").body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        match response.extensions().get() {
            Some(Outcome::Misconfigured(what)) => assert!(what.contains("route_layer"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn two_parameters_of_one_name_are_no_key() {
    let inner = Router::new()
        .route("/orders/{id}", post(|| async {}))
        .route_layer(probe!(PathKey::new("order", "id")));
    let app = Router::new().nest_service("/shops/{id}", inner);
    let what = misconfigured(&app, "/shops/1/orders/7").await;
    assert!(what.contains("two parameters `{id}`"), "{what}");
}

// ---- PathAndQueryKey ----

#[tokio::test]
async fn the_original_path_tells_nested_routers_apart() {
    let inner = Router::new()
        .route(
            "/orders/{id}",
            post(|uri: Uri| async move { uri.path().to_owned() }),
        )
        .route_layer(probe!(PathAndQueryKey::new("report")));
    let app = Router::new()
        .nest("/a", inner.clone())
        .nest("/b", inner.clone())
        .merge(inner);
    // The handler sees the cut path, so the key must come from elsewhere.
    assert_eq!(text(send(&app, "/a/orders/42").await).await, "/orders/42");
    let keys = [
        outcome(&app, "/a/orders/42").await.unwrap(),
        outcome(&app, "/b/orders/42").await.unwrap(),
        outcome(&app, "/orders/42").await.unwrap(),
    ];
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    assert_eq!(
        outcome(&app, "/a/orders/%34%32").await.as_ref(),
        Some(&keys[0])
    );
}

fn key_of(key: &dyn KeyExtractor, uri: &str) -> LockKeys {
    let (mut parts, ()) = Request::get(uri).body(()).unwrap().into_parts();
    match key.extract(&mut parts) {
        Extraction::Ready(result) => result.unwrap(),
        Extraction::Pending(_) => panic!("has nothing to wait for"),
    }
}

#[test]
fn paths_and_queries_are_compared_by_the_documented_rules() {
    let key = PathAndQueryKey::new("report");
    for same in [
        ["/r/42", "/r/%34%32"],
        ["/r/%c3%a9", "/r/%C3%A9"],
        ["/r", "/r?"],
        ["/r?a=1&b=2", "/r?b=2&a=1"],
        ["/r?a=1&&b=2&", "/r?a=1&b=2"],
        ["/r?a", "/r?a="],
        ["/r?a=x+y", "/r?a=x%20y"],
        ["/r?a=%31", "/r?%61=1"],
        ["http://one/r?a=1", "/r?a=1"],
    ] {
        assert_eq!(key_of(&key, same[0]), key_of(&key, same[1]), "{same:?}");
    }
    for different in [
        ["/r", "/r/"],
        ["/a/b", "/a//b"],
        ["/a/b", "/a/c/../b"],
        ["/a/b", "/a%2Fb"],
        ["/a", "/A"],
        ["/r", "/r?a=1"],
        ["/r?a=1", "/r?a=2"],
        ["/r?a=1&a=2", "/r?a=2&a=1"],
        ["/r?a=1&b=2", "/r?a=2&b=1"],
        ["/r?a=1%26b=2", "/r?a=1&b=2"],
        ["/r?a=b=c", "/r?a%3Db=c"],
        ["/r?a=x+y", "/r?a=x%2By"],
        ["/r/a/1", "/r?a=1"],
        ["/r/a+b", "/r/a%20b"],
        ["/r?a=1", "/r?A=1"],
    ] {
        assert_ne!(
            key_of(&key, different[0]),
            key_of(&key, different[1]),
            "{different:?}"
        );
    }
    let key = key.keep_query_order();
    assert_ne!(key_of(&key, "/r?a=1&b=2"), key_of(&key, "/r?b=2&a=1"));
    assert_eq!(key_of(&key, "/r?a=1"), key_of(&key, "/r?%61=1"));
}

// ---- extractors ----

/// Authentication that takes its time: `Bearer` is let in.
#[derive(Debug)]
struct User(String);

impl<S: Send + Sync> FromRequestParts<S> for User {
    type Rejection = (StatusCode, [(&'static str, &'static str); 1], &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let name = parts.headers.get("authorization");
        match name.and_then(|name| name.to_str().ok()) {
            Some(name) => Ok(Self(name.to_owned())),
            None => Err((
                StatusCode::UNAUTHORIZED,
                [("x-realm", "shop")],
                "who are you?",
            )),
        }
    }
}

/// Waits once, in the way in which a database does.
struct Slow;

impl<S: Send + Sync> FromRequestParts<S> for Slow {
    type Rejection = StatusCode;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        tokio::task::yield_now().await;
        Ok(Self)
    }
}

#[tokio::test]
async fn sync_closures_take_extractors() {
    let key = key::from_extractors(|Path(id): Path<u64>, User(user): User| {
        LockKey::from_values("order", [user, id.to_string()])
    });
    let app = Router::new()
        .route("/orders/{id}", post(|| async {}))
        .route_layer(probe!(key));
    let request = Request::post("/orders/7").header("authorization", "ann");
    let request = request.body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    let expected = locked(LockKey::from_values("order", ["ann", "7"]));
    assert_eq!(response.extensions().get().cloned(), expected);
}

#[tokio::test]
async fn a_rejection_of_an_extractor_is_the_answer() {
    let key = key::from_extractors(|_: User, Path(id): Path<u64>| order(id));
    let app = Router::new()
        .route("/orders/{id}", post(|| async {}))
        .route_layer(probe!(key));
    let response = send(&app, "/orders/7").await;
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(response.headers()["x-realm"], "shop");
    assert_eq!(text(response).await, "who are you?");

    let path_only = key::from_extractors(|Path(id): Path<u64>| order(id));
    let app = Router::new()
        .route("/orders/{id}", post(|| async {}))
        .route_layer(probe!(path_only));
    assert_eq!(
        send(&app, "/orders/x").await.status(),
        StatusCode::BAD_REQUEST
    );
}

#[tokio::test]
async fn async_closures_of_both_kinds_take_extractors() {
    let prefix = String::from("p");
    let block = key::from_extractors(move |Path(id): Path<u64>| {
        let prefix = prefix.clone();
        async move {
            tokio::task::yield_now().await;
            LockKey::from_values("order", [prefix, id.to_string()])
        }
    });
    let closure = key::from_extractors(async |_: Slow, Path(id): Path<u64>| {
        tokio::task::yield_now().await;
        Some(LockKey::from_values("order", ["p", &id.to_string()]))
    });
    let expected = locked(LockKey::from_values("order", ["p", "7"]));
    for key in [shared(block), shared(closure)] {
        let app = Router::new()
            .route("/orders/{id}", post(|| async {}))
            .route_layer(from_fn_with_state(key, probe));
        assert_eq!(outcome(&app, "/orders/7").await, expected);
    }
}

#[tokio::test]
async fn functions_and_closures_return_all_that_can_become_keys() {
    fn function(Path(id): Path<u64>) -> Result<LockKey, StatusCode> {
        if id == 0 {
            Err(StatusCode::GONE)
        } else {
            Ok(order(id))
        }
    }
    async fn later(Path(id): Path<u64>) -> Result<Option<LockKey>, Response> {
        match id {
            0 => Err(StatusCode::GONE.into_response()),
            1 => Ok(None),
            _ => Ok(Some(order(id))),
        }
    }
    let several = |Path(id): Path<u64>| vec![order(id + 1), order(id), order(id + 1)];
    let app = |key: Key| {
        Router::new()
            .route("/orders/{id}", post(|| async {}))
            .route_layer(from_fn_with_state(key, probe))
    };

    let sync = app(shared(key::from_extractors(function)));
    assert_eq!(send(&sync, "/orders/0").await.status(), StatusCode::GONE);
    assert_eq!(outcome(&sync, "/orders/7").await, locked(order(7)));
    let later = app(shared(key::from_extractors(later)));
    assert_eq!(send(&later, "/orders/0").await.status(), StatusCode::GONE);
    assert_eq!(outcome(&later, "/orders/1").await, skipped());
    assert_eq!(outcome(&later, "/orders/7").await, locked(order(7)));
    let several = app(shared(key::from_extractors(several)));
    let keys = [order(3), order(4)].into_iter().collect();
    assert_eq!(
        outcome(&several, "/orders/3").await,
        Some(Outcome::Keys(keys))
    );
}

#[tokio::test]
async fn extractors_may_need_the_state() {
    #[derive(Clone)]
    struct App {
        region: &'static str,
    }
    let state = App { region: "eu" };
    let sync = key::from_extractors_with_state(
        state.clone(),
        |State(app): State<App>, Path(id): Path<u64>| {
            LockKey::from_values("order", [app.region, &id.to_string()])
        },
    );
    let later = key::from_extractors_with_state(
        state,
        async |State(app): State<App>, _: Slow, Path(id): Path<u64>| {
            LockKey::from_values("order", [app.region, &id.to_string()])
        },
    );
    let expected = locked(LockKey::from_values("order", ["eu", "7"]));
    for key in [shared(sync), shared(later)] {
        let app = Router::new()
            .route("/orders/{id}", post(|| async {}))
            .route_layer(from_fn_with_state(key, probe));
        assert_eq!(outcome(&app, "/orders/7").await, expected);
    }
}

#[tokio::test]
async fn eight_extractors_are_not_too_many() {
    type Q = Query<Vec<(String, String)>>;
    let key = key::from_extractors(
        |_: Method, _: Uri, _: Q, _: Slow, _: Method, _: Uri, _: Slow, Path(id): Path<u64>| {
            order(id)
        },
    );
    let app = Router::new()
        .route("/orders/{id}", post(|| async {}))
        .route_layer(probe!(key));
    assert_eq!(outcome(&app, "/orders/7?a=b").await, locked(order(7)));
}

/// Marks the head, as some extractors cache what they found.
struct Marking;

#[derive(Clone, Debug, PartialEq)]
struct Mark(u8);

impl<S: Send + Sync> FromRequestParts<S> for Marking {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        parts.extensions.insert(Mark(2));
        Ok(Self)
    }
}

fn marked_head() -> Parts {
    let request = Request::put("/x?y=1").version(axum::http::Version::HTTP_10);
    let request = request.header("a", "1").header("a", "2").extension(Mark(1));
    request.body(()).unwrap().into_parts().0
}

fn assert_whole(parts: &Parts, mark: u8) {
    assert_eq!(parts.method, Method::PUT);
    assert_eq!(parts.uri, "/x?y=1");
    assert_eq!(parts.version, axum::http::Version::HTTP_10);
    assert_eq!(parts.headers.get_all("a").iter().count(), 2);
    assert_eq!(parts.extensions.get(), Some(&Mark(mark)));
}

#[tokio::test]
async fn the_head_comes_back_whole_at_once_or_later_also_from_a_rejection() {
    let at_once = key::from_extractors(|_: Marking| order(1));
    let mut parts = marked_head();
    assert!(matches!(
        at_once.extract(&mut parts),
        Extraction::Ready(Ok(_))
    ));
    assert_whole(&parts, 2);

    // Async, but ready when it is first polled.
    let at_once = key::from_extractors(async |_: Marking, _: Method| order(1));
    let mut parts = marked_head();
    assert!(matches!(
        at_once.extract(&mut parts),
        Extraction::Ready(Ok(_))
    ));
    assert_whole(&parts, 2);

    let refused = key::from_extractors(|_: User| order(1));
    let mut parts = marked_head();
    assert!(matches!(
        refused.extract(&mut parts),
        Extraction::Ready(Err(_))
    ));
    assert_whole(&parts, 1);

    for key in [
        shared(key::from_extractors(|_: Marking, _: Slow| order(1))),
        shared(key::from_extractors(|_: Marking, _: Slow, _: User| {
            order(1)
        })),
    ] {
        let Extraction::Pending(future) = key.extract(&mut marked_head()) else {
            panic!("it waits")
        };
        assert_whole(&future.await.0, 2);
    }
}

/// The first poll has no task behind it, so the waker of the second must be the one that counts.
#[tokio::test]
async fn a_waiting_extractor_wakes_the_task_that_took_it_over() {
    let (send, receive) = tokio::sync::oneshot::channel::<u64>();
    let receive = Arc::new(Mutex::new(Some(receive)));
    let key = key::from_extractors(move |_: Method| {
        let receive = receive.lock().unwrap().take();
        async move { order(receive.unwrap().await.unwrap()) }
    });
    let Extraction::Pending(mut future) = key.extract(&mut marked_head()) else {
        panic!("nothing was sent yet")
    };
    let (polled, first_poll) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let mut polled = Some(polled);
        poll_fn(move |cx| {
            let poll = future.as_mut().poll(cx);
            if let Some(polled) = polled.take() {
                assert!(matches!(poll, Poll::Pending));
                polled.send(()).unwrap();
            }
            poll
        })
        .await
    });
    first_poll.await.unwrap();
    send.send(7).unwrap();
    let (parts, result) = task.await.unwrap();
    assert_whole(&parts, 1);
    assert_eq!(result.unwrap(), LockKeys::One(order(7)));
}

// ---- what panics when it is built ----

#[test]
fn wrong_names_panic_at_the_line_of_the_user() {
    static PLACES: Mutex<Vec<(String, u32)>> = Mutex::new(Vec::new());
    fn note(info: &PanicHookInfo<'_>) {
        let place = info.location().unwrap();
        let mut places = PLACES.lock().unwrap();
        places.push((place.file().to_owned(), place.line()));
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(note));
    let here = Location::caller();
    let tries: [fn(); 7] = [
        || drop(PathKey::new("a b", "id")),
        || drop(PathKey::new("n", "")),
        || drop(PathKey::new("n", "{id}")),
        || drop(PathKey::several("n", ["a", "a"])),
        || drop(PathKey::several::<&str>("n", [])),
        || drop(PathAndQueryKey::new("")),
        || drop(key::HeaderKey::new("n", "a b")),
    ];
    let panicked: Vec<bool> = tries.iter().map(|f| catch_unwind(f).is_err()).collect();
    std::panic::set_hook(before);

    assert_eq!(panicked, [true; 7]);
    let first = here.line() + 2;
    let expected: Vec<_> = (first..first + 7)
        .map(|line| (here.file().to_owned(), line))
        .collect();
    let places = PLACES.lock().unwrap();
    for place in &expected {
        assert!(places.contains(place), "{place:?} is not in {places:?}");
    }
}
