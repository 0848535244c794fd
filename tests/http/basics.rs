//! A request is locked, the handler sees its lock, the lock is free afterwards.

use std::{sync::Arc, time::Duration};

use axum::{Router, routing::post};
use tokio::sync::Notify;
use tower_lock::{FencingToken, HeldLock, LockLayer, key::PathKey};

use crate::{
    backends::{On, on_each_backend},
    support::{send, text},
};

on_each_backend!(
    a_request_is_locked_and_released,
    a_second_request_waits_and_a_third_is_refused,
);

async fn a_request_is_locked_and_released(on: On) {
    let backend = on.backend().await;
    let locks = backend.manager();
    let app = Router::new().route(
        "/orders/{id}/pay",
        post(|fence: FencingToken, held: HeldLock| async move {
            assert!(held.is_held());
            assert_eq!(held.key().as_str(), "order:1.7;");
            fence.to_string()
        })
        .route_layer(LockLayer::new(&locks, PathKey::new("order", "id"))),
    );
    let first: u64 = text(send(&app, "POST", "/orders/7/pay").await)
        .await
        .parse()
        .unwrap();
    let second: u64 = text(send(&app, "POST", "/orders/7/pay").await)
        .await
        .parse()
        .unwrap();
    assert!(second > first);
    backend.freed().await;
    assert!(locks.inspect().held.is_empty());
}

async fn a_second_request_waits_and_a_third_is_refused(on: On) {
    let backend = on.backend().await;
    let locks = backend.manager();
    let gate = Arc::new(Notify::new());
    let entered = Arc::new(Notify::new());
    let app = Router::new().route(
        "/orders/{id}/pay",
        post({
            let (gate, entered) = (gate.clone(), entered.clone());
            move || async move {
                entered.notify_one();
                gate.notified().await;
            }
        })
        .route_layer(
            LockLayer::new(&locks, PathKey::new("order", "id"))
                .with_wait(Duration::from_secs(60))
                .with_max_waiters(1),
        ),
    );
    let go = |app: Router| tokio::spawn(async move { send(&app, "POST", "/orders/7/pay").await });
    let first = go(app.clone());
    entered.notified().await;
    let second = go(app.clone());
    while locks.inspect().waiting.is_empty() {
        tokio::task::yield_now().await;
    }
    let third = send(&app, "POST", "/orders/7/pay").await;
    assert_eq!(third.status(), 429);
    println!("{:?}", third.headers());
    println!("{}", text(third).await);
    gate.notify_one();
    assert_eq!(first.await.unwrap().status(), 200);
    entered.notified().await;
    gate.notify_one();
    assert_eq!(second.await.unwrap().status(), 200);
    backend.freed().await;
}
