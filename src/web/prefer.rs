//! `Prefer: wait=N` (RFC 7240): how long a client wants to wait, and what it gets.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::list::split;
use crate::policy::Wait;

const PREFER: HeaderName = HeaderName::from_static("prefer");

/// The header that tells a client which of its preferences was honoured.
pub(crate) const PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// The longest finite wait: what a policy accepts, in whole seconds.
const MAX_WAIT: Duration = Duration::from_secs(u32::MAX as u64 / 1000);

/// The client's `wait` preference.
///
/// The first one counts, as the RFC says, even if it is no number: then there is none.
pub(crate) fn wait(headers: &HeaderMap) -> Option<Duration> {
    // Most requests have none, and `get_all` costs more to say so.
    headers.get(PREFER)?;
    headers
        .get_all(PREFER)
        .iter()
        .find_map(|line| first_wait(line.as_bytes()))?
        .map(Duration::from_secs)
}

/// The wait of a route for a client with this preference, and the seconds to tell it in
/// [`PREFERENCE_APPLIED`] if it has one.
///
/// A client may always lower the wait, down to 0 = do not wait, and raise it up to the larger of
/// the route's own and `max`. The seconds are rounded up: they bound the time that it waits.
pub(crate) fn effective_wait(
    route: Wait,
    max: Option<Duration>,
    preference: Option<Duration>,
) -> (Wait, Option<u64>) {
    let Some(preference) = preference else {
        return (route, None);
    };
    let max = max.unwrap_or_default();
    let ceiling = match route {
        Wait::Fail => max,
        Wait::For(wait) => wait.max(max),
        Wait::Forever => MAX_WAIT,
    };
    let wait = preference.min(ceiling);
    let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    (Wait::from(wait), Some(seconds))
}

/// The value of [`PREFERENCE_APPLIED`].
pub(crate) fn applied(seconds: u64) -> HeaderValue {
    HeaderValue::try_from(format!("wait={seconds}")).expect("digits stand in a header")
}

/// The first `wait` of a line: `None` if it has none, `Some(None)` if that is no number.
fn first_wait(line: &[u8]) -> Option<Option<u64>> {
    split(line, b',').find_map(|preference| {
        // The rest are parameters, of which `wait` has none.
        let preference = split(preference, b';').next()?;
        let (name, value) = match preference.iter().position(|b| *b == b'=') {
            Some(at) => (&preference[..at], Some(&preference[at + 1..])),
            None => (preference, None),
        };
        name.trim_ascii()
            .eq_ignore_ascii_case(b"wait")
            .then(|| value.and_then(|value| seconds(value.trim_ascii())))
    })
}

/// A number of seconds, bare or quoted; one that is too large for 64 bits counts as the largest.
fn seconds(word: &[u8]) -> Option<u64> {
    let digits = word
        .strip_prefix(b"\"")
        .map_or(Some(word), |word| word.strip_suffix(b"\""))?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |n: u64, digit| {
        n.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        lines
            .iter()
            .map(|line| (PREFER, HeaderValue::from_bytes(line.as_bytes()).unwrap()))
            .collect()
    }

    fn secs(n: u64) -> Option<Duration> {
        Some(Duration::from_secs(n))
    }

    #[test]
    fn wait_among_other_preferences() {
        let table: &[(&[&str], Option<Duration>)] = &[
            (&[], None),
            (&["wait=10"], secs(10)),
            (&["wait=0"], secs(0)),
            (&["Wait=10"], secs(10)),
            (&["wait = 10"], secs(10)),
            (&["wait=\"10\""], secs(10)),
            (&["wait=10; foo=bar"], secs(10)),
            (&["wait=10;foo=\"a,b\", respond-async"], secs(10)),
            (&["respond-async, wait=10"], secs(10)),
            (&["respond-async,wait=10"], secs(10)),
            (&[", ,wait=10,"], secs(10)),
            (&["return=minimal", "respond-async", "wait=7"], secs(7)),
            (&["wait=3, wait=9"], secs(3)),
            (&["wait=3", "wait=9"], secs(3)),
            (&["foo; wait=9"], None),
            (&["foo=\"a, wait=9\", wait=4"], secs(4)),
            (&["foo=\"a\\\", wait=9\", wait=4"], secs(4)),
            (&["foo=\"unterminated, wait=9"], None),
            (&["foo=\"unterminated", "wait=9"], secs(9)),
            (&["waiting=9"], None),
            (&["99999999999999999999999"], None),
            (&["wait=99999999999999999999999"], secs(u64::MAX)),
            (&["wait=007"], secs(7)),
        ];
        for (lines, expected) in table {
            assert_eq!(wait(&headers(lines)), *expected, "{lines:?}");
        }
    }

    #[test]
    fn a_wait_that_is_no_number_is_none() {
        for value in [
            "wait",
            "wait=",
            "wait=\"\"",
            "wait=\"5",
            "wait=5\"",
            "wait=-1",
            "wait=+1",
            "wait=1.5",
            "wait=1s",
            "wait=soon",
            "wait==5",
            "wait=5 6",
            "wait=é",
        ] {
            assert_eq!(wait(&headers(&[value])), None, "{value}");
            let then_another = [value, "wait=5"];
            assert_eq!(
                wait(&headers(&then_another)),
                None,
                "only the first counts: {value}"
            );
        }
    }

    #[test]
    fn what_a_client_gets() {
        let ms = Duration::from_millis;
        let wait = |n| Wait::For(ms(n));
        let table = [
            // No preference.
            (wait(5000), None, None, wait(5000), None),
            (Wait::Forever, None, None, Wait::Forever, None),
            // Lower: always.
            (wait(5000), None, secs(2), wait(2000), Some(2)),
            (wait(5000), None, secs(0), Wait::Fail, Some(0)),
            (wait(5000), Some(ms(1000)), secs(2), wait(2000), Some(2)),
            (Wait::Forever, None, secs(2), wait(2000), Some(2)),
            // Raise: up to the larger of the two.
            (wait(5000), None, secs(9999), wait(5000), Some(5)),
            (wait(5000), Some(ms(1000)), secs(9), wait(5000), Some(5)),
            (wait(5000), Some(ms(20_000)), secs(9), wait(9000), Some(9)),
            (
                wait(5000),
                Some(ms(20_000)),
                secs(99),
                wait(20_000),
                Some(20),
            ),
            (Wait::Fail, None, secs(9), Wait::Fail, Some(0)),
            (Wait::Fail, Some(ms(3000)), secs(9), wait(3000), Some(3)),
            // Told in whole seconds that bound the wait.
            (wait(2500), None, secs(9), wait(2500), Some(3)),
            (wait(300), None, secs(1), wait(300), Some(1)),
            (
                Wait::Forever,
                None,
                secs(u64::MAX),
                Wait::For(MAX_WAIT),
                Some(4_294_967),
            ),
        ];
        for (route, max, preference, expected, seconds) in table {
            assert_eq!(
                effective_wait(route, max, preference),
                (expected, seconds),
                "{route:?} {max:?} {preference:?}"
            );
        }
        assert_eq!(applied(5), "wait=5");
    }

    proptest! {
        #[test]
        fn no_header_panics(lines in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 0..60), 0..4)) {
            let headers: HeaderMap = lines
                .iter()
                .filter_map(|line| HeaderValue::from_bytes(line).ok())
                .map(|line| (PREFER, line))
                .collect();
            let _ = wait(&headers);
        }

        #[test]
        fn no_near_miss_panics(line in "[wait=0-9,; \"\\\\]{0,40}") {
            let _ = wait(&headers(&[&line]));
        }

        #[test]
        fn wait_is_found_behind_others(
            others in proptest::collection::vec("[a-v]{1,8}(=(\"[ -!#-\\[\\]-~]{0,8}\"|[a-z]{0,4}))?", 0..4),
            n in any::<u32>(),
        ) {
            let mut line = others.join(" , ");
            line.push_str(&format!(", wait={n}"));
            prop_assert_eq!(wait(&headers(&[&line])), secs(u64::from(n)));
        }

        #[test]
        fn a_client_never_gets_more_than_it_may(
            route in 0u64..100_000, max in 0u64..100_000, n in any::<u64>(),
        ) {
            let ceiling = Duration::from_millis(route.max(max));
            let (wait, seconds) = effective_wait(
                Wait::from(Duration::from_millis(route)),
                Some(Duration::from_millis(max)),
                secs(n),
            );
            let wait = match wait {
                Wait::Fail => Duration::ZERO,
                Wait::For(wait) => wait,
                Wait::Forever => unreachable!(),
            };
            prop_assert!(wait <= ceiling && wait <= Duration::from_secs(n));
            let told = Duration::from_secs(seconds.unwrap());
            prop_assert!(wait <= told && told < wait + Duration::from_secs(1));
        }
    }
}
