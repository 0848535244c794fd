//! The single-flight policy of a route.

use std::time::Duration;

use crate::{
    backend::Capabilities,
    error::ConfigError,
    policy::{LockPolicy, OnDisconnect, OnLost, Wait, within},
    record::RecordLimits,
    replay::StoredHeaders,
};

/// The shortest life of a shared response.
const MIN_TTL: Duration = Duration::from_millis(50);
const MAX_TTL: Duration = Duration::from_secs(366 * 24 * 60 * 60);
const MAX_WAIT: Duration = Duration::from_secs(60 * 60);
/// What is kept in memory for each request at work.
const MAX_BYTES: usize = 64 * 1024 * 1024;

/// How the requests of one key fly together. A plain value; see each setter for its default.
///
/// The setters only record; [`check`](Self::check) and [`check_records`](Self::check_records) say
/// what is wrong.
///
/// | knob | default | |
/// |---|---|---|
/// | [`wait`](Self::with_wait) | 5 s | how long a request waits for the leader |
/// | [`ttl`](Self::with_ttl) | 3 s | the leader's lease: how long one that died is waited for |
/// | [`max_leader_age`](Self::with_max_leader_age) | 30 s | after which one more leads |
/// | [`max_waiters`](Self::with_max_waiters) | 1024 | how many may wait for one key |
/// | [`on_disconnect`](Self::with_on_disconnect) | [`OnDisconnect::Detach`] | when the leader's client leaves |
/// | [`share_response`](Self::share_response) | not shared | for how long others get the leader's response |
/// | [`stale_while_rebuild`](Self::stale_while_rebuild) | 0 s | for how much longer, while one rebuilds it |
/// | [`max_response`](Self::with_max_response) | 1 MiB | the longest body that is shared |
/// | [`stored_headers`](Self::with_stored_headers) | see [`StoredHeaders`] | what is shared |
///
/// ```
/// use std::time::Duration;
/// use tower_lock::single_flight::SingleFlightPolicy;
///
/// let policy = SingleFlightPolicy::new()
///     .with_wait(Duration::from_secs(10))
///     .share_response(Duration::from_secs(60))
///     .stale_while_rebuild(Duration::from_secs(600));
/// assert_eq!(policy.ttl(), Duration::from_secs(3));
/// ```
#[must_use = "a policy does nothing until a layer takes it"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleFlightPolicy {
    lock: LockPolicy,
    shared: Option<Duration>,
    stale: Duration,
    max_response: usize,
    stored_headers: StoredHeaders,
}

impl Default for SingleFlightPolicy {
    fn default() -> Self {
        Self {
            lock: LockPolicy::new()
                .with_wait(Duration::from_secs(5))
                .with_ttl(Duration::from_secs(3))
                .with_max_hold(Duration::from_secs(30))
                .with_max_waiters(1024)
                .with_on_disconnect(OnDisconnect::Detach)
                .with_on_lost(OnLost::Signal),
            shared: None,
            stale: Duration::ZERO,
            max_response: 1024 * 1024,
            stored_headers: StoredHeaders::default(),
        }
    }
}

/// Who waits, and for whom.
impl SingleFlightPolicy {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long a request waits for the leader. After that it runs beside it, without the lock.
    /// Default 5 s; up to an hour. What a client says by `Prefer: wait` changes nothing: it would
    /// run at once.
    pub fn with_wait(self, wait: Duration) -> Self {
        self.change(|lock| lock.with_wait(wait))
    }

    /// The leader's lease without a renewal. Default 3 s: when an instance dies, those who wait for
    /// it have a new leader after so long, so it should be shorter than
    /// [`wait`](Self::with_wait). See [`LockPolicy::with_ttl`].
    pub fn with_ttl(self, ttl: Duration) -> Self {
        self.change(|lock| lock.with_ttl(ttl))
    }

    /// After how long a leader that is still at work is not waited for any more: one of those who
    /// wait leads beside it, and so on. Default 30 s, which matters only to those who
    /// [wait](Self::with_wait) for longer. The slow one finishes; its result does not count while another
    /// leads.
    pub fn with_max_leader_age(self, age: Duration) -> Self {
        self.change(|lock| lock.with_max_hold(age))
    }

    /// How many may wait for one key in this process. Default 1024. See
    /// [`LockPolicy::with_max_waiters`].
    pub fn with_max_waiters(self, max: usize) -> Self {
        self.change(|lock| lock.with_max_waiters(max))
    }

    /// What happens when the leader's client leaves. Default [`OnDisconnect::Detach`]: it goes on
    /// for the others. With [`OnDisconnect::Cancel`] it is dropped, and the next one leads.
    pub fn with_on_disconnect(self, on_disconnect: OnDisconnect) -> Self {
        self.change(|lock| lock.with_on_disconnect(on_disconnect))
    }

    fn change(mut self, change: impl FnOnce(LockPolicy) -> LockPolicy) -> Self {
        self.lock = change(self.lock);
        self
    }

    /// The policy of the leader's lock.
    pub fn lock(&self) -> &LockPolicy {
        &self.lock
    }

    /// The leader's lease without a renewal.
    pub fn ttl(&self) -> Duration {
        self.lock.ttl()
    }

    /// How long a request waits for the leader.
    pub fn wait(&self) -> Wait {
        self.lock.wait()
    }

    /// After how long one more leads.
    pub fn max_leader_age(&self) -> Duration {
        self.lock.max_hold()
    }
}

/// What is shared.
impl SingleFlightPolicy {
    /// Others get the leader's response, without running their handler, for so long after it was
    /// made, or less if its `Cache-Control` says so. Default: not shared; who waited runs its own
    /// handler. 50 ms to 366 days, and at most what the store takes.
    ///
    /// What may be shared is told in [`SingleFlightLayer`](crate::SingleFlightLayer#what-is-shared).
    pub fn share_response(mut self, ttl: Duration) -> Self {
        self.shared = Some(ttl);
        self
    }

    /// For how much longer a shared response is served, while one request rebuilds it in the
    /// background: the one that finds it stale, which is answered with it as well. If that fails,
    /// it is tried again by a later one. Default 0 s: a response that is not fresh is not served.
    /// Whether it is fresh is counted by the clocks of the instances.
    pub fn stale_while_rebuild(mut self, stale: Duration) -> Self {
        self.stale = stale;
        self
    }

    /// The longest response body that is shared, in bytes. Default 1 MiB; up to 64 MiB, and at most
    /// what the store takes with the headers. With a longer one the leader gives up: each runs its
    /// own handler. Up to this many bytes of each leader's response are held in memory.
    pub fn with_max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Which headers are shared. Default: see [`StoredHeaders`].
    pub fn with_stored_headers(mut self, headers: StoredHeaders) -> Self {
        self.stored_headers = headers;
        self
    }

    /// For how long others get the leader's response; `None` if they run their own handlers.
    pub fn shared_for(&self) -> Option<Duration> {
        self.shared
    }

    /// For how much longer, while one rebuilds it.
    pub fn stale_for(&self) -> Duration {
        self.stale
    }

    /// The longest response body that is shared, in bytes.
    pub fn max_response(&self) -> usize {
        self.max_response
    }

    /// Which headers are shared.
    pub fn stored_headers(&self) -> &StoredHeaders {
        &self.stored_headers
    }
}

/// Which policies are accepted.
impl SingleFlightPolicy {
    /// Checks every knob by itself, and those of the lock against what the backend can do.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_lock::{LockManager, MemoryBackend, single_flight::SingleFlightPolicy};
    ///
    /// let locks = LockManager::new(MemoryBackend::new());
    /// let policy = SingleFlightPolicy::new().with_wait(Duration::ZERO);
    /// let error = policy.check(&locks.capabilities(), false).unwrap_err();
    /// assert_eq!(error.to_string(), "wait is 0ns, accepted is 1ms to 3600s");
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
        self.check_bounds()?;
        self.lock.check(capabilities, single_instance)
    }

    /// What no backend changes.
    pub(super) fn check_bounds(&self) -> Result<(), ConfigError> {
        let wait = match self.lock.wait() {
            Wait::Fail => Duration::ZERO,
            Wait::For(wait) => wait,
            Wait::Forever => Duration::MAX,
        };
        within("wait", wait, Duration::from_millis(1), MAX_WAIT)?;
        if let Some(ttl) = self.shared {
            within("share_response's ttl", ttl, MIN_TTL, MAX_TTL)?;
            within("stale_while_rebuild", self.stale, Duration::ZERO, MAX_TTL)?;
        } else if !self.stale.is_zero() {
            return Err(ConfigError::new(
                "stale_while_rebuild is set, and no response is shared: accepted is the two together, \
                 by `share_response(ttl).stale_while_rebuild(..)`",
            ));
        }
        if self.max_response > MAX_BYTES {
            return Err(ConfigError::new(format!(
                "max_response is {} bytes, accepted are up to {MAX_BYTES}",
                self.max_response
            )));
        }
        Ok(())
    }

    /// Checks what is shared against what a store takes.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the first knob that is wrong, and what is accepted.
    pub fn check_records(&self, limits: &RecordLimits) -> Result<(), ConfigError> {
        let Some(ttl) = self.shared else {
            return Ok(());
        };
        let whole = ttl.saturating_add(self.stale);
        if whole > limits.max_ttl {
            return Err(ConfigError::new(format!(
                "a response is shared and served stale for {whole:?}, accepted is up to {:?}, the longest that the store takes",
                limits.max_ttl
            )));
        }
        if self.max_response > limits.max_bytes {
            return Err(ConfigError::new(format!(
                "max_response is {} bytes, accepted are up to {}, the longest record that the store takes",
                self.max_response, limits.max_bytes
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(policy: SingleFlightPolicy) -> String {
        policy.check_bounds().unwrap_err().to_string()
    }

    #[test]
    fn wrong_knobs_are_named() {
        let policy = SingleFlightPolicy::new;
        let second = Duration::from_secs(1);
        assert!(policy().check_bounds().is_ok());
        let forever = refused(policy().change(|lock| lock.with_wait(Wait::Forever)));
        assert!(forever.starts_with("wait is "), "{forever}");
        let long = refused(policy().with_wait(MAX_WAIT + second));
        assert!(long.starts_with("wait is 3601s"), "{long}");
        let none = refused(policy().share_response(Duration::ZERO));
        assert!(none.starts_with("share_response's ttl is 0ns"), "{none}");
        let stale = refused(policy().stale_while_rebuild(second));
        assert!(stale.starts_with("stale_while_rebuild is set"), "{stale}");
        let large = refused(policy().with_max_response(MAX_BYTES + 1));
        assert!(
            large.starts_with("max_response is 67108865 bytes"),
            "{large}"
        );
    }

    #[test]
    fn a_store_has_its_own_limits() {
        let limits = RecordLimits::new(1000, Duration::from_secs(60));
        let refused = |policy: SingleFlightPolicy| {
            let error = policy.check_records(&limits).unwrap_err();
            error.to_string()
        };
        let shared = SingleFlightPolicy::new()
            .with_max_response(1000)
            .share_response(Duration::from_secs(40));
        assert!(shared.check_records(&limits).is_ok());
        let long = refused(shared.clone().stale_while_rebuild(Duration::from_secs(30)));
        assert!(long.contains("for 70s, accepted is up to 60s"), "{long}");
        let large = refused(shared.with_max_response(1001));
        assert!(large.starts_with("max_response is 1001 bytes"), "{large}");
        // What is not shared is not stored.
        assert!(SingleFlightPolicy::new().check_records(&limits).is_ok());
    }
}
