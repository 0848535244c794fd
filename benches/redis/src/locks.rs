//! The locks that are compared, all behind one pair of calls.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{AsyncConnectionConfig, IntoConnectionInfo, Script, aio::MultiplexedConnection};
use tower_lock::{
    Fairness, Lease, LockBackend, LockGuard, LockKey, LockManager, LockPolicy, RedisBackend, Wait,
    backend::{AcquireRequest, WaitBound},
};

/// Longer than any run: nothing expires under the bench.
pub(crate) const TTL: Duration = Duration::from_secs(60);

/// A lock of one process, shared by its tasks.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    type Held: Send + 'static;

    /// The same, prepared for a key, as far as there is anything to prepare.
    fn for_key(&self, _key: &str) -> Self {
        self.clone()
    }

    /// Waits until the key is held.
    fn acquire(&self, key: &str) -> impl Future<Output = Self::Held> + Send;

    /// Returns when the server has said that the key is free.
    fn release(&self, held: Self::Held) -> impl Future<Output = ()> + Send;
}

/// `RedisBackend` by itself.
#[derive(Clone)]
pub(crate) struct Ours(pub(crate) RedisBackend);

/// `LockManager` on a `RedisBackend`.
#[derive(Clone)]
pub(crate) struct Managed(Arc<(LockManager, LockPolicy)>);

/// The crate `rslock` on one server, with its default pause between tries, for ever.
#[derive(Clone)]
pub(crate) struct Rslock(rslock::LockManager);

const UNLOCK: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) else return 0 end";

/// A connection as `RedisBackend` has it.
pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("a URL");
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let client = redis::Client::open(info.set_tcp_settings(tcp)).expect("a URL");
    // A machine that stalls for a moment fails no run.
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(TTL));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .expect("the server takes a connection")
}

impl Ours {
    pub(crate) async fn connect(url: &str) -> Self {
        Self(RedisBackend::connect(url).await.expect("a backend"))
    }

    /// With the connection of this runtime, which a backend opens when it is first used there.
    pub(crate) async fn ready(url: &str) -> Self {
        Self::settled(RedisBackend::connect(url).await.expect("a backend")).await
    }

    /// The same with this backend.
    pub(crate) async fn settled(backend: RedisBackend) -> Self {
        let ours = Self(backend);
        for _ in 0..20 {
            let lease = ours.lease("warm-up").await;
            ours.release(lease).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        ours
    }

    /// The queue of a key, as it is called on the server.
    pub(crate) fn queue(key: &str) -> String {
        format!("{{tower-lock:{}}}:q", LockKey::new("bench", key).as_str())
    }

    pub(crate) async fn lease(&self, key: &str) -> <RedisBackend as LockBackend>::Lease {
        let request =
            AcquireRequest::new(LockKey::new("bench", key), TTL).with_wait(WaitBound::Forever);
        self.0.acquire(&request).await.expect("a grant")
    }
}

impl Lock for Ours {
    type Held = <RedisBackend as LockBackend>::Lease;

    async fn acquire(&self, key: &str) -> Self::Held {
        self.lease(key).await
    }

    async fn release(&self, held: Self::Held) {
        held.release().await.expect("a release");
    }
}

impl Managed {
    pub(crate) async fn connect(url: &str, fairness: Fairness) -> Self {
        Self::with_ttl(url, fairness, TTL).await
    }

    pub(crate) async fn with_ttl(url: &str, fairness: Fairness, ttl: Duration) -> Self {
        let backend = RedisBackend::connect(url).await.expect("a backend");
        let policy = LockPolicy::new()
            .with_ttl(ttl)
            .with_wait(Wait::Forever)
            .with_max_waiters(usize::MAX)
            .with_fairness(fairness);
        Self(Arc::new((LockManager::new(backend), policy)))
    }
}

impl Lock for Managed {
    type Held = LockGuard;

    async fn acquire(&self, key: &str) -> LockGuard {
        let (locks, policy) = &*self.0;
        let held = locks.acquire(LockKey::new("bench", key), policy).await;
        held.expect("a grant")
    }

    async fn release(&self, held: LockGuard) {
        held.release().await.expect("a release");
    }
}

/// The same, released as a request releases it: the guard is dropped, and nobody waits for that.
#[derive(Clone)]
pub(crate) struct Dropped(Managed, Arc<AtomicU64>);

impl Dropped {
    pub(crate) fn new(managed: Managed) -> Self {
        Self(managed, Arc::default())
    }
}

impl Lock for Dropped {
    type Held = LockGuard;

    async fn acquire(&self, key: &str) -> LockGuard {
        // Another key each time, since the one before may not be free yet.
        let count = self.1.fetch_add(1, Ordering::Relaxed);
        self.0.acquire(&format!("{key}-{count}")).await
    }

    async fn release(&self, held: LockGuard) {
        drop(held);
    }
}

/// `SET key value NX PX`, asked again until it succeeds.
#[derive(Clone)]
pub(crate) struct SetNx {
    connection: MultiplexedConnection,
    poll: Duration,
    /// Compares before it deletes; without it the key is deleted whoever holds it.
    unlock: Option<Arc<Script>>,
}

impl SetNx {
    pub(crate) async fn connect(url: &str, poll: Duration) -> Self {
        Self {
            connection: connect(url).await,
            poll,
            unlock: Some(Arc::new(Script::new(UNLOCK))),
        }
    }

    pub(crate) async fn with_del(url: &str) -> Self {
        Self {
            unlock: None,
            ..Self::connect(url, Duration::from_millis(10)).await
        }
    }
}

impl Lock for SetNx {
    type Held = (String, [u8; 16]);

    async fn acquire(&self, key: &str) -> Self::Held {
        let owner = *tower_lock::lease::OwnerToken::random().as_bytes();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&owner).arg("NX").arg("PX").arg(60_000);
        let mut connection = self.connection.clone();
        loop {
            let held: bool = set.query_async(&mut connection).await.expect("an answer");
            if held {
                return (key.to_owned(), owner);
            }
            tokio::time::sleep(self.poll).await;
        }
    }

    async fn release(&self, (key, owner): Self::Held) {
        let mut connection = self.connection.clone();
        let freed: bool = match &self.unlock {
            Some(script) => {
                let mut unlock = script.key(key);
                unlock.arg(&owner).invoke_async(&mut connection).await
            }
            None => {
                redis::cmd("DEL")
                    .arg(key)
                    .query_async(&mut connection)
                    .await
            }
        }
        .expect("an answer");
        assert!(freed, "the key was held");
    }
}

impl Rslock {
    pub(crate) fn new(url: &str) -> Self {
        let mut locks = rslock::LockManager::new(vec![url]);
        locks.set_retry(u32::MAX, Duration::from_millis(200));
        Self(locks)
    }
}

impl Lock for Rslock {
    type Held = rslock::Lock;

    async fn acquire(&self, key: &str) -> rslock::Lock {
        let held = self.0.lock(key, TTL).await;
        held.expect("a grant")
    }

    async fn release(&self, held: rslock::Lock) {
        held.release().await;
    }
}
