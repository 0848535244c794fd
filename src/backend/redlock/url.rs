//! What a URL says of the nodes.

use crate::{
    backend::redis::{
        endpoint::{Certificates, Endpoint},
        trouble::Trouble,
        url::{self as redis_url, Topology},
    },
    error::{BackendError, BackendErrorKind},
};

/// What is accepted as a URL.
const ACCEPTED: &str = "`redlock://[user:password@]host[:port],host[:port],..[/database]`, the same \
                        with `redlocks://` (TLS), or a list of URLs `redis://..`, `rediss://..`";

/// The URL of each node. A user and a password are those of all.
pub(super) fn split(url: &str) -> Result<Vec<String>, BackendError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(not_usable)?;
    let scheme = match scheme {
        "redlock" => "redis",
        "redlocks" => "rediss",
        _ => return Err(not_usable()),
    };
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (format!("{login}@"), rest),
        None => (String::new(), rest),
    };
    let (hosts, database) = rest.split_once('/').unwrap_or((rest, ""));
    if !database.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(not_usable());
    }
    let urls = hosts.split(',').map(|host| {
        let is_host = !host.is_empty() && !host.contains(['?', '#', ' ']);
        is_host
            .then(|| format!("{scheme}://{login}{host}/{database}"))
            .ok_or_else(not_usable)
    });
    urls.collect()
}

/// How to connect to the server of a URL. Errors tell its place in the list, and nothing of it.
pub(super) fn client(
    (at, url): (usize, &String),
    certificates: &Certificates,
) -> Result<redis::Client, BackendError> {
    let of_node = |trouble: Trouble| trouble.of_node(at + 1);
    // Its own error tells what else Redis can be.
    let target = redis_url::parse(url).map_err(|_| {
        of_node(Trouble::misconfigured(format!(
            "its URL is not usable; accepted: {ACCEPTED}"
        )))
    })?;
    if !matches!(target.topology, Topology::One) {
        return Err(of_node(Trouble::misconfigured(
            "RedLock needs single servers, which know nothing of each other",
        ))
        .into());
    }
    if !certificates.is_empty() && !target.uses_tls() {
        return Err(of_node(Trouble::misconfigured(
            "certificates were given, but the URL is not one with TLS",
        ))
        .into());
    }
    let endpoint = Endpoint::new(target.server, certificates.clone());
    Ok(endpoint.client().map_err(of_node)?)
}

fn not_usable() -> BackendError {
    BackendError::new(
        BackendErrorKind::Misconfigured,
        format!("the URL of the RedLock nodes is not usable; accepted: {ACCEPTED}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_all_nodes() {
        assert_eq!(
            split("redlock://shop:s%40@a,b:2,[::1]:3/4").unwrap(),
            [
                "redis://shop:s%40@a/4",
                "redis://shop:s%40@b:2/4",
                "redis://shop:s%40@[::1]:3/4"
            ]
        );
        assert_eq!(split("redlocks://a").unwrap(), ["rediss://a/"]);
        for url in split("redlock://shop:secret@a,b:2,[::1]:3/4").unwrap() {
            client((0, &url), &Certificates::default()).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_no_secret() {
        for url in [
            "secret",
            "http://secret",
            "redlock://a,,secret",
            "redlock://a/secret",
            "redlock://a?secret",
            "redlock://",
        ] {
            let error = split(url).unwrap_err().to_string();
            assert!(error.contains("redlock://"), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
        let url = "redis://user:secret@host:port".to_owned();
        let error = client((1, &url), &Certificates::default()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("node 2 of the list"), "{error}");
        assert!(error.contains("accepted: `redlock://"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
