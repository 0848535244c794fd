//! From a URL to the members of a cluster.

use percent_encoding::percent_decode_str;

use crate::error::{BackendError, BackendErrorKind};

/// What is accepted as a URL.
const ACCEPTED: &str =
    "`etcd://[user:password@]host[:port][,host[:port]..]`, and the same with `etcds://` (TLS)";

/// Where etcd listens for clients.
const PORT: u16 = 2379;

/// Who to ask, and as whom.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) tls: bool,
    pub(super) user: Option<(String, String)>,
    /// One URL for each member.
    pub(super) endpoints: Vec<String>,
}

impl Address {
    /// Its errors show nothing of the URL, which may hold a password.
    pub(super) fn parse(url: &str) -> Result<Self, BackendError> {
        Self::read(url).ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Misconfigured,
                format!("the URL of etcd is not usable; accepted: {ACCEPTED}"),
            )
        })
    }

    fn read(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let tls = match scheme {
            "etcd" => false,
            "etcds" => true,
            _ => return None,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, hosts) = match rest.rsplit_once('@') {
            Some((user, hosts)) => (Some(credentials(user)?), hosts),
            None => (None, rest),
        };
        let scheme = if tls { "https" } else { "http" };
        let endpoints = hosts
            .split(',')
            .map(|member| Some(format!("{scheme}://{}", authority(member)?)))
            .collect::<Option<Vec<_>>>()?;
        Some(Self {
            tls,
            user,
            endpoints,
        })
    }
}

fn credentials(text: &str) -> Option<(String, String)> {
    let decode = |text: &str| {
        let text = percent_decode_str(text).decode_utf8().ok()?.into_owned();
        (!text.is_empty()).then_some(text)
    };
    let (user, password) = text.split_once(':')?;
    Some((decode(user)?, decode(password)?))
}

/// A host with its port.
fn authority(member: &str) -> Option<String> {
    let (host, port) = match member.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':')?),
            };
            (format!("[{host}]"), port)
        }
        None => {
            let (host, port) = match member.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (member, None),
            };
            let named = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
            if host.is_empty() || !host.bytes().all(named) {
                return None;
            }
            (host.to_owned(), port)
        }
    };
    let port = match port {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok()?,
        Some(_) => return None,
        None => PORT,
    };
    (port != 0).then(|| format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(url: &str) -> Vec<String> {
        Address::parse(url).unwrap().endpoints
    }

    #[test]
    fn members_of_a_cluster() {
        assert_eq!(endpoints("etcd://localhost"), ["http://localhost:2379"]);
        assert_eq!(
            endpoints("etcds://a.internal:1,10.0.0.1,[::1]:3/"),
            [
                "https://a.internal:1",
                "https://10.0.0.1:2379",
                "https://[::1]:3"
            ]
        );
        assert!(Address::parse("etcds://a").unwrap().tls);
        assert!(!Address::parse("etcd://a").unwrap().tls);
    }

    #[test]
    fn users_and_passwords_may_hold_anything() {
        let address = Address::parse("etcd://shop:p%40ss%2Fw:rd@a,b").unwrap();
        let (user, password) = address.user.unwrap();
        assert_eq!((user.as_str(), password.as_str()), ("shop", "p@ss/w:rd"));
        assert_eq!(address.endpoints.len(), 2);
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_its_secrets() {
        for url in [
            "",
            "etcd",
            "etcd:secret",
            "http://secret",
            "etcd://",
            "etcd://,",
            "etcd://a,",
            "etcd://a:secret",
            "etcd://a:0",
            "etcd://a:+1",
            "etcd://a:65536",
            "etcd://a/secret",
            "etcd://a b",
            "etcd://[secret]",
            "etcd://[::1]secret",
            "etcd://secret@a",
            "etcd://:secret@a",
            "etcd://user:@a",
            "etcd://user:%ff@secret",
        ] {
            let error = Address::parse(url).err().expect(url).to_string();
            assert!(error.contains("etcd://"), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }
}
