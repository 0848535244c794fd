//! What all requests of one layer share.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, response};
use tokio::time::sleep;

use super::{kept::Shared, landing::Landing, policy::SingleFlightPolicy, vary::VaryBy};
use crate::{
    error::ConfigError, key::LockKey, manager::LockManager, record::RecordLimits, route::Config,
    sync::lock,
};

type GiveUpFn = dyn Fn(&response::Parts) -> bool + Send + Sync;

/// Everything about a layer but its key.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) route: Config,
    pub(super) policy: SingleFlightPolicy,
    pub(super) limits: RecordLimits,
    pub(super) vary: VaryBy,
    pub(super) gives_up: Option<Arc<GiveUpFn>>,
    pub(super) rebuilding: Arc<Rebuilding>,
}

impl Settings {
    pub(super) fn new(manager: &LockManager) -> Result<Self, ConfigError> {
        let limits = manager.record_limits()?;
        let mut route = Config::new(manager)?;
        route.methods = route.methods.clone().with([Method::GET])?;
        route.heeds_preference = false;
        let default = SingleFlightPolicy::new();
        // A backend may not take the default ttl, and a store not the default response; that is
        // nothing to ask a user about.
        let ttl = manager.capabilities().clamp_ttl(default.ttl());
        let policy = default
            .clone()
            .with_ttl(ttl)
            .with_max_response(default.max_response().min(limits.max_bytes));
        let mut settings = Self {
            route,
            policy: default,
            limits,
            vary: VaryBy::default(),
            gives_up: None,
            rebuilding: Default::default(),
        };
        settings.set_policy(policy)?;
        Ok(settings)
    }

    pub(super) fn set_policy(&mut self, policy: SingleFlightPolicy) -> Result<(), ConfigError> {
        policy.check_bounds()?;
        policy.check_records(&self.limits)?;
        self.route.set_policy(policy.lock().clone())?;
        self.policy = policy;
        Ok(())
    }

    pub(super) fn landing(&self, head: &response::Parts) -> Landing {
        match &self.gives_up {
            Some(gives_up) if gives_up(head) => Landing::GaveUp,
            _ => Landing::of(head),
        }
    }

    /// How long it is known that a leader is done, for those who wait to hear of it: they are woken
    /// at once, and a process that was suspended leads once more.
    pub(super) fn pass_ttl(&self) -> Duration {
        Duration::from_secs(10).min(self.limits.max_ttl)
    }

    /// For how long a shared response is fresh here: another policy may have left it.
    pub(super) fn freshness(&self, shared: &Shared) -> Duration {
        let own = self.policy.shared_for().unwrap_or_default();
        shared.fresh().min(own)
    }

    /// What a leader writes lasts longer than it may lead.
    pub(super) fn opening_ttl(&self) -> Duration {
        let lock = self.policy.lock();
        let most = lock.max_hold().saturating_add(lock.ttl());
        most.min(self.limits.max_ttl)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("route", &self.route)
            .field("policy", &self.policy)
            .field("vary", &self.vary)
            .finish_non_exhaustive()
    }
}

/// The keys whose stale responses this process rebuilds: each request that finds one would ask.
#[derive(Debug, Default)]
pub(super) struct Rebuilding(Mutex<HashSet<LockKey>>);

impl Rebuilding {
    /// `None` if another is at it.
    pub(super) fn begin(self: Arc<Self>, key: &LockKey) -> Option<Rebuild> {
        let is_new = lock(&self.0).insert(key.clone());
        is_new.then(|| Rebuild {
            all: self,
            key: key.clone(),
        })
    }
}

/// A rebuild in the background, until it is dropped.
#[derive(Debug)]
pub(super) struct Rebuild {
    all: Arc<Rebuilding>,
    pub(super) key: LockKey,
}

impl Rebuild {
    /// Nothing came of it: who finds the response stale within this time does not try either.
    pub(super) async fn rests(self) {
        sleep(Duration::from_secs(1)).await;
    }
}

impl Drop for Rebuild {
    fn drop(&mut self) {
        lock(&self.all.0).remove(&self.key);
    }
}
