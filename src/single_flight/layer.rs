//! `SingleFlightLayer` and its setters.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderName, Method, Response, request, response};
use tower_layer::Layer;

use super::{
    policy::SingleFlightPolicy, service::SingleFlightService, settings::Settings, vary::VaryBy,
};
use crate::{
    error::ConfigError,
    key::KeyExtractor,
    manager::LockManager,
    policy::OnDisconnect,
    replay::StoredHeaders,
    route::must,
    web::{ProblemBase, Refusal},
};

#[doc = include_str!("../docs/single_flight_layer.md")]
#[must_use = "a layer does nothing until it wraps a service"]
#[derive(Clone)]
pub struct SingleFlightLayer {
    settings: Arc<Settings>,
    key: Arc<dyn KeyExtractor>,
}

impl SingleFlightLayer {
    /// A layer of which one request for each key leads and the others wait for it, with the
    /// defaults of [`SingleFlightPolicy`]. What a leader leaves stands beside the locks of the
    /// manager's backend.
    ///
    /// # Panics
    ///
    /// If the backend keeps no records, or cannot carry out the default policy.
    #[track_caller]
    pub fn new(manager: &LockManager, key: impl KeyExtractor) -> Self {
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
    pub fn try_new(manager: &LockManager, key: impl KeyExtractor) -> Result<Self, ConfigError> {
        Ok(Self {
            settings: Arc::new(Settings::new(manager)?),
            key: Arc::new(key),
        })
    }
}

/// The setters of [`SingleFlightPolicy`], checked at once.
///
/// # Panics
///
/// Each setter panics at the caller's line if its value is not accepted, or the backend or its store
/// cannot carry it out. No check depends on the order of the setters, but that
/// [`share_response`](Self::share_response) comes before
/// [`stale_while_rebuild`](Self::stale_while_rebuild).
impl SingleFlightLayer {
    /// See [`SingleFlightPolicy::with_wait`].
    #[track_caller]
    pub fn with_wait(self, wait: Duration) -> Self {
        self.change(|policy| policy.with_wait(wait))
    }

    /// See [`SingleFlightPolicy::with_ttl`].
    #[track_caller]
    pub fn with_ttl(self, ttl: Duration) -> Self {
        self.change(|policy| policy.with_ttl(ttl))
    }

    /// See [`SingleFlightPolicy::with_max_leader_age`].
    #[track_caller]
    pub fn with_max_leader_age(self, age: Duration) -> Self {
        self.change(|policy| policy.with_max_leader_age(age))
    }

    /// See [`SingleFlightPolicy::with_max_waiters`].
    #[track_caller]
    pub fn with_max_waiters(self, max: usize) -> Self {
        self.change(|policy| policy.with_max_waiters(max))
    }

    /// See [`SingleFlightPolicy::with_on_disconnect`].
    #[track_caller]
    pub fn with_on_disconnect(self, on_disconnect: OnDisconnect) -> Self {
        self.change(|policy| policy.with_on_disconnect(on_disconnect))
    }

    /// See [`SingleFlightPolicy::share_response`].
    #[track_caller]
    pub fn share_response(self, ttl: Duration) -> Self {
        self.change(|policy| policy.share_response(ttl))
    }

    /// See [`SingleFlightPolicy::stale_while_rebuild`].
    #[track_caller]
    pub fn stale_while_rebuild(self, stale: Duration) -> Self {
        self.change(|policy| policy.stale_while_rebuild(stale))
    }

    /// See [`SingleFlightPolicy::with_max_response`].
    #[track_caller]
    pub fn with_max_response(self, bytes: usize) -> Self {
        self.change(|policy| policy.with_max_response(bytes))
    }

    /// See [`SingleFlightPolicy::with_stored_headers`].
    #[track_caller]
    pub fn with_stored_headers(self, headers: StoredHeaders) -> Self {
        self.change(|policy| policy.with_stored_headers(headers))
    }

    /// Replaces the whole policy. What concerns HTTP only, below, stays.
    #[track_caller]
    pub fn with_policy(self, policy: SingleFlightPolicy) -> Self {
        must(self.try_with_policy(policy))
    }

    /// Replaces the whole policy, for configuration that is read at run time.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the first knob that is wrong, and what is accepted.
    pub fn try_with_policy(mut self, policy: SingleFlightPolicy) -> Result<Self, ConfigError> {
        Arc::make_mut(&mut self.settings).set_policy(policy)?;
        Ok(self)
    }

    #[track_caller]
    fn change(mut self, change: impl FnOnce(SingleFlightPolicy) -> SingleFlightPolicy) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        let policy = change(settings.policy.clone());
        must(settings.set_policy(policy));
        self
    }
}

/// What concerns HTTP only.
impl SingleFlightLayer {
    /// Requests that differ in one of these headers do not fly together: what `Vary` of a response
    /// would name, such as `accept-language`. Default: none. Their values count as they were sent;
    /// in the key they are hashed.
    ///
    /// A shared response whose `Vary` names another header is not shared.
    pub fn with_vary(mut self, headers: impl IntoIterator<Item = HeaderName>) -> Self {
        let settings = Arc::make_mut(&mut self.settings);
        settings.vary = VaryBy::new(headers.into_iter().collect());
        self
    }

    /// Which responses mean that the leader [gives up](super::GiveUp), besides those that say so
    /// themselves: those who wait run at once, together. Default: none.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use tower_lock::{LockManager, MemoryBackend, SingleFlightLayer, key::PathKey};
    ///
    /// let locks = LockManager::new(MemoryBackend::new());
    /// let layer = SingleFlightLayer::new(&locks, PathKey::new("report", "id"))
    ///     .give_up_if(|response| response.headers.contains_key("x-not-cached"));
    /// # let _ = layer;
    /// # }
    /// ```
    pub fn give_up_if(
        mut self,
        gives_up: impl Fn(&response::Parts) -> bool + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.settings).gives_up = Some(Arc::new(gives_up));
        self
    }

    /// Whose requests fly together. Default: `GET`. Where it is another, the key must say what the
    /// body asks for.
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
        refuse: impl Fn(&Refusal, &request::Parts) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        Arc::make_mut(&mut self.settings).route.on_refuse = Some(Arc::new(refuse));
        self
    }
}

impl fmt::Debug for SingleFlightLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleFlightLayer")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Runs once per connection or request in axum, so it only clones two `Arc`s.
impl<S> Layer<S> for SingleFlightLayer {
    type Service = SingleFlightService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SingleFlightService::new(inner, self.settings.clone(), self.key.clone())
    }
}
