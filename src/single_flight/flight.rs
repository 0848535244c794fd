//! What a handler sees of its flight, and says about it.

/// What a request behind a [`SingleFlightLayer`](crate::SingleFlightLayer) is to the others of its
/// key: in the extensions of the request, and an extractor in axum.
///
/// ```
/// use tower_lock::single_flight::Flight;
///
/// # fn cached() -> Option<String> { None }
/// # fn rebuild() -> String { String::new() }
/// async fn report(flight: Flight) -> String {
///     let cached = cached();
///     if flight == Flight::Follows && cached.is_none() {
///         eprintln!("the cache lost what was rebuilt a moment ago: is it too small?");
///     }
///     cached.unwrap_or_else(rebuild)
/// }
/// # let _ = report;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flight {
    /// It is the one that works; the others wait for it. Its lock is among the
    /// [`HeldLocks`](crate::HeldLocks), with a fencing token.
    Leads,
    /// It waited for one that has finished, and runs beside all who did: what the leader rebuilt is
    /// there, unless the leader [gave up](GiveUp).
    Follows,
    /// It waited as long as it may, or the backend was not there: it runs although another may be at
    /// work.
    Alone,
}

/// In the extensions of a response: its handler did not make what the others wait for, and none of
/// them would. They all run at once, instead of one after the other, and nothing is shared.
///
/// Such as for a report that is never cached:
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Extension, response::IntoResponse};
/// use tower_lock::single_flight::GiveUp;
///
/// async fn report() -> impl IntoResponse {
///     (Extension(GiveUp), "too large to cache")
/// }
/// # let _ = report;
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct GiveUp;
