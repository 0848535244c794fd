//! Why a request has no key although it needs one.

use std::fmt;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Empty, combinators::UnsyncBoxBody};

use crate::error::BoxError;

/// Why a request has no key although it needs one.
///
/// A `StatusCode` or a whole `http::Response` (such as axum's) becomes one by `into`, so a closure
/// may return `Result<LockKey, StatusCode>` and use `?`.
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
    Response(OwnResponse),
}

/// A response of the application's own; made from any `http::Response` by
/// [`KeyRejection::from`].
pub struct OwnResponse(Box<Response<UnsyncBoxBody<Bytes, BoxError>>>);

impl OwnResponse {
    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.0.status()
    }

    /// The response, for whoever runs an extractor without a layer.
    pub fn into_response(self) -> Response<impl Body<Data = Bytes, Error = BoxError> + Send> {
        *self.0
    }

    pub(crate) fn into_inner(self) -> Response<UnsyncBoxBody<Bytes, BoxError>> {
        *self.0
    }
}

/// Without its headers and body: they may hold secrets.
impl fmt::Debug for OwnResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.status(), f)
    }
}

impl KeyRejection {
    /// [`Missing`](Self::Missing): names what is missing, such as ``header `x-order-id` ``.
    pub fn missing(what: impl Into<String>) -> Self {
        Self::Missing { what: what.into() }
    }

    /// [`Invalid`](Self::Invalid): says what is wrong and what is accepted, never the value.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    /// [`Misconfigured`](Self::Misconfigured): says what the developer must change.
    pub fn misconfigured(what: impl Into<String>) -> Self {
        Self::Misconfigured { what: what.into() }
    }
}

/// The response is sent as it is.
impl<B> From<Response<B>> for KeyRejection
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    fn from(response: Response<B>) -> Self {
        let response = response.map(|body| body.map_err(Into::into).boxed_unsync());
        Self::Response(OwnResponse(Box::new(response)))
    }
}

/// A response of this status with an empty body.
impl From<StatusCode> for KeyRejection {
    fn from(status: StatusCode) -> Self {
        let mut response = Response::new(Empty::new());
        *response.status_mut() = status;
        response.into()
    }
}

impl fmt::Display for KeyRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { what } => write!(f, "missing: {what}"),
            Self::Invalid { what } => write!(f, "invalid: {what}"),
            Self::BodyTooLarge { limit } => {
                write!(f, "the body is longer than {limit} bytes")
            }
            Self::Misconfigured { what } => write!(f, "misconfigured: {what}"),
            Self::Response(response) => write!(f, "answered with {}", response.status()),
        }
    }
}

impl std::error::Error for KeyRejection {}
