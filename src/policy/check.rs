//! Which policies are accepted, by themselves and on a backend.

use std::time::Duration;

use super::{Fairness, Guarantee, LockPolicy, ReleaseOn, Wait};
use crate::{
    backend::{Capabilities, Mode, Scope},
    error::ConfigError,
};

/// The shortest ttl: below it, a third of it is no time for a renewal.
const MIN_TTL: Duration = Duration::from_millis(50);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest finite wait, `u32::MAX` ms: what the narrowest wire format takes.
const MAX_WAIT: Duration = Duration::from_millis(u32::MAX as u64);
const MAX_HOLD: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const MAX_BATCH: u32 = 10_000;

impl LockPolicy {
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
        let max_ttl = capabilities.max_ttl.unwrap_or(MAX_TTL).min(MAX_TTL);
        within("ttl", self.ttl, min_ttl, max_ttl)?;
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
