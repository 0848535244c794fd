//! How a backend is set up.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    RedisBackend,
    acks::{Acks, ReplicaAck},
    client::{Client, ServerSettings, Settings},
    endpoint::{Certificates, Endpoint},
    names,
    place::{Place, Source},
    preflight,
    sentinel::{self, Sentinels},
    trouble::Trouble,
    url::{self, Topology},
};
use crate::{
    error::{BackendError, BackendErrorKind},
    runtime,
};

/// Sets up a [`RedisBackend`].
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_lock::RedisBackend;
///
/// let backend = RedisBackend::builder("rediss://shop:secret@redis.internal:6380/2")
///     .with_prefix("shop:lock:")
///     .with_operation_timeout(Duration::from_millis(500))
///     .with_root_certificates(std::fs::read("ca.pem")?)
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisBuilder {
    url: String,
    prefix: String,
    timeout: Duration,
    root_certificates: Option<Vec<u8>>,
    client_certificate: Option<(Vec<u8>, Vec<u8>)>,
    acks: Acks,
}

impl RedisBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            prefix: names::PREFIX.into(),
            timeout: Duration::from_secs(1),
            root_certificates: None,
            client_certificate: None,
            acks: Acks::default(),
        }
    }

    /// What the names of all keys and channels begin with; `tower-lock:` by default. Up to 128
    /// visible ASCII characters, no braces. Services that share a server but no locks need
    /// different ones; all instances of one service need the same.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long one answer of the server may take; 1 s by default, and at least 1 ms. After that,
    /// what was asked counts as unknown and is undone, and the caller gets
    /// [`Unavailable`](BackendErrorKind::Unavailable).
    ///
    /// It says nothing about how long to wait for a lock. Leases should be several times as long,
    /// or a slow answer costs a renewal.
    pub fn with_operation_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Waits for replicas after every grant and renewal, up to so long (at least 1 ms);
    /// [`ReplicaAck::Off`] by default. It costs a round trip, and what the replicas take.
    ///
    /// Acknowledgements go through `WAIT`, over a connection of their own. A server that does not
    /// offer it, as some vendors' do not, is refused when the backend connects.
    pub fn with_replica_ack(mut self, ack: ReplicaAck, within: Duration) -> Self {
        self.acks.of = ack;
        self.acks.within = within;
        self
    }

    /// Counts a replica only when what it acknowledges is in its append-only file: through
    /// `WAITAOF`, which Redis has since 7.2. A server without it is refused when the backend
    /// connects; replicas without an append-only file never acknowledge.
    pub fn with_fsynced_acks(mut self) -> Self {
        self.acks.fsynced = true;
        self
    }

    /// Trusts these certificates (PEM) instead of those of the public web. For TLS only.
    pub fn with_root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// Shows this certificate, with its key (both PEM), to the server. For TLS only.
    pub fn with_client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.client_certificate = Some((certificate_pem.into(), key_pem.into()));
        self
    }

    /// Connects, and tries on keys and a channel of its own whatever the backend will do.
    ///
    /// A process needs one backend for a server: clones share its connections, which are one for
    /// commands, one for the inbox, and one for each runtime that acquires.
    ///
    /// # Errors
    ///
    /// - [`Misconfigured`](BackendErrorKind::Misconfigured): the URL, prefix or certificates are
    ///   not usable, the server refuses the password or a right, is older than 6.2, or is a
    ///   read-only replica. The error says which, and what is needed.
    /// - [`Unavailable`](BackendErrorKind::Unavailable): the server did not answer in time. Once
    ///   connected, the backend reconnects by itself.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it leaves nothing behind but a key that expires after 100 ms.
    pub async fn connect(self) -> Result<RedisBackend, BackendError> {
        names::check_prefix(&self.prefix)?;
        if self.timeout < Duration::from_millis(1) {
            return Err(misconfigured(
                "the operation timeout is too short: 1 ms or more is needed",
            ));
        }
        self.acks.check()?;
        let servers = self.servers()?;
        let lock_runtime = runtime::handle().map_err(|error| {
            BackendError::new(
                BackendErrorKind::Unavailable,
                "the lock runtime is not there",
            )
            .with_source(error)
        })?;
        let prefix = self.prefix.into_boxed_str();
        let settings = Settings {
            servers,
            inbox: format!("{prefix}inbox:{:016x}", fastrand::u64(..)).into(),
            prefix,
            timeout: self.timeout,
            acks: self.acks,
        };
        let task = lock_runtime.spawn({
            let lock_runtime = lock_runtime.clone();
            async move {
                let client = Client::start(settings, lock_runtime);
                if let Some(cluster) = client.shared.cluster() {
                    cluster.look(&client.shared).await?;
                }
                // Of a Cluster, one node that answers will do: what is in others' slots is
                // refused until they come back.
                let (mut works, mut away) = (false, None);
                for place in client.shared.places() {
                    match check(&client, &place).await {
                        Ok(()) => works = true,
                        Err(trouble) if !trouble.may_pass() => return Err(trouble),
                        Err(trouble) => away = Some(trouble),
                    }
                }
                if !works {
                    return Err(away.unwrap_or_else(Trouble::nowhere));
                }
                Ok(client)
            }
        });
        match task.await {
            Ok(Ok(client)) => {
                for place in client.shared.places() {
                    // Without it the first requests take longer, no more.
                    let _ = client.shared.settled(&place).await;
                }
                Ok(RedisBackend { client })
            }
            Ok(Err(trouble)) => Err(trouble.into()),
            Err(_) => Err(Trouble::unavailable("connecting broke off").into()),
        }
    }

    fn servers(&self) -> Result<ServerSettings, BackendError> {
        let target = url::parse(&self.url)?;
        let certificates = Certificates {
            root: self.root_certificates.clone(),
            client: self.client_certificate.clone(),
        };
        if !certificates.is_empty() && !target.uses_tls() {
            return Err(misconfigured(
                "certificates were given, but the URL does not begin with `rediss://`, \
                 `rediss+sentinel://` or `rediss+cluster://`",
            ));
        }
        let servers = Endpoint::new(target.server, certificates.clone());
        Ok(match target.topology {
            Topology::One => ServerSettings::One(Source::Fixed(Box::new(servers.client()?))),
            Topology::Sentinel {
                sentinels,
                service,
                login,
            } => {
                let endpoint = Endpoint::new(*login, certificates);
                let sentinels = sentinel::clients(&sentinels, &endpoint)?;
                let sentinels = Sentinels::new(service, sentinels, servers);
                ServerSettings::One(Source::Master(sentinels))
            }
            Topology::Cluster { seeds } => {
                // What is wrong with the certificates is wrong for every node.
                servers.client()?;
                ServerSettings::Cluster(Box::new(servers), seeds)
            }
        })
    }
}

fn misconfigured(what: impl Into<std::borrow::Cow<'static, str>>) -> BackendError {
    BackendError::new(BackendErrorKind::Misconfigured, what)
}

async fn check(client: &Client, place: &Arc<Place>) -> Result<(), Trouble> {
    preflight::check(&client.shared, place).await?;
    place.lock_link.connection().await?;
    place.inbox_link.connection().await?;
    if client.shared.acks.are_on() {
        place.ack_link.connection().await?;
    }
    Ok(())
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
