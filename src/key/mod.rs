//! From a request to the keys that it locks.

mod lock_key;

use std::{fmt, future::Future, pin::Pin};

use bytes::Bytes;
use http::{Response, request::Parts};
use http_body_util::combinators::UnsyncBoxBody;

pub use self::lock_key::LockKey;
use crate::error::BoxError;

/// What an extractor says of a request.
pub type ExtractResult = Result<LockKeys, KeyRejection>;

/// Derives the keys of a request from its head.
///
/// Most users write a closure ([`from_fn`]) or take a ready-made extractor.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not derive lock keys from a request",
    label = "not a `KeyExtractor`",
    note = "use a ready-made one such as `PathKey::new(\"order\", \"id\")`, or `key::from_fn(|parts| LockKey::new(..))`",
    note = "a key from the body needs `LockLayer::buffered`"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Derives the keys. Runs before anything is locked, so it must be cheap.
    fn extract(&self, parts: &mut Parts) -> Extraction;
}

/// Derives the keys of a request from its head and its buffered body.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not derive lock keys from a request's body",
    note = "use `JsonKey::new(\"order\", \"/order/id\")`; a key from the head needs only `LockLayer::new`"
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

impl fmt::Debug for Extraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(result) => f.debug_tuple("Ready").field(result).finish(),
            Self::Pending(_) => f.write_str("Pending(..)"),
        }
    }
}

/// The keys of one request: none (it runs unlocked), one, or several (all or nothing).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockKeys {
    /// The request is not locked.
    Skip,
    /// One key.
    One(LockKey),
    /// Several, to be acquired in canonical order.
    Many(Vec<LockKey>),
}

/// Why a request has no key although it needs one.
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyRejection {
    /// A required header, field or parameter is not there: 400 `key-missing`.
    Missing {
        /// What is missing, for the client: a name of the API, never a value.
        what: String,
    },
    /// It is there and cannot be a key: 400 `key-invalid`.
    Invalid {
        /// What is wrong and what is accepted; never the value itself.
        what: String,
    },
    /// The body is longer than the extractor buffers: 413 `body-too-large`.
    BodyTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The route cannot give this key: 500 `lock-misconfigured`. For the log, not for the client.
    Misconfigured {
        /// What the developer must change.
        what: String,
    },
    /// An answer of the application's own, such as an extractor's 401, sent as it is.
    Response(Box<Response<UnsyncBoxBody<Bytes, BoxError>>>),
}
