//! Which headers of a response are stored.

use http::{
    HeaderMap, HeaderName,
    header::{AGE, CONNECTION, CONTENT_LENGTH, DATE, SET_COOKIE, TE, TRANSFER_ENCODING, UPGRADE},
};

use crate::web::list;

const fn name(name: &'static str) -> HeaderName {
    HeaderName::from_static(name)
}

/// They belong to one connection or one moment, and the server makes them anew.
static NEVER: [HeaderName; 9] = [
    CONNECTION,
    CONTENT_LENGTH,
    DATE,
    name("idempotent-replayed"),
    name("keep-alive"),
    name("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// They belong to one exchange: a replay must not log a client in, nor join another trace.
static BY_DEFAULT_NOT: [HeaderName; 23] = [
    AGE,
    SET_COOKIE,
    name("b3"),
    name("correlation-id"),
    name("preference-applied"),
    name("request-id"),
    name("server-timing"),
    name("set-cookie2"),
    name("traceparent"),
    name("traceresponse"),
    name("tracestate"),
    name("uber-trace-id"),
    name("x-amzn-requestid"),
    name("x-amzn-trace-id"),
    name("x-b3-flags"),
    name("x-b3-parentspanid"),
    name("x-b3-sampled"),
    name("x-b3-spanid"),
    name("x-b3-traceid"),
    name("x-cloud-trace-context"),
    name("x-correlation-id"),
    name("x-request-id"),
    name("x-trace-id"),
];

/// Which headers of a response are stored, and so replayed: all but these.
///
/// | never | because |
/// |---|---|
/// | `connection` and what it names, `keep-alive`, `proxy-connection`, `te`, `transfer-encoding`, `upgrade` | they are of one connection |
/// | `content-length`, `date` | the server makes them anew |
/// | `idempotent-replayed` | it is the mark of a replay |
///
/// | by default not | because |
/// |---|---|
/// | `set-cookie`, `set-cookie2` | whoever repeats a request is not logged in by it |
/// | `age`, `preference-applied` | they are of one exchange |
/// | `server-timing`, and the names by which requests are traced: `traceparent`, `tracestate`, `traceresponse`, `b3`, `x-b3-*`, `uber-trace-id`, `x-cloud-trace-context`, `x-amzn-trace-id`, `x-amzn-requestid`, `x-request-id`, `request-id`, `x-correlation-id`, `correlation-id`, `x-trace-id` | they are of the first request |
///
/// `trailer` is stored, since trailers are. Headers of layers outside of the idempotency layer are
/// not its business: they are added to each response anew. Trailers are stored by the same rule.
///
/// ```
/// use http::{HeaderMap, HeaderName, HeaderValue};
/// use tower_lock::idempotency::StoredHeaders;
///
/// let headers = HeaderMap::from_iter([
///     ("location", "/orders/42"),
///     ("set-cookie", "session=1"),
///     ("x-ratelimit-remaining", "7"),
/// ].map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))));
///
/// assert_eq!(StoredHeaders::new().select(&headers).len(), 2);
/// let stored = StoredHeaders::new().without(["x-ratelimit-remaining"]);
/// assert_eq!(stored.select(&headers).keys().collect::<Vec<_>>(), ["location"]);
/// ```
#[must_use = "it does nothing until a policy takes it"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredHeaders {
    with: Vec<HeaderName>,
    without: Vec<HeaderName>,
}

impl StoredHeaders {
    /// The rule above.
    pub fn new() -> Self {
        Self::default()
    }

    /// These are not stored either, such as limits that the service tells its clients.
    ///
    /// # Panics
    ///
    /// If a name is not that of a header.
    #[track_caller]
    pub fn without<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        for name in names {
            self.without.push(header(name.as_ref()));
        }
        self
    }

    /// These are stored although by default they are not, such as `set-cookie`: **whoever repeats
    /// a request then gets the cookie of the first**.
    ///
    /// # Panics
    ///
    /// If a name is not that of a header, or of one that is never stored.
    #[track_caller]
    pub fn with<N: AsRef<str>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        for name in names {
            let name = header(name.as_ref());
            assert!(
                !NEVER.contains(&name),
                "the header `{name}` is never stored: it is of one connection or one moment"
            );
            self.without.retain(|other| *other != name);
            self.with.push(name);
        }
        self
    }

    /// The headers to store, in their order and with all their values.
    pub fn select(&self, headers: &HeaderMap) -> HeaderMap {
        let connection = named_by_connection(headers);
        let mut selected = HeaderMap::with_capacity(headers.keys_len());
        for (name, value) in headers {
            if self.stores(name) && !connection.contains(name) {
                selected.append(name, value.clone());
            }
        }
        selected
    }

    fn stores(&self, name: &HeaderName) -> bool {
        if NEVER.contains(name) || self.without.contains(name) {
            return false;
        }
        !BY_DEFAULT_NOT.contains(name) || self.with.contains(name)
    }
}

#[track_caller]
fn header(name: &str) -> HeaderName {
    match HeaderName::from_bytes(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!(
            "{name:?} is not the name of a header: \
             letters, digits and some of HTTP's marks such as `-` are accepted"
        ),
    }
}

/// What `connection` says is of this connection only (RFC 9110, section 7.6.1).
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    list::names(headers, CONNECTION)
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        headers.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn what_is_of_one_exchange_is_not_stored() {
        let mut headers = map(&[
            ("location", "/1"),
            ("content-type", "a/b"),
            ("trailer", "x"),
        ]);
        for name in NEVER.iter().chain(&BY_DEFAULT_NOT) {
            headers.append(name, HeaderValue::from_static("x"));
        }
        headers.append("location", HeaderValue::from_static("/2"));
        let stored = StoredHeaders::new().select(&headers);
        assert_eq!(
            names(&stored),
            ["location", "location", "content-type", "trailer"]
        );
        let locations: Vec<_> = stored.get_all("location").iter().collect();
        assert_eq!(locations, ["/1", "/2"]);
    }

    #[test]
    fn what_connection_names_is_not_stored() {
        let headers = map(&[
            ("connection", "X-One , close"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("connection", "x-two,, ,not a name"),
            ("close", "a header of this name"),
        ]);
        assert_eq!(names(&StoredHeaders::new().select(&headers)), ["x-three"]);
    }

    #[test]
    fn a_route_may_choose() {
        let headers = map(&[("set-cookie", "a"), ("x-request-id", "b"), ("etag", "c")]);
        let select = |rule: StoredHeaders| {
            let selected = rule.select(&headers);
            names(&selected)
                .into_iter()
                .map(String::from)
                .collect::<Vec<_>>()
        };
        assert_eq!(select(StoredHeaders::new()), ["etag"]);
        let with = StoredHeaders::new().with(["Set-Cookie"]);
        assert_eq!(select(with.clone()), ["set-cookie", "etag"]);
        assert_eq!(select(with.without(["set-cookie", "ETag"])), [""; 0]);
        let back = StoredHeaders::new().without(["etag"]).with(["etag"]);
        assert_eq!(select(back), ["etag"]);
    }

    #[test]
    #[should_panic(expected = "`content-length` is never stored")]
    fn what_is_never_stored_cannot_be_asked_for() {
        let _ = StoredHeaders::new().with(["Content-Length"]);
    }

    #[test]
    #[should_panic(expected = "is not the name of a header")]
    fn a_wrong_name_panics() {
        let _ = StoredHeaders::new().without(["a b"]);
    }

    proptest! {
        #[test]
        fn selecting_keeps_order_and_is_done_once(
            entries in proptest::collection::vec(
                (prop_oneof![
                    "x-[a-c]", Just("set-cookie".to_owned()), Just("date".to_owned()),
                    Just("connection".to_owned()),
                ], "[a-c, x-]{0,6}"), 0..12),
        ) {
            let mut headers = HeaderMap::new();
            for (name, value) in &entries {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                headers.append(name, HeaderValue::from_str(value).unwrap());
            }
            let rule = StoredHeaders::new();
            let once = rule.select(&headers);
            let twice = rule.select(&once);
            prop_assert!(twice.iter().eq(once.iter()));
            let kept: Vec<_> = headers.iter().filter(|(name, _)| once.contains_key(*name)).collect();
            prop_assert_eq!(once.iter().collect::<Vec<_>>(), kept);
        }
    }
}
