//! Which responses are for more than one request, and how they are given.

use std::time::Duration;

use http::{
    HeaderMap, HeaderName, HeaderValue, Response,
    header::{
        AGE, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
        SET_COOKIE,
    },
    response,
};

use super::{
    cache_control::CacheControl,
    kept::Shared,
    policy::SingleFlightPolicy,
    vary::{Audience, VaryBy},
};
use crate::{
    replay::is_event_stream,
    web::{ResponseBody, Rest},
};

/// RFC 9211.
const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// How old a response is, for how long it is fresh from now on, and for how much longer it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fresh {
    pub(super) age: Duration,
    pub(super) left: Duration,
    pub(super) stale: Duration,
}

impl Fresh {
    /// The same, so much later; `None` if it is not fresh by then.
    pub(super) fn later(self, by: Duration) -> Option<Self> {
        let left = self.left.saturating_sub(by);
        let age = self.age.saturating_add(by);
        (!left.is_zero()).then_some(Self { age, left, ..self })
    }
}

/// For how long others may have this response; `None` if it is for its own client alone.
pub(super) fn shared_for(
    policy: &SingleFlightPolicy,
    vary: &VaryBy,
    audience: Audience,
    head: &response::Parts,
) -> Option<Fresh> {
    let ttl = policy.shared_for()?;
    let is_whole = matches!(
        head.status.as_u16(),
        200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414
    );
    let control = CacheControl::of(&head.headers);
    let is_for_all = match audience {
        Audience::All => true,
        Audience::AllIfSaid => control.is_for_all,
        Audience::Client => false,
    };
    if !is_whole
        || !is_for_all
        || control.forbids
        || head.headers.contains_key(SET_COOKIE)
        || !vary.covers(&head.headers)
        || is_event_stream(head)
    {
        return None;
    }
    let fresh = Fresh {
        age: control.age,
        left: control.fresh.map_or(ttl, |fresh| fresh.min(ttl)),
        stale: if control.never_stale {
            Duration::ZERO
        } else {
            policy.stale_for()
        },
    };
    fresh.later(Duration::ZERO)
}

/// So that the leader gets a whole response: what another has is not known to it.
pub(super) fn ask_for_all(headers: &mut HeaderMap) {
    for name in [
        IF_MATCH,
        IF_MODIFIED_SINCE,
        IF_NONE_MATCH,
        IF_RANGE,
        IF_UNMODIFIED_SINCE,
        RANGE,
    ] {
        headers.remove(name);
    }
}

/// How a request came to its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It led, and the response is stored or not.
    Led { stored: bool },
    /// It waited.
    Collapsed,
    /// It was there.
    Hit,
}

/// The stored response, for one more client.
pub(super) fn give<R>(shared: Shared, how: How) -> Response<ResponseBody<R>> {
    let age = shared.age();
    let left = shared.fresh().as_secs() as i64 - age.as_secs() as i64;
    let stored = shared.response;
    let body = ResponseBody::read(stored.body, Rest::End(stored.trailers));
    let mut response = Response::new(body);
    *response.status_mut() = stored.status;
    *response.headers_mut() = stored.headers;
    let headers = response.headers_mut();
    headers.insert(AGE, HeaderValue::from(age.as_secs()));
    tell(headers, how, Some(left));
    response
}

/// Says how it came to be: `Cache-Status`, RFC 9211.
pub(super) fn tell(headers: &mut HeaderMap, how: How, left: Option<i64>) {
    let how = match how {
        How::Led { stored: true } => "tower-lock; fwd=miss; stored",
        How::Led { stored: false } => "tower-lock; fwd=miss",
        How::Collapsed => "tower-lock; fwd=miss; collapsed",
        How::Hit => "tower-lock; hit",
    };
    let value = match left {
        None => HeaderValue::from_static(how),
        Some(left) => match HeaderValue::try_from(format!("{how}; ttl={left}")) {
            Ok(value) => value,
            Err(_) => HeaderValue::from_static(how),
        },
    };
    headers.append(CACHE_STATUS, value);
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn judged(
        status: u16,
        headers: &[(&'static str, &'static str)],
        audience: Audience,
    ) -> Option<Duration> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            let value = HeaderValue::from_static(value);
            response.headers_mut().append(*name, value);
        }
        let policy = SingleFlightPolicy::new().share_response(MINUTE);
        let vary = VaryBy::new(vec![http::header::ACCEPT]);
        let head = response.into_parts().0;
        shared_for(&policy, &vary, audience, &head).map(|fresh| fresh.left)
    }

    #[test]
    fn whole_responses_are_shared() {
        for status in [200, 203, 204, 301, 404, 410] {
            assert_eq!(judged(status, &[], Audience::All), Some(MINUTE), "{status}");
        }
        for status in [201, 202, 206, 302, 304, 400, 401, 500] {
            assert_eq!(judged(status, &[], Audience::All), None, "{status}");
        }
    }

    #[test]
    fn what_is_for_one_client_is_not() {
        for header in [
            ("set-cookie", "session=1"),
            ("cache-control", "private"),
            ("cache-control", "no-store"),
            ("cache-control", "no-cache"),
            ("cache-control", "max-age=0"),
            ("cache-control", "max-age=60, s-maxage=0"),
            ("expires", "0"),
            ("vary", "cookie"),
            ("vary", "*"),
            ("content-type", "text/event-stream; charset=utf-8"),
        ] {
            assert_eq!(judged(200, &[header], Audience::All), None, "{header:?}");
        }
        assert_eq!(
            judged(200, &[("vary", "Accept")], Audience::All),
            Some(MINUTE)
        );
    }

    #[test]
    fn what_is_asked_by_name_is_shared_only_if_it_says_so() {
        let named = |headers: &[_]| judged(200, headers, Audience::AllIfSaid);
        assert_eq!(named(&[]), None);
        assert_eq!(named(&[("cache-control", "max-age=60")]), None);
        for value in ["public", "s-maxage=60"] {
            let said = [("cache-control", value)];
            assert_eq!(named(&said), Some(MINUTE));
            // Of an exchange of which nothing is to be kept.
            assert_eq!(judged(200, &said, Audience::Client), None);
        }
    }

    #[test]
    fn a_response_is_fresh_for_less_if_it_says_so() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(
            judged(200, &[("cache-control", "max-age=5")], Audience::All),
            seconds(5)
        );
        assert_eq!(
            judged(200, &[("cache-control", "max-age=500")], Audience::All),
            Some(MINUTE)
        );
        let aged = [("cache-control", "max-age=50"), ("age", "20")];
        assert_eq!(judged(200, &aged, Audience::All), seconds(30));
    }
}
