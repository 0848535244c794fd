//! Which requests ask for the same.

use std::fmt::Write as _;

use http::{
    HeaderMap, HeaderName,
    header::{AUTHORIZATION, COOKIE, VARY},
    request,
};
use sha2::{Digest, Sha256};

use crate::key::LockKey;

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

    /// The key of a request, told apart by these headers, and by its method where responses are
    /// given to others. Values of headers are hashed: some are secrets.
    pub(super) fn key(&self, key: LockKey, parts: &request::Parts, by_method: bool) -> LockKey {
        if self.0.is_empty() && !by_method {
            return key;
        }
        let method = if by_method { parts.method.as_str() } else { "" };
        let headers = match self.0.is_empty() {
            true => String::new(),
            false => self.digest(&parts.headers),
        };
        LockKey::from_values(key.namespace(), [key.as_str(), method, &headers])
    }

    fn digest(&self, headers: &HeaderMap) -> String {
        let mut hash = Sha256::new();
        let length = |hash: &mut Sha256, length: usize| hash.update((length as u64).to_be_bytes());
        for name in &self.0 {
            let values = headers.get_all(name);
            length(&mut hash, name.as_str().len());
            hash.update(name.as_str());
            length(&mut hash, values.iter().count());
            for value in values {
                length(&mut hash, value.len());
                hash.update(value.as_bytes());
            }
        }
        let mut text = String::with_capacity(64);
        for byte in hash.finalize() {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    /// Whether the key tells apart all that a response says it varies by.
    pub(super) fn covers(&self, response: &HeaderMap) -> bool {
        let names = response.get_all(VARY).iter();
        names
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|name| !name.is_empty())
            .all(|name| HeaderName::from_bytes(name).is_ok_and(|name| self.has(&name)))
    }

    /// Whether a request says who it is from, by what the key does not tell apart.
    pub(super) fn is_personal(&self, request: &HeaderMap) -> bool {
        [AUTHORIZATION, COOKIE]
            .iter()
            .any(|name| request.contains_key(name) && !self.has(name))
    }
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

    fn key(vary: &VaryBy, headers: HeaderMap, by_method: bool) -> LockKey {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.headers = headers;
        vary.key(LockKey::new("report", 7), &parts, by_method)
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
        assert!(vary(&[]).is_personal(&with_token));
        assert!(!vary(&["authorization"]).is_personal(&with_token));
        assert!(vary(&["authorization"]).is_personal(&map(&[("cookie", "x")])));
        assert!(!vary(&[]).is_personal(&map(&[("accept", "x")])));
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
