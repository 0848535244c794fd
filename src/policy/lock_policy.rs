//! The policy of a route.

use std::time::Duration;

use super::{Fairness, Guarantee, OnDisconnect, OnLost, ReleaseOn, Wait};
use crate::backend::Mode;

/// How a route locks. A plain value; see each setter for its default.
///
/// The setters of a policy only record. The setters of [`LockLayer`](crate::LockLayer) check at
/// once and panic at the caller's line, as axum's routes do;
/// [`LockLayer::try_with_policy`](crate::LockLayer::try_with_policy) and
/// [`LockManager::acquire`](crate::LockManager::acquire) return a [`ConfigError`](crate::ConfigError) instead, for
/// configuration that is read at run time.
///
/// ```
/// use std::time::Duration;
/// use tower_lock::{LockPolicy, OnLost};
///
/// let policy = LockPolicy::new()
///     .with_ttl(Duration::from_secs(10))
///     .with_wait(Duration::from_secs(2))
///     .with_on_lost(OnLost::Signal);
/// assert_eq!(policy.max_hold(), Duration::from_secs(100));
/// ```
#[must_use = "a policy does nothing until a layer or an acquire takes it"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockPolicy {
    pub(super) ttl: Duration,
    pub(super) wait: Wait,
    pub(super) max_prefer_wait: Option<Duration>,
    pub(super) fairness: Fairness,
    pub(super) mode: Mode,
    pub(super) max_waiters: usize,
    pub(super) release_on: ReleaseOn,
    pub(super) on_disconnect: OnDisconnect,
    pub(super) on_lost: OnLost,
    pub(super) max_hold: Option<Duration>,
    pub(super) insecure_fail_open: bool,
    pub(super) guarantee: Guarantee,
}

impl Default for LockPolicy {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            wait: Wait::For(Duration::from_secs(5)),
            max_prefer_wait: None,
            fairness: Fairness::BestAvailable,
            mode: Mode::Exclusive,
            max_waiters: 64,
            release_on: ReleaseOn::Head,
            on_disconnect: OnDisconnect::Cancel,
            on_lost: OnLost::Abort,
            max_hold: None,
            insecure_fail_open: false,
            guarantee: Guarantee::Efficiency,
        }
    }
}

/// Setters and getters, one definition each; the layer has the same setters, with checks.
impl LockPolicy {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The lease's length without a renewal; renewed at a third. Default 30 s; 50 ms to 24 h.
    ///
    /// Shorter: a dead holder blocks its key for less time. Longer: more backend outage is
    /// survived without loss.
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for the lock. Default 5 s; a zero is [`Wait::Fail`]; at most
    /// `u32::MAX` ms, or [`Wait::Forever`].
    pub fn with_wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = match wait.into() {
            Wait::For(d) => Wait::from(d),
            other => other,
        };
        self
    }

    /// How far a client's `Prefer: wait=N` (seconds, RFC 7240) may raise the wait. Default: not
    /// above the route's own wait; it may always lower it, to 0 for not waiting. At most
    /// `u32::MAX` ms. The response says what was applied, in `Preference-Applied`.
    pub fn with_max_prefer_wait(mut self, max: Duration) -> Self {
        self.max_prefer_wait = Some(max);
        self
    }

    /// Who is next. Default [`Fairness::BestAvailable`].
    pub fn with_fairness(mut self, fairness: Fairness) -> Self {
        self.fairness = fairness;
        self
    }

    /// Exclusive or shared. Default exclusive. By method or closure: see the layer's setters.
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// How many may wait for one key in this process before the next is refused with 429.
    /// Default 64, at least 1. The manager bounds the sum over all keys.
    pub fn with_max_waiters(mut self, max: usize) -> Self {
        self.max_waiters = max;
        self
    }

    /// When to release. Default [`ReleaseOn::Head`].
    pub fn with_release_on(mut self, release_on: ReleaseOn) -> Self {
        self.release_on = release_on;
        self
    }

    /// What happens when the caller leaves. Default [`OnDisconnect::Cancel`].
    pub fn with_on_disconnect(mut self, on_disconnect: OnDisconnect) -> Self {
        self.on_disconnect = on_disconnect;
        self
    }

    /// What happens when the lock is lost. Default [`OnLost::Abort`].
    pub fn with_on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }

    /// How long one holder may keep the lock; then it is lost, as `on_lost` says
    /// ([`Loss::MaxHold`](crate::Loss::MaxHold)). Default 10 × ttl; 1 ms to 30 days.
    pub fn with_max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Runs the handler **without the lock** when the backend is unavailable. Default: refuse
    /// with 503. Contention is still refused. The handler sees no lock then: take
    /// `Option<HeldLock>`.
    pub fn with_insecure_fail_open(mut self) -> Self {
        self.insecure_fail_open = true;
        self
    }

    /// What the lock is for. Default [`Guarantee::Efficiency`].
    pub fn with_guarantee(mut self, guarantee: Guarantee) -> Self {
        self.guarantee = guarantee;
        self
    }

    /// The lease's length without a renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// How long to wait for the lock.
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// How far `Prefer: wait` may raise the wait, if at all.
    pub fn max_prefer_wait(&self) -> Option<Duration> {
        self.max_prefer_wait
    }

    /// Who is next.
    pub fn fairness(&self) -> Fairness {
        self.fairness
    }

    /// Exclusive or shared.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How many may wait for one key in this process.
    pub fn max_waiters(&self) -> usize {
        self.max_waiters
    }

    /// When the lock is released.
    pub fn release_on(&self) -> ReleaseOn {
        self.release_on
    }

    /// What happens when the caller leaves.
    pub fn on_disconnect(&self) -> OnDisconnect {
        self.on_disconnect
    }

    /// What happens when the lock is lost.
    pub fn on_lost(&self) -> OnLost {
        self.on_lost
    }

    /// How long one holder may keep the lock.
    pub fn max_hold(&self) -> Duration {
        self.max_hold.unwrap_or(self.ttl.saturating_mul(10))
    }

    /// Whether the handler runs without the lock when the backend is unavailable.
    pub fn insecure_fail_open(&self) -> bool {
        self.insecure_fail_open
    }

    /// What the lock is for.
    pub fn guarantee(&self) -> Guarantee {
        self.guarantee
    }
}
