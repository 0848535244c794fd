//! How a backend is set up.

use std::{fmt, time::Duration};

use super::{
    ZooKeeperBackend,
    client::Client,
    config::{Config, OURS},
    layout::NodeLayout,
    session::Session,
    trouble::Trouble,
    url,
};
use crate::{
    error::{BackendError, BackendErrorKind},
    lease::FencingToken,
    runtime,
};

/// Below, a lease is too short for the time in which its holder is told of its end.
const SESSIONS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(3600);

/// Sets up a [`ZooKeeperBackend`].
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_lock::ZooKeeperBackend;
///
/// let backend = ZooKeeperBackend::builder("zookeeper://zk1,zk2,zk3:2181/shop")
///     .with_base("/locks")
///     .with_session_timeout(Duration::from_secs(15))
///     .with_digest_auth("shop", std::env::var("ZOOKEEPER_PASSWORD")?)
///     .connect()
///     .await?;
/// println!("granted: {:?}", backend.session_timeout());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct ZooKeeperBuilder {
    servers: String,
    base: String,
    layout: NodeLayout,
    session_timeout: Duration,
    timeout: Duration,
    token_floor: u64,
    digest: Option<(String, String)>,
}

impl ZooKeeperBuilder {
    pub(super) fn new(servers: &str) -> Self {
        Self {
            servers: servers.into(),
            base: "/tower-lock".into(),
            layout: NodeLayout::default(),
            session_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(2),
            token_floor: 0,
            digest: None,
        }
    }

    /// The node under which all keys are, below the chroot; `/tower-lock` by default. Made if it is
    /// not there. Up to 256 visible ASCII characters. The lock of a key is taken at
    /// `<chroot><base>/<key>`: the path that clients in other languages need.
    ///
    /// Services that share an ensemble but no locks need different ones; all instances of one
    /// service need the same.
    pub fn with_base(mut self, base: impl Into<String>) -> Self {
        self.base = base.into();
        self
    }

    /// How the nodes of locks are named; [`NodeLayout::Curator`] by default. All clients of a path
    /// need the same, in whatever language.
    pub fn with_layout(mut self, layout: NodeLayout) -> Self {
        self.layout = layout;
        self
    }

    /// How long a session outlives its last sign of life; 10 s by default, 500 ms to 1 h. The locks
    /// of a process that dies are free after that, and no route's ttl may be shorter.
    ///
    /// The servers keep it within bounds of their own, by default 2 to 20 ticks (4 to 40 s with the usual
    /// tick of 2 s), without a word: [`ZooKeeperBackend::session_timeout`] tells what they granted.
    pub fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long one answer of the servers may take; 2 s by default, and at least 1 ms. After that,
    /// the caller gets [`Unavailable`](BackendErrorKind::Unavailable), and what was asked is undone
    /// in the background.
    ///
    /// It says nothing about how long to wait for a lock.
    pub fn with_operation_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// All tokens are above this one: it is added to the zxid that they are made of. For whoever
    /// comes from a backend with greater numbers (memory and Redis count microseconds since 1970),
    /// which storage has seen. All instances need the same, for ever.
    pub fn with_token_floor(mut self, floor: FencingToken) -> Self {
        self.token_floor = floor.get();
        self
    }

    /// Logs in as this user (ZooKeeper's `digest` scheme), instead of the one in the connect string.
    /// The nodes of locks then belong to it: nobody else may read or delete them.
    ///
    /// ZooKeeper takes any password for a user: with a wrong one, one is somebody else, who may
    /// not touch what the other has made.
    pub fn with_digest_auth(
        mut self,
        user: impl Into<String>,
        password: impl Into<String>,
    ) -> Self {
        self.digest = Some((user.into(), password.into()));
        self
    }

    /// Opens a session, makes the base, and tries in it on nodes of its own whatever the backend
    /// will do.
    ///
    /// A process needs one backend for an ensemble: clones share its session. The session lives on
    /// a runtime of this crate's own, so a handler that blocks its thread delays nothing.
    ///
    /// # Errors
    ///
    /// - [`Misconfigured`](BackendErrorKind::Misconfigured): the connect string, the base or a
    ///   timeout is not usable, the chroot does not exist, the servers refuse the user or a right,
    ///   or are older than 3.5.3. The error says which, and what is needed.
    /// - [`Unavailable`](BackendErrorKind::Unavailable): no server that serves was found within
    ///   the session timeout. Once connected, the backend opens new sessions by itself.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: what it leaves ends with the session, which is closed.
    pub async fn connect(self) -> Result<ZooKeeperBackend, BackendError> {
        let config = self.config()?;
        let lock_runtime = runtime::handle().map_err(|error| {
            BackendError::new(
                BackendErrorKind::Unavailable,
                "the lock runtime is not there",
            )
            .with_source(error)
        })?;
        let task = lock_runtime.spawn({
            let lock_runtime = lock_runtime.clone();
            async move {
                let session = Session::open(&config).await?;
                let session_timeout = session.timeout;
                let client = Client::start(config, session, lock_runtime);
                Ok::<_, Trouble>(ZooKeeperBackend {
                    client,
                    session_timeout,
                })
            }
        });
        match task.await {
            Ok(Ok(backend)) => Ok(backend),
            Ok(Err(trouble)) => Err(trouble.into()),
            Err(_) => Err(Trouble::unavailable("connecting broke off").into()),
        }
    }

    fn config(self) -> Result<Config, Trouble> {
        let servers = url::parse(&self.servers)?;
        if !url::is_path(&self.base) || self.base.starts_with("/zookeeper") {
            return Err(Trouble::misconfigured(
                "the base is not usable: a path such as `/locks`, of up to 256 visible ASCII \
                 characters and not below `/zookeeper`, is",
            ));
        }
        if !SESSIONS.contains(&self.session_timeout) {
            return Err(Trouble::misconfigured(
                "the session timeout is not usable: 500 ms to 1 h is",
            ));
        }
        if self.timeout < Duration::from_millis(1) {
            return Err(Trouble::misconfigured(
                "the operation timeout is too short: 1 ms or more is needed",
            ));
        }
        let digest = match &self.digest {
            None => servers.digest,
            Some((user, password)) => Some(url::join_digest(user, password).ok_or_else(|| {
                Trouble::misconfigured(
                    "the user or password is not usable: both are needed, and no colon in the \
                         user's name",
                )
            })?),
        };
        let version = env!("CARGO_PKG_VERSION");
        let mut data = OURS.to_vec();
        data.extend_from_slice(format!("{version} pid={}", std::process::id()).as_bytes());
        Ok(Config {
            servers: [&*servers.hosts, &*servers.chroot].concat(),
            chroot: servers.chroot,
            base: self.base,
            layout: self.layout,
            session_timeout: self.session_timeout,
            timeout: self.timeout.min(super::LONGEST),
            token_floor: self.token_floor,
            digest,
            data,
        })
    }
}

impl fmt::Debug for ZooKeeperBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperBuilder")
            .field("base", &self.base)
            .field("layout", &self.layout)
            .field("session_timeout", &self.session_timeout)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
