//! One process of a fleet: this test binary, started again as a server.

use std::{
    collections::HashMap,
    env,
    io::Read,
    num::NonZeroU32,
    path::Path,
    process::{self, Command},
    thread,
    time::Duration,
};

use axum::{
    Router,
    extract::Query,
    routing::{get, post},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
};
use tower_lock::{
    Fairness, HeldLock, IdempotencyKey, IdempotencyLayer, LockLayer, LockManager, OnDisconnect,
    OnLost, RedisBackend, SingleFlightLayer, Wait, idempotency::OnCrash, key::PathKey,
};

use super::{Settings, TTL};
use crate::{
    servers::Process,
    support::{HOUR, SOON},
};

/// What stands before its address.
pub(super) const LISTENING: &str = "listening on ";

/// How many threads its runtime has.
pub(super) const THREADS: usize = 2;

/// Its settings, in a variable of its environment: a URL, a prefix, two times in milliseconds.
const SETTINGS: &str = "TOWER_LOCK_TEST_INSTANCE";

/// Starts one.
pub(super) fn start(url: &str, prefix: &str, settings: Settings) -> Process {
    let (operation, grace) = (settings.operation.as_millis(), settings.grace.as_millis());
    let mut command = Command::new(env::current_exe().expect("we are a program"));
    command
        .args(["--exact", "fleet::instance::process", "--ignored"])
        .args(["--nocapture", "--test-threads", "1"])
        .env(SETTINGS, format!("{url} {prefix} {operation} {grace}"));
    Process::spawn(&mut command, "it is this program")
}

/// The process itself. It ends with its standard input, which is the end of its parent.
#[test]
#[ignore = "not a test: the tests of this module start it"]
fn process() {
    let Ok(settings) = env::var(SETTINGS) else {
        // Somebody runs what is ignored, too.
        return;
    };
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        process::exit(3);
    });
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(serve(&settings));
}

async fn serve(settings: &str) {
    let settings: Vec<_> = settings.split(' ').collect();
    let [url, prefix, operation, grace] = settings[..] else {
        panic!("{settings:?}");
    };
    let millis = |text: &str| Duration::from_millis(text.parse().expect("a number"));
    let backend = RedisBackend::builder(url)
        .with_prefix(prefix)
        .with_operation_timeout(millis(operation))
        .connect()
        .await
        .expect("the server is there");
    let locks = LockManager::new(backend);
    let mut term = signal(SignalKind::terminate()).expect("a signal");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{LISTENING}{}", listener.local_addr().expect("an address"));
    // As a service does: what is served is served to its end, within the grace.
    let (closing, closed) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, app(&locks)).with_graceful_shutdown(async {
        let _ = closed.await;
    });
    let server = tokio::spawn(server.into_future());
    term.recv().await;
    let _ = closing.send(());
    let report = locks.shutdown(millis(grace)).await;
    println!("drained {report:?}");
    server.await.expect("no panic").expect("it served");
}

/// Every route has a lock of `order` and the id; the first part of the path chooses its policy.
fn app(locks: &LockManager) -> Router {
    let layer = || {
        LockLayer::new(locks, PathKey::new("order", "id"))
            .with_wait(Wait::Forever)
            .with_max_waiters(1000)
            .with_ttl(HOUR)
    };
    let batch = NonZeroU32::new(4).expect("not zero");
    let routes = [
        ("fifo", layer().with_fairness(Fairness::Fifo)),
        ("batched", layer().with_fairness(Fairness::Batched(batch))),
        ("shared", layer().with_shared_methods([http::Method::GET])),
        ("try", layer().with_wait(Wait::Fail)),
        ("brief", layer().with_wait(Duration::from_millis(500))),
        ("detached", layer().with_on_disconnect(OnDisconnect::Detach)),
        // Those whose lease may end within a test.
        ("mortal", layer().with_ttl(TTL)),
        ("told", layer().with_ttl(TTL).with_on_lost(OnLost::Signal)),
        ("open", layer().with_ttl(TTL).with_insecure_fail_open()),
    ];
    let waiting = {
        let locks = locks.clone();
        move || async move {
            let waiting = locks.inspect().waiting;
            waiting
                .iter()
                .map(|key| key.waiters)
                .sum::<usize>()
                .to_string()
        }
    };
    let mut app = Router::new()
        .route("/unlocked/{id}", post(act))
        .route("/waiting", get(waiting));
    for (name, layer) in routes {
        let methods = get(act).post(act).route_layer(layer);
        app = app.route(&format!("/{name}/{{id}}"), methods);
    }
    for (name, on_crash) in [("checkout", OnCrash::Rerun), ("careful", OnCrash::Refuse)] {
        let key = IdempotencyKey::from_extractor(PathKey::new(name, "id")).global_keys();
        let layer = IdempotencyLayer::new(locks, key)
            .with_ttl(TTL)
            .with_on_crash(on_crash);
        app = app.route(&format!("/{name}/{{id}}"), post(act).route_layer(layer));
    }
    let flight = SingleFlightLayer::new(locks, PathKey::new("report", "id"))
        .with_ttl(TTL)
        .with_wait(SOON);
    app.route("/report/{id}", get(act).route_layer(flight))
}

/// Does what the query asks for, and answers with its token.
async fn act(held: Option<HeldLock>, Query(asked): Query<HashMap<String, String>>) -> String {
    if let Some(file) = asked.get("counter") {
        count(Path::new(file)).await;
    }
    if let Some(stage) = asked.get("stage") {
        let name = asked.get("name").expect("a name on the stage");
        play(stage, name, held.as_ref()).await;
    }
    token(held.as_ref()).to_string()
}

fn token(held: Option<&HeldLock>) -> u64 {
    held.map_or(0, |held| held.fencing_token().get())
}

/// Adds one to the number in a file, and takes its time between reading and writing.
async fn count(file: &Path) {
    let number = std::fs::read_to_string(file).expect("a file");
    let number: u64 = number.parse().expect("a number");
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Complete, or not at all, for whoever reads meanwhile.
    let new = file.with_extension(format!("{}-{:x}", process::id(), fastrand::u64(..)));
    std::fs::write(&new, (number + 1).to_string()).expect("a file");
    std::fs::rename(&new, file).expect("a file");
}

/// Goes on stage, and leaves when told to or when the stage is gone.
async fn play(stage: &str, name: &str, held: Option<&HeldLock>) {
    let stream = TcpStream::connect(stage).await.expect("the stage");
    let (reader, mut writer) = stream.into_split();
    let mut orders = BufReader::new(reader).lines();
    let mut said = format!("{name} {}\n", token(held));
    let mut told = held.is_none();
    loop {
        writer.write_all(said.as_bytes()).await.expect("the stage");
        let order = tokio::select! {
            order = orders.next_line() => order.ok().flatten(),
            loss = async { held.expect("not told").lost().await }, if !told => {
                told = true;
                said = format!("lost {}\n", loss.as_str());
                continue;
            }
        };
        said = match order
            .as_deref()
            .map(|order| order.split_once(' ').unwrap_or((order, "")))
        {
            Some(("held", _)) => format!("{}\n", held.is_some_and(HeldLock::is_held)),
            Some(("block", millis)) => {
                thread::sleep(Duration::from_millis(millis.parse().expect("a number")));
                format!("{}\n", held.is_some_and(HeldLock::is_held))
            }
            Some(("go", _)) | None => return,
            Some(other) => panic!("{other:?}"),
        };
    }
}
