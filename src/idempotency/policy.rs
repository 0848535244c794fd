//! The idempotency policy of a route.

use std::time::Duration;

use super::{
    fingerprint::FingerprintOf,
    knobs::{OnCrash, Store, Unreplayable},
    stored::Stored,
};
use crate::{
    backend::Capabilities,
    error::ConfigError,
    policy::{Fairness, Guarantee, LockPolicy, OnDisconnect, OnLost, Wait, within},
    replay::StoredHeaders,
};

/// The shortest life of a record, and of a lease.
const MIN_TTL: Duration = Duration::from_millis(50);
const MAX_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// What is kept in memory for each request at work.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// How a route is idempotent. A plain value; see each setter for its default.
///
/// The setters only record; [`check`](Self::check) and [`check_records`](Self::check_records) say
/// what is wrong.
///
/// | knob | default | |
/// |---|---|---|
/// | [`record_ttl`](Self::with_record_ttl) | 24 h | how long a repeated request is known again |
/// | [`store`](Self::with_store) | [`Store::Definitive`] | which responses are stored |
/// | [`on_crash`](Self::with_on_crash) | [`OnCrash::Rerun`] | when nobody knows how the first run ended |
/// | [`unreplayable`](Self::with_unreplayable) | [`Unreplayable::Tombstone`] | when the response cannot be stored |
/// | [`fingerprint`](Self::with_fingerprint) | the whole body, up to 1 MiB | what must be the same |
/// | [`stored_headers`](Self::with_stored_headers) | see [`StoredHeaders`] | what is replayed |
/// | [`max_response`](Self::with_max_response) | 1 MiB | the longest body that is stored |
/// | [`ttl`](Self::with_ttl) | 30 s | the lease of the lock while the first request runs |
/// | [`wait`](Self::with_wait) | [`Wait::Fail`] | how long a repeated request waits for the first |
/// | [`max_waiters`](Self::with_max_waiters) | 64 | how many may wait for one key |
/// | [`on_disconnect`](Self::with_on_disconnect) | [`OnDisconnect::Detach`] | when the client of the first leaves |
/// | [`on_lost`](Self::with_on_lost) | [`OnLost::Signal`] | when the lock is lost |
///
/// Lease and record have lives of their own: when an instance dies, its keys are free again after
/// the lease, and records stay.
///
/// ```
/// use std::time::Duration;
/// use tower_lock::idempotency::{FingerprintOf, IdempotencyPolicy, OnCrash};
///
/// let policy = IdempotencyPolicy::new()
///     .with_wait(Duration::from_secs(2))
///     .with_record_ttl(Duration::from_secs(7 * 24 * 60 * 60))
///     .with_on_crash(OnCrash::Refuse)
///     .with_fingerprint(FingerprintOf::json_fields(["/cart", "/total"]));
/// assert_eq!(policy.ttl(), Duration::from_secs(30));
/// ```
#[must_use = "a policy does nothing until a layer takes it"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyPolicy {
    lock: LockPolicy,
    record_ttl: Duration,
    store: Store,
    on_crash: OnCrash,
    unreplayable: Unreplayable,
    fingerprint: FingerprintOf,
    stored_headers: StoredHeaders,
    max_response: usize,
}

impl Default for IdempotencyPolicy {
    fn default() -> Self {
        Self {
            lock: LockPolicy::new()
                .with_wait(Wait::Fail)
                .with_on_disconnect(OnDisconnect::Detach)
                .with_on_lost(OnLost::Signal),
            record_ttl: Duration::from_secs(24 * 60 * 60),
            store: Store::default(),
            on_crash: OnCrash::default(),
            unreplayable: Unreplayable::default(),
            fingerprint: FingerprintOf::default(),
            stored_headers: StoredHeaders::default(),
            max_response: 1024 * 1024,
        }
    }
}

/// What concerns records.
impl IdempotencyPolicy {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long a record lives from when it is saved, and so how long a repeated request is known
    /// again. Default 24 h; 50 ms to 366 days, and at most what the store takes. Tell your clients. That a
    /// request was begun is known for longer, if it may run for longer.
    pub fn with_record_ttl(mut self, ttl: Duration) -> Self {
        self.record_ttl = ttl;
        self
    }

    /// Which responses are stored. Default [`Store::Definitive`].
    pub fn with_store(mut self, store: Store) -> Self {
        self.store = store;
        self
    }

    /// What happens when nobody knows how the first run ended. Default [`OnCrash::Rerun`]: at
    /// least once.
    pub fn with_on_crash(mut self, on_crash: OnCrash) -> Self {
        self.on_crash = on_crash;
        self
    }

    /// What happens when the response cannot be stored. Default [`Unreplayable::Tombstone`].
    pub fn with_unreplayable(mut self, unreplayable: Unreplayable) -> Self {
        self.unreplayable = unreplayable;
        self
    }

    /// What a repeated request must have in common with the first. Default: every byte of the
    /// body, up to 1 MiB.
    ///
    /// Records of before a change of this do not know their requests again: for as long as they
    /// live, these are refused with 422.
    pub fn with_fingerprint(mut self, fingerprint: FingerprintOf) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// Which headers are stored. Default: see [`StoredHeaders`].
    pub fn with_stored_headers(mut self, headers: StoredHeaders) -> Self {
        self.stored_headers = headers;
        self
    }

    /// The longest response body that is stored, in bytes. Default 1 MiB; up to 64 MiB, and at
    /// most what the store takes with the headers. Of a longer one,
    /// [`unreplayable`](Self::with_unreplayable) decides. Up to this many bytes of each response
    /// are held in memory.
    pub fn with_max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// How long a record lives.
    pub fn record_ttl(&self) -> Duration {
        self.record_ttl
    }

    /// Which responses are stored.
    pub fn store(&self) -> Store {
        self.store
    }

    /// What happens when nobody knows how the first run ended.
    pub fn on_crash(&self) -> OnCrash {
        self.on_crash
    }

    /// What happens when the response cannot be stored.
    pub fn unreplayable(&self) -> Unreplayable {
        self.unreplayable
    }

    /// What a repeated request must have in common with the first.
    pub fn fingerprint(&self) -> &FingerprintOf {
        &self.fingerprint
    }

    /// Which headers are stored.
    pub fn stored_headers(&self) -> &StoredHeaders {
        &self.stored_headers
    }

    /// The longest response body that is stored, in bytes.
    pub fn max_response(&self) -> usize {
        self.max_response
    }
}

/// What concerns the lock under which the first request runs.
impl IdempotencyPolicy {
    /// The lease's length without a renewal. Default 30 s: when an instance dies, a repeated
    /// request meets 409 `in-progress` for so long. See [`LockPolicy::with_ttl`].
    pub fn with_ttl(self, ttl: Duration) -> Self {
        self.change(|lock| lock.with_ttl(ttl))
    }

    /// How long a request with a key that is at work waits, to get the response of the first. Default
    /// [`Wait::Fail`]: it is refused at once with 409 `in-progress`. See [`LockPolicy::with_wait`].
    pub fn with_wait(self, wait: impl Into<Wait>) -> Self {
        self.change(|lock| lock.with_wait(wait))
    }

    /// How far a client's `Prefer: wait=N` may raise the wait. Default: not above the route's own,
    /// which is not to wait. See [`LockPolicy::with_max_prefer_wait`].
    pub fn with_max_prefer_wait(self, max: Duration) -> Self {
        self.change(|lock| lock.with_max_prefer_wait(max))
    }

    /// Who is next where nothing was stored. See [`LockPolicy::with_fairness`].
    pub fn with_fairness(self, fairness: Fairness) -> Self {
        self.change(|lock| lock.with_fairness(fairness))
    }

    /// How many may wait for one key in this process. Default 64. See
    /// [`LockPolicy::with_max_waiters`].
    pub fn with_max_waiters(self, max: usize) -> Self {
        self.change(|lock| lock.with_max_waiters(max))
    }

    /// What happens when the client of the first request leaves. Default
    /// [`OnDisconnect::Detach`]: it is finished and its response stored. With
    /// [`OnDisconnect::Cancel`] the handler is dropped wherever it stands, and a repeated request
    /// meets what [`on_crash`](Self::with_on_crash) says.
    pub fn with_on_disconnect(self, on_disconnect: OnDisconnect) -> Self {
        self.change(|lock| lock.with_on_disconnect(on_disconnect))
    }

    /// What happens when the lock is lost. Default [`OnLost::Signal`]: the handler goes on, and
    /// its response is stored unless another run has begun.
    pub fn with_on_lost(self, on_lost: OnLost) -> Self {
        self.change(|lock| lock.with_on_lost(on_lost))
    }

    /// How long a request may run under its lock. Default 10 × ttl. See
    /// [`LockPolicy::with_max_hold`].
    pub fn with_max_hold(self, max_hold: Duration) -> Self {
        self.change(|lock| lock.with_max_hold(max_hold))
    }

    /// What the lock is for. Default [`Guarantee::Efficiency`]. See
    /// [`LockPolicy::with_guarantee`].
    pub fn with_guarantee(self, guarantee: Guarantee) -> Self {
        self.change(|lock| lock.with_guarantee(guarantee))
    }

    fn change(mut self, change: impl FnOnce(LockPolicy) -> LockPolicy) -> Self {
        self.lock = change(self.lock);
        self
    }

    /// The policy of the lock. It is released once the response is stored.
    pub fn lock(&self) -> &LockPolicy {
        &self.lock
    }

    /// The lease's length without a renewal.
    pub fn ttl(&self) -> Duration {
        self.lock.ttl()
    }

    /// How long a request waits for the first one of its key.
    pub fn wait(&self) -> Wait {
        self.lock.wait()
    }
}

/// Which policies are accepted.
impl IdempotencyPolicy {
    /// Checks every knob by itself, and those of the lock against what the backend can do.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_lock::{LockManager, MemoryBackend, idempotency::IdempotencyPolicy};
    ///
    /// let locks = LockManager::new(MemoryBackend::new());
    /// let policy = IdempotencyPolicy::new().with_record_ttl(Duration::ZERO);
    /// let error = policy.check(&locks.capabilities(), false).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "record_ttl is 0ns, accepted is 50ms to 31622400s",
    /// );
    /// ```
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the first knob that is wrong, and what is accepted.
    pub fn check(
        &self,
        capabilities: &Capabilities,
        single_instance: bool,
    ) -> Result<(), ConfigError> {
        self.lock.check(capabilities, single_instance)?;
        self.check_bounds()
    }

    /// What no backend changes.
    pub(super) fn check_bounds(&self) -> Result<(), ConfigError> {
        within("record_ttl", self.record_ttl, MIN_TTL, MAX_TTL)?;
        if matches!(self.lock.fairness(), Fairness::Batched(_)) {
            return Err(ConfigError::new(
                "fairness is Batched, accepted is any other: each run has a grant of its own",
            ));
        }
        bytes_within("max_response", self.max_response)?;
        bytes_within("the fingerprint's max_body", self.fingerprint.max_body())
    }

    /// Checks what is stored against what a store takes: the bytes of one record, and its life.
    ///
    /// A body of [`max_response`](Self::with_max_response) bytes may still not fit with its
    /// headers; then [`unreplayable`](Self::with_unreplayable) decides.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the first knob that is wrong, and what is accepted.
    pub fn check_records(&self, max_bytes: usize, max_ttl: Duration) -> Result<(), ConfigError> {
        if max_bytes < Stored::MIN_BYTES {
            return Err(ConfigError::new(format!(
                "the store takes records of {max_bytes} bytes, accepted are {} or more",
                Stored::MIN_BYTES
            )));
        }
        if self.max_response > max_bytes {
            return Err(ConfigError::new(format!(
                "max_response is {} bytes, accepted are up to {max_bytes}, the longest record that the store takes",
                self.max_response
            )));
        }
        if self.record_ttl > max_ttl {
            return Err(ConfigError::new(format!(
                "record_ttl is {:?}, accepted is up to {max_ttl:?}, the longest that the store takes",
                self.record_ttl
            )));
        }
        Ok(())
    }

    /// The nearest life of a record that every policy accepts: what a handler says at run time is
    /// no reason to fail.
    pub(super) fn within_bounds(ttl: Duration) -> Duration {
        ttl.clamp(MIN_TTL, MAX_TTL)
    }
}

fn bytes_within(what: &str, bytes: usize) -> Result<(), ConfigError> {
    if bytes <= MAX_BYTES {
        Ok(())
    } else {
        Err(ConfigError::new(format!(
            "{what} is {bytes} bytes, accepted are up to {MAX_BYTES}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockBackend, MemoryBackend};

    const SECOND: Duration = Duration::from_secs(1);

    fn check(policy: &IdempotencyPolicy) -> Result<(), String> {
        let capabilities = LockBackend::capabilities(&MemoryBackend::new());
        policy
            .check(&capabilities, false)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_those_of_the_table() {
        let policy = IdempotencyPolicy::new();
        assert_eq!(policy.record_ttl(), 24 * 60 * 60 * SECOND);
        assert_eq!(policy.store(), Store::Definitive);
        assert_eq!(policy.on_crash(), OnCrash::Rerun);
        assert_eq!(policy.unreplayable(), Unreplayable::Tombstone);
        assert_eq!(policy.fingerprint(), &FingerprintOf::body());
        assert_eq!(policy.fingerprint().max_body(), 1 << 20);
        assert_eq!(policy.stored_headers(), &StoredHeaders::new());
        assert_eq!(policy.max_response(), 1 << 20);
        assert_eq!(policy.ttl(), 30 * SECOND);
        assert_eq!(policy.wait(), Wait::Fail);
        assert_eq!(policy.lock().max_waiters(), 64);
        assert_eq!(policy.lock().on_disconnect(), OnDisconnect::Detach);
        assert_eq!(policy.lock().on_lost(), OnLost::Signal);
        assert_eq!(policy.lock().max_prefer_wait(), None);
        assert!(!policy.lock().insecure_fail_open());
        assert_eq!(check(&policy), Ok(()));
        assert_eq!(policy.check_records(1 << 20, policy.record_ttl()), Ok(()));
    }

    #[test]
    fn setters_set_what_they_name() {
        let policy = IdempotencyPolicy::new()
            .with_record_ttl(100 * SECOND)
            .with_store(Store::Everything)
            .with_on_crash(OnCrash::Refuse)
            .with_unreplayable(Unreplayable::Release)
            .with_fingerprint(FingerprintOf::json_fields(["/a"]))
            .with_stored_headers(StoredHeaders::new().without(["x-a"]))
            .with_max_response(7)
            .with_ttl(2 * SECOND)
            .with_wait(3 * SECOND)
            .with_max_prefer_wait(4 * SECOND)
            .with_fairness(Fairness::Unfair)
            .with_max_waiters(5)
            .with_on_disconnect(OnDisconnect::Cancel)
            .with_on_lost(OnLost::Abort)
            .with_max_hold(6 * SECOND)
            .with_guarantee(Guarantee::CorrectnessFencedByStorage);
        let lock = LockPolicy::new()
            .with_ttl(2 * SECOND)
            .with_wait(3 * SECOND)
            .with_max_prefer_wait(4 * SECOND)
            .with_fairness(Fairness::Unfair)
            .with_max_waiters(5)
            .with_max_hold(6 * SECOND)
            .with_guarantee(Guarantee::CorrectnessFencedByStorage);
        assert_eq!(policy.lock(), &lock);
        assert_eq!(policy.record_ttl(), 100 * SECOND);
        assert_eq!(policy.store(), Store::Everything);
        assert_eq!(policy.on_crash(), OnCrash::Refuse);
        assert_eq!(policy.unreplayable(), Unreplayable::Release);
        assert_eq!(policy.fingerprint(), &FingerprintOf::json_fields(["/a"]));
        assert_eq!(
            policy.stored_headers(),
            &StoredHeaders::new().without(["x-a"])
        );
        assert_eq!(policy.max_response(), 7);
    }

    #[test]
    fn each_error_names_its_knob_and_what_is_accepted() {
        let new = IdempotencyPolicy::new;
        let table = [
            (
                new().with_ttl(SECOND / 1000),
                "ttl is 1ms, accepted is 50ms to",
            ),
            (new().with_max_waiters(0), "max_waiters is 0"),
            (
                new().with_record_ttl(Duration::ZERO),
                "record_ttl is 0ns, accepted is 50ms to",
            ),
            (
                new().with_record_ttl(MAX_TTL + SECOND),
                "record_ttl is 31622401s, accepted is",
            ),
            (
                new().with_fairness(Fairness::Batched(std::num::NonZeroU32::MIN)),
                "fairness is Batched, accepted is any other",
            ),
            (
                new().with_max_response(MAX_BYTES + 1),
                "max_response is 67108865 bytes",
            ),
            (
                new().with_fingerprint(FingerprintOf::body().with_max_body(usize::MAX)),
                "the fingerprint's max_body is ",
            ),
        ];
        for (policy, text) in table {
            let error = check(&policy).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        let short = new()
            .with_ttl(MIN_TTL)
            .with_record_ttl(MIN_TTL)
            .with_max_response(0);
        assert_eq!(check(&short), Ok(()));
        assert_eq!(check(&new().with_record_ttl(MAX_TTL)), Ok(()));
    }

    #[test]
    fn a_store_that_takes_less_is_an_error() {
        let policy = IdempotencyPolicy::new();
        let error = |bytes, ttl| policy.check_records(bytes, ttl).unwrap_err().to_string();
        let day = policy.record_ttl();
        assert!(error(37, day).contains("37 bytes, accepted are 38 or more"));
        let message = error(1000, day);
        assert!(
            message.contains("max_response is 1048576 bytes, accepted are up to 1000"),
            "{message}"
        );
        let message = error(1 << 20, SECOND);
        assert!(
            message.contains("record_ttl is 86400s, accepted is up to 1s"),
            "{message}"
        );
    }
}
