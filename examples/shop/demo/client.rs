//! Requests to the instances.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;

use crate::BoxError;

/// Keeps its connections; clones share them.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: HttpClient<HttpConnector, Empty<Bytes>>,
}

/// An answer, and what it says if that is JSON.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

impl Client {
    pub(super) fn new() -> Self {
        Self {
            http: HttpClient::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// Pays an order; the payment works this many milliseconds.
    pub(super) async fn pay(&self, address: &str, order: u32, ms: u64) -> Result<Answer, BoxError> {
        let uri = format!("http://{address}/orders/{order}/pay?ms={ms}");
        self.send(Method::POST, &uri).await
    }

    /// Checks out under this key: the answer as it came, and whether it is a replay.
    pub(super) async fn check_out(
        &self,
        address: &str,
        key: &str,
        ms: u64,
    ) -> Result<(StatusCode, Bytes, bool), BoxError> {
        let request = Request::post(format!("http://{address}/checkout?ms={ms}"))
            .header("idempotency-key", key)
            .body(Empty::new())?;
        let response = self.http.request(request).await?;
        let (head, body) = response.into_parts();
        let replayed = head.headers.contains_key("idempotent-replayed");
        Ok((head.status, body.collect().await?.to_bytes(), replayed))
    }

    /// A report, which takes this many milliseconds to build.
    pub(super) async fn report(&self, address: &str, id: u32, ms: u64) -> Result<Answer, BoxError> {
        let uri = format!("http://{address}/reports/{id}?ms={ms}");
        self.send(Method::GET, &uri).await
    }

    /// Who holds and who waits at this instance.
    pub(super) async fn locks(&self, address: &str) -> Result<Value, BoxError> {
        let uri = format!("http://{address}/locks");
        let answer = self.send(Method::GET, &uri).await?;
        if answer.status != StatusCode::OK {
            return Err(format!("{uri} answered {}", answer.status).into());
        }
        Ok(answer.body)
    }

    async fn send(&self, method: Method, uri: &str) -> Result<Answer, BoxError> {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .body(Empty::new())?;
        let response = self.http.request(request).await?;
        let status = response.status();
        // Read to its end, so that the connection can be used again.
        let body = response.into_body().collect().await?.to_bytes();
        Ok(Answer {
            status,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        })
    }
}
