//! Which operation a request is for.

#[cfg(feature = "axum")]
use axum::extract::{MatchedPath, OriginalUri};
use http::{Uri, request::Parts};

/// The URI that the client sent: a nested router cuts its prefix from the head's own.
pub(super) fn original_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

/// The operation: what kind of name it is, so that no path passes for a route, and the name.
///
/// The matched route where axum's router is, so that a key belongs to one operation whatever its
/// parameters; else the original path as it was sent.
pub(super) fn operation(parts: &Parts) -> (&'static str, &str) {
    #[cfg(feature = "axum")]
    if let Some(matched) = parts.extensions.get::<MatchedPath>() {
        return ("route", matched.as_str());
    }
    ("path", original_uri(parts).path())
}
