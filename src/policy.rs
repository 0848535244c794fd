//! How a route locks: waiting, fairness, lifetimes, and what happens when things end badly.

use std::{num::NonZeroU32, time::Duration};

use crate::{
    backend::{Capabilities, Mode, Scope},
    error::ConfigError,
};

/// How long a request waits for its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: a held key is refused at once. `For(Duration::ZERO)` is the same.
    Fail,
    /// At most this long.
    For(Duration),
    /// Until it is granted or the caller leaves.
    Forever,
}

impl From<Duration> for Wait {
    fn from(wait: Duration) -> Self {
        if wait.is_zero() {
            Self::Fail
        } else {
            Self::For(wait)
        }
    }
}

/// Who is next.
///
/// Fairness has a price: a queue in arrival order hands the key to the longest waiter, who may be
/// in another instance, so each hand-off costs round trips. `Batched` keeps it in the process for
/// a while, `Unfair` gives it to whoever is fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    /// The fairest that the backend has: `Fifo`, else `Unfair`.
    #[default]
    BestAvailable,
    /// Grants follow arrivals across all instances. A [`ConfigError`] where the backend cannot.
    Fifo,
    /// One contender per process and key; up to this many local hand-offs before the key goes
    /// back to the backend's queue, each with its own fencing token from a range reserved with
    /// the acquire. Many times the throughput on a hot key, for fairness between instances. A
    /// [`ConfigError`] where the backend cannot reserve tokens.
    Batched(NonZeroU32),
    /// Whoever comes first; fastest.
    Unfair,
}

/// When a lock is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseOn {
    /// Sent before the response head, not awaited. A streamed body goes on without the lock.
    #[default]
    Head,
    /// Awaited before the response head goes out: the client's next request finds the key free.
    /// Costs the backend's round trip; a release that fails is the reaper's, and the head goes out.
    HeadConfirmed,
    /// At the end of the response body, for streams: its last frame, an error, or its drop; at
    /// most this long after the head. A lock that is lost before ends the body with an error
    /// under [`OnLost::Abort`].
    BodyEnd {
        /// The longest time between the response head and the release.
        max: Duration,
    },
}

/// What happens to the handler when its caller leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDisconnect {
    /// It is dropped, as everywhere in hyper, and the lock is released.
    #[default]
    Cancel,
    /// It finishes under its locks, those of outer layers included, on the application's runtime.
    /// A timeout layer outside counts as a caller that leaves. Costs a box per locked request.
    Detach,
}

/// What happens to the handler when its lock is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLost {
    /// It is dropped at its next `.await` before the lease can end, and the client gets a 500
    /// `lock-lost`. A handler that blocks its thread cannot be dropped.
    #[default]
    Abort,
    /// [`HeldLock::lost`](crate::HeldLock::lost) resolves and the handler decides.
    Signal,
}

/// What a route needs its lock for.
///
/// A declaration that is checked against the backend when the layer is built, so that a route
/// does not stand on a backend that cannot carry it. Changes nothing at request time. The two
/// kinds of correctness also need a backend that reaches all instances, or
/// [`LockManager::single_instance`](crate::LockManager::single_instance), and exclude
/// [`with_insecure_fail_open`](LockPolicy::with_insecure_fail_open). See
/// [`guide::guarantees`](crate::guide::guarantees).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Guarantee {
    /// Not to do work twice: a rare double hold costs work, not data.
    #[default]
    Efficiency,
    /// Never to do it at the same time: needs a backend that agrees among its nodes, and so does
    /// not forget a grant. Even so a paused process can overlap with the next holder.
    Correctness,
    /// Never a stale write: the storage compares fencing tokens, so the backend may forget a
    /// grant, but must have tokens that grow.
    CorrectnessFencedByStorage,
}

/// How a route locks. A plain value; see each setter for its default.
///
/// The setters of a policy only record. The setters of [`LockLayer`](crate::LockLayer) check at
/// once and panic at the caller's line, as axum's routes do;
/// [`LockLayer::try_with_policy`](crate::LockLayer::try_with_policy) and
/// [`LockManager::acquire`](crate::LockManager::acquire) return a [`ConfigError`] instead, for
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
    ttl: Duration,
    wait: Wait,
    max_prefer_wait: Option<Duration>,
    fairness: Fairness,
    mode: Mode,
    max_waiters: usize,
    release_on: ReleaseOn,
    on_disconnect: OnDisconnect,
    on_lost: OnLost,
    max_hold: Option<Duration>,
    insecure_fail_open: bool,
    guarantee: Guarantee,
}

/// The shortest ttl: below it, a third of it is no time for a renewal.
const MIN_TTL: Duration = Duration::from_millis(50);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest finite wait, `u32::MAX` ms: what the narrowest wire format takes.
const MAX_WAIT: Duration = Duration::from_millis(u32::MAX as u64);
const MAX_HOLD: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const MAX_BATCH: u32 = 10_000;

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

    /// Checks every knob by itself and against what the backend can do.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the first knob that is wrong, and what is accepted.
    pub fn check(
        &self,
        capabilities: &Capabilities,
        single_instance: bool,
    ) -> Result<(), ConfigError> {
        self.check_durations(capabilities)?;
        if self.max_waiters == 0 {
            return Err(ConfigError::new(
                "max_waiters is 0, accepted is 1 or more; use `Wait::Fail` for a route that does not wait",
            ));
        }
        let name = capabilities.name;
        match self.fairness {
            Fairness::Fifo if !capabilities.fifo => {
                return Err(ConfigError::new(format!(
                    "fairness is Fifo, which the {name} backend cannot give; accepted are BestAvailable and Unfair"
                )));
            }
            Fairness::Batched(_) if !capabilities.reserves_tokens => {
                return Err(ConfigError::new(format!(
                    "fairness is Batched, but the {name} backend cannot reserve fencing tokens; accepted are BestAvailable, Fifo (where it has it) and Unfair"
                )));
            }
            Fairness::Batched(n) if n.get() > MAX_BATCH => {
                return Err(ConfigError::new(format!(
                    "fairness is Batched({n}), accepted is 1 to {MAX_BATCH}"
                )));
            }
            _ => {}
        }
        self.check_mode(self.mode, capabilities)?;
        self.check_guarantee(capabilities, single_instance)
    }

    pub(crate) fn check_mode(
        &self,
        mode: Mode,
        capabilities: &Capabilities,
    ) -> Result<(), ConfigError> {
        if mode == Mode::Shared && !capabilities.shared {
            return Err(ConfigError::new(format!(
                "mode is Shared, which the {} backend cannot give; accepted is Exclusive",
                capabilities.name
            )));
        }
        Ok(())
    }

    fn check_durations(&self, capabilities: &Capabilities) -> Result<(), ConfigError> {
        let min_ttl = capabilities.min_ttl.unwrap_or_default().max(MIN_TTL);
        within("ttl", self.ttl, min_ttl, MAX_TTL)?;
        if let Wait::For(wait) = self.wait {
            within("wait", wait, Duration::ZERO, MAX_WAIT)?;
        }
        if let Some(max) = self.max_prefer_wait {
            within("max_prefer_wait", max, Duration::ZERO, MAX_WAIT)?;
        }
        if let Some(max) = self.max_hold {
            within("max_hold", max, Duration::from_millis(1), MAX_HOLD)?;
        }
        if let ReleaseOn::BodyEnd { max } = self.release_on {
            within(
                "release_on's BodyEnd max",
                max,
                Duration::from_millis(1),
                MAX_HOLD,
            )?;
        }
        Ok(())
    }

    fn check_guarantee(
        &self,
        capabilities: &Capabilities,
        single_instance: bool,
    ) -> Result<(), ConfigError> {
        let name = capabilities.name;
        let guarantee = match self.guarantee {
            Guarantee::Efficiency => return Ok(()),
            other => other,
        };
        if self.insecure_fail_open {
            return Err(ConfigError::new(format!(
                "guarantee is {guarantee:?}, but the route fails open when the backend is unavailable; accepted is one of the two"
            )));
        }
        if capabilities.scope != Scope::Fleet && !single_instance {
            return Err(ConfigError::new(format!(
                "guarantee is {guarantee:?}, but the {name} backend locks within one {}; accepted is a fleet-wide backend, or `LockManager::single_instance` where one instance is all there is",
                match capabilities.scope {
                    Scope::Process => "process",
                    _ => "host",
                }
            )));
        }
        match guarantee {
            Guarantee::Correctness if !capabilities.consensus => Err(ConfigError::new(format!(
                "guarantee is Correctness, but the {name} backend can forget a grant; accepted is a backend with consensus, or CorrectnessFencedByStorage"
            ))),
            Guarantee::CorrectnessFencedByStorage if !capabilities.fencing => {
                Err(ConfigError::new(format!(
                    "guarantee is CorrectnessFencedByStorage, but the {name} backend has no fencing tokens"
                )))
            }
            _ => Ok(()),
        }
    }
}

fn within(what: &str, value: Duration, min: Duration, max: Duration) -> Result<(), ConfigError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ConfigError::new(format!(
            "{what} is {value:?}, accepted is {min:?} to {max:?}"
        )))
    }
}
