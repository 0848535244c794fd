//! From a URL to the backend that it names.

use std::time::Duration;

use tower_lock::{
    LockManager, MemoryBackend, RedLockBackend, RedisBackend, ZooKeeperBackend, backend::Scope,
};

use crate::BoxError;

/// What [`connect`] accepts; a new backend adds its form here and an arm there.
const ACCEPTED: &str = "`memory:` (one process), `redis://[user:password@]HOST[:PORT][/DATABASE]`, \
                        `rediss://..` (the same with TLS), `unix:///PATH` (a Redis on this host), \
                        `redis+sentinel://HOST[:PORT][,HOST[:PORT]..]/SERVICE`, \
                        `redis+cluster://HOST[:PORT][,HOST[:PORT]..]`, \
                        `redis:` (for the demo, which starts one), \
                        `redlock://[user:password@]HOST[:PORT],HOST[:PORT],..[/DATABASE]` (three or \
                        more), `redlocks://..` (with TLS), \
                        `etcd://[user:password@]HOST[:PORT][,HOST[:PORT]..]`, `etcds://..` (with TLS), \
                        `zookeeper://[user:password@]HOST[:PORT][,HOST[:PORT]..][/CHROOT]`";

/// Connects to the backend of this URL, for leases of this ttl.
pub(crate) async fn connect(url: &str, ttl: Duration) -> Result<LockManager, BoxError> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok(LockManager::new(MemoryBackend::new())),
        Some(("redis", "")) => Err(
            "`redis:` names no server, and only `shop demo` starts one: \
                                    an instance needs a URL like redis://127.0.0.1:6379"
                .into(),
        ),
        Some((
            "redis" | "rediss" | "unix" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster"
            | "rediss+cluster",
            _,
        )) => redis(url).await,
        Some(("redlock" | "redlocks", _)) => redlock(url, ttl).await,
        Some(("etcd" | "etcds", _)) => etcd(url).await,
        Some(("zookeeper", _)) => zookeeper(url, ttl).await,
        // The URL may hold a password, so only its scheme is shown.
        Some((scheme, _)) => {
            Err(format!("the backend `{scheme}:` is not known here; accepted: {ACCEPTED}").into())
        }
        None => Err(format!("the backend is not a URL; accepted: {ACCEPTED}").into()),
    }
}

async fn redis(url: &str) -> Result<LockManager, BoxError> {
    // A prefix of its own: the shop stays clear of other locks on the same server.
    let backend = RedisBackend::builder(url).with_prefix("shop:").connect();
    Ok(LockManager::new(backend.await?))
}

async fn redlock(url: &str, ttl: Duration) -> Result<LockManager, BoxError> {
    let backend = RedLockBackend::builder(url)
        .with_prefix("shop:")
        .with_max_ttl(ttl)
        .connect()
        .await?;
    // On new or restarted servers this takes as long as the longest ttl.
    backend.until_voting().await;
    Ok(LockManager::new(backend))
}

#[cfg(feature = "etcd")]
async fn etcd(url: &str) -> Result<LockManager, BoxError> {
    let backend = tower_lock::EtcdBackend::builder(url).with_prefix("shop/");
    Ok(LockManager::new(backend.connect().await?))
}

#[cfg(not(feature = "etcd"))]
#[expect(clippy::unused_async, reason = "as the one with etcd")]
async fn etcd(_url: &str) -> Result<LockManager, BoxError> {
    Err(
        "this shop was built without etcd. With protoc and its include files installed \
         (`apt-get install protobuf-compiler libprotobuf-dev`), run:\n\
         cargo run --example shop --features etcd -- --backend etcd://HOST:2379"
            .into(),
    )
}

async fn zookeeper(url: &str, ttl: Duration) -> Result<LockManager, BoxError> {
    // A lease lasts no longer than its session, and a killed instance's lock as long as that.
    let backend = ZooKeeperBackend::builder(url)
        .with_base("/shop")
        .with_session_timeout(ttl.min(Duration::from_secs(10)))
        .connect()
        .await?;
    let granted = backend.session_timeout();
    if granted > ttl {
        return Err(format!(
            "these ZooKeeper servers grant sessions of no less than {granted:?} (twice their \
             tickTime): ask for a --ttl that is no shorter"
        )
        .into());
    }
    Ok(LockManager::new(backend))
}

/// Whether the locks of this backend end at the process's border.
pub(crate) fn is_per_process(locks: &LockManager) -> bool {
    locks.capabilities().scope == Scope::Process
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(1);

    async fn refusal(url: &str) -> String {
        connect(url, TTL).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn memory_is_known_and_locks_one_process() {
        assert!(is_per_process(&connect("memory:", TTL).await.unwrap()));
    }

    #[tokio::test]
    async fn others_are_refused_by_name_without_their_secrets() {
        for url in ["sqlite://:secret@127.0.0.1", "memory:secret", "secret"] {
            let error = refusal(url).await;
            for form in [
                "memory:",
                "redis://",
                "rediss://",
                "unix://",
                "redlock://",
                "etcd://",
                "etcds://",
                "zookeeper://",
            ] {
                assert!(error.contains(form), "{error}");
            }
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_url_of_redis_that_cannot_be_used_says_what_can() {
        for url in [
            "redis:secret",
            "redis://user:secret@host:port",
            "rediss://user:secret@",
            "redis://127.0.0.1/secret",
            "unix:secret",
        ] {
            let error = refusal(url).await;
            assert!(error.contains("redis://"), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
        assert!(refusal("redis:").await.contains("redis://127.0.0.1:6379"));
    }

    #[tokio::test]
    async fn a_url_of_redlock_that_cannot_be_used_says_what_can() {
        for (url, part) in [
            ("redlock:secret", "redlock://"),
            ("redlock://user:secret@host", "three nodes"),
            ("redlocks://user:secret@a,b,c/secret", "redlock://"),
            ("redlock://:secret@a,b,a", "same address"),
        ] {
            let error = refusal(url).await;
            assert!(error.contains(part), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }

    #[cfg(not(feature = "etcd"))]
    #[tokio::test]
    async fn without_etcd_it_says_what_to_run() {
        for url in ["etcd://user:secret@127.0.0.1", "etcds://127.0.0.1"] {
            let error = refusal(url).await;
            assert!(error.contains("--features etcd"), "{error}");
            assert!(error.contains("libprotobuf-dev"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[cfg(feature = "etcd")]
    #[tokio::test]
    async fn a_url_of_etcd_that_cannot_be_used_says_what_can() {
        for url in [
            "etcd:secret",
            "etcd://user:secret@",
            "etcds://secret@host:port",
        ] {
            let error = refusal(url).await;
            assert!(error.contains("etcd://"), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
        let error = refusal("etcd://user:secret@127.0.0.1:1").await;
        assert!(error.contains("unavailable"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[tokio::test]
    async fn a_connect_string_of_zookeeper_that_cannot_be_used_says_what_can() {
        for url in [
            "zookeeper:secret",
            "zookeeper://secret@host",
            "zookeeper://host/secret/",
        ] {
            let error = refusal(url).await;
            assert!(error.contains("zookeeper://["), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_an_error_without_its_secrets() {
        for url in [
            "redis://user:secret@127.0.0.1:1",
            "rediss://user:secret@127.0.0.1:1",
            "unix:///nowhere/redis.sock?pass=secret",
            "redlock://user:secret@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
            "zookeeper://user:secret@127.0.0.1:1",
        ] {
            let error = refusal(url).await;
            assert!(error.contains("unavailable"), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }
}
