//! Connect strings: `zookeeper://[user:password@]host[:port][,host[:port]..][/chroot]`.

use percent_encoding::percent_decode_str;

use super::trouble::Trouble;

/// What is accepted.
pub(super) const ACCEPTED: &str =
    "`zookeeper://[user:password@]host[:port][,host[:port]..][/chroot]`";

/// The longest path that is accepted for a chroot or base.
const LONGEST_PATH: usize = 256;

pub(super) struct Servers {
    /// `host:port,host:port`.
    pub(super) hosts: String,
    /// Empty, or with its slash.
    pub(super) chroot: String,
    /// `user:password`.
    pub(super) digest: Option<String>,
}

pub(super) fn parse(url: &str) -> Result<Servers, Trouble> {
    let not_usable = |what: &str| {
        Trouble::misconfigured(format!(
            "the connect string of ZooKeeper is not usable, {what}; accepted: {ACCEPTED}"
        ))
    };
    let rest = url
        .strip_prefix("zookeeper://")
        .ok_or_else(|| not_usable("it does not begin with `zookeeper://`"))?;
    let (authority, chroot) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (Some(user), hosts),
        None => (None, authority),
    };
    let digest = match user {
        None => None,
        Some(user) => Some(digest(user).ok_or_else(|| not_usable("its user or password is not"))?),
    };
    let mut with_ports = Vec::new();
    for host in hosts.split(',') {
        with_ports.push(with_port(host).ok_or_else(|| not_usable("one of its hosts is not"))?);
    }
    let chroot = if chroot == "/" { "" } else { chroot };
    if !chroot.is_empty() && !is_path(chroot) {
        return Err(not_usable("its chroot is not"));
    }
    Ok(Servers {
        hosts: with_ports.join(","),
        chroot: chroot.into(),
        digest,
    })
}

/// `user:password`, percent-decoded.
fn digest(user: &str) -> Option<String> {
    let (name, password) = user.split_once(':')?;
    let decode = |part| percent_decode_str(part).decode_utf8().ok();
    join_digest(&decode(name)?, &decode(password)?)
}

/// As the server takes it; it splits at the first colon.
pub(super) fn join_digest(user: &str, password: &str) -> Option<String> {
    let is_usable = !user.is_empty() && !user.contains(':') && !password.is_empty();
    is_usable.then(|| [user, ":", password].concat())
}

fn with_port(host: &str) -> Option<String> {
    let (name, port) = match host.rsplit_once(':') {
        // The colons of an IPv6 address stand in brackets.
        Some((name, port)) if !port.contains(']') => (name, port),
        _ => (host, "2181"),
    };
    let bare = match name.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|v6| v6.contains(':'))?,
        None => name,
    };
    let allowed = |byte: u8| {
        byte.is_ascii_alphanumeric() || b"-._".contains(&byte) || (bare != name && byte == b':')
    };
    let is_usable = !bare.is_empty() && bare.bytes().all(allowed);
    let port: u16 = port.parse().ok().filter(|&port| port > 0)?;
    is_usable.then(|| format!("{name}:{port}"))
}

/// Whether this is the path of a node other than the root: of visible ASCII.
pub(super) fn is_path(path: &str) -> bool {
    path.len() <= LONGEST_PATH
        && path.starts_with('/')
        && path.bytes().all(|byte| byte.is_ascii_graphic())
        && path[1..]
            .split('/')
            .all(|name| !matches!(name, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::BackendError;

    #[test]
    fn what_is_accepted() {
        for (url, hosts, chroot, digest) in [
            ("zookeeper://a", "a:2181", "", None),
            ("zookeeper://a:1/", "a:1", "", None),
            ("zookeeper://a,b:7,c/x/y", "a:2181,b:7,c:2181", "/x/y", None),
            (
                "zookeeper://[::1],[::2]:9/x",
                "[::1]:2181,[::2]:9",
                "/x",
                None,
            ),
            (
                "zookeeper://u:p%40%3A@10.0.0.1",
                "10.0.0.1:2181",
                "",
                Some("u:p@:"),
            ),
        ] {
            let servers = parse(url).unwrap_or_else(|_| panic!("{url}"));
            assert_eq!(servers.hosts, hosts);
            assert_eq!(servers.chroot, chroot);
            assert_eq!(servers.digest.as_deref(), digest);
        }
    }

    #[test]
    fn what_is_not() {
        for url in [
            "",
            "a:2181",
            "redis://a",
            "zookeeper://",
            "zookeeper://a,,b",
            "zookeeper://a:0",
            "zookeeper://a:x",
            "zookeeper://:2181",
            "zookeeper://[::1",
            "zookeeper://a b",
            "zookeeper://secret@a",
            "zookeeper://:secret@a",
            "zookeeper://secret:@a",
            "zookeeper://a/x/",
            "zookeeper://a//x",
            "zookeeper://a/../x",
            "zookeeper://a/é",
        ] {
            let error = BackendError::from(parse(url).err().expect(url));
            let text = error.to_string();
            assert!(text.contains("zookeeper://["), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
