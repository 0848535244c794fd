//! How a backend is set up.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    RedLockBackend,
    client::{ANSWER, Client, Settings},
    node::Node,
    url,
};
use crate::{
    backend::redis::{endpoint::Certificates, names, trouble::Trouble},
    error::{BackendError, BackendErrorKind},
    runtime,
};

/// More would not make it safer, and waiters count them in one word.
const MOST: usize = 31;

/// How long connecting waits for nodes that do not answer, once a majority does.
const FOR_THE_REST: Duration = Duration::from_millis(500);

/// Sets up a [`RedLockBackend`].
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_lock::RedLockBackend;
///
/// let backend = RedLockBackend::builder("redlock://shop:secret@a.internal,b.internal,c.internal")
///     .with_prefix("shop:lock:")
///     .with_max_ttl(Duration::from_secs(60))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedLockBuilder {
    /// Or what was wrong with them.
    urls: Result<Vec<String>, Arc<BackendError>>,
    prefix: String,
    node_timeout: Option<Duration>,
    max_ttl: Duration,
    allow_even: bool,
    certificates: Certificates,
}

impl RedLockBuilder {
    pub(super) fn new(urls: Result<Vec<String>, BackendError>) -> Self {
        Self {
            urls: urls.map_err(Arc::new),
            prefix: names::PREFIX.into(),
            node_timeout: None,
            max_ttl: Duration::from_secs(30),
            allow_even: false,
            certificates: Certificates::default(),
        }
    }

    /// What the names of all keys and channels begin with; `tower-lock:` by default. Up to 128
    /// visible ASCII characters, no braces. Services that share servers but no locks need different
    /// ones; all instances of one service need the same.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long a node may take to vote, or to answer a renewal: 50 ms or a tenth of the lease's
    /// ttl by default, whichever is less; 1 ms to 500 ms. What comes later does not count, and the
    /// lease is shorter by what was waited for.
    pub fn with_node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = Some(timeout);
        self
    }

    /// The longest ttl of a lease; 30 s by default, the default of a route. A request with a longer
    /// one is refused.
    ///
    /// A node that was restarted, or lost its data, votes again once so much time has passed: only
    /// then nothing that it has forgotten can still be held. The same goes for the first start of
    /// all, see [`found`](RedLockBackend::found).
    pub fn with_max_ttl(mut self, max: Duration) -> Self {
        self.max_ttl = max;
        self
    }

    /// Accepts an even number of nodes. With four of them two may not fail, as with three, and one
    /// more can: it costs and brings nothing, but for the time of a move.
    pub fn allow_even_nodes(mut self) -> Self {
        self.allow_even = true;
        self
    }

    /// Trusts these certificates (PEM) instead of those of the public web. For TLS only.
    pub fn with_root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.root = Some(pem.into());
        self
    }

    /// Shows this certificate, with its key (both PEM), to the nodes. For TLS only.
    pub fn with_client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some((certificate_pem.into(), key_pem.into()));
        self
    }

    /// Connects to a majority of the nodes, and tries on each whatever the backend will do. The
    /// others are connected to as soon as they are there.
    ///
    /// That a majority is reachable does not say that it votes:
    /// [`until_voting`](RedLockBackend::until_voting).
    ///
    /// # Errors
    ///
    /// - [`Misconfigured`](BackendErrorKind::Misconfigured): fewer than three nodes or an even
    ///   number, a URL, prefix or certificate that is not usable; a node is the same server as
    ///   another, a read-only replica, a Sentinel or a node of a Cluster, is older than 6.2, or
    ///   refuses the password or a right. The error says which, and what is needed. A node that
    ///   comes later and is such a one never votes, and that is logged.
    /// - [`Unavailable`](BackendErrorKind::Unavailable): too few nodes answered in time.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it leaves nothing behind but a key on each node that expires after 100 ms.
    pub async fn connect(self) -> Result<RedLockBackend, BackendError> {
        let urls = self.check()?;
        let servers = urls
            .iter()
            .enumerate()
            .map(|url| url::client(url, &self.certificates))
            .collect::<Result<Vec<_>, _>>()?;
        let lock_runtime = runtime::handle().map_err(|error| {
            BackendError::new(
                BackendErrorKind::Unavailable,
                "the lock runtime is not there",
            )
            .with_source(error)
        })?;
        let settings = Settings {
            prefix: self.prefix.into_boxed_str(),
            node_timeout: self.node_timeout,
            max_ttl: self.max_ttl,
        };
        let client = Client::start(servers, settings, lock_runtime);
        until_connected(&client.shared.nodes, client.shared.majority()).await?;
        Ok(RedLockBackend { client })
    }

    fn check(&self) -> Result<Vec<String>, BackendError> {
        names::check_prefix(&self.prefix)?;
        let urls = match &self.urls {
            Ok(urls) => urls.clone(),
            Err(error) => return Err(misconfigured(error.context().to_owned())),
        };
        let count = urls.len();
        if count < 3 {
            return Err(misconfigured(format!(
                "RedLock needs three nodes or more, which fail independently; there are {count}. \
                 For a single server use the Redis backend"
            )));
        }
        if count > MOST {
            return Err(misconfigured(format!(
                "RedLock takes up to {MOST} nodes; there are {count}"
            )));
        }
        if count % 2 == 0 && !self.allow_even {
            return Err(misconfigured(format!(
                "{count} nodes are no safer than {}, since a majority of them is one more: use an \
                 odd number, or `allow_even_nodes`",
                count - 1
            )));
        }
        let all = urls.iter().enumerate();
        if let Some((at, url)) = all.clone().find(|(at, url)| urls[..*at].contains(url)) {
            let first = urls.iter().position(|other| other == url);
            return Err(misconfigured(format!(
                "the nodes {} and {} of the list have the same address: RedLock needs independent \
                 servers",
                first.unwrap_or_default() + 1,
                at + 1
            )));
        }
        let millisecond = Duration::from_millis(1);
        if let Some(timeout) = self.node_timeout
            && !(millisecond..=ANSWER / 2).contains(&timeout)
        {
            return Err(misconfigured(format!(
                "the node timeout is {timeout:?}, accepted is 1ms to {:?}",
                ANSWER / 2
            )));
        }
        if self.max_ttl < millisecond || self.max_ttl > Duration::from_secs(24 * 3600) {
            return Err(misconfigured(
                "the longest ttl is to be 1 ms to 24 h: nodes wait for as long after a restart",
            ));
        }
        Ok(urls)
    }
}

/// Waits until it is known how connecting went, or a majority has been there for a moment.
async fn until_connected(nodes: &[Node], majority: usize) -> Result<(), BackendError> {
    let mut firsts: Vec<_> = nodes.iter().map(|node| node.first.subscribe()).collect();
    let mut enough_since = None;
    loop {
        let (mut good, mut open, mut trouble) = (0, 0, None);
        for first in &mut firsts {
            match &*first.borrow_and_update() {
                Some(Ok(())) => good += 1,
                Some(Err(refused)) if !refused.may_pass() => {
                    return Err(refused.clone().into());
                }
                Some(Err(failed)) => trouble = Some(failed.clone()),
                None => open += 1,
            }
        }
        if open == 0 && good >= majority {
            return Ok(());
        }
        if good + open < majority {
            let error = too_few(nodes.len() - good - open, nodes.len());
            return Err(match trouble {
                Some(trouble) => error.with_source(BackendError::from(trouble)),
                None => error,
            });
        }
        let mut limit = Instant::now() + ANSWER * 5;
        if good >= majority {
            limit = *enough_since.get_or_insert_with(|| Instant::now() + FOR_THE_REST);
        }
        let changed = super::post::each(
            firsts.iter_mut().map(|first| async {
                // Its sender lives as long as we look.
                let _ = first.changed().await;
            }),
            |_, ()| true,
        );
        tokio::select! {
            () = changed => {}
            () = sleep_until(limit) => {
                return if good >= majority { Ok(()) } else { Err(too_few(nodes.len() - good, nodes.len())) };
            }
        }
    }
}

fn too_few(failed: usize, all: usize) -> BackendError {
    Trouble::unavailable(format!(
        "{failed} of {all} nodes could not be connected to, a majority is needed"
    ))
    .into()
}

fn misconfigured(what: impl Into<std::borrow::Cow<'static, str>>) -> BackendError {
    BackendError::new(BackendErrorKind::Misconfigured, what)
}

impl fmt::Debug for RedLockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLockBuilder")
            .field("nodes", &self.urls.as_ref().map_or(0, Vec::len))
            .field("prefix", &self.prefix)
            .field("node_timeout", &self.node_timeout)
            .field("max_ttl", &self.max_ttl)
            .finish_non_exhaustive()
    }
}
