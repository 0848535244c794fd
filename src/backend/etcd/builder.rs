//! How a backend is set up.

use std::{fmt, time::Duration};

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use super::{EtcdBackend, address::Address, client::Client, link::Link, names, preflight};
use crate::{
    backend::pem,
    error::{BackendError, BackendErrorKind},
    runtime,
};

/// The longest operation timeout, so that no sum of times overflows.
const LONGEST: Duration = Duration::from_secs(3600);

/// The HTTP/2 pings. A server ends connections that ping more often than once in five seconds
/// (`--grpc-keepalive-min-time`); the link has a quicker beat of its own.
const PING: Duration = Duration::from_secs(10);

/// Sets up an [`EtcdBackend`].
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_lock::EtcdBackend;
///
/// let backend = EtcdBackend::builder("etcds://shop:secret@etcd-1:2379,etcd-2:2379,etcd-3:2379")
///     .with_prefix("shop/lock/")
///     .with_operation_timeout(Duration::from_secs(2))
///     .with_root_certificates(std::fs::read("ca.pem")?)
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct EtcdBuilder {
    url: String,
    prefix: String,
    timeout: Duration,
    root_certificates: Option<Vec<u8>>,
    client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl EtcdBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.into(),
            prefix: names::PREFIX.into(),
            timeout: Duration::from_secs(3),
            root_certificates: None,
            client_certificate: None,
        }
    }

    /// What the names of all keys begin with; `tower-lock/` by default. Up to 128 visible ASCII
    /// characters. Services that share a cluster but no locks need different ones, none of them
    /// the beginning of another; all instances of one service need the same.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long one operation may take, all its tries together; 3 s by default, from
    /// 30 ms to an hour. A try has a third of it; then the connection is looked at, and another member is
    /// asked. After the whole of it, what was asked counts as unknown and is undone, and the
    /// caller gets [`Unavailable`](BackendErrorKind::Unavailable).
    ///
    /// It should be longer than an election (1 to 2 s with etcd's defaults), or every change of
    /// leader shows. It says nothing about how long to wait for a lock. Leases should be several
    /// times as long, or a slow answer costs a renewal.
    pub fn with_operation_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Trusts these certificates (PEM) instead of those of the public web. For `etcds://` only.
    pub fn with_root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    /// Shows this certificate, with its key (both PEM), to the servers. For `etcds://` only.
    pub fn with_client_certificate(
        mut self,
        certificate_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.client_certificate = Some((certificate_pem.into(), key_pem.into()));
        self
    }

    /// Connects to one of the members, and tries on a key of its own whatever the backend will do.
    /// What the [capabilities](crate::LockBackend::capabilities) say of consensus goes by the
    /// versions of all members of the URL that answer now.
    ///
    /// A process needs one backend for a cluster: clones share its connection.
    ///
    /// # Errors
    ///
    /// - [`Misconfigured`](BackendErrorKind::Misconfigured): the URL, prefix or certificates are
    ///   not usable, or etcd refuses the user, the password or a right. The error says which, and
    ///   what is needed.
    /// - [`Unavailable`](BackendErrorKind::Unavailable): no member answered in time, or those that
    ///   did have no majority. Once connected, the backend reconnects by itself.
    ///
    /// # Cancellation safety
    ///
    /// Cancel safe: it leaves nothing behind but a key that ends after some seconds.
    pub async fn connect(self) -> Result<EtcdBackend, BackendError> {
        names::check_prefix(&self.prefix)?;
        if self.timeout > LONGEST {
            return Err(misconfigured(
                "the operation timeout is too long: up to an hour is accepted",
            ));
        }
        if self.timeout < Duration::from_millis(30) {
            return Err(misconfigured(
                "the operation timeout is too short: 30 ms or more is needed",
            ));
        }
        let address = Address::parse(&self.url)?;
        let patience = self.timeout / 3;
        let options = self.options(&address, patience)?;
        let lock_runtime = runtime::handle().map_err(|error| {
            BackendError::new(
                BackendErrorKind::Unavailable,
                "the lock runtime is not there",
            )
            .with_source(error)
        })?;
        let prefix = self.prefix.into_boxed_str();
        let resident = format!("{prefix}undo/");
        let link = Link::new(
            address.endpoints,
            options,
            resident.clone(),
            patience,
            self.timeout,
        );
        let budget = self.timeout;
        // There, as a connection is driven by the runtime that opened it.
        let task = lock_runtime.spawn({
            let lock_runtime = lock_runtime.clone();
            async move {
                let found = preflight::check(&link, &prefix).await?;
                let client = Client::start(prefix, resident, budget, link, lock_runtime);
                client.shared.link.connection().await?;
                Ok(EtcdBackend::new(client, found))
            }
        });
        task.await.unwrap_or_else(|_| {
            Err(BackendError::new(
                BackendErrorKind::Unavailable,
                "connecting broke off",
            ))
        })
    }

    fn options(
        &self,
        address: &Address,
        patience: Duration,
    ) -> Result<ConnectOptions, BackendError> {
        let mut options = ConnectOptions::new()
            .with_connect_timeout(patience)
            .with_keep_alive(PING, patience)
            .with_keep_alive_while_idle(true)
            // A member that is cut off from the others ends its streams, and refuses what it could
            // only answer from memory.
            .with_require_leader(true);
        if let Some((user, password)) = &address.user {
            options = options.with_user(user, password);
        }
        if !address.tls {
            if self.root_certificates.is_some() || self.client_certificate.is_some() {
                return Err(misconfigured(
                    "certificates were given, but the URL does not begin with `etcds://`",
                ));
            }
            return Ok(options);
        }
        // With the cryptography that the application chose for its process, or else ring.
        let mut tls = TlsOptions::new();
        match &self.root_certificates {
            Some(pem) => {
                check_pem(pem, "CERTIFICATE")?;
                tls = tls.ca_certificate(Certificate::from_pem(pem));
            }
            None => tls = tls.with_webpki_roots(),
        }
        if let Some((certificate, key)) = &self.client_certificate {
            check_pem(certificate, "CERTIFICATE")?;
            check_pem(key, "PRIVATE KEY")?;
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        Ok(options.with_tls(tls))
    }
}

fn check_pem(pem: &[u8], what: &str) -> Result<(), BackendError> {
    if pem::holds(pem, what) {
        return Ok(());
    }
    Err(misconfigured(
        "the certificates are not usable: PEM is needed",
    ))
}

fn misconfigured(what: &'static str) -> BackendError {
    BackendError::new(BackendErrorKind::Misconfigured, what)
}

impl fmt::Debug for EtcdBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBuilder")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
