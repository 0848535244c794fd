//! What a response says about caching, as far as it concerns a shared response.

use std::time::Duration;

use http::{
    HeaderMap,
    header::{AGE, CACHE_CONTROL, EXPIRES},
};

use crate::web::list;

/// The directives of RFC 9111, section 5.2.2, that concern a shared cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CacheControl {
    /// `no-store`, `no-cache` or `private`, also where it names fields only.
    pub(super) forbids: bool,
    /// `public` or `s-maxage`: it is for everybody, even if the request had credentials.
    pub(super) is_for_all: bool,
    /// `must-revalidate`, `proxy-revalidate` or `s-maxage`: it is not for anybody once it is stale.
    pub(super) never_stale: bool,
    /// What `Age` says.
    pub(super) age: Duration,
    /// `s-maxage`, else `max-age`, less that age.
    pub(super) fresh: Option<Duration>,
}

impl CacheControl {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        let (mut max_age, mut s_maxage) = (None, None);
        for value in headers.get_all(CACHE_CONTROL) {
            for (name, argument) in directives(value.as_bytes()) {
                let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
                if is("no-store") || is("no-cache") || is("private") {
                    found.forbids = true;
                } else if is("public") {
                    found.is_for_all = true;
                } else if is("max-age") {
                    shortest(&mut max_age, argument);
                } else if is("s-maxage") {
                    found.is_for_all = true;
                    found.never_stale = true;
                    shortest(&mut s_maxage, argument);
                } else if is("must-revalidate") || is("proxy-revalidate") {
                    found.never_stale = true;
                }
            }
        }
        let age = headers.get(AGE).map(|age| seconds(Some(age.as_bytes())));
        // More than a machine's clock can count back is no age.
        found.age = Duration::from_secs(age.unwrap_or_default().min(u32::MAX.into()));
        let fresh = s_maxage.or(max_age).map(Duration::from_secs);
        found.fresh = fresh.map(|fresh| fresh.saturating_sub(found.age));
        // A date is not read: mostly it is one in the past, to forbid.
        found.forbids |= found.fresh.is_none() && headers.contains_key(EXPIRES);
        found
    }
}

/// Whether a client wants nothing of its exchange to be kept (RFC 9111, section 5.2.1.5).
pub(super) fn wants_no_store(request: &HeaderMap) -> bool {
    let values = request.get_all(CACHE_CONTROL).iter();
    values
        .flat_map(|value| directives(value.as_bytes()))
        .any(|(name, _)| name.eq_ignore_ascii_case(b"no-store"))
}

/// One that is sent twice, or is no number, is the less fresh (RFC 9111, section 4.2.1).
fn shortest(known: &mut Option<u64>, argument: Option<&[u8]>) {
    let seconds = seconds(argument);
    *known = Some(known.map_or(seconds, |known| known.min(seconds)));
}

fn seconds(argument: Option<&[u8]>) -> u64 {
    let argument = argument.unwrap_or_default().trim_ascii();
    let digits = argument
        .strip_prefix(b"\"")
        .and_then(|rest| rest.strip_suffix(b"\""))
        .unwrap_or(argument);
    let text = std::str::from_utf8(digits).unwrap_or_default();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return 0;
    }
    // More than fits is for ever, as far as this is concerned.
    text.parse().unwrap_or(u64::from(u32::MAX))
}

/// Names and arguments: what stands between commas that are not quoted.
fn directives(value: &[u8]) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
    list::split(value, b',').map(|directive| {
        match directive.iter().position(|byte| *byte == b'=') {
            Some(at) => (directive[..at].trim_ascii(), Some(&directive[at + 1..])),
            None => (directive.trim_ascii(), None),
        }
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn of(headers: &[(&'static str, &'static str)]) -> CacheControl {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        CacheControl::of(&map)
    }

    fn control(value: &'static str) -> CacheControl {
        of(&[("cache-control", value)])
    }

    fn fresh(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    #[test]
    fn nothing_said_is_nothing_forbidden() {
        assert_eq!(of(&[]), CacheControl::default());
        assert_eq!(
            control("immutable, , x=\"no-store\""),
            CacheControl::default()
        );
        assert_eq!(control("x=\"a\\\", private\""), CacheControl::default());
    }

    #[test]
    fn what_forbids() {
        for value in [
            "no-store",
            "No-Store",
            "public, no-cache",
            "private",
            "private=\"set-cookie, x\"",
            "max-age=60 , NO-CACHE=\"x\"",
        ] {
            assert!(control(value).forbids, "{value}");
        }
        assert!(of(&[("cache-control", "public"), ("cache-control", "private")]).forbids);
        assert!(of(&[("expires", "0")]).forbids);
        assert!(!of(&[("expires", "0"), ("cache-control", "max-age=60")]).forbids);
    }

    #[test]
    fn how_long_it_is_fresh() {
        assert_eq!(control("max-age=60").fresh, fresh(60));
        assert_eq!(control("max-age=60, s-maxage=\"5\"").fresh, fresh(5));
        assert_eq!(control("max-age=60, max-age=30").fresh, fresh(30));
        assert_eq!(control("max-age").fresh, fresh(0));
        assert_eq!(control("max-age=-1").fresh, fresh(0));
        assert_eq!(
            control("max-age=99999999999999999999").fresh,
            fresh(u32::MAX.into())
        );
        assert_eq!(
            of(&[("cache-control", "max-age=60"), ("age", "50")]).fresh,
            fresh(10)
        );
        assert_eq!(
            of(&[("cache-control", "max-age=60"), ("age", "70")]).fresh,
            fresh(0)
        );
        assert!(control("s-maxage=5").is_for_all);
        assert!(control("public").is_for_all);
        assert!(!control("max-age=5").is_for_all);
        assert!(!control("max-age=5").never_stale);
        for value in [
            "s-maxage=5",
            "max-age=5, must-revalidate",
            "Proxy-Revalidate",
        ] {
            assert!(control(value).never_stale, "{value}");
        }
    }

    #[test]
    fn what_a_client_does_not_want_to_be_kept() {
        let wants = |value: &'static str| {
            let mut map = HeaderMap::new();
            map.append(CACHE_CONTROL, HeaderValue::from_static("max-age=0"));
            map.append(CACHE_CONTROL, HeaderValue::from_static(value));
            wants_no_store(&map)
        };
        assert!(wants("x, No-Store"));
        assert!(!wants("no-cache"));
    }
}
