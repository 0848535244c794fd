//! Requests that ask for the same: `SingleFlightLayer`. One of them works, the others wait for it.
//!
//! | question | answered by |
//! |---|---|
//! | which route, on which locks | [`SingleFlightLayer`] |
//! | how long is a leader waited for, is its response shared | [`SingleFlightPolicy`] |
//! | what does its response mean to the others | [`Landing`], [`GiveUp`] |
//! | what does the handler see | [`Flight`] |
//!
//! # What becomes of a request
//!
//! | there is | it |
//! |---|---|
//! | nobody at work | leads: its handler runs under the lock of the key |
//! | a leader, who is done in time | follows: its handler runs, beside those of all others who waited |
//! | the same, and its response is shared | gets that response; its handler does not run |
//! | a shared response that is fresh | gets it at once |
//! | one that is stale, where that is allowed | gets it at once, and the leader works in the background |
//! | a leader who fails, or is gone | leads, if it is the first of those who wait; else it waits on |
//! | a leader who [gives up](GiveUp) | runs, beside the others |
//! | a leader who is not done in time; no backend | runs alone, without a lock |
//! | too many who wait | is refused: 429 [`too-many-waiters`](crate::problem#too-many-waiters), 503 [`overloaded`](crate::problem#overloaded) |
//! | a shutdown | is refused: 503 [`draining`](crate::problem#draining) |
//!
//! Who waits is told of the leader's end by the backend, all at once and in every instance: nothing
//! is polled.

mod cache_control;
mod find;
mod flight;
mod kept;
mod landing;
mod layer;
mod policy;
mod serve;
mod service;
mod settings;
mod share;
mod vary;

pub use self::{
    flight::{Flight, GiveUp},
    landing::Landing,
    layer::SingleFlightLayer,
    policy::SingleFlightPolicy,
    service::{SingleFlightFuture, SingleFlightService},
};
pub use crate::replay::StoredHeaders;
