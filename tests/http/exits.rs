//! However a handler ends, its lock is free afterwards and was released exactly once: an answer,
//! an error, an early return, an extractor's refusal, a panic with and without a layer that
//! catches it, a timeout inside and outside, a lost lock.

use std::{convert::Infallible, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::Path,
    http::{Method, Request, Response, StatusCode},
    response::IntoResponse,
    routing::post,
};
use http_body_util::BodyExt;
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_http::{catch_panic::CatchPanicLayer, timeout::TimeoutLayer};
use tower_lock::{
    LockKey, LockLayer, LockManager, OnDisconnect, ReleaseOn,
    key::{PathKey, from_fn},
};

use crate::{
    backends::{On, on_each_backend},
    counting::CountingBackend,
    support::{HOUR, Stage, send, soon, until},
};

on_each_backend!(
    an_answer,
    an_early_return,
    an_error_of_the_service_passes_through_unchanged,
    an_error_of_readiness_passes_through_unchanged,
    an_extractor_that_refuses,
    a_panic,
    a_panic_before_the_first_await,
    a_panic_that_is_caught_outside,
    a_panic_that_is_caught_inside,
    a_panic_in_the_body,
    a_timeout_inside_answers_and_frees,
    a_timeout_outside_answers_and_frees,
    a_timeout_outside_that_is_an_error,
    a_lost_lock,
);

type App = BoxCloneService<Request<Body>, Response<Body>, BoxError>;

/// How a request ends, seen from outside.
#[derive(Debug, PartialEq)]
enum Ending {
    Status(u16),
    Error(String),
    Panic,
}

struct Lab {
    backend: CountingBackend,
    locks: LockManager,
    /// Whoever is on it may go on once the request has ended.
    stage: Stage,
    release_on: ReleaseOn,
    on_disconnect: OnDisconnect,
}

impl Lab {
    fn layer(&self) -> LockLayer {
        let key = from_fn(|_: &http::request::Parts| LockKey::new("order", 7));
        LockLayer::new(&self.locks, key)
            .with_ttl(HOUR)
            .with_release_on(self.release_on)
            .with_on_disconnect(self.on_disconnect)
    }

    /// A service of any error type under the lock.
    fn service<F, Fut, E>(&self, handler: F) -> App
    where
        F: Fn(Request<Body>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = Result<Response<Body>, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let service = self.layer().layer(service_fn(handler));
        BoxCloneService::new(
            service
                .map_response(|response| response.map(Body::new))
                .map_err(Into::into),
        )
    }

    /// A router with this handler under the lock.
    fn router(&self, handler: axum::routing::MethodRouter) -> App {
        boxed(Router::new().route("/orders/{id}", handler.route_layer(self.layer())))
    }
}

fn boxed(app: Router) -> App {
    BoxCloneService::new(ServiceExt::<Request<Body>>::map_err(
        app,
        |never: Infallible| -> BoxError { match never {} },
    ))
}

/// Runs each case on every kind of backend and route.
async fn each<Fut>(on: On, case: impl Fn(&Lab) -> (App, Ending, Option<Fut>))
where
    Fut: Future<Output = ()> + Send + 'static,
{
    let releases = [
        ReleaseOn::Head,
        ReleaseOn::HeadConfirmed,
        ReleaseOn::BodyEnd { max: HOUR },
    ];
    for release_on in releases {
        for on_disconnect in [OnDisconnect::Cancel, OnDisconnect::Detach] {
            for backend in CountingBackend::each(on, 2).await {
                let lab = Lab {
                    locks: backend.manager(),
                    backend,
                    stage: Stage::new(),
                    release_on,
                    on_disconnect,
                };
                let (app, ending, meanwhile) = case(&lab);
                if let Some(meanwhile) = meanwhile {
                    tokio::spawn(meanwhile);
                }
                let request = Request::post("/orders/7").body("not json".into()).unwrap();
                let exchange = tokio::spawn(async move {
                    let response = app.oneshot(request).await?;
                    let status = response.status().as_u16();
                    response.into_body().collect().await?;
                    Ok::<_, BoxError>(status)
                });
                let seen = match soon("the request ends", exchange).await {
                    Ok(Ok(status)) => Ending::Status(status),
                    Ok(Err(error)) => Ending::Error(error.to_string()),
                    Err(ended) if ended.is_panic() => Ending::Panic,
                    Err(_) => unreachable!("nobody aborts it"),
                };
                assert_eq!(seen, ending, "{release_on:?}, {on_disconnect:?}");
                lab.stage.let_go();
                until("the lock is free", || {
                    lab.backend.is_empty() && lab.locks.inspect().held.is_empty()
                })
                .await;
                until("the release is seen through", || {
                    lab.backend.confirmed() == [1]
                })
                .await;
                assert_eq!(lab.backend.releases(), [1]);
            }
        }
    }
}

type Nothing = std::future::Ready<()>;

async fn an_answer(on: On) {
    each(on, |lab| {
        let app = lab.router(post(|| async { "done" }));
        (app, Ending::Status(200), None::<Nothing>)
    })
    .await;
}

async fn an_early_return(on: On) {
    async fn handler(Path(id): Path<u32>) -> Result<(), StatusCode> {
        if id == 7 {
            return Err(StatusCode::GONE);
        }
        Ok(())
    }
    each(on, |lab| {
        (
            lab.router(post(handler)),
            Ending::Status(410),
            None::<Nothing>,
        )
    })
    .await;
}

async fn an_error_of_the_service_passes_through_unchanged(on: On) {
    each(on, |lab| {
        let app = lab.service(|_| async { Err(std::io::Error::other("mine")) });
        (app, Ending::Error("mine".into()), None::<Nothing>)
    })
    .await;
}

#[derive(Clone)]
struct NeverReady;

impl tower::Service<Request<Body>> for NeverReady {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Response<Body>, BoxError>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        std::task::Poll::Ready(Err("broken".into()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        panic!("called though not ready")
    }
}

async fn an_error_of_readiness_passes_through_unchanged(on: On) {
    each(on, |lab| {
        let service = lab.layer().layer(NeverReady);
        let app = BoxCloneService::new(service.map_response(|r| r.map(Body::new)));
        (app, Ending::Error("broken".into()), None::<Nothing>)
    })
    .await;
}

async fn an_extractor_that_refuses(on: On) {
    each(on, |lab| {
        let handler = post(|_: Json<u32>| async { panic!("not called") as () });
        (lab.router(handler), Ending::Status(415), None::<Nothing>)
    })
    .await;
}

async fn panics() {
    tokio::task::yield_now().await;
    panic!("in the handler, on purpose");
}

async fn a_panic(on: On) {
    each(on, |lab| {
        (lab.router(post(panics)), Ending::Panic, None::<Nothing>)
    })
    .await;
}

async fn a_panic_before_the_first_await(on: On) {
    each(on, |lab| {
        let app = lab.service(|_| {
            if true {
                panic!("in call, on purpose");
            }
            std::future::ready(Ok::<_, Infallible>(().into_response()))
        });
        (app, Ending::Panic, None::<Nothing>)
    })
    .await;
}

async fn a_panic_that_is_caught_outside(on: On) {
    each(on, |lab| {
        let handler = post(panics).route_layer(lab.layer());
        let app = Router::new()
            .route("/orders/{id}", handler)
            .layer(CatchPanicLayer::new());
        (boxed(app), Ending::Status(500), None::<Nothing>)
    })
    .await;
}

async fn a_panic_that_is_caught_inside(on: On) {
    each(on, |lab| {
        let handler = post(panics)
            .route_layer(CatchPanicLayer::new())
            .route_layer(lab.layer());
        let app = Router::new().route("/orders/{id}", handler);
        (boxed(app), Ending::Status(500), None::<Nothing>)
    })
    .await;
}

async fn a_panic_in_the_body(on: On) {
    struct Panics(bool);

    impl http_body::Body for Panics {
        type Data = bytes::Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
            assert!(!std::mem::replace(&mut self.0, true), "on purpose");
            std::task::Poll::Ready(Some(Ok(http_body::Frame::data("a".into()))))
        }
    }

    each(on, |lab| {
        let handler = post(|| async { Body::new(Panics(false)) });
        (lab.router(handler), Ending::Panic, None::<Nothing>)
    })
    .await;
}

const TIMEOUT: Duration = Duration::from_millis(100);

/// One that covers the way to the backend as well, so that it ends under the lock.
fn timeout(on: On) -> Duration {
    if on.is_here() {
        TIMEOUT
    } else {
        Duration::from_secs(1)
    }
}

fn timeout_layer(timeout: Duration) -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, timeout)
}

async fn a_timeout_inside_answers_and_frees(on: On) {
    each(on, |lab| {
        let handler = post(std::future::pending::<()>)
            .route_layer(timeout_layer(TIMEOUT))
            .route_layer(lab.layer());
        let app = Router::new().route("/orders/{id}", handler);
        (boxed(app), Ending::Status(504), None::<Nothing>)
    })
    .await;
}

async fn a_timeout_outside_answers_and_frees(on: On) {
    let timeout = timeout(on);
    each(on, |lab| {
        // Under `Detach` the handler goes on: this one ends after the request.
        let stage = lab.stage.clone();
        let handler = post(move || async move { stage.act().await });
        let app = Router::new()
            .route("/orders/{id}", handler.route_layer(lab.layer()))
            .layer(timeout_layer(timeout));
        (boxed(app), Ending::Status(504), None::<Nothing>)
    })
    .await;
}

async fn a_timeout_outside_that_is_an_error(on: On) {
    let timeout = timeout(on);
    each(on, |lab| {
        let stage = lab.stage.clone();
        let app = ServiceBuilder::new()
            .layer(tower::timeout::TimeoutLayer::new(timeout))
            .map_response(|r: Response<tower_lock::ResponseBody<Body>>| r.map(Body::new))
            .layer(lab.layer())
            .service(service_fn(move |_: Request<Body>| {
                let stage = stage.clone();
                async move {
                    stage.act().await;
                    Ok::<_, Infallible>(().into_response())
                }
            }));
        let ending = Ending::Error("request timed out".into());
        (BoxCloneService::new(app), ending, None::<Nothing>)
    })
    .await;
}

async fn a_lost_lock(on: On) {
    each(on, |lab| {
        let stage = Stage::new();
        let handler = {
            let stage = stage.clone();
            post(move || async move { stage.act().await })
        };
        let app = lab.router(handler);
        let below = lab.backend.below().clone();
        let meanwhile = async move {
            stage.entered().await;
            assert!(below.take_away(&LockKey::new("order", 7)).await);
        };
        (app, Ending::Status(500), Some(meanwhile))
    })
    .await;
}

/// A timeout outside counts the wait, one inside does not.
#[tokio::test(start_paused = true)]
async fn a_timeout_bounds_what_is_inside_of_it() {
    let limit = Duration::from_secs(3);
    for outside in [true, false] {
        let backend = CountingBackend::local();
        let locks = LockManager::builder(backend.clone())
            .renew_on_current_runtime()
            .build();
        let stage = Stage::new();
        let handler = {
            let stage = stage.clone();
            post(move || async move { stage.act().await })
        };
        let layer = LockLayer::new(&locks, PathKey::new("order", "id"))
            .with_ttl(HOUR)
            .with_wait(Duration::from_secs(10));
        let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, limit);
        let handler = if outside {
            handler.route_layer(layer).route_layer(timeout)
        } else {
            handler.route_layer(timeout).route_layer(layer)
        };
        let app = Router::new().route("/orders/{id}", handler);

        // It waits for two seconds and then never ends.
        let policy = tower_lock::LockPolicy::new().with_ttl(HOUR);
        let holder = locks.acquire(LockKey::new("order", 7), &policy).await;
        let begun = tokio::time::Instant::now();
        let request = tokio::spawn(async move {
            send(&app, Method::POST.as_str(), "/orders/7")
                .await
                .status()
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        holder.expect("free").release().await.expect("memory");
        stage.entered().await;

        assert_eq!(request.await.expect("no panic"), 504);
        let bound = limit + Duration::from_secs(if outside { 0 } else { 2 });
        let took = begun.elapsed();
        assert!(
            took >= bound && took <= bound + Duration::from_millis(50),
            "outside {outside}: {took:?}"
        );
        assert_eq!(stage.finished(), 0);
        until("the lock is free", || backend.is_empty()).await;
        assert_eq!(backend.releases(), [1, 1]);
    }
}
