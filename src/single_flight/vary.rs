//! Which requests ask for the same.

use http::{
    HeaderMap, HeaderName, Uri,
    header::{AUTHORIZATION, COOKIE, HOST, VARY},
    request,
};
use sha2::{Digest as _, Sha256};

use super::cache_control::wants_no_store;
use crate::{
    key::{LockKey, push_hex},
    web::list,
};

/// The headers of a request that tell two responses apart.
#[derive(Clone, Debug, Default)]
pub(super) struct VaryBy(Vec<HeaderName>);

impl VaryBy {
    pub(super) fn new(mut names: Vec<HeaderName>) -> Self {
        names.sort_by(|one, two| one.as_str().cmp(two.as_str()));
        names.dedup();
        Self(names)
    }

    fn has(&self, name: &HeaderName) -> bool {
        self.0.contains(name)
    }

    /// The key of a request, told apart by these headers; and where responses are given to others, by
    /// its method and its whole original URI. All that is hashed: some headers are secrets.
    pub(super) fn key(&self, key: LockKey, parts: &request::Parts, by_uri: bool) -> LockKey {
        if self.0.is_empty() && !by_uri {
            return key;
        }
        let mut digest = Digest(Sha256::new());
        if by_uri {
            let uri = original_uri(parts);
            let host = parts
                .headers
                .get(HOST)
                .map_or(&b""[..], |host| host.as_bytes());
            let authority = uri
                .authority()
                .map_or(host, |authority| authority.as_str().as_bytes());
            digest.part(parts.method.as_str().as_bytes());
            digest.part(&authority.to_ascii_lowercase());
            digest.part(
                uri.path_and_query()
                    .map_or("", |path| path.as_str())
                    .as_bytes(),
            );
        }
        for name in &self.0 {
            let values = parts.headers.get_all(name);
            digest.part(name.as_str().as_bytes());
            digest.length(values.iter().count());
            for value in values {
                digest.part(value.as_bytes());
            }
        }
        let mut apart = String::with_capacity(64);
        push_hex(&mut apart, &digest.0.finalize());
        LockKey::from_values(key.namespace(), [key.as_str(), &apart])
    }

    /// Whether the key tells apart all that a response says it varies by.
    pub(super) fn covers(&self, response: &HeaderMap) -> bool {
        list::names(response, VARY)
            .filter(|name| !name.is_empty())
            .all(|name| HeaderName::from_bytes(name).is_ok_and(|name| self.has(&name)))
    }

    /// Whom the response to a request may be for.
    pub(super) fn audience(&self, request: &HeaderMap) -> Audience {
        let mut credentials = [AUTHORIZATION, COOKIE].into_iter();
        if wants_no_store(request) {
            Audience::Client
        } else if credentials.any(|name| request.contains_key(&name) && !self.has(&name)) {
            Audience::AllIfSaid
        } else {
            Audience::All
        }
    }
}

/// Whom a response may be for, as far as its request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    All,
    /// The request said who it is from, by what the key does not tell apart: all if the response
    /// says so (RFC 9111, section 3.5).
    AllIfSaid,
    /// Nothing of the exchange is to be kept, whatever the response says (section 5.2.1.5).
    Client,
}

/// What is hashed, so that no two different sequences are the same bytes.
struct Digest(Sha256);

impl Digest {
    fn length(&mut self, length: usize) {
        self.0.update((length as u64).to_be_bytes());
    }

    fn part(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.0.update(bytes);
    }
}

/// As the client sent it: routers strip what they have matched.
#[cfg(feature = "axum")]
fn original_uri(parts: &request::Parts) -> &Uri {
    let original = parts.extensions.get::<axum::extract::OriginalUri>();
    original.map_or(&parts.uri, |original| &original.0)
}

#[cfg(not(feature = "axum"))]
fn original_uri(parts: &request::Parts) -> &Uri {
    &parts.uri
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, Request};
    use proptest::prelude::*;

    use super::*;

    fn vary(names: &[&'static str]) -> VaryBy {
        VaryBy::new(
            names
                .iter()
                .map(|name| HeaderName::from_static(name))
                .collect(),
        )
    }

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    fn key(vary: &VaryBy, headers: HeaderMap, by_uri: bool) -> LockKey {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.headers = headers;
        vary.key(LockKey::new("report", 7), &parts, by_uri)
    }

    #[test]
    fn a_key_stays_as_it_is_where_nothing_tells_requests_apart() {
        assert_eq!(
            key(&vary(&[]), HeaderMap::new(), false),
            LockKey::new("report", 7)
        );
    }

    #[test]
    fn keys_are_told_apart_by_the_headers_named() {
        let by = vary(&["accept-language", "authorization"]);
        let of = |headers: &[_]| key(&by, map(headers), true);
        let none = of(&[]);
        let german = of(&[("accept-language", "de")]);
        let all = [
            none.clone(),
            german.clone(),
            of(&[("accept-language", "")]),
            of(&[("accept-language", "de"), ("accept-language", "de")]),
            of(&[("authorization", "de")]),
            key(&by, HeaderMap::new(), false),
        ];
        for (at, one) in all.iter().enumerate() {
            assert_eq!(one.namespace(), "report");
            for two in &all[at + 1..] {
                assert_ne!(one, two);
            }
        }
        assert_eq!(of(&[("x-other", "1")]), none);
        assert_eq!(of(&[("accept-language", "de"), ("x-other", "1")]), german);
        let twice = vary(&["authorization", "accept-language", "authorization"]);
        assert_eq!(key(&twice, map(&[("accept-language", "de")]), true), german);
    }

    #[test]
    fn shared_responses_are_told_apart_by_all_of_the_uri() {
        let of = |method: &str, uri: &str, host: &'static str| {
            let request = Request::builder().method(method).uri(uri);
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            if !host.is_empty() {
                parts.headers.insert(HOST, HeaderValue::from_static(host));
            }
            vary(&[]).key(LockKey::new("report", 7), &parts, true)
        };
        let key = of("GET", "/reports/7?a=1", "shop.example");
        // Of HTTP/2.
        assert_eq!(of("GET", "https://Shop.Example/reports/7?a=1", ""), key);
        for other in [
            of("POST", "/reports/7?a=1", "shop.example"),
            of("GET", "/reports/7?a=2", "shop.example"),
            of("GET", "/reports/7", "shop.example"),
            of("GET", "/other/7?a=1", "shop.example"),
            of("GET", "/reports/7?a=1", "other.example"),
            of("GET", "/reports/7?a=1", ""),
        ] {
            assert_ne!(other, key);
        }
    }

    #[test]
    fn no_secret_stands_in_a_key() {
        let key = key(
            &vary(&["authorization"]),
            map(&[("authorization", "s3cret")]),
            true,
        );
        assert!(!key.as_str().contains("s3cret"), "{}", key.as_str());
    }

    #[test]
    fn what_a_response_varies_by() {
        let by = vary(&["accept-language", "origin"]);
        for covered in [
            &[][..],
            &[("vary", "Origin")],
            &[("vary", "origin,, Accept-Language ")],
        ] {
            assert!(by.covers(&map(covered)), "{covered:?}");
        }
        for other in [
            &[("vary", "*")][..],
            &[("vary", "origin"), ("vary", "accept")],
            &[("vary", "not a name")],
        ] {
            assert!(!by.covers(&map(other)), "{other:?}");
        }
    }

    #[test]
    fn who_asks_is_personal_unless_the_key_says_it() {
        let with_token = map(&[("authorization", "x")]);
        let audience = |names: &[&'static str], headers: &HeaderMap| vary(names).audience(headers);
        assert_eq!(audience(&[], &with_token), Audience::AllIfSaid);
        assert_eq!(audience(&["authorization"], &with_token), Audience::All);
        let with_cookie = map(&[("cookie", "x")]);
        assert_eq!(
            audience(&["authorization"], &with_cookie),
            Audience::AllIfSaid
        );
        assert_eq!(audience(&[], &map(&[("accept", "x")])), Audience::All);
        let no_store = ("cache-control", "max-age=0, No-Store");
        let with_both = map(&[no_store, ("authorization", "x")]);
        for headers in [map(&[no_store]), with_both] {
            for names in [&[][..], &["authorization", "cache-control"]] {
                assert_eq!(audience(names, &headers), Audience::Client);
            }
        }
    }

    proptest! {
        #[test]
        fn different_headers_are_different_keys(
            one in proptest::collection::vec("[ab]{0,2}", 0..3),
            two in proptest::collection::vec("[ab]{0,2}", 0..3),
        ) {
            let of = |values: &[String]| {
                let mut headers = HeaderMap::new();
                for value in values {
                    headers.append("accept", HeaderValue::from_str(value).unwrap());
                }
                key(&vary(&["accept"]), headers, false)
            };
            prop_assert_eq!(of(&one) == of(&two), one == two);
        }
    }
}
