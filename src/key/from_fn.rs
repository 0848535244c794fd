//! Keys from closures.

use std::fmt;

use bytes::Bytes;
use http::request::Parts;

use super::{BodyKeyExtractor, ExtractResult, Extraction, IntoLockKeys, KeyExtractor};

/// Keys from a closure over the head of the request.
///
/// ```
/// use http::request::Parts;
/// use tower_lock::{LockKey, key};
///
/// struct Tenant(String); // put into the extensions by your authentication
///
/// let per_tenant = key::from_fn(|parts: &Parts| {
///     let tenant = parts.extensions.get::<Tenant>()?;
///     Some(LockKey::new("tenant", &tenant.0))
/// });
/// # let _: &dyn tower_lock::KeyExtractor = &per_tenant;
/// ```
///
/// `None` runs the request unlocked; return a `Result` to refuse it instead: [`IntoLockKeys`].
pub fn from_fn<F, R>(f: F) -> FromFn<F>
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: IntoLockKeys,
{
    FromFn { f }
}

/// The extractor that [`from_fn`] makes.
#[derive(Clone)]
pub struct FromFn<F> {
    f: F,
}

impl<F, R> KeyExtractor for FromFn<F>
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: IntoLockKeys,
{
    fn extract(&self, parts: &mut Parts) -> Extraction {
        Extraction::Ready((self.f)(parts).into_lock_keys())
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromFn").finish_non_exhaustive()
    }
}

/// Keys from a closure over the head and the buffered body of the request.
///
/// A body of more than `max_body` bytes is answered with 413 before the closure runs; every
/// waiting request holds its body in memory, so keep the limit near what the route accepts.
///
/// ```
/// use bytes::Bytes;
/// use http::request::Parts;
/// use tower_lock::{LockKey, key};
///
/// // The same upload is processed once at a time.
/// let by_content = key::body_from_fn(64 * 1024, |_: &Parts, body: &Bytes| {
///     LockKey::from_values("upload", [body])
/// });
/// # let _: &dyn key::BodyKeyExtractor = &by_content;
/// ```
pub fn body_from_fn<F, R>(max_body: usize, f: F) -> BodyFromFn<F>
where
    F: Fn(&Parts, &Bytes) -> R + Send + Sync + 'static,
    R: IntoLockKeys,
{
    BodyFromFn { max_body, f }
}

/// The extractor that [`body_from_fn`] makes.
#[derive(Clone)]
pub struct BodyFromFn<F> {
    max_body: usize,
    f: F,
}

impl<F, R> BodyKeyExtractor for BodyFromFn<F>
where
    F: Fn(&Parts, &Bytes) -> R + Send + Sync + 'static,
    R: IntoLockKeys,
{
    fn max_body(&self) -> usize {
        self.max_body
    }

    fn extract(&self, parts: &Parts, body: &Bytes) -> ExtractResult {
        (self.f)(parts, body).into_lock_keys()
    }
}

impl<F> fmt::Debug for BodyFromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyFromFn")
            .field("max_body", &self.max_body)
            .finish_non_exhaustive()
    }
}
