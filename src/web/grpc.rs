//! Refusals as gRPC clients understand them, and the deadline that they send.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header::CONTENT_TYPE};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::refusal::{Refusal, RefusalKind};
use crate::policy::Wait;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// What `grpc-message` must not hold as it is; `AsciiSet` encodes other bytes than ASCII anyway.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// The content type of an answer to this request if it is a gRPC call, else `None`.
pub(crate) fn content_type(headers: &HeaderMap) -> Option<HeaderValue> {
    const GRPC: &str = "application/grpc";
    let value = headers.get(CONTENT_TYPE)?.as_bytes();
    let (start, rest) = value.split_at_checked(GRPC.len())?;
    if !start.eq_ignore_ascii_case(GRPC.as_bytes()) {
        return None;
    }
    let is = |name: &[u8]| {
        rest.split_at_checked(name.len())
            .is_some_and(|(start, rest)| {
                start.eq_ignore_ascii_case(name)
                    && matches!(rest.first(), None | Some(b'+' | b';' | b' ' | b'\t'))
            })
    };
    [
        (&b""[..], GRPC),
        (b"-web", "application/grpc-web"),
        (b"-web-text", "application/grpc-web-text"),
    ]
    .into_iter()
    .find(|(name, _)| is(name))
    .map(|(_, answer)| HeaderValue::from_static(answer))
}

/// Whether a response is one of gRPC whose status is in its headers or trailers. That of gRPC-web
/// is within its body.
pub(crate) fn is_call(headers: &HeaderMap) -> bool {
    content_type(headers).is_some_and(|answer| answer == "application/grpc")
}

/// The `grpc-status` of a response's headers or trailers; of one that is no number, `UNKNOWN`.
pub(crate) fn status(headers: &HeaderMap) -> Option<u16> {
    const UNKNOWN: u16 = 2;
    let value = headers.get(GRPC_STATUS)?;
    let code = value.to_str().ok().and_then(|text| text.parse().ok());
    Some(code.unwrap_or(UNKNOWN))
}

/// The response that carries this refusal to a gRPC client: the head only, with the status in it,
/// and the refusal in its extensions.
pub(crate) fn render(refusal: Refusal, content_type: HeaderValue) -> Response<Bytes> {
    let code = code(refusal.kind());
    tracing::debug!(
        lock.namespace = refusal.namespace(),
        lock.outcome = refusal.kind().as_str(),
        grpc.status = code,
        "refused a call"
    );
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    let message = refusal.to_string();
    let message = utf8_percent_encode(&message, MESSAGE).to_string();
    if let Ok(message) = HeaderValue::try_from(message) {
        headers.insert(GRPC_MESSAGE, message);
    }
    // A negative number tells a client not to retry, whatever it retries by code: too many
    // waiters and too large a body share one.
    let pushback = match refusal.draw_retry_ms() {
        Some(ms) => HeaderValue::from(ms),
        None => HeaderValue::from_static("-1"),
    };
    headers.insert(GRPC_RETRY_PUSHBACK, pushback);
    response.extensions_mut().insert(refusal);
    response
}

/// The gRPC status code of each kind.
fn code(kind: RefusalKind) -> u16 {
    const UNKNOWN: u16 = 2;
    const INVALID_ARGUMENT: u16 = 3;
    const ALREADY_EXISTS: u16 = 6;
    const RESOURCE_EXHAUSTED: u16 = 8;
    const FAILED_PRECONDITION: u16 = 9;
    const ABORTED: u16 = 10;
    const INTERNAL: u16 = 13;
    const UNAVAILABLE: u16 = 14;
    match kind {
        RefusalKind::KeyMissing | RefusalKind::KeyInvalid => INVALID_ARGUMENT,
        RefusalKind::BodyTooLarge | RefusalKind::TooManyWaiters => RESOURCE_EXHAUSTED,
        RefusalKind::KeyReused => FAILED_PRECONDITION,
        RefusalKind::AlreadyCompleted => ALREADY_EXISTS,
        RefusalKind::InProgress | RefusalKind::LockBusy | RefusalKind::LockTimeout => ABORTED,
        RefusalKind::Overloaded | RefusalKind::Draining | RefusalKind::BackendUnavailable => {
            UNAVAILABLE
        }
        RefusalKind::OutcomeUnknown | RefusalKind::LockLost => UNKNOWN,
        RefusalKind::LockMisconfigured => INTERNAL,
    }
}

/// The route's wait, no longer than the call's `grpc-timeout`: after that nobody listens.
pub(crate) fn bound_wait(wait: Wait, headers: &HeaderMap) -> Wait {
    let Some(timeout) = headers
        .get(GRPC_TIMEOUT)
        .and_then(|value| parse_timeout(value.as_bytes()))
    else {
        return wait;
    };
    match wait {
        Wait::Fail => Wait::Fail,
        Wait::For(wait) => Wait::from(wait.min(timeout)),
        Wait::Forever => Wait::from(timeout),
    }
}

/// One to eight digits and a unit; anything else is no timeout.
fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0, |n, digit| n * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(name: HeaderName, value: &[u8]) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_bytes(value).unwrap())])
    }

    #[test]
    fn calls_are_known_by_their_content_type() {
        let table: [(&str, Option<&str>); 14] = [
            ("application/grpc", Some("application/grpc")),
            ("application/grpc+proto", Some("application/grpc")),
            ("application/grpc+json", Some("application/grpc")),
            ("application/grpc; charset=utf-8", Some("application/grpc")),
            ("Application/GRPC", Some("application/grpc")),
            ("application/grpc-web", Some("application/grpc-web")),
            ("application/grpc-web+proto", Some("application/grpc-web")),
            (
                "application/grpc-web-text+proto",
                Some("application/grpc-web-text"),
            ),
            ("application/grpcx", None),
            ("application/grpc-websocket", None),
            ("application/grp", None),
            ("application/json", None),
            ("text/application/grpc", None),
            ("", None),
        ];
        for (value, expected) in table {
            let answer = content_type(&with(CONTENT_TYPE, value.as_bytes()));
            assert_eq!(answer, expected.map(HeaderValue::from_static), "{value}");
        }
        assert_eq!(content_type(&HeaderMap::new()), None);
    }

    #[test]
    fn every_kind_has_its_code_and_pushback() {
        let codes = [3, 3, 8, 9, 10, 6, 2, 10, 10, 8, 14, 14, 14, 2, 13];
        for (kind, code) in RefusalKind::ALL.into_iter().zip(codes) {
            let response = render(
                Refusal::new(kind, Some("order")),
                HeaderValue::from_static("application/grpc"),
            );
            let headers = response.headers();
            let text = |name| headers.get(name).map(|v: &HeaderValue| v.to_str().unwrap());
            assert_eq!(response.status(), 200, "{kind}");
            assert!(response.body().is_empty());
            assert_eq!(text(CONTENT_TYPE), Some("application/grpc"));
            assert_eq!(text(GRPC_STATUS), Some(&*code.to_string()), "{kind}");
            let message = text(GRPC_MESSAGE).unwrap();
            assert!(message.starts_with(&format!("{kind}: ")), "{message}");
            let pushback: i64 = text(GRPC_RETRY_PUSHBACK).unwrap().parse().unwrap();
            if kind.is_retryable() {
                assert!((900..=1100).contains(&pushback), "{kind}: {pushback}");
            } else {
                assert_eq!(pushback, -1, "{kind}");
            }
            let refusal = response.extensions().get::<Refusal>().unwrap();
            assert_eq!(refusal.kind(), kind);
        }
    }

    #[test]
    fn messages_are_percent_encoded() {
        let refusal = Refusal::new(RefusalKind::KeyInvalid, None).with_detail("100 % é\r\n\"~");
        let response = render(refusal, HeaderValue::from_static("application/grpc"));
        assert_eq!(
            response.headers()[GRPC_MESSAGE],
            "key-invalid: 100 %25 %C3%A9%0D%0A\"~"
        );
    }

    #[test]
    fn timeouts() {
        let table: [(&str, Option<Duration>); 16] = [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("4m", Some(Duration::from_millis(4))),
            ("5u", Some(Duration::from_micros(5))),
            ("6n", Some(Duration::from_nanos(6))),
            ("0S", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("00000001S", Some(Duration::from_secs(1))),
            ("123456789S", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("-1S", None),
            ("1 S", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse_timeout(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn a_timeout_only_lowers_the_wait() {
        let secs = |n| Wait::For(Duration::from_secs(n));
        let table = [
            (secs(5), "2S", secs(2)),
            (secs(5), "9S", secs(5)),
            (secs(5), "0S", Wait::Fail),
            (secs(5), "soon", secs(5)),
            (Wait::Fail, "9S", Wait::Fail),
            (Wait::Forever, "9S", secs(9)),
            (Wait::Forever, "soon", Wait::Forever),
        ];
        for (wait, timeout, expected) in table {
            let headers = with(GRPC_TIMEOUT, timeout.as_bytes());
            assert_eq!(bound_wait(wait, &headers), expected, "{wait:?} {timeout}");
        }
        assert_eq!(bound_wait(secs(5), &HeaderMap::new()), secs(5));
    }

    proptest! {
        #[test]
        fn no_timeout_panics(value in proptest::collection::vec(any::<u8>(), 0..12)) {
            let _ = parse_timeout(&value);
        }

        #[test]
        fn every_wellformed_timeout_parses(n in 0u32..100_000_000, unit in "[HMSmun]") {
            let text = format!("{n}{unit}");
            prop_assert!(parse_timeout(text.as_bytes()).is_some());
        }

        #[test]
        fn no_content_type_panics(value in "\\PC{0,40}") {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                let _ = content_type(&HeaderMap::from_iter([(CONTENT_TYPE, value)]));
            }
        }

        #[test]
        fn any_detail_makes_a_message(detail in any::<String>()) {
            let refusal = Refusal::new(RefusalKind::KeyInvalid, None).with_detail(detail.clone());
            let response = render(refusal, HeaderValue::from_static("application/grpc"));
            let message = response.headers()[GRPC_MESSAGE].to_str().unwrap();
            let back = percent_encoding::percent_decode_str(message).decode_utf8().unwrap();
            prop_assert_eq!(back, format!("key-invalid: {detail}"));
        }
    }
}
