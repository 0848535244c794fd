//! gRPC: a call of a tonic server that is locked by a metadata entry.
//!
//! A service generated from a `.proto` is locked as a whole by
//! `layer.named_layer(OrdersServer::new(orders))`, with `tonic::service::LayerExt`. Here the one
//! call is written by hand, so that no protoc is needed.
//!
//! ```sh
//! cargo run --example tonic
//! ```

use std::{error::Error, time::Duration};

use axum::{Router, body::Body, routing::post};
use http::uri::PathAndQuery;
use tokio::{net::TcpListener, time::sleep};
use tonic::{
    Code, Request, Response, Status, client, server, service::Routes, transport::Channel,
    transport::Server, transport::server::TcpIncoming,
};
use tonic_prost::ProstCodec;
use tower::service_fn;
use tower_lock::{HeldLock, LockLayer, LockManager, MemoryBackend, Wait, key::HeaderKey};

/// `message Payment { uint64 cents = 1; }`
#[derive(Clone, PartialEq, prost::Message)]
struct Payment {
    #[prost(uint64, tag = "1")]
    cents: u64,
}

/// `rpc Pay(Payment) returns (Payment)`
async fn pay(request: Request<Payment>) -> Result<Response<Payment>, Status> {
    let lock = request.extensions().get::<HeldLock>();
    println!("handler: {:?}", lock.map(HeldLock::fencing_token));
    sleep(Duration::from_millis(300)).await;
    Ok(Response::new(request.into_inner()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let locks = LockManager::new(MemoryBackend::new());
    let key = HeaderKey::new("order", "x-order-id");
    let locked = LockLayer::new(&locks, key).with_wait(Wait::Fail);
    let handler = post(|request: http::Request<Body>| async {
        let mut grpc = server::Grpc::new(ProstCodec::<Payment, Payment>::default());
        grpc.unary(service_fn(pay), request).await
    });
    let calls = Router::new().route("/shop.Orders/Pay", handler.route_layer(locked));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    let server = Server::builder().add_routes(Routes::from(calls));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Channel::from_shared(address)?.connect().await?;
    let first = tokio::spawn(call(channel.clone(), "7"));
    sleep(Duration::from_millis(100)).await;
    let (same, other) = tokio::join!(call(channel.clone(), "7"), call(channel, "8"));
    println!("order 7, first:  {}", first.await??);
    println!("order 7, second: {}", same?);
    println!("order 8:         {}", other?);
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

async fn call(channel: Channel, order: &str) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut grpc = client::Grpc::new(channel);
    grpc.ready().await?;
    let mut request = Request::new(Payment { cents: 1_250 });
    request.metadata_mut().insert("x-order-id", order.parse()?);
    let path = PathAndQuery::from_static("/shop.Orders/Pay");
    let codec = ProstCodec::<Payment, Payment>::default();
    match grpc.unary(request, path, codec).await {
        Ok(receipt) => Ok(format!("{} cents paid", receipt.into_inner().cents)),
        Err(busy) if busy.code() == Code::Aborted => Ok(format!("ABORTED, {}", busy.message())),
        Err(status) => Err(status.into()),
    }
}
