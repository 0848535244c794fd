//! `IdempotencyLayer` and its setters.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Response, request::Parts};
use tower_layer::Layer;

use super::{
    fingerprint::FingerprintOf,
    key::ScopedKey,
    knobs::{OnCrash, Store, Unreplayable},
    policy::IdempotencyPolicy,
    serve::Settings,
    service::IdempotencyService,
};
use crate::{
    error::ConfigError,
    key::KeyExtractor,
    manager::LockManager,
    policy::{Fairness, Guarantee, OnDisconnect, OnLost, Wait},
    replay::StoredHeaders,
    route::{Config, must},
    web::{ProblemBase, Refusal},
};

#[doc = include_str!("../docs/idempotency_layer.md")]
#[must_use = "a layer does nothing until it wraps a service"]
#[derive(Clone)]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
    key: Arc<dyn KeyExtractor>,
}

impl IdempotencyLayer {
    /// A layer that knows requests again by this key, with the defaults of [`IdempotencyPolicy`].
    /// Records stand beside the locks of the manager's backend.
    ///
    /// # Panics
    ///
    /// If the backend keeps no records, or cannot carry out the default policy.
    #[track_caller]
    pub fn new(manager: &LockManager, key: impl ScopedKey) -> Self {
        Self {
            settings: Arc::new(must(Settings::new(manager))),
            key: Arc::new(key),
        }
    }

    /// The same where the backend is chosen at run time.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] if the backend keeps no records, or cannot carry out the default policy.
    pub fn try_new(manager: &LockManager, key: impl ScopedKey) -> Result<Self, ConfigError> {
        Ok(Self {
            settings: Arc::new(Settings::new(manager)?),
            key: Arc::new(key),
        })
    }
}

impl Settings {
    fn new(manager: &LockManager) -> Result<Self, ConfigError> {
        let limits = manager.record_limits()?;
        let mut route = Config::new(manager)?;
        route.methods = route.methods.clone().with([Method::POST, Method::PATCH])?;
        // A backend may not take the default ttl, and a store not the defaults of records; that is
        // nothing to ask a user about.
        let default = IdempotencyPolicy::new();
        let policy = default
            .clone()
            .with_ttl(route.policy.ttl())
            .with_record_ttl(default.record_ttl().min(limits.max_ttl))
            .with_max_response(default.max_response().min(limits.max_bytes));
        let mut settings = Self {
            policy: default,
            route,
            limits,
        };
        settings.set_policy(policy)?;
        Ok(settings)
    }

    fn set_policy(&mut self, policy: IdempotencyPolicy) -> Result<(), ConfigError> {
        policy.check_bounds()?;
        policy.check_records(self.limits.max_bytes, self.limits.max_ttl)?;
        self.route.set_policy(policy.lock().clone())?;
        self.policy = policy;
        Ok(())
    }
}

/// The setters of [`IdempotencyPolicy`], checked at once.
///
/// # Panics
///
/// Each setter panics at the caller's line if its value is not accepted, or the backend or its store
/// cannot carry it out. No check depends on the order of the setters.
impl IdempotencyLayer {
    /// See [`IdempotencyPolicy::with_record_ttl`].
    #[track_caller]
    pub fn with_record_ttl(self, ttl: Duration) -> Self {
        self.change(|policy| policy.with_record_ttl(ttl))
    }

    /// See [`IdempotencyPolicy::with_store`].
    #[track_caller]
    pub fn with_store(self, store: Store) -> Self {
        self.change(|policy| policy.with_store(store))
    }

    /// See [`IdempotencyPolicy::with_on_crash`].
    #[track_caller]
    pub fn with_on_crash(self, on_crash: OnCrash) -> Self {
        self.change(|policy| policy.with_on_crash(on_crash))
    }

    /// See [`IdempotencyPolicy::with_unreplayable`].
    #[track_caller]
    pub fn with_unreplayable(self, unreplayable: Unreplayable) -> Self {
        self.change(|policy| policy.with_unreplayable(unreplayable))
    }

    /// See [`IdempotencyPolicy::with_fingerprint`].
    #[track_caller]
    pub fn with_fingerprint(self, fingerprint: FingerprintOf) -> Self {
        self.change(|policy| policy.with_fingerprint(fingerprint))
    }

    /// See [`IdempotencyPolicy::with_stored_headers`].
    #[track_caller]
    pub fn with_stored_headers(self, headers: StoredHeaders) -> Self {
        self.change(|policy| policy.with_stored_headers(headers))
    }

    /// See [`IdempotencyPolicy::with_max_response`].
    #[track_caller]
    pub fn with_max_response(self, bytes: usize) -> Self {
        self.change(|policy| policy.with_max_response(bytes))
    }

    /// See [`IdempotencyPolicy::with_ttl`].
    #[track_caller]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        self.change(|policy| policy.with_ttl(ttl))
    }

    /// See [`IdempotencyPolicy::with_wait`].
    #[track_caller]
    pub fn with_wait(self, wait: impl Into<Wait>) -> Self {
        self.change(|policy| policy.with_wait(wait))
    }

    /// See [`IdempotencyPolicy::with_max_prefer_wait`].
    #[track_caller]
    pub fn with_max_prefer_wait(self, max: Duration) -> Self {
        self.change(|policy| policy.with_max_prefer_wait(max))
    }

    /// See [`IdempotencyPolicy::with_fairness`].
    #[track_caller]
    pub fn with_fairness(self, fairness: Fairness) -> Self {
        self.change(|policy| policy.with_fairness(fairness))
    }

    /// See [`IdempotencyPolicy::with_max_waiters`].
    #[track_caller]
    pub fn with_max_waiters(self, max: usize) -> Self {
        self.change(|policy| policy.with_max_waiters(max))
    }

    /// See [`IdempotencyPolicy::with_max_hold`].
    #[track_caller]
    pub fn with_max_hold(self, max_hold: Duration) -> Self {
        self.change(|policy| policy.with_max_hold(max_hold))
    }

    /// See [`IdempotencyPolicy::with_on_disconnect`].
    #[track_caller]
    pub fn with_on_disconnect(self, on_disconnect: OnDisconnect) -> Self {
        self.change(|policy| policy.with_on_disconnect(on_disconnect))
    }

    /// See [`IdempotencyPolicy::with_on_lost`].
    #[track_caller]
    pub fn with_on_lost(self, on_lost: OnLost) -> Self {
        self.change(|policy| policy.with_on_lost(on_lost))
    }

    /// See [`IdempotencyPolicy::with_guarantee`].
    #[track_caller]
    pub fn with_guarantee(self, guarantee: Guarantee) -> Self {
        self.change(|policy| policy.with_guarantee(guarantee))
    }

    /// Replaces the whole policy. What concerns HTTP only, below, stays.
    #[track_caller]
    pub fn with_policy(self, policy: IdempotencyPolicy) -> Self {
        must(self.try_with_policy(policy))
    }

    /// Replaces the whole policy, for configuration that is read at run time.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the first knob that is wrong, and what is accepted.
    pub fn try_with_policy(mut self, policy: IdempotencyPolicy) -> Result<Self, ConfigError> {
        Arc::make_mut(&mut self.settings).set_policy(policy)?;
        Ok(self)
    }

    #[track_caller]
    fn change(mut self, change: impl FnOnce(IdempotencyPolicy) -> IdempotencyPolicy) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        let policy = change(settings.policy.clone());
        must(settings.set_policy(policy));
        self
    }
}

/// What concerns HTTP only.
impl IdempotencyLayer {
    /// Which methods are idempotent by their key. Default: `POST` and `PATCH`, which are not
    /// idempotent by themselves.
    ///
    /// # Panics
    ///
    /// If the list is empty, or names `HEAD`, `OPTIONS`, `TRACE` or `CONNECT`.
    #[track_caller]
    pub fn with_methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        let route = &mut Arc::make_mut(&mut self.settings).route;
        route.methods = must(route.methods.clone().with(methods));
        self
    }

    /// The beginning of the `type` URLs of problem responses, to which the slug is added.
    /// Default: this crate's documentation.
    ///
    /// # Panics
    ///
    /// If it is not the beginning of a URL.
    #[track_caller]
    pub fn with_problem_base(mut self, base: &str) -> Self {
        let route = &mut Arc::make_mut(&mut self.settings).route;
        route.problem_base = must(ProblemBase::new(base));
        self
    }

    /// Answers refusals instead of the default problem responses; see
    /// [`LockLayer::on_refuse`](crate::LockLayer::on_refuse).
    pub fn on_refuse(
        mut self,
        refuse: impl Fn(&Refusal, &Parts) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.settings).route.on_refuse = Some(Arc::new(refuse));
        self
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Runs once per connection or request in axum, so it only clones two `Arc`s.
impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, self.settings.clone(), self.key.clone())
    }
}
