//! What all requests of one layer share, and what is decided for each of them.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, request::Parts};
use tokio::time::Instant;

use crate::{
    backend::Mode,
    error::ConfigError,
    key::LockKey,
    manager::{
        HeldLock, LockManager, Releaser, Wish,
        observe::Route,
        plan::{Plan, wait_bound},
    },
    policy::{LockPolicy, Wait},
    web::{MethodFilter, ProblemBase, Refusal, grpc, prefer},
};

type ModeFn = dyn Fn(&Parts) -> Mode + Send + Sync;
type RefuseFn = dyn Fn(&Refusal, &Parts) -> Response<Bytes> + Send + Sync;

/// Everything about a layer but its key.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) manager: LockManager,
    pub(crate) policy: LockPolicy,
    plan: Arc<Plan>,
    pub(crate) methods: MethodFilter,
    /// Whether a client may say by `Prefer: wait` how long it waits.
    pub(crate) heeds_preference: bool,
    pub(crate) shared_methods: Vec<Method>,
    pub(crate) mode_fn: Option<Arc<ModeFn>>,
    pub(crate) contended_status: StatusCode,
    pub(crate) problem_base: ProblemBase,
    pub(crate) on_refuse: Option<Arc<RefuseFn>>,
    pub(crate) stats: Arc<Stats>,
}

impl Config {
    pub(crate) fn new(manager: &LockManager) -> Result<Self, ConfigError> {
        let policy = LockPolicy::new();
        // A backend may not take the default ttl; that is nothing to ask a user about.
        let ttl = manager.capabilities().clamp_ttl(policy.ttl());
        let policy = policy.with_ttl(ttl);
        Ok(Self {
            plan: Arc::new(manager.plan(&policy)?),
            manager: manager.clone(),
            policy,
            methods: MethodFilter::default(),
            heeds_preference: true,
            shared_methods: Vec::new(),
            mode_fn: None,
            contended_status: StatusCode::CONFLICT,
            problem_base: ProblemBase::default(),
            on_refuse: None,
            stats: Arc::default(),
        })
    }

    pub(crate) fn set_policy(&mut self, policy: LockPolicy) -> Result<(), ConfigError> {
        self.plan = Arc::new(self.manager.plan(&policy)?);
        self.policy = policy;
        Ok(())
    }

    /// The lock of this key that an outer layer of the same request holds.
    pub(crate) fn outer<'a>(&self, parts: &'a Parts, key: &LockKey) -> Option<&'a HeldLock> {
        let innermost = parts.extensions.get::<HeldLock>()?;
        let shared = self.manager.shared();
        let is_it =
            |held: &&HeldLock| held.key() == key && Arc::ptr_eq(&held.hold().shared, shared);
        innermost.chain().find(is_it)
    }

    pub(crate) fn check_shared(&self) -> Result<(), ConfigError> {
        self.policy
            .check_mode(Mode::Shared, &self.manager.capabilities())
    }

    /// What this request asks of the manager, for each of its keys.
    pub(crate) fn terms(&self, parts: &Parts) -> Terms {
        let preference = self.heeds_preference.then(|| prefer::wait(&parts.headers));
        let (mut wait, applied) = prefer::effective_wait(
            self.policy.wait(),
            self.policy.max_prefer_wait(),
            preference.flatten(),
        );
        let mut told = Told::unwaited(&parts.headers);
        told.applied = applied;
        if told.grpc.is_some() {
            wait = grpc::bound_wait(wait, &parts.headers);
        }
        let mode = match &self.mode_fn {
            Some(mode) => mode(parts),
            None if self.shared_methods.contains(&parts.method) => Mode::Shared,
            None => self.policy.mode(),
        };
        let started = Instant::now();
        Terms {
            mode,
            wait,
            started,
            told,
            route: route(parts),
        }
    }

    pub(crate) fn wish(&self, key: LockKey, terms: &Terms) -> Wish {
        Wish {
            key,
            mode: terms.mode,
            wait: wait_bound(terms.wait, terms.started),
            plan: self.plan.clone(),
            route: terms.route.clone(),
            releaser: Releaser::Layer,
            started: terms.started,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("manager", &self.manager)
            .field("policy", &self.policy)
            .field("methods", &self.methods)
            .field("problem_base", &self.problem_base)
            .finish_non_exhaustive()
    }
}

/// For setters: panics at their caller's line, when the layer is built.
#[track_caller]
pub(crate) fn must<T>(result: Result<T, ConfigError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// What one request asks for.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) mode: Mode,
    pub(crate) wait: Wait,
    pub(crate) started: Instant,
    pub(crate) told: Told,
    pub(crate) route: Route,
}

/// What the request's head says of the answer.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// The seconds of `Prefer: wait` that were honoured.
    pub(crate) applied: Option<u64>,
    /// The content type of a gRPC answer, if it is a gRPC call.
    pub(crate) grpc: Option<Box<HeaderValue>>,
}

impl Told {
    /// For an answer before any wait.
    pub(crate) fn unwaited(headers: &HeaderMap) -> Self {
        Self {
            applied: None,
            grpc: grpc::content_type(headers).map(Box::new),
        }
    }
}

#[cfg(all(feature = "axum", feature = "metrics"))]
fn route(parts: &Parts) -> Route {
    parts
        .extensions
        .get::<axum::extract::MatchedPath>()
        .map(|path| path.as_str().into())
}

#[cfg(not(all(feature = "axum", feature = "metrics")))]
fn route(_: &Parts) -> Route {
    None
}

/// What a layer has seen.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// Moving average of how long its handlers hold, in µs; zero before the first.
    hold_us: AtomicU64,
    warned_outlived: AtomicBool,
}

impl Stats {
    pub(crate) fn record(&self, held: Duration) {
        let held = u64::try_from(held.as_micros()).unwrap_or(u64::MAX).max(1);
        let old = self.hold_us.load(Ordering::Relaxed);
        let new = if old == 0 {
            held
        } else {
            old - old / 8 + held / 8
        };
        // Two requests at once lose one sample: it is an estimate.
        self.hold_us.store(new.max(1), Ordering::Relaxed);
    }

    pub(crate) fn average_hold(&self) -> Option<Duration> {
        match self.hold_us.load(Ordering::Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(us)),
        }
    }

    /// Whether this is the first streamed body that outlived its lock.
    pub(crate) fn first_outlived(&self) -> bool {
        !self.warned_outlived.swap(true, Ordering::Relaxed)
    }
}
