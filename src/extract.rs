//! The locks of a request as axum extractors.

use std::convert::Infallible;

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    http::request::Parts,
    response::{IntoResponse, Response},
};
use http::StatusCode;

use crate::{
    idempotency::FirstRun,
    lease::FencingToken,
    manager::{HeldLock, HeldLocks},
    single_flight::Flight,
};

/// A handler asked for a lock that its route does not hold, or for *the* token where there are
/// several: 500. The text for the developer goes to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockRejection {
    /// No `LockLayer` locked this request: it is not installed on the route, the method is not
    /// locked, or the route failed open.
    NotLocked,
    /// The innermost layer locked several keys, each with a token of its own.
    SeveralLocks,
    /// No `IdempotencyLayer` begins this request: it is not installed on the route, or the request has
    /// no key and needs none.
    NotIdempotent,
    /// No `SingleFlightLayer` is installed on the route, or it does not concern this method.
    NotInFlight,
}

impl std::fmt::Display for LockRejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotLocked => {
                "the request holds no lock: is a `LockLayer` installed on this route, and does it lock this method? `Option<HeldLock>` takes both"
            }
            Self::SeveralLocks => {
                "the request holds several locks of one layer, each with a fencing token of its own: take `HeldLocks`"
            }
            Self::NotInFlight => {
                "the request is not in a flight: is a `SingleFlightLayer` installed on this route, and does it concern this method? `Option<Flight>` takes both"
            }
            Self::NotIdempotent => {
                "the request has no idempotency key: is an `IdempotencyLayer` installed on this route, and is its key required? `Option<FirstRun>` takes both"
            }
        })
    }
}

impl std::error::Error for LockRejection {}

impl IntoResponse for LockRejection {
    fn into_response(self) -> Response {
        tracing::error!(target: "tower_lock", "{self}");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

/// The innermost lock; of several keys of one layer, the first in canonical order.
impl<S: Sync> FromRequestParts<S> for HeldLock {
    type Rejection = LockRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        parts
            .extensions
            .get::<HeldLock>()
            .cloned()
            .ok_or(LockRejection::NotLocked)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for HeldLock {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<HeldLock>().cloned())
    }
}

/// All locks of the request; empty if there are none.
impl<S: Sync> FromRequestParts<S> for HeldLocks {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(HeldLocks::from_extensions(&parts.extensions))
    }
}

/// The token of the innermost lock.
impl<S: Sync> FromRequestParts<S> for FencingToken {
    type Rejection = LockRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        match parts.extensions.get::<HeldLock>() {
            None => Err(LockRejection::NotLocked),
            Some(held) if held.siblings() > 1 => Err(LockRejection::SeveralLocks),
            Some(held) => Ok(held.fencing_token()),
        }
    }
}

/// The run of an [`IdempotencyLayer`](crate::IdempotencyLayer).
impl<S: Sync> FromRequestParts<S> for FirstRun {
    type Rejection = LockRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let run = parts.extensions.get::<FirstRun>().cloned();
        run.ok_or(LockRejection::NotIdempotent)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for FirstRun {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<FirstRun>().cloned())
    }
}

/// What the request is to others of its key.
impl<S: Sync> FromRequestParts<S> for Flight {
    type Rejection = LockRejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let flight = parts.extensions.get::<Flight>().copied();
        flight.ok_or(LockRejection::NotInFlight)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Flight {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Flight>().copied())
    }
}
