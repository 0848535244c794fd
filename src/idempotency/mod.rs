//! Requests that are sent again: `IdempotencyLayer`, and the rules by which it knows and answers them.
//!
//! A client that gets no answer cannot know whether its request took effect. If it sends the same
//! request with the same `Idempotency-Key` again, the first run's response is replayed instead of
//! running the handler twice, after the IETF's
//! [draft-ietf-httpapi-idempotency-key-header](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/).
//!
//! | question | answered by |
//! |---|---|
//! | which route, on which locks | [`IdempotencyLayer`] |
//! | where is the key, and whose is it | [`IdempotencyKey`] |
//! | is it the same request | [`FingerprintOf`], [`Fingerprint`] |
//! | what stands in the store | [`Stored`], [`StoredResponse`], [`StoredHeaders`] |
//! | is this response stored, and for how long | [`IdempotencyPolicy::judge`], [`Store`], [`Keep`] |
//! | what does a repeated request get | [`IdempotencyPolicy::meet`], [`OnCrash`] |
//! | what does the handler see | [`FirstRun`] |
//!
//! # What a client gets
//!
//! | situation | status | problem |
//! |---|---|---|
//! | no key | 400 | [`key-missing`](crate::problem#key-missing) |
//! | a key that is repeated, empty, too long, not well-formed | 400 | [`key-invalid`](crate::problem#key-invalid) |
//! | a body that is too long to compare | 413 | [`body-too-large`](crate::problem#body-too-large) |
//! | the key of another request | 422 | [`key-reused`](crate::problem#key-reused) |
//! | the first is at work | 409 | [`in-progress`](crate::problem#in-progress) |
//! | the first is done | as the first | its response, with `Idempotent-Replayed: true` |
//! | the first is done, and its response was not kept | 409 | [`already-completed`](crate::problem#already-completed) |
//! | the first ended without a word | runs again, or 409 | [`outcome-unknown`](crate::problem#outcome-unknown) |

mod client_key;
mod content_type;
mod find;
mod fingerprint;
mod first_run;
mod key;
mod knobs;
mod layer;
mod mark;
mod place;
mod policy;
mod repeat;
mod serve;
mod service;
mod source;
mod stored;
mod verdict;

pub use self::{
    client_key::ClientKey,
    fingerprint::{Fingerprint, FingerprintOf},
    first_run::FirstRun,
    key::{FromExtractor, FromHeader, IdempotencyKey, Scoped, ScopedKey, Unscoped},
    knobs::{Keep, OnCrash, Store, Unreplayable},
    layer::IdempotencyLayer,
    mark::{IDEMPOTENT_REPLAYED, mark_replayed},
    policy::IdempotencyPolicy,
    repeat::{Holder, Repeat},
    service::{IdempotencyFuture, IdempotencyService},
    source::IntoKeyExtractor,
    stored::{Stored, StoredError, StoredOutcome},
    verdict::Verdict,
};
pub use crate::replay::{StoredHeaders, StoredResponse};
