//! What the tests share.

use axum::{
    Router,
    body::Body,
    http::{Request, Response},
};
use http_body_util::BodyExt;
use tower::ServiceExt;

/// Sends one request to a router.
pub(crate) async fn send(app: &Router, method: &str, path: &str) -> Response<Body> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .body(Body::empty())
        .expect("a request");
    app.clone().oneshot(request).await.expect("infallible")
}

/// The body as text.
pub(crate) async fn text(response: Response<Body>) -> String {
    let bytes = response.into_body().collect().await.expect("a body");
    String::from_utf8(bytes.to_bytes().to_vec()).expect("text")
}
