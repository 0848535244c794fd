//! Real connections: a hundred streams of one HTTP/2 connection on one key, and a proxy that sends
//! a request again because the first answer takes too long.

use std::{
    fmt::Display,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use axum::Router;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpStream, UnixStream},
    process::{Child, Command},
    task::JoinHandle,
};
use tower_lock::{OnDisconnect, Wait};

use crate::{
    backends::{Backend, On, on_each_backend},
    flaky::{Gate, order, serve, until, until_waiting},
};

on_each_backend!(
    a_hundred_streams_of_one_connection,
    a_hedged_duplicate_is_refused,
    a_retry_never_runs_beside_the_first,
);

fn request(address: impl Display, id: &str) -> Request<Empty<Bytes>> {
    Request::post(format!("http://{address}/orders/{id}/pay"))
        .body(Empty::new())
        .unwrap()
}

/// A hundred streams of one connection want one key: they run one after the other, none is lost,
/// and streams for other keys of the same connection pass meanwhile.
async fn a_hundred_streams_of_one_connection(on: On) {
    const STREAMS: usize = 100;
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let layer = order(&locks)
        .with_wait(Wait::Forever)
        .with_max_waiters(STREAMS);
    let address = serve(gate.orders(layer)).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) =
        conn::http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let send = |id: &str| -> JoinHandle<Response<Incoming>> {
        let mut sender = sender.clone();
        let request = request(address, id);
        tokio::spawn(async move {
            sender.ready().await.unwrap();
            sender.send_request(request).await.unwrap()
        })
    };
    let hot: Vec<_> = (0..STREAMS).map(|_| send("hot")).collect();
    until_waiting(&locks, STREAMS - 1).await;
    let others: Vec<_> = (0..20).map(|id| send(&id.to_string())).collect();
    gate.until_inside(21).await;
    assert_eq!(backend.len(), 21);
    gate.let_out(STREAMS + 20);
    for task in others.into_iter().chain(hot) {
        let response = tokio::time::timeout(Duration::from_secs(20), task).await;
        assert_eq!(response.expect("no deadlock").unwrap().status(), 200);
    }
    assert_eq!(gate.inside.visits(), STREAMS + 20);
    backend.freed().await;
}

/// An nginx of this test's own. Its files are removed with it.
struct Nginx {
    _process: Child,
    files: PathBuf,
}

impl Nginx {
    /// Where it listens: nobody else can take that.
    async fn connect(&self) -> std::io::Result<UnixStream> {
        UnixStream::connect(socket(&self.files)).await
    }
}

fn socket(files: &Path) -> PathBuf {
    files.join("socket")
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.files);
    }
}

/// Starts nginx in front of two names of one upstream: after `patience` without an answer it sends
/// the request to the next, `POST` or not.
async fn nginx(upstream: SocketAddr, patience: Duration) -> Nginx {
    let name = format!(
        "tower-lock-nginx-{}-{}",
        std::process::id(),
        upstream.port()
    );
    let files = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&files).unwrap();
    let temp = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|of| format!("{of}_temp_path {}/{of};", files.display()))
        .join(" ");
    let configuration = format!(
        "daemon off; master_process off; worker_processes 1; pid {files}/pid; error_log {files}/log;
         events {{ worker_connections 64; }}
         http {{
             access_log off; {temp}
             upstream app {{ server {upstream} max_fails=0; server {upstream} max_fails=0; }}
             server {{
                 listen unix:{socket};
                 location / {{
                     proxy_pass http://app;
                     proxy_read_timeout {patience}ms;
                     proxy_next_upstream error timeout http_503 non_idempotent;
                     proxy_next_upstream_tries 2;
                 }}
             }}
         }}",
        files = files.display(),
        socket = socket(&files).display(),
        patience = patience.as_millis(),
    );
    let path = files.join("nginx.conf");
    std::fs::write(&path, configuration).unwrap();
    let process = ["nginx", "/usr/sbin/nginx"]
        .iter()
        .find_map(|binary| {
            Command::new(binary)
                .arg("-p")
                .arg(&files)
                .arg("-e")
                .arg(files.join("log"))
                .arg("-c")
                .arg(&path)
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn()
                .ok()
        })
        .expect("this test needs nginx: install Debian's package `nginx-light`");
    let nginx = Nginx {
        _process: process,
        files,
    };
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while nginx.connect().await.is_err() {
        let log = std::fs::read_to_string(nginx.files.join("log"));
        assert!(
            tokio::time::Instant::now() < deadline,
            "nginx does not listen: {log:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    nginx
}

async fn through(nginx: &Nginx, id: &str) -> (u16, String) {
    let stream = nginx.connect().await.unwrap();
    let (mut sender, connection) = conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = request("localhost", id);
    let host = http::HeaderValue::from_static("localhost");
    request.headers_mut().insert("host", host);
    let response = sender.send_request(request).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

async fn behind_nginx(on: On, detach: OnDisconnect) -> (Gate, Backend, Nginx) {
    let (backend, locks) = on.rig().await;
    let gate = Gate::shut();
    let layer = order(&locks)
        .with_wait(Wait::Fail)
        .with_on_disconnect(detach);
    let app: Router = gate.orders(layer);
    let nginx = nginx(serve(app).await, Duration::from_secs(2)).await;
    (gate, backend, nginx)
}

/// The proxy gives up on the first try and sends the request again while the first handler, which
/// is detached, still runs: the second is refused, so the work is done once.
async fn a_hedged_duplicate_is_refused(on: On) {
    let (gate, backend, nginx) = behind_nginx(on, OnDisconnect::Detach).await;
    let (status, body) = through(&nginx, "7").await;
    assert_eq!(status, 409, "{body}");
    assert!(body.contains("lock-busy"), "{body}");
    assert_eq!((gate.inside.now(), gate.inside.visits()), (1, 1));
    // A 409 is no reason for the proxy to take the server out: other keys go on.
    // One to spare for a try that the proxy gives up.
    gate.let_out(3);
    until("the first has finished", || backend.is_empty()).await;
    assert_eq!(through(&nginx, "8").await.0, 200);
    assert_eq!(gate.inside.most(), 1);
}

/// The same without `Detach`: the first handler is dropped with its connection, and the second
/// runs after it, never beside it.
async fn a_retry_never_runs_beside_the_first(on: On) {
    let (gate, backend, nginx) = behind_nginx(on, OnDisconnect::Cancel).await;
    let (status, body) = through(&nginx, "7").await;
    // Its second try ends like the first, or finds the key still held for a moment.
    assert!(status == 504 || status == 409, "{status} {body}");
    assert_eq!(gate.inside.most(), 1);
    until("both are gone", || {
        backend.is_empty() && gate.inside.now() == 0
    })
    .await;
    // One to spare for a try that the proxy gives up.
    gate.let_out(2);
    assert_eq!(through(&nginx, "7").await.0, 200);
    assert_eq!(gate.inside.most(), 1);
}
