//! Plain Tower and hyper, without axum: any `tower::Service` of HTTP requests can be locked.
//!
//! ```sh
//! cargo run --example tower_hyper
//! ```

use std::{convert::Infallible, error::Error, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, time::sleep};
use tower::{ServiceBuilder, service_fn};
use tower_lock::{HeldLock, LockKey, LockLayer, LockManager, MemoryBackend, key};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let locks = LockManager::new(MemoryBackend::new());

    // Everything below `/accounts/{name}/` of one account, one request at a time. `None` is not
    // locked, and neither are GETs.
    let account = key::from_fn(|parts: &http::request::Parts| {
        let rest = parts.uri.path().strip_prefix("/accounts/")?;
        let (name, _) = rest.split_once('/')?;
        Some(LockKey::new("account", name))
    });
    let service = ServiceBuilder::new()
        .layer(LockLayer::new(&locks, account).with_wait(Duration::from_secs(2)))
        .service(service_fn(handle));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });

    let (first, second, other) = tokio::join!(
        post(format!("http://{address}/accounts/ada/deposit")),
        post(format!("http://{address}/accounts/ada/withdraw")),
        post(format!("http://{address}/accounts/bob/deposit")),
    );
    print!("{}{}{}", first?, second?, other?);
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

async fn handle(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = match request.extensions().get::<HeldLock>() {
        Some(lock) => {
            sleep(Duration::from_millis(100)).await;
            let (token, waited) = (lock.fencing_token(), lock.waited().as_millis());
            format!(
                "{}: token {token}, waited {waited} ms\n",
                request.uri().path()
            )
        }
        None => "not locked\n".to_owned(),
    };
    Ok(Response::new(Full::from(text)))
}

async fn post(uri: String) -> Result<String, Box<dyn Error + Send + Sync>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let response = client
        .request(Request::post(uri).body(Empty::new())?)
        .await?;
    let body = response.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}
