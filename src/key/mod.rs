//! From a request to the keys that it locks.
//!
//! A [`LockKey`] is a namespace and values. Requests with the same key exclude each other,
//! whatever their method, route or server; requests with different keys never meet. So a key names
//! the thing that must not be changed twice at once, such as `order` and its number.
//!
//! # Which extractor
//!
//! | the key is in | use | the client chooses it |
//! |---|---|---|
//! | a parameter of the route, `/orders/{id}/pay` | `PathKey` (feature `axum`) | yes, within the route |
//! | a header, or gRPC metadata | [`HeaderKey`] | yes |
//! | a field of a JSON body | [`JsonKey`], with `LockLayer::buffered` | yes |
//! | the whole path and query | `PathAndQueryKey` (feature `axum`) | yes |
//! | what your axum extractors know: a user, a session, several parameters | `from_extractors` (feature `axum`) | as far as your extractors let it |
//! | anything else of the head | [`from_fn`] | as you write it |
//! | anything else of the body | [`body_from_fn`] | as you write it |
//!
//! The ready-made ones are **required**: a request without its key is refused and never runs
//! unlocked, unless you say `.optional()`. Wrong names panic when the extractor is built, at your
//! line; a request never panics.
//!
//! # What is trusted
//!
//! A key that comes from the client lets the client choose what it locks. If tenants number their
//! orders each for themselves, `order` 7 of one tenant blocks `order` 7 of the other; worse, a
//! hostile client can hold keys of others on purpose. Give such keys a scope that the client
//! cannot choose, from your authentication:
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use axum::{Extension, extract::Path};
//! use tower_lock::{LockKey, key};
//!
//! #[derive(Clone)]
//! struct Tenant(String); // put into the extensions by your authentication
//!
//! let order = key::from_extractors(|Extension(Tenant(tenant)): Extension<Tenant>, Path(id): Path<u64>| {
//!     LockKey::from_values("order", [tenant, id.to_string()])
//! });
//! # let _: &dyn tower_lock::KeyExtractor = &order;
//! # }
//! ```
//!
//! Values may be anything: they are written with their lengths or hashed, so no value can pass for
//! another key. Backends and their operators can read them, so a key is no place for a credential.
//! Clients and logs never see them.
//!
//! # Several keys
//!
//! A closure may return several keys. They are sorted, so that two requests never wait for each
//! other in a circle, and acquired all or none:
//!
//! ```
//! use http::request::Parts;
//! use tower_lock::{LockKey, key};
//!
//! struct Transfer { from: u64, to: u64 } // parsed by a middleware of yours
//!
//! let accounts = key::from_fn(|parts: &Parts| {
//!     let transfer = parts.extensions.get::<Transfer>()?;
//!     Some([LockKey::new("account", transfer.from), LockKey::new("account", transfer.to)])
//! });
//! # let _: &dyn tower_lock::KeyExtractor = &accounts;
//! ```
//!
//! # Your own
//!
//! Implement [`KeyExtractor`] or [`BodyKeyExtractor`] where closures do not suffice. A header may
//! be sent twice, and `HeaderMap::get` shows the first only: [`HeaderKey`] refuses such a request,
//! and so should yours.

mod body;
#[cfg(feature = "axum")]
mod extractors;
mod from_fn;
mod header;
mod lock_key;
mod lock_keys;
#[cfg(feature = "axum")]
mod path;
mod rejection;

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use http::request::Parts;

pub use self::{
    body::JsonKey,
    from_fn::{BodyFromFn, FromFn, body_from_fn, from_fn},
    header::HeaderKey,
    lock_key::LockKey,
    lock_keys::{IntoLockKeys, LockKeys},
    rejection::{KeyRejection, OwnResponse},
};
pub(crate) use self::{
    body::{is_json, is_pointer},
    lock_key::{check_namespace, push_hex},
};
#[cfg(feature = "axum")]
pub use self::{
    extractors::{ExtractorFn, FromExtractors, from_extractors, from_extractors_with_state},
    path::{PathAndQueryKey, PathKey},
};

/// What an extractor says of a request.
pub type ExtractResult = Result<LockKeys, KeyRejection>;

/// Derives the keys of a request from its head.
///
/// Most users write a closure ([`from_fn`]) or take a ready-made extractor.
///
/// ```
/// use http::request::Parts;
/// use tower_lock::{KeyExtractor, LockKey, key::Extraction};
///
/// /// One request per host at a time.
/// struct Host;
///
/// impl KeyExtractor for Host {
///     fn extract(&self, parts: &mut Parts) -> Extraction {
///         let host = parts.uri.host().unwrap_or_default();
///         Extraction::Ready(Ok(LockKey::new("host", host).into()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not derive lock keys from a request",
    label = "not a `KeyExtractor`",
    note = "use a ready-made one such as `PathKey::new(\"order\", \"id\")`, or `key::from_fn(|parts: &Parts| LockKey::new(..))`",
    note = "a key from the body needs `LockLayer::buffered`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Derives the keys. Runs before anything is locked, so it must be cheap.
    ///
    /// With [`Extraction::Ready`] the head stays in `parts`. With [`Extraction::Pending`] the
    /// future owns it, what is left in `parts` is of no use, and the future's output gives it
    /// back. Either way the inner service gets the head, so it must come back whole; what an
    /// extractor puts into its extensions, the handler sees.
    fn extract(&self, parts: &mut Parts) -> Extraction;
}

impl<T: KeyExtractor + ?Sized> KeyExtractor for Arc<T> {
    fn extract(&self, parts: &mut Parts) -> Extraction {
        (**self).extract(parts)
    }
}

impl<T: KeyExtractor + ?Sized> KeyExtractor for Box<T> {
    fn extract(&self, parts: &mut Parts) -> Extraction {
        (**self).extract(parts)
    }
}

/// Derives the keys of a request from its head and its buffered body.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not derive lock keys from a request's body",
    label = "not a `BodyKeyExtractor`",
    note = "use `JsonKey::new(\"order\", \"/order/id\")` or `key::body_from_fn(max, |parts: &Parts, body: &Bytes| ..)`",
    note = "a key from the head needs only `LockLayer::new`"
)]
pub trait BodyKeyExtractor: Send + Sync + 'static {
    /// The longest body in bytes that is buffered; a longer one is answered with 413.
    fn max_body(&self) -> usize;

    /// Derives the keys.
    fn extract(&self, parts: &Parts, body: &Bytes) -> ExtractResult;
}

/// The outcome of [`KeyExtractor::extract`]: at once, or after a future.
pub enum Extraction {
    /// The keys, or why there are none.
    Ready(ExtractResult),
    /// A future that owns the head meanwhile and gives it back.
    Pending(Pin<Box<dyn Future<Output = (Parts, ExtractResult)> + Send>>),
}

impl Extraction {
    /// What became of `extract` for this head, and the head, whoever has it.
    pub(crate) async fn resolve(self, parts: Parts) -> (Parts, ExtractResult) {
        match self {
            Self::Ready(result) => (parts, result),
            Self::Pending(later) => later.await,
        }
    }
}

impl fmt::Debug for Extraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending(..)"),
        }
    }
}
