//! The mark of a replay.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCESS_CONTROL_EXPOSE_HEADERS, ORIGIN},
};

use crate::web::list;

/// The header that a replayed response has, with the value `true`, and no other.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Marks a response as a replay: `Idempotent-Replayed: true`.
///
/// Scripts in browsers see only the headers that a response to another origin exposes, so where
/// the request has an `Origin` the mark is added to `Access-Control-Expose-Headers`. A CORS layer
/// outside that sets this header itself replaces it: name the mark there too.
///
/// ```
/// use http::HeaderMap;
/// use tower_lock::idempotency::{IDEMPOTENT_REPLAYED, mark_replayed};
///
/// let mut headers = HeaderMap::new();
/// mark_replayed(&HeaderMap::new(), &mut headers);
/// assert_eq!(headers[IDEMPOTENT_REPLAYED], "true");
/// ```
pub fn mark_replayed(request: &HeaderMap, response: &mut HeaderMap) {
    response.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    if request.contains_key(ORIGIN) && !exposes_mark(response) {
        let mark = HeaderValue::from_static("idempotent-replayed");
        response.append(ACCESS_CONTROL_EXPOSE_HEADERS, mark);
    }
}

fn exposes_mark(response: &HeaderMap) -> bool {
    list::names(response, ACCESS_CONTROL_EXPOSE_HEADERS)
        .any(|name| name.eq_ignore_ascii_case(b"idempotent-replayed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn the_mark_is_exposed_to_other_origins_only() {
        let mark = |request: &[_], response: &[_]| {
            let mut response = map(response);
            mark_replayed(&map(request), &mut response);
            assert_eq!(response.get_all(IDEMPOTENT_REPLAYED).iter().count(), 1);
            assert_eq!(response[IDEMPOTENT_REPLAYED], "true");
            let exposed = response.get_all(ACCESS_CONTROL_EXPOSE_HEADERS).iter();
            exposed
                .map(|v| v.to_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let origin = [("origin", "https://shop.example")];
        assert_eq!(mark(&[], &[]), [""; 0]);
        assert_eq!(mark(&[], &[("idempotent-replayed", "false")]), [""; 0]);
        assert_eq!(mark(&origin, &[]), ["idempotent-replayed"]);
        let own = ("access-control-expose-headers", "etag, X-Id");
        assert_eq!(mark(&origin, &[own]), ["etag, X-Id", "idempotent-replayed"]);
        let named = (
            "access-control-expose-headers",
            "etag , Idempotent-Replayed",
        );
        assert_eq!(mark(&origin, &[named]), ["etag , Idempotent-Replayed"]);
    }
}
