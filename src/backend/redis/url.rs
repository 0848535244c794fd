//! What a URL says of the servers: one, those behind Sentinels, or a Cluster.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::trouble::Trouble;

/// What is accepted as a URL.
pub(super) const ACCEPTED: &str = "`redis://[user:password@]host[:port][/database]`, \
     `unix:///path[?db=n&user=..&pass=..]`, \
     `redis+sentinel://[user:password@]host[:port][,host[:port]..]/service[?db=n&sentinel_user=..&\
     sentinel_password=..]` and `redis+cluster://[user:password@]host[:port][,host[:port]..]`; with \
     TLS `rediss://`, `rediss+sentinel://`, `rediss+cluster://`";

/// A host and its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::backend) struct Address {
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
}

#[derive(Debug)]
pub(in crate::backend) enum Topology {
    One,
    /// These watch the master of the service.
    Sentinel {
        sentinels: Vec<Address>,
        service: String,
        /// How to log in to them.
        login: Box<ConnectionInfo>,
    },
    /// Some of its nodes.
    Cluster {
        seeds: Vec<Address>,
    },
}

#[derive(Debug)]
pub(in crate::backend) struct Target {
    /// Of a server; of any, where there are several.
    pub(in crate::backend) server: ConnectionInfo,
    pub(in crate::backend) topology: Topology,
}

impl Target {
    pub(in crate::backend) fn uses_tls(&self) -> bool {
        matches!(self.server.addr(), ConnectionAddr::TcpTls { .. })
    }
}

pub(in crate::backend) fn parse(url: &str) -> Result<Target, Trouble> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return one(url);
    };
    let (plain, kind) = match scheme {
        "redis+sentinel" => ("redis", Kind::Sentinel),
        "rediss+sentinel" => ("rediss", Kind::Sentinel),
        "redis+cluster" => ("redis", Kind::Cluster),
        "rediss+cluster" => ("rediss", Kind::Cluster),
        _ => return one(url),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    let port = match kind {
        Kind::Sentinel => 26379,
        Kind::Cluster => 6379,
    };
    let addresses = hosts
        .split(',')
        .map(|host| address(host, port))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| not_usable("one of its hosts is not"))?;
    match kind {
        Kind::Cluster => {
            if !matches!(path, "" | "0") {
                return Err(not_usable("a Cluster has the database 0 only"));
            }
            if !query.is_empty() {
                return Err(not_usable("a Cluster takes no parameters"));
            }
            Ok(Target {
                server: info(plain, login, "0")?,
                topology: Topology::Cluster { seeds: addresses },
            })
        }
        Kind::Sentinel => {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if path.is_empty() || !path.bytes().all(is_name) {
                return Err(not_usable(
                    "the name of a service, as the Sentinels know it, is to follow the hosts",
                ));
            }
            let (mut db, mut user, mut password) = ("0", "", None);
            for (name, value) in pairs(query) {
                match name {
                    "db" => db = value,
                    "sentinel_user" => user = value,
                    "sentinel_password" => password = Some(value),
                    _ => return Err(not_usable("one of its parameters is not known")),
                }
            }
            let sentinels = match password {
                Some(password) => Some([user, ":", password].concat()),
                None if user.is_empty() => None,
                None => return Err(not_usable("`sentinel_user` needs `sentinel_password`")),
            };
            Ok(Target {
                server: info(plain, login, db)?,
                topology: Topology::Sentinel {
                    sentinels: addresses,
                    service: path.into(),
                    login: Box::new(info(plain, sentinels.as_deref(), "0")?),
                },
            })
        }
    }
}

enum Kind {
    Sentinel,
    Cluster,
}

fn one(url: &str) -> Result<Target, Trouble> {
    // Its own error may show parts of the URL.
    let server = url
        .into_connection_info()
        .map_err(|_| not_usable("it is not a URL of Redis"))?;
    Ok(Target {
        server,
        topology: Topology::One,
    })
}

fn not_usable(what: &str) -> Trouble {
    Trouble::misconfigured(format!(
        "the URL of the Redis server is not usable, {what}; accepted: {ACCEPTED}"
    ))
}

fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Whatever the address: that is put in later.
fn info(scheme: &str, login: Option<&str>, db: &str) -> Result<ConnectionInfo, Trouble> {
    let login = login.map(|login| format!("{login}@")).unwrap_or_default();
    format!("{scheme}://{login}localhost/{db}")
        .into_connection_info()
        .map_err(|_| not_usable("its user, password or database is not"))
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(super) fn address(text: &str, port: u16) -> Option<Address> {
    let (host, port) = match text.rsplit_once(':') {
        // The colons of an IPv6 address stand in brackets.
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (text, port),
    };
    let (bare, v6) = match host.strip_prefix('[') {
        Some(rest) => (rest.strip_suffix(']')?, true),
        None => (host, false),
    };
    let is_good =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte) || (v6 && byte == b':');
    let is_usable = !bare.is_empty() && bare.bytes().all(is_good) && port > 0;
    is_usable.then(|| Address {
        host: bare.into(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address {
            host: host.into(),
            port,
        }
    }

    #[test]
    fn sentinels_with_logins_for_both_sides() {
        let url = "redis+sentinel://shop:a%2Fb@one,two:26380,[::1]:7/orders?db=2&sentinel_user=eye\
                   &sentinel_password=c%40d";
        let target = parse(url).unwrap();
        let settings = target.server.redis_settings();
        assert_eq!(settings.username(), Some("shop"));
        assert_eq!(settings.password(), Some("a/b"));
        assert_eq!(settings.db(), 2);
        let Topology::Sentinel {
            sentinels,
            service,
            login,
        } = target.topology
        else {
            panic!("not of Sentinels");
        };
        assert_eq!(
            sentinels,
            [at("one", 26379), at("two", 26380), at("::1", 7)]
        );
        assert_eq!(service, "orders");
        let settings = login.redis_settings();
        assert_eq!(settings.username(), Some("eye"));
        assert_eq!(settings.password(), Some("c@d"));
        assert_eq!(settings.db(), 0);
    }

    #[test]
    fn clusters_and_single_servers() {
        let target = parse("rediss+cluster://:pw@a:1,b").unwrap();
        assert!(target.uses_tls());
        assert_eq!(target.server.redis_settings().password(), Some("pw"));
        let Topology::Cluster { seeds } = target.topology else {
            panic!("not of a Cluster");
        };
        assert_eq!(seeds, [at("a", 1), at("b", 6379)]);
        for url in [
            "redis://127.0.0.1",
            "unix:///tmp/redis.sock?db=3",
            "rediss://a/2",
        ] {
            assert!(
                matches!(parse(url).unwrap().topology, Topology::One),
                "{url}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_no_secret() {
        for (url, part) in [
            ("secret", "not a URL of Redis"),
            ("http://secret", "not a URL of Redis"),
            ("redis+sentinel://secret", "name of a service"),
            ("redis+sentinel://a/sec,ret", "name of a service"),
            ("redis+sentinel://a/s?secret=1", "parameters"),
            ("redis+sentinel://a/s?db=secret", "database"),
            (
                "redis+sentinel://a/s?sentinel_user=secret",
                "sentinel_password",
            ),
            ("redis+sentinel://a,,b/s", "hosts"),
            ("redis+sentinel://a:0/s", "hosts"),
            ("redis+cluster://a:secret", "hosts"),
            ("redis+cluster://a/1", "database 0"),
            ("redis+cluster://a?db=1", "no parameters"),
        ] {
            let error = crate::BackendError::from(parse(url).unwrap_err()).to_string();
            assert!(error.contains(part), "{url}: {error}");
            assert!(error.contains("redis+sentinel://"), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
    }
}
