//! How the servers of one deployment are connected to, whatever their addresses.

use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, TlsCertificates};

use super::{trouble::Trouble, url::Address};
use crate::backend::pem;

/// Certificates of a user's own, in PEM.
#[derive(Clone, Default)]
pub(in crate::backend) struct Certificates {
    pub(in crate::backend) root: Option<Vec<u8>>,
    /// A certificate and its key.
    pub(in crate::backend) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.root.is_none() && self.client.is_none()
    }
}

#[derive(Clone)]
pub(in crate::backend) struct Endpoint {
    info: ConnectionInfo,
    certificates: Certificates,
}

impl Endpoint {
    pub(in crate::backend) fn new(info: ConnectionInfo, certificates: Certificates) -> Self {
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("tower-lock", env!("CARGO_PKG_VERSION"));
        // Else a command waits for the answer to the one before it, as long as that is on its way.
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        Self {
            info: info.set_redis_settings(settings).set_tcp_settings(tcp),
            certificates,
        }
    }

    /// At its own address.
    pub(in crate::backend) fn client(&self) -> Result<redis::Client, Trouble> {
        self.build(self.info.clone())
    }

    pub(super) fn client_at(&self, address: &Address) -> Result<redis::Client, Trouble> {
        let Address { host, port } = address.clone();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.build(self.info.clone().set_addr(addr))
    }

    fn build(&self, info: ConnectionInfo) -> Result<redis::Client, Trouble> {
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            provide_cryptography();
        }
        if self.certificates.is_empty() {
            return redis::Client::open(info).map_err(|_| {
                Trouble::misconfigured("the address of a Redis server is not usable")
            });
        }
        let not_usable =
            || Trouble::misconfigured("the certificates are not usable: PEM is needed");
        let Certificates { root, client } = self.certificates.clone();
        let roots = root.iter().map(|pem| (pem, "CERTIFICATE"));
        let own = (client.iter())
            .flat_map(|(certificate, key)| [(certificate, "CERTIFICATE"), (key, "PRIVATE KEY")]);
        if !roots.chain(own).all(|(pem, what)| pem::holds(pem, what)) {
            return Err(not_usable());
        }
        let certificates = TlsCertificates {
            client_tls: client.map(|(client_cert, client_key)| ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: root,
        };
        redis::Client::build_with_tls(info, certificates).map_err(|_| not_usable())
    }
}

/// The TLS library takes its cryptography from the process. Where the application chose none,
/// that is ring; without this the first connection would panic.
fn provide_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

#[cfg(test)]
mod tests {
    use super::{super::url, *};
    use crate::BackendError;

    #[test]
    fn certificates_that_hold_none_are_refused() {
        let (none, nothing) = (b"secret".to_vec(), Vec::new());
        let key = b"-----BEGIN PRIVATE KEY-----".to_vec();
        for certificates in [
            (Some(none.clone()), None),
            (Some(nothing), None),
            (None, Some((none.clone(), key))),
            (None, Some((b"-----BEGIN CERTIFICATE-----".to_vec(), none))),
        ] {
            let (root, client) = certificates;
            let server = url::parse("rediss://a").unwrap().server;
            let endpoint = Endpoint::new(server, Certificates { root, client });
            let error = BackendError::from(endpoint.client().unwrap_err()).to_string();
            assert!(error.contains("PEM is needed"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn no_request_waits_for_an_acknowledgement() {
        for url in ["redis://127.0.0.1", "rediss://127.0.0.1"] {
            let endpoint = Endpoint::new(url::parse(url).unwrap().server, Certificates::default());
            for client in [
                endpoint.client().unwrap(),
                endpoint.client_at(&url::address("a", 1).unwrap()).unwrap(),
            ] {
                let info = client.get_connection_info();
                assert!(info.tcp_settings().nodelay(), "{url}");
            }
        }
    }
}
