//! `LockLayer` and its setters.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Response, StatusCode, request::Parts};
use tower_layer::Layer;

use super::{
    key_source::{FromBody, FromHead},
    service::LockService,
};
use crate::{
    backend::Mode,
    error::ConfigError,
    key::{BodyKeyExtractor, KeyExtractor},
    manager::LockManager,
    policy::{Fairness, Guarantee, LockPolicy, OnDisconnect, OnLost, ReleaseOn, Wait},
    route::{Config, must},
    web::{ProblemBase, Refusal, contended_status},
};

#[doc = include_str!("../docs/lock_layer.md")]
#[must_use = "a layer does nothing until it wraps a service"]
#[derive(Clone)]
pub struct LockLayer<K = FromHead> {
    config: Arc<Config>,
    key: K,
}

impl LockLayer {
    /// A layer that locks the keys which the extractor derives from a request's head, with the
    /// defaults of [`LockPolicy`]. The request's body is not touched.
    ///
    /// # Panics
    ///
    /// If the backend cannot carry out the default policy.
    #[track_caller]
    pub fn new(manager: &LockManager, key: impl KeyExtractor) -> Self {
        Self {
            config: Arc::new(must(Config::new(manager))),
            key: FromHead(Arc::new(key)),
        }
    }
}

impl LockLayer<FromBody> {
    /// A layer that locks the keys which the extractor derives from a request's buffered body.
    /// The inner service gets the identical bytes as
    /// [`RequestBody`](crate::RequestBody).
    ///
    /// A body above the extractor's limit is answered with 413, before it is read where its length
    /// is known. Each waiting request holds its body in memory. Because the body was read, a
    /// client that leaves is noticed while it waits.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Router, routing::post};
    /// use tower_lock::{LockLayer, LockManager, MemoryBackend, key::JsonKey};
    ///
    /// let locks = LockManager::new(MemoryBackend::new());
    /// let by_order = JsonKey::new("order", "/order/id").with_max_body(16 * 1024);
    /// let pay = post(async |body: String| body).route_layer(LockLayer::buffered(&locks, by_order));
    /// let app: Router = Router::new().route("/pay", pay);
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// If the backend cannot carry out the default policy.
    #[track_caller]
    pub fn buffered(manager: &LockManager, key: impl BodyKeyExtractor) -> Self {
        Self {
            config: Arc::new(must(Config::new(manager))),
            key: FromBody(Arc::new(key)),
        }
    }
}

/// The setters of [`LockPolicy`], checked at once.
///
/// # Panics
///
/// Each setter panics at the caller's line if its value is not accepted or the backend cannot
/// carry it out. No check depends on the order of the setters.
impl<K> LockLayer<K> {
    /// See [`LockPolicy::with_ttl`].
    #[track_caller]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        self.change(|policy| policy.with_ttl(ttl))
    }

    /// See [`LockPolicy::with_wait`].
    #[track_caller]
    pub fn with_wait(self, wait: impl Into<Wait>) -> Self {
        self.change(|policy| policy.with_wait(wait))
    }

    /// See [`LockPolicy::with_max_prefer_wait`].
    #[track_caller]
    pub fn with_max_prefer_wait(self, max: Duration) -> Self {
        self.change(|policy| policy.with_max_prefer_wait(max))
    }

    /// See [`LockPolicy::with_fairness`].
    #[track_caller]
    pub fn with_fairness(self, fairness: Fairness) -> Self {
        self.change(|policy| policy.with_fairness(fairness))
    }

    /// See [`LockPolicy::with_mode`].
    #[track_caller]
    pub fn with_mode(self, mode: Mode) -> Self {
        self.change(|policy| policy.with_mode(mode))
    }

    /// See [`LockPolicy::with_max_waiters`].
    #[track_caller]
    pub fn with_max_waiters(self, max: usize) -> Self {
        self.change(|policy| policy.with_max_waiters(max))
    }

    /// See [`LockPolicy::with_release_on`].
    #[track_caller]
    pub fn with_release_on(self, release_on: ReleaseOn) -> Self {
        self.change(|policy| policy.with_release_on(release_on))
    }

    /// See [`LockPolicy::with_on_disconnect`].
    #[track_caller]
    pub fn with_on_disconnect(self, on_disconnect: OnDisconnect) -> Self {
        self.change(|policy| policy.with_on_disconnect(on_disconnect))
    }

    /// See [`LockPolicy::with_on_lost`].
    #[track_caller]
    pub fn with_on_lost(self, on_lost: OnLost) -> Self {
        self.change(|policy| policy.with_on_lost(on_lost))
    }

    /// See [`LockPolicy::with_max_hold`].
    #[track_caller]
    pub fn with_max_hold(self, max_hold: Duration) -> Self {
        self.change(|policy| policy.with_max_hold(max_hold))
    }

    /// See [`LockPolicy::with_insecure_fail_open`].
    #[track_caller]
    pub fn with_insecure_fail_open(self) -> Self {
        self.change(LockPolicy::with_insecure_fail_open)
    }

    /// See [`LockPolicy::with_guarantee`].
    #[track_caller]
    pub fn with_guarantee(self, guarantee: Guarantee) -> Self {
        self.change(|policy| policy.with_guarantee(guarantee))
    }

    /// Replaces the whole policy. What concerns HTTP only, below, stays.
    #[track_caller]
    pub fn with_policy(self, policy: LockPolicy) -> Self {
        must(self.try_with_policy(policy))
    }

    /// Replaces the whole policy, for configuration that is read at run time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_lock::{LockLayer, LockManager, LockPolicy, MemoryBackend, key::HeaderKey};
    ///
    /// let locks = LockManager::new(MemoryBackend::new());
    /// let ttl = Duration::from_millis(5); // from a file
    /// let error = LockLayer::new(&locks, HeaderKey::new("order", "x-order-id"))
    ///     .try_with_policy(LockPolicy::new().with_ttl(ttl))
    ///     .unwrap_err();
    /// assert_eq!(error.to_string(), "ttl is 5ms, accepted is 50ms to 86400s");
    /// ```
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the first knob that is wrong, and what is accepted.
    pub fn try_with_policy(mut self, policy: LockPolicy) -> Result<Self, ConfigError> {
        Arc::make_mut(&mut self.config).set_policy(policy)?;
        Ok(self)
    }

    #[track_caller]
    fn change(mut self, change: impl FnOnce(LockPolicy) -> LockPolicy) -> Self {
        let config = Arc::make_mut(&mut self.config);
        let policy = change(config.policy.clone());
        must(config.set_policy(policy));
        self
    }
}

/// What concerns HTTP only.
///
/// # Panics
///
/// Each setter panics at the caller's line if its value is not accepted.
impl<K> LockLayer<K> {
    /// Which methods are locked. Default: every method but the safe ones (`GET`, `HEAD`,
    /// `OPTIONS`, `TRACE`, `QUERY`) and `CONNECT`. Name `GET` or `QUERY` here to lock them.
    ///
    /// # Panics
    ///
    /// If the list is empty, or names `HEAD`, `OPTIONS`, `TRACE` or `CONNECT`, which are never
    /// locked.
    #[track_caller]
    pub fn with_methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        let config = Arc::make_mut(&mut self.config);
        config.methods = must(config.methods.clone().with(methods));
        self
    }

    /// Methods that lock in shared mode, such as `GET` beside an exclusive `POST`. They are
    /// locked as if named in [`with_methods`](Self::with_methods), beside its list or the default.
    ///
    /// ```
    /// use http::Method;
    /// use tower_lock::{LockLayer, LockManager, MemoryBackend, key::HeaderKey};
    ///
    /// let locks = LockManager::new(MemoryBackend::new());
    /// // Readers together, writers alone, all in arrival order.
    /// let layer = LockLayer::new(&locks, HeaderKey::new("document", "x-document"))
    ///     .with_shared_methods([Method::GET]);
    /// ```
    ///
    /// # Panics
    ///
    /// If the backend has no shared mode, or the list names a method that is never locked.
    #[track_caller]
    pub fn with_shared_methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        let config = Arc::make_mut(&mut self.config);
        must(config.check_shared());
        config.shared_methods = methods.into_iter().collect();
        let shared = config.shared_methods.iter().cloned();
        config.methods = must(config.methods.clone().adding(shared));
        self
    }

    /// Chooses the mode for each request, before any other rule. It sees the head as the key
    /// extractor left it, and only for methods that are locked.
    ///
    /// # Panics
    ///
    /// If the backend has no shared mode.
    #[track_caller]
    pub fn with_mode_fn(mut self, mode: impl Fn(&Parts) -> Mode + Send + Sync + 'static) -> Self {
        let config = Arc::make_mut(&mut self.config);
        must(config.check_shared());
        config.mode_fn = Some(Arc::new(mode));
        self
    }

    /// The status of a request that found the key held, with or without waiting. Default 409;
    /// accepted are 409, 423, 429 and 503.
    ///
    /// A 5xx has proxies count a hot key against the instance; a 423 is WebDAV's.
    #[track_caller]
    pub fn with_contended_status(mut self, status: StatusCode) -> Self {
        Arc::make_mut(&mut self.config).contended_status = must(contended_status(status));
        self
    }

    /// The beginning of the `type` URLs of problem responses, to which the slug is added.
    /// Default: this crate's documentation.
    #[track_caller]
    pub fn with_problem_base(mut self, base: &str) -> Self {
        Arc::make_mut(&mut self.config).problem_base = must(ProblemBase::new(base));
        self
    }

    /// Answers refusals instead of the default problem responses, gRPC refusals included. The
    /// [`Refusal`] is put into the extensions of whatever this returns.
    ///
    /// The head is copied for each locked request then, because a lock can be lost after the
    /// handler has taken it. The answer is sent as it is: `Retry-After` and other headers are
    /// yours.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::{Response, request::Parts};
    /// use tower_lock::{LockLayer, LockManager, MemoryBackend, Refusal, key::HeaderKey};
    ///
    /// let locks = LockManager::new(MemoryBackend::new());
    /// let layer = LockLayer::new(&locks, HeaderKey::new("order", "x-order-id")).on_refuse(
    ///     |refusal: &Refusal, _: &Parts| {
    ///         let mut response = Response::new(Bytes::from(refusal.detail().to_owned()));
    ///         *response.status_mut() = refusal.status();
    ///         if let Some(after) = refusal.retry_after() {
    ///             let seconds = after.as_secs_f64().ceil() as u64;
    ///             response.headers_mut().insert("retry-after", seconds.into());
    ///         }
    ///         response
    ///     },
    /// );
    /// ```
    pub fn on_refuse(
        mut self,
        refuse: impl Fn(&Refusal, &Parts) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.config).on_refuse = Some(Arc::new(refuse));
        self
    }
}

impl<K: fmt::Debug> fmt::Debug for LockLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("key", &self.key)
            .field("config", &self.config)
            .finish()
    }
}

/// Runs once per connection or request in axum, so it only clones an `Arc`.
impl<S, K: Clone> Layer<S> for LockLayer<K> {
    type Service = LockService<S, K>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService::new(inner, self.config.clone(), self.key.clone())
    }
}
