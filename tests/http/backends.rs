//! The backends that this suite runs on.
//!
//! A test that is named in [`on_each_backend!`] is several: `memory::its_name` and, with their
//! features, `etcd::its_name`, `redis::its_name` and `zookeeper::its_name`, with real servers. It takes an [`On`] and asks that for its
//! backends. What stays on one backend says why, at the top of its module or on the test.

use std::{fmt, sync::Arc, time::Duration};

use tower_lock::{
    Fairness, LockKey, LockManager, LockManagerBuilder, Loss, MemoryBackend,
    backend::DynLockBackend, lease::drift_margin,
};

#[cfg(feature = "etcd")]
use crate::etcd_place::Place as EtcdPlace;
#[cfg(feature = "redis")]
use crate::redis_place::Place;
use crate::support::{SOON, until};
#[cfg(feature = "zookeeper")]
use crate::zookeeper_place::{self, Place as ZooKeeperPlace};

/// Which backend a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    Memory,
    #[cfg(feature = "etcd")]
    Etcd,
    #[cfg(feature = "redis")]
    Redis,
    #[cfg(feature = "zookeeper")]
    ZooKeeper,
}

impl On {
    /// A backend that nobody else uses.
    pub(crate) async fn backend(self) -> Backend {
        match self {
            Self::Memory => Backend::Memory(MemoryBackend::new()),
            #[cfg(feature = "etcd")]
            Self::Etcd => Backend::Etcd(EtcdPlace::new().await),
            #[cfg(feature = "redis")]
            Self::Redis => Backend::Redis(Place::new().await),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => Backend::ZooKeeper(ZooKeeperPlace::new().await),
        }
    }

    /// A backend that nobody else uses, and a manager on it. Where time can be paused, the
    /// manager lives on the test's runtime.
    pub(crate) async fn rig(self) -> (Backend, LockManager) {
        let backend = self.backend().await;
        let locks = match &backend {
            Backend::Memory(_) => backend.builder().renew_on_current_runtime().build(),
            #[cfg(feature = "etcd")]
            Backend::Etcd(_) => backend.manager(),
            #[cfg(feature = "redis")]
            Backend::Redis(_) => backend.manager(),
            #[cfg(feature = "zookeeper")]
            Backend::ZooKeeper(_) => backend.manager(),
        };
        (backend, locks)
    }

    /// Whether a route may ask for `Batched`: its grants can reserve tokens.
    pub(crate) fn batches(self) -> bool {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd => false,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => false,
            _ => true,
        }
    }

    /// Those of these that a route may ask for.
    pub(crate) fn fair<const N: usize>(
        self,
        fairness: [Fairness; N],
    ) -> impl Iterator<Item = Fairness> {
        let may_have = move |one: &Fairness| self.batches() || !matches!(one, Fairness::Batched(_));
        fairness.into_iter().filter(may_have)
    }

    /// So long a ttl, or the shortest that the backend takes.
    pub(crate) fn ttl(self, ttl: Duration) -> Duration {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd => ttl.max(Duration::from_secs(1)),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => ttl.max(zookeeper_place::SESSION),
            _ => ttl,
        }
    }

    /// By how much less than its ttl a lease may last from the moment of its grant on.
    pub(crate) fn early(self, ttl: Duration) -> Duration {
        match self {
            // It is the session's, which the server heard of last a part of it before.
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper => ttl / 2,
            _ => drift_margin(ttl),
        }
    }

    /// Whether the backend is in this process: then all is done when a call returns.
    pub(crate) fn is_here(self) -> bool {
        self == Self::Memory
    }
}

/// A backend, and what a test sees of it from outside. Clones are the same one.
#[derive(Clone)]
pub(crate) enum Backend {
    Memory(MemoryBackend),
    #[cfg(feature = "etcd")]
    Etcd(EtcdPlace),
    #[cfg(feature = "redis")]
    Redis(Place),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(ZooKeeperPlace),
}

impl Backend {
    /// The backend has a timeout of its own; that of the manager is as long.
    pub(crate) fn builder(&self) -> LockManagerBuilder {
        let builder = match self {
            Self::Memory(backend) => LockManager::builder(backend.clone()),
            #[cfg(feature = "etcd")]
            Self::Etcd(place) => LockManager::builder(place.backend().clone()),
            #[cfg(feature = "redis")]
            Self::Redis(place) => LockManager::builder(place.backend().clone()),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(place) => LockManager::builder(place.backend().clone()),
        };
        builder.backend_timeout(SOON)
    }

    /// A manager on the lock runtime.
    pub(crate) fn manager(&self) -> LockManager {
        self.builder().build()
    }

    /// The backend for one that wraps it.
    pub(crate) fn erased(&self) -> Arc<dyn DynLockBackend> {
        match self {
            Self::Memory(backend) => Arc::new(backend.clone()),
            #[cfg(feature = "etcd")]
            Self::Etcd(place) => Arc::new(place.backend().clone()),
            #[cfg(feature = "redis")]
            Self::Redis(place) => Arc::new(place.backend().clone()),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(place) => Arc::new(place.backend().clone()),
        }
    }

    /// The same locks as another instance of the service has them: with connections of its own.
    pub(crate) async fn elsewhere(&self) -> Self {
        match self {
            Self::Memory(_) => self.clone(),
            #[cfg(feature = "etcd")]
            Self::Etcd(place) => Self::Etcd(place.elsewhere().await),
            #[cfg(feature = "redis")]
            Self::Redis(place) => Self::Redis(place.elsewhere().await),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(place) => Self::ZooKeeper(place.elsewhere().await),
        }
    }

    /// How many keys have a holder or a waiter. A look at the server, not at what our side knows.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(backend) => backend.len(),
            #[cfg(feature = "etcd")]
            Self::Etcd(place) => place.locks().len(),
            #[cfg(feature = "redis")]
            Self::Redis(place) => place.locks().len(),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(place) => place.locks().len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing is left of any key: at once in this process, soon over a network, where a release
    /// is sent before the answer and not awaited.
    #[track_caller]
    pub(crate) fn freed(&self) -> impl Future<Output = ()> + '_ {
        match self {
            Self::Memory(backend) => assert!(backend.is_empty(), "{backend:?}"),
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => {}
            #[cfg(feature = "redis")]
            Self::Redis(_) => {}
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(_) => {}
        }
        until("nothing is left", || self.is_empty())
    }

    /// Takes the key from its holders, as an operator of another instance does. Whether there
    /// were any.
    pub(crate) async fn take_away(&self, key: &LockKey) -> bool {
        match self {
            Self::Memory(backend) => backend.lose(key, Loss::ForceReleased),
            #[cfg(feature = "etcd")]
            Self::Etcd(place) => place.take_away(key).await,
            #[cfg(feature = "redis")]
            Self::Redis(place) => place.take_away(key).await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(place) => place.take_away(key).await,
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.erased().fmt(f)
    }
}

/// Makes a test for each backend of every function that it names.
///
/// `name(paused)`: memory under a paused clock. A real server needs the real one.
/// `name(threads)`: on several threads.
/// `name(blocking)`: no runtime, and the function is not async.
/// `name(batched)`: not where tokens cannot be reserved.
macro_rules! on_each_backend {
    ($($test:ident $(($kind:ident))?),* $(,)?) => {
        mod memory {
            $($crate::backends::on_each_backend!(@one Memory $test $($kind)?);)*
        }

        #[cfg(feature = "etcd")]
        mod etcd {
            $($crate::backends::on_each_backend!(@one Etcd $test $($kind)?);)*
        }

        #[cfg(feature = "redis")]
        mod redis {
            $($crate::backends::on_each_backend!(@one Redis $test $($kind)?);)*
        }

        #[cfg(feature = "zookeeper")]
        mod zookeeper {
            $($crate::backends::on_each_backend!(@one ZooKeeper $test $($kind)?);)*
        }
    };
    (@one $on:ident $test:ident) => {
        #[tokio::test]
        async fn $test() {
            super::$test($crate::backends::On::$on).await;
        }
    };
    (@one Memory $test:ident paused) => {
        #[tokio::test(start_paused = true)]
        async fn $test() {
            super::$test($crate::backends::On::Memory).await;
        }
    };
    (@one $on:ident $test:ident paused) => {
        $crate::backends::on_each_backend!(@one $on $test);
    };
    (@one Etcd $test:ident batched) => {};
    (@one $on:ident $test:ident batched) => {
        $crate::backends::on_each_backend!(@one $on $test);
    };
    (@one $on:ident $test:ident threads) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $test() {
            super::$test($crate::backends::On::$on).await;
        }
    };
    (@one $on:ident $test:ident blocking) => {
        #[test]
        fn $test() {
            super::$test($crate::backends::On::$on);
        }
    };
}
pub(crate) use on_each_backend;

/// The same for each backend that keeps records.
macro_rules! on_each_store {
    ($($test:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test]
            async fn $test() {
                super::$test($crate::backends::On::Memory).await;
            })*
        }

        #[cfg(feature = "etcd")]
        mod etcd {
            $(#[tokio::test]
            async fn $test() {
                super::$test($crate::backends::On::Etcd).await;
            })*
        }

        #[cfg(feature = "redis")]
        mod redis {
            $(#[tokio::test]
            async fn $test() {
                super::$test($crate::backends::On::Redis).await;
            })*
        }

        #[cfg(feature = "zookeeper")]
        mod zookeeper {
            $(#[tokio::test]
            async fn $test() {
                super::$test($crate::backends::On::ZooKeeper).await;
            })*
        }
    };
}
pub(crate) use on_each_store;
