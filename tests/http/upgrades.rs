//! Connections that become something else. The lock is free at the 101, unless the handler took
//! the guard: then the lock lasts as long as the socket, is renewed, listed, and drained by
//! shutdown. A tunnel (`CONNECT`) is never locked.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::ws::{WebSocket, WebSocketUpgrade},
    response::Response,
    routing::get,
};
use bytes::Bytes;
use http_body_util::Full;
use tokio::{net::TcpStream, sync::mpsc};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite};
use tower::{Layer, ServiceExt, service_fn};
use tower_lock::{
    AcquireErrorKind, HeldLock, LockGuard, LockKey, LockLayer, LockManager, LockPolicy, Loss, Wait,
    key::{PathKey, from_fn},
};

use crate::{
    backends::{On, on_each_backend},
    counting::CountingBackend,
    support::{HOUR, serve, soon, until},
};

on_each_backend!(
    an_upgrade_frees_the_lock_with_its_answer,
    a_guard_that_was_taken_lasts_as_long_as_the_socket,
    shutdown_waits_for_sockets_that_hold_a_lock,
    shutdown_interrupts_sockets_that_watch_their_lock,
    shutdown_releases_under_sockets_that_do_not_listen,
);

/// What the handler does with its lock.
#[derive(Clone, Copy, PartialEq)]
enum Socket {
    /// Nothing: it stays with the response.
    Leaves,
    /// Takes it and keeps it until the client leaves.
    Takes,
    /// Takes it and ends when the lock is lost.
    Watches,
}

struct World {
    backend: CountingBackend,
    locks: LockManager,
    address: SocketAddr,
    /// What each socket saw of its lock when it ended.
    ended: mpsc::UnboundedReceiver<Option<Loss>>,
}

async fn world(on: On, socket: Socket, ttl: Duration) -> World {
    let backend = CountingBackend::on(on).await;
    let locks = backend.manager();
    let (end, ended) = mpsc::unbounded_channel();
    let handler = get(
        move |upgrade: WebSocketUpgrade, held: HeldLock| async move {
            let guard = match socket {
                Socket::Leaves => None,
                _ => Some(held.take_guard().expect("the layer's")),
            };
            upgrade.on_upgrade(move |stream| async move {
                let loss = run(stream, guard.as_ref(), socket).await;
                drop(guard);
                let _ = end.send(loss);
            }) as Response
        },
    );
    let layer = LockLayer::new(&locks, PathKey::new("room", "id"))
        .with_methods([http::Method::GET])
        .with_wait(Wait::Fail)
        .with_ttl(ttl)
        .with_max_hold(HOUR);
    let app = Router::new().route("/rooms/{id}", handler.route_layer(layer));
    World {
        backend,
        locks,
        address: serve(app).await,
        ended,
    }
}

async fn run(mut stream: WebSocket, guard: Option<&LockGuard>, socket: Socket) -> Option<Loss> {
    loop {
        tokio::select! {
            message = stream.recv() => match message {
                Some(Ok(message)) => stream.send(message).await.ok()?,
                _ => return None,
            },
            loss = async { guard.expect("taken").lost().await }, if socket == Socket::Watches => {
                return Some(loss);
            }
        }
    }
}

impl World {
    async fn connect(&self) -> Result<WebSocketStream<TcpStream>, tungstenite::Error> {
        let stream = TcpStream::connect(self.address).await.expect("a server");
        let url = "ws://test/rooms/7";
        let (socket, response) = soon("the handshake", client_async(url, stream)).await?;
        assert_eq!(response.status(), 101);
        Ok(socket)
    }

    async fn is_refused(&self) -> bool {
        match self.connect().await {
            Ok(_) => false,
            Err(tungstenite::Error::Http(response)) => {
                assert_eq!(response.status(), 409);
                true
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn socket_ended(&mut self) -> Option<Loss> {
        soon("a socket ends", self.ended.recv())
            .await
            .expect("ended")
    }
}

async fn an_upgrade_frees_the_lock_with_its_answer(on: On) {
    let mut world = world(on, Socket::Leaves, HOUR).await;
    let first = world.connect().await.expect("free");
    until("the lock is free", || world.backend.is_empty()).await;
    let second = world.connect().await.expect("free, the first socket lives");
    assert!(world.ended.try_recv().is_err(), "both live");
    drop((first, second));
    world.socket_ended().await;
    world.socket_ended().await;
    assert_eq!(world.backend.releases(), [1, 1]);
}

async fn a_guard_that_was_taken_lasts_as_long_as_the_socket(on: On) {
    let ttl = on.ttl(Duration::from_secs(2));
    let mut world = world(on, Socket::Takes, ttl).await;
    let socket = world.connect().await.expect("free");
    assert!(world.is_refused().await);
    let held = world.locks.inspect().held;
    assert_eq!(held.len(), 1);
    assert_eq!(held[0].key, LockKey::new("room", 7));

    // It is renewed, so it outlasts its first lease.
    tokio::time::sleep(ttl * 2).await;
    assert!(world.is_refused().await);
    assert_eq!(world.locks.inspect().held.len(), 1);
    assert!(world.backend.releases().iter().all(|n| *n == 0));

    drop(socket);
    assert_eq!(world.socket_ended().await, None);
    until("the lock is free", || {
        world.backend.is_empty() && world.locks.inspect().held.is_empty()
    })
    .await;
    world.connect().await.expect("free again");
}

async fn shutdown_waits_for_sockets_that_hold_a_lock(on: On) {
    let mut world = world(on, Socket::Takes, HOUR).await;
    let socket = world.connect().await.expect("free");
    // A waiter that is refused shows that it has begun.
    let locks = world.locks.clone();
    let waiter = tokio::spawn(async move {
        let policy = LockPolicy::new().with_wait(HOUR);
        locks.acquire(LockKey::new("room", 7), &policy).await
    });
    until("it waits", || !world.locks.inspect().waiting.is_empty()).await;
    let locks = world.locks.clone();
    let shutdown = tokio::spawn(async move { locks.shutdown(HOUR).await });
    let refused = soon("it drains", waiter).await.expect("no panic");
    assert_eq!(
        refused.expect_err("refused").kind(),
        AcquireErrorKind::Draining
    );
    assert!(!shutdown.is_finished());
    assert_eq!(world.locks.inspect().held.len(), 1);

    drop(socket);
    world.socket_ended().await;
    let report = soon("shutdown ends", shutdown).await.expect("no panic");
    assert_eq!(
        (report.finished, report.interrupted, report.forced),
        (1, 0, 0)
    );
    assert!(report.confirmed);
    world.backend.below().freed().await;
}

async fn shutdown_interrupts_sockets_that_watch_their_lock(on: On) {
    let mut world = world(on, Socket::Watches, HOUR).await;
    let _socket = world.connect().await.expect("free");
    let report = world.locks.shutdown(Duration::from_millis(10)).await;
    assert_eq!(
        (report.finished, report.interrupted, report.forced),
        (0, 1, 0)
    );
    assert_eq!(world.socket_ended().await, Some(Loss::Shutdown));
    world.backend.below().freed().await;
}

async fn shutdown_releases_under_sockets_that_do_not_listen(on: On) {
    let world = world(on, Socket::Takes, HOUR).await;
    let _socket = world.connect().await.expect("free");
    let report = world.locks.shutdown(Duration::from_millis(10)).await;
    assert_eq!(
        (report.finished, report.interrupted, report.forced),
        (0, 0, 1)
    );
    world.backend.below().freed().await;
    until("it is released once", || world.backend.releases() == [1]).await;
}

#[tokio::test]
async fn a_tunnel_is_never_locked() {
    let backend = CountingBackend::local();
    let locks = LockManager::new(backend.clone());
    let key = from_fn(|_: &http::request::Parts| LockKey::new("tunnel", 1));
    let service = LockLayer::new(&locks, key).layer(service_fn(
        |request: http::Request<Full<Bytes>>| async move {
            assert!(request.extensions().get::<HeldLock>().is_none());
            Ok::<_, Infallible>(http::Response::new(Full::<Bytes>::default()))
        },
    ));
    let request = http::Request::connect("test:443").body(Full::default());
    let response = service.oneshot(request.expect("a request")).await;
    assert_eq!(response.expect("infallible").status(), 200);
    assert_eq!(backend.acquires(), 0);
}
