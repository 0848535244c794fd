//! What a request meets that is not the first one of its key.

use std::time::Duration;

use bytes::Bytes;

use super::{
    fingerprint::Fingerprint,
    knobs::OnCrash,
    policy::IdempotencyPolicy,
    stored::{Stored, StoredOutcome},
};
use crate::{
    key::LockKey,
    replay::StoredResponse,
    web::{Refusal, RefusalKind},
};

/// Who has a key under which a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Another request, still at work; what is known of how long its lease lasts.
    Other {
        /// What remains of its lease.
        remaining: Option<Duration>,
    },
    /// Nobody, or this request: whoever wrote the record is done or gone.
    Gone,
}

/// What becomes of a request that found a record under its key.
#[derive(Debug)]
#[non_exhaustive]
pub enum Repeat {
    /// It gets the response of the first one.
    Replay(StoredResponse),
    /// It is refused.
    Refuse(Refusal),
    /// It runs, as if it were the first; an earlier run may have begun.
    Rerun,
}

impl IdempotencyPolicy {
    /// What becomes of a request of this fingerprint that found these bytes under its key.
    ///
    /// In this order:
    ///
    /// | the record | is held by another | the request |
    /// |---|---|---|
    /// | is not understood: see [`StoredError`](super::StoredError) | | is refused: 409 `outcome-unknown` |
    /// | has another fingerprint | | is refused: 422 `key-reused` |
    /// | is a response | | is answered with it |
    /// | is a tombstone | | is refused: 409 `already-completed` |
    /// | says that a request was begun | yes | is refused: 409 `in-progress` |
    /// | the same | no | as [`OnCrash`] says: runs, or is refused with 409 `outcome-unknown` |
    ///
    /// ```
    /// use tower_lock::{LockKey, RefusalKind};
    /// use tower_lock::idempotency::{
    ///     FingerprintOf, Holder, IdempotencyPolicy, Repeat, Stored, StoredOutcome,
    /// };
    ///
    /// let policy = IdempotencyPolicy::new();
    /// let key = LockKey::new("idempotency", "8e03978e");
    /// let print = |body: &[u8]| {
    ///     let (head, ()) = http::Request::post("/checkout").body(()).unwrap().into_parts();
    ///     policy.fingerprint().fingerprint(&head, body).unwrap()
    /// };
    /// let begun = Stored::new(print(b"cart 7"), StoredOutcome::Begun).encode();
    ///
    /// let meet = |body: &[u8], holder| policy.meet(&key, print(body), begun.clone(), holder);
    /// let at_work = Holder::Other { remaining: None };
    /// let Repeat::Refuse(refusal) = meet(b"cart 7", at_work) else { panic!() };
    /// assert_eq!(refusal.kind(), RefusalKind::InProgress);
    /// let Repeat::Refuse(refusal) = meet(b"cart 8", at_work) else { panic!() };
    /// assert_eq!(refusal.kind(), RefusalKind::KeyReused);
    /// assert!(matches!(meet(b"cart 7", Holder::Gone), Repeat::Rerun));
    /// ```
    pub fn meet(
        &self,
        key: &LockKey,
        fingerprint: Fingerprint,
        record: Bytes,
        holder: Holder,
    ) -> Repeat {
        let refuse = |kind| Repeat::Refuse(Refusal::new(kind, Some(key.namespace())));
        let stored = match Stored::decode(record) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::error!(
                    target: "tower_lock",
                    namespace = key.namespace(),
                    %error,
                    "a request is refused: what is stored for its idempotency key is not understood"
                );
                return refuse(RefusalKind::OutcomeUnknown);
            }
        };
        if stored.fingerprint != fingerprint {
            return refuse(RefusalKind::KeyReused);
        }
        match (stored.outcome, holder) {
            (StoredOutcome::Response(response), _) => Repeat::Replay(response),
            (StoredOutcome::Tombstone { original_status }, _) => {
                let refusal = Refusal::new(RefusalKind::AlreadyCompleted, Some(key.namespace()));
                Repeat::Refuse(refusal.with_original_status(original_status))
            }
            (StoredOutcome::Begun, Holder::Other { remaining }) => {
                let refusal = Refusal::new(RefusalKind::InProgress, Some(key.namespace()));
                Repeat::Refuse(refusal.with_retry_after(remaining))
            }
            (StoredOutcome::Begun, Holder::Gone) => match self.on_crash() {
                OnCrash::Rerun => Repeat::Rerun,
                OnCrash::Refuse => refuse(RefusalKind::OutcomeUnknown),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use RefusalKind::*;

    const OTHER: Holder = Holder::Other {
        remaining: Some(Duration::from_secs(7)),
    };

    fn print(byte: u8) -> Fingerprint {
        Fingerprint::from_bytes([byte; Fingerprint::LENGTH])
    }

    fn bytes(outcome: &StoredOutcome) -> Bytes {
        Stored::new(print(1), outcome.clone()).encode()
    }

    fn meet(
        policy: &IdempotencyPolicy,
        print: Fingerprint,
        record: Bytes,
        holder: Holder,
    ) -> Repeat {
        policy.meet(&LockKey::new("idempotency", "abc"), print, record, holder)
    }

    fn refusal(repeat: Repeat) -> Refusal {
        let Repeat::Refuse(refusal) = repeat else {
            panic!("not refused: {repeat:?}");
        };
        assert_eq!(refusal.namespace(), "idempotency");
        refusal
    }

    fn outcomes() -> [StoredOutcome; 3] {
        let original_status = StatusCode::CREATED;
        [
            StoredOutcome::Begun,
            StoredOutcome::Response(StoredResponse::new(StatusCode::CREATED, Bytes::from("42"))),
            StoredOutcome::Tombstone { original_status },
        ]
    }

    #[test]
    fn another_payload_is_refused_whatever_stands_there() {
        for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
            let policy = IdempotencyPolicy::new().with_on_crash(on_crash);
            for outcome in outcomes() {
                for holder in [OTHER, Holder::Gone] {
                    let refusal = refusal(meet(&policy, print(2), bytes(&outcome), holder));
                    assert_eq!(refusal.kind(), KeyReused, "{outcome:?} {holder:?}");
                }
            }
        }
    }

    #[test]
    fn what_ended_is_answered_whoever_holds_the_key() {
        let policy = IdempotencyPolicy::new();
        let [_, response, tombstone] = outcomes();
        for holder in [OTHER, Holder::Gone] {
            let Repeat::Replay(replay) = meet(&policy, print(1), bytes(&response), holder) else {
                panic!("not replayed");
            };
            assert_eq!(StoredOutcome::Response(replay), response);
            let refusal = refusal(meet(&policy, print(1), bytes(&tombstone), holder));
            assert_eq!(refusal.kind(), AlreadyCompleted);
            assert_eq!(refusal.original_status(), Some(StatusCode::CREATED));
        }
    }

    #[test]
    fn what_was_begun_is_in_progress_or_orphaned() {
        let rerun = IdempotencyPolicy::new();
        let refuse = rerun.clone().with_on_crash(OnCrash::Refuse);
        let begun = bytes(&StoredOutcome::Begun);
        for policy in [&rerun, &refuse] {
            let refusal = refusal(meet(policy, print(1), begun.clone(), OTHER));
            assert_eq!(refusal.kind(), InProgress);
            assert_eq!(refusal.retry_after(), Some(Duration::from_secs(7)));
        }
        let orphan = meet(&rerun, print(1), begun.clone(), Holder::Gone);
        assert!(matches!(orphan, Repeat::Rerun), "{orphan:?}");
        let orphan = refusal(meet(&refuse, print(1), begun, Holder::Gone));
        assert_eq!(orphan.kind(), OutcomeUnknown);
        assert_eq!(orphan.retry_after(), None);
    }

    #[test]
    fn what_is_not_understood_never_runs() {
        let policy = IdempotencyPolicy::new();
        for record in [&b""[..], b"{}", b"TL\x02", b"TL\x01\x00"] {
            for holder in [OTHER, Holder::Gone] {
                let record = Bytes::from_static(record);
                let refusal = refusal(meet(&policy, print(1), record, holder));
                assert_eq!(refusal.kind(), OutcomeUnknown);
            }
        }
    }
}
