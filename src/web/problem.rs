#![doc = include_str!("../docs/problems.md")]

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE, LINK, RETRY_AFTER},
};
use serde_json::Value;

pub use super::refusal::{Refusal, RefusalKind};
use crate::error::ConfigError;

/// Where the sections of this page are.
const DEFAULT_BASE: &str = "https://docs.rs/tower-lock/latest/tower_lock/problem/index.html#";

/// What stands before the slug in a problem's `type`. Default: this page.
#[derive(Clone, Default)]
pub(crate) struct ProblemBase(Option<Arc<str>>);

impl ProblemBase {
    /// A base of the application's own, to which the slug is appended as it is: it should end
    /// with `#` or `/`.
    ///
    /// # Errors
    ///
    /// On text that is not a URI reference, because it goes into a `Link` header.
    pub(crate) fn new(base: &str) -> Result<Self, ConfigError> {
        let fits = |b: u8| {
            b.is_ascii_graphic()
                && !matches!(
                    b,
                    b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
                )
        };
        if base.is_empty() || !base.bytes().all(fits) {
            return Err(ConfigError::new(format!(
                "problem_base is {base:?}, accepted is a URI such as \"https://api.example.com/problems/\""
            )));
        }
        Ok(Self(Some(base.into())))
    }

    fn type_of(&self, slug: &str) -> String {
        format!("{}{slug}", self.0.as_deref().unwrap_or(DEFAULT_BASE))
    }
}

impl fmt::Debug for ProblemBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProblemBase")
            .field(&self.0.as_deref().unwrap_or(DEFAULT_BASE))
            .finish()
    }
}

/// The response that carries this refusal, with the refusal in its extensions.
pub(crate) fn render(refusal: Refusal, base: &ProblemBase) -> Response<Bytes> {
    let entry = refusal.kind().entry();
    let type_uri = base.type_of(entry.slug);
    let instance = instance();
    let retry_ms = refusal.draw_retry_ms();
    tracing::debug!(
        instance,
        lock.namespace = refusal.namespace(),
        lock.outcome = entry.slug,
        status = refusal.status().as_u16(),
        "refused a request"
    );

    // By hand, to keep the members in the order of RFC 9457.
    let json = |text: &str| Value::from(text).to_string();
    let mut body = format!(
        r#"{{"type":{},"title":{},"status":{},"detail":{},"instance":"{instance}","retryable":{}"#,
        json(&type_uri),
        json(entry.title),
        refusal.status().as_u16(),
        json(refusal.detail()),
        entry.retryable,
    );
    if let Some(ms) = retry_ms {
        body.push_str(&format!(r#","retry_after_ms":{ms}"#));
    }
    if let Some(status) = refusal.original_status() {
        body.push_str(&format!(r#","original_status":{}"#, status.as_u16()));
    }
    body.push('}');

    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = refusal.status();
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Ok(link) = HeaderValue::try_from(format!("<{type_uri}>; rel=\"describedby\"")) {
        headers.insert(LINK, link);
    }
    if let Some(ms) = retry_ms {
        // Never 0: the hint has a least value.
        headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
    }
    response.extensions_mut().insert(refusal);
    response
}

/// A random UUID (version 4): it joins a client's report and a line of the log, no more.
fn instance() -> String {
    let bits = fastrand::u128(..);
    let bits = bits & !(0xf << 76) | 0x4 << 76;
    let bits = bits & !(0x3 << 62) | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!(
        "urn:uuid:{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use http::StatusCode;

    use super::*;

    fn parse(response: &Response<Bytes>) -> Value {
        serde_json::from_slice(response.body()).unwrap()
    }

    #[test]
    fn every_kind_is_rendered_as_a_problem() {
        for kind in RefusalKind::ALL {
            let response = render(Refusal::new(kind, Some("order")), &ProblemBase::default());
            let entry = kind.entry();
            let body = parse(&response);
            let type_uri = format!("{DEFAULT_BASE}{kind}");
            assert_eq!(response.status(), entry.status);
            assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
            assert_eq!(
                response.headers()[LINK],
                format!("<{type_uri}>; rel=\"describedby\"")
            );
            assert_eq!(body["type"], type_uri);
            assert_eq!(body["title"], entry.title);
            assert_eq!(body["status"], entry.status.as_u16());
            assert_eq!(body["retryable"], entry.retryable);
            assert_eq!(body.get("retry_after_ms").is_some(), entry.retryable);
            assert_eq!(
                response.headers().contains_key(RETRY_AFTER),
                entry.retryable
            );
            let refusal = response.extensions().get::<Refusal>().unwrap();
            assert_eq!(refusal.kind(), kind);
            assert_eq!(body["detail"], refusal.detail());
            let text = std::str::from_utf8(response.body()).unwrap();
            assert!(text.starts_with(r#"{"type":"#), "{text}");
            assert!(!text.contains("order"), "the namespace is not for clients");
        }
    }

    #[test]
    fn header_and_member_agree_on_when_to_retry() {
        for hint in [0, 1, 999, 1000, 1500, 12_345, 29_999, 90_000] {
            for _ in 0..50 {
                let refusal = Refusal::new(RefusalKind::LockBusy, None)
                    .with_retry_after(Duration::from_millis(hint));
                let response = render(refusal, &ProblemBase::default());
                let ms = parse(&response)["retry_after_ms"].as_u64().unwrap();
                let header = response.headers()[RETRY_AFTER].to_str().unwrap();
                let seconds: u64 = header.parse().unwrap();
                assert!((1..=30).contains(&seconds), "{seconds}");
                assert_eq!(seconds, ms.div_ceil(1000));
            }
        }
    }

    #[test]
    fn a_completed_request_tells_its_status() {
        let refusal = Refusal::new(RefusalKind::AlreadyCompleted, None);
        let plain = render(refusal.clone(), &ProblemBase::default());
        assert!(parse(&plain).get("original_status").is_none());
        let refusal = refusal.with_original_status(StatusCode::CREATED);
        let response = render(refusal, &ProblemBase::default());
        assert_eq!(response.status(), 409);
        assert_eq!(parse(&response)["original_status"], 201);
    }

    #[test]
    fn details_are_escaped() {
        let detail = "quote \" backslash \\ newline \n é";
        let refusal = Refusal::new(RefusalKind::KeyInvalid, None).with_detail(detail);
        assert_eq!(
            parse(&render(refusal, &ProblemBase::default()))["detail"],
            detail
        );
    }

    #[test]
    fn status_and_base_are_the_routes_own() {
        let base = ProblemBase::new("https://api.example.com/problems/").unwrap();
        let refusal = Refusal::new(RefusalKind::LockTimeout, None).with_status(StatusCode::LOCKED);
        let response = render(refusal, &base);
        assert_eq!(response.status(), 423);
        assert_eq!(parse(&response)["status"], 423);
        assert_eq!(
            parse(&response)["type"],
            "https://api.example.com/problems/lock-timeout"
        );
    }

    #[test]
    fn a_base_that_breaks_the_link_header_is_an_error() {
        for base in ["", "a b", "https://a/>; rel=x", "a\"b", "a\nb", "é"] {
            let error = ProblemBase::new(base).unwrap_err().to_string();
            assert!(error.contains("problem_base is"), "{error}");
        }
        assert!(ProblemBase::new("/problems#").is_ok());
    }

    #[test]
    fn instances_are_random_uuids_of_version_4() {
        let ids: BTreeSet<String> = (0..1000).map(|_| instance()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            let uuid = id.strip_prefix("urn:uuid:").unwrap();
            let parts: Vec<&str> = uuid.split('-').collect();
            assert_eq!(
                parts.iter().map(|p| p.len()).collect::<Vec<_>>(),
                [8, 4, 4, 4, 12]
            );
            assert!(uuid.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit()));
            assert!(parts[2].starts_with('4'), "{id}");
            assert!(parts[3].starts_with(['8', '9', 'a', 'b']), "{id}");
        }
    }

    #[test]
    fn the_page_has_a_section_for_every_slug() {
        let page = include_str!("../docs/problems.md");
        let sections: Vec<(&str, &str)> = page
            .split("\n## ")
            .skip(1)
            .filter_map(|section| section.split_once('\n'))
            .collect();
        let slugs: Vec<&str> = RefusalKind::ALL.iter().map(|k| k.as_str()).collect();
        assert_eq!(sections.iter().map(|s| s.0).collect::<Vec<_>>(), slugs);
        for (kind, (slug, text)) in RefusalKind::ALL.iter().zip(sections) {
            let entry = kind.entry();
            let facts = format!(
                "**Status** {}{}. **Retryable** {}.",
                entry.status.as_u16(),
                match kind {
                    RefusalKind::LockBusy | RefusalKind::LockTimeout =>
                        " (a route may choose 423, 429 or 503)",
                    _ => "",
                },
                if entry.retryable { "yes" } else { "no" }
            );
            assert!(text.contains(&facts), "{slug} lacks: {facts}");
        }
    }
}
