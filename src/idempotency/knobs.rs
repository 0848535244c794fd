//! The settings of an idempotency policy that are a choice.

use std::time::Duration;

use http::StatusCode;

/// Which responses are stored, and so replayed. Whatever is not stored leaves its key unused: the
/// request may be sent again with it, and runs again.
///
/// | status | `Definitive` | `SuccessOnly` | `Everything` |
/// |---|---|---|---|
/// | 1xx | no | no | no |
/// | 2xx | yes | yes | yes |
/// | 3xx | yes | no | yes |
/// | 4xx | yes, but 401, 403, 408, 409, 425, 429 | no | yes |
/// | 5xx and above | no | no | yes |
///
/// gRPC responses (`content-type: application/grpc`) are judged by their `grpc-status`, in the
/// headers or the trailers:
///
/// | `grpc-status` | `Definitive` | `SuccessOnly` | `Everything` |
/// |---|---|---|---|
/// | `OK` (0) | yes | yes | yes |
/// | `INVALID_ARGUMENT` (3), `NOT_FOUND` (5), `ALREADY_EXISTS` (6), `FAILED_PRECONDITION` (9), `OUT_OF_RANGE` (11) | yes | no | yes |
/// | any other, or none | no | no | yes |
///
/// gRPC-web has its status within the body. Put the layer inside of what translates it; outside,
/// the HTTP status counts.
///
/// A [`Refusal`](crate::Refusal) of a layer inside, which may be repeated, had no effect and is
/// never stored, whatever its status. A handler decides for itself by [`Keep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// What the handler decided: not what went wrong by the way, nor who may try, nor when.
    #[default]
    Definitive,
    /// Only successes. A request that the handler refused runs again.
    SuccessOnly,
    /// Failures of the service too, as Stripe does with those of a handler: a client that got a 500 gets it again for as
    /// long as the record lives, and must look what happened before it sends a new key.
    Everything,
}

impl Store {
    /// Whether a response of this status is stored.
    pub fn stores(self, status: StatusCode) -> bool {
        if status.is_informational() {
            return false;
        }
        match self {
            Self::SuccessOnly => status.is_success(),
            Self::Everything => true,
            Self::Definitive => match status.as_u16() {
                401 | 403 | 408 | 409 | 425 | 429 => false,
                code => code < 500,
            },
        }
    }

    /// Whether a gRPC response of this `grpc-status` is stored; `None` where it has none.
    pub fn stores_grpc(self, code: Option<u16>) -> bool {
        match self {
            Self::SuccessOnly => code == Some(0),
            Self::Everything => true,
            Self::Definitive => matches!(code, Some(0 | 3 | 5 | 6 | 9 | 11)),
        }
    }
}

/// What a repeated request meets when the first one was begun and nobody knows how it ended: its
/// process died, or lost its lock and could not save.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnCrash {
    /// It runs again. **So a request runs at least once, not exactly once**: give the client's key
    /// or the fencing token to whatever the handler changes, and the second run finds the first.
    #[default]
    Rerun,
    /// It is refused with 409 `outcome-unknown` for as long as the record lives, and a person looks.
    Refuse,
}

/// What becomes of a request whose response should be stored and cannot be: it is longer than the
/// policy or the store takes, or its body broke off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreplayable {
    /// That it was completed is stored, with its status. Repeated requests are refused with 409
    /// `already-completed` and never run.
    #[default]
    Tombstone,
    /// Its key is left unused: a repeated request runs again.
    Release,
}

/// What becomes of this one response, said by the handler in the response's extensions, whatever
/// [`Store`] says of its status.
///
/// It is for [`IdempotencyPolicy`](super::IdempotencyPolicy). Under axum:
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use std::time::Duration;
/// use axum::{Extension, http::StatusCode, response::IntoResponse};
/// use tower_lock::idempotency::Keep;
///
/// async fn checkout() -> impl IntoResponse {
///     // The provider was down and nothing was charged: the client may try again with its key.
///     (StatusCode::UNPROCESSABLE_ENTITY, Extension(Keep::No), "try again")
/// }
///
/// async fn reserve() -> impl IntoResponse {
///     // Of no use after the seat is free again.
///     (StatusCode::CREATED, Extension(Keep::For(Duration::from_secs(600))), "seat 7")
/// }
/// # let _ = (checkout, reserve);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keep {
    /// It is not stored, and the key is left unused.
    No,
    /// It is stored for this long, from when it is saved; zero is [`No`](Self::No). At most what
    /// the store takes.
    For(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_statuses() {
        const NOT_DEFINITIVE: [u16; 6] = [401, 403, 408, 409, 425, 429];
        for code in 100..1000 {
            let status = StatusCode::from_u16(code).unwrap();
            let expected = match code {
                ..200 => [false, false, false],
                200..300 => [true, true, true],
                300..400 => [true, false, true],
                400..500 => [!NOT_DEFINITIVE.contains(&code), false, true],
                _ => [false, false, true],
            };
            let stores = [Store::Definitive, Store::SuccessOnly, Store::Everything]
                .map(|store| store.stores(status));
            assert_eq!(stores, expected, "{code}");
        }
    }

    #[test]
    fn the_table_of_grpc() {
        for code in (0..20).map(Some).chain([None, Some(999)]) {
            let expected = match code {
                Some(0) => [true, true, true],
                Some(3 | 5 | 6 | 9 | 11) => [true, false, true],
                _ => [false, false, true],
            };
            let stores = [Store::Definitive, Store::SuccessOnly, Store::Everything]
                .map(|store| store.stores_grpc(code));
            assert_eq!(stores, expected, "{code:?}");
        }
    }
}
