//! A policy as one backend carries it out.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    backend::{AcquireRequest, Capabilities, Mode, Order, WaitBound},
    error::ConfigError,
    key::LockKey,
    policy::{Fairness, LockPolicy, OnLost, Wait},
};

/// What the manager needs of a checked policy; shared by all requests of a route.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) ttl: Duration,
    pub(crate) order: Order,
    /// The most holders that one grant serves in this process; 1 unless `Batched`.
    pub(crate) batch: u32,
    pub(crate) max_waiters: usize,
    pub(crate) max_hold: Duration,
    pub(crate) on_lost: OnLost,
}

impl Plan {
    pub(crate) fn new(
        policy: &LockPolicy,
        capabilities: &Capabilities,
        single_instance: bool,
    ) -> Result<Self, ConfigError> {
        policy.check(capabilities, single_instance)?;
        let fifo = match policy.fairness() {
            Fairness::BestAvailable | Fairness::Batched(_) => capabilities.fifo,
            Fairness::Fifo => true,
            Fairness::Unfair => false,
        };
        Ok(Self {
            ttl: policy.ttl(),
            order: if fifo { Order::Fifo } else { Order::Unfair },
            batch: match policy.fairness() {
                Fairness::Batched(n) => n.get(),
                _ => 1,
            },
            max_waiters: policy.max_waiters(),
            max_hold: policy.max_hold(),
            on_lost: policy.on_lost(),
        })
    }

    pub(crate) fn request(&self, key: LockKey, mode: Mode, wait: WaitBound) -> AcquireRequest {
        AcquireRequest::new(key, self.ttl)
            .with_mode(mode)
            .with_order(self.order)
            .with_wait(wait)
    }
}

/// How long before the end of a lease its holder is told: time to drop the handler.
/// Nanoseconds, both.
pub(crate) fn lead(ttl: u64) -> u64 {
    (ttl / 20).min(100_000_000)
}

/// The bound of a wait that starts now.
pub(crate) fn wait_bound(wait: Wait, now: Instant) -> WaitBound {
    match wait {
        Wait::Fail => WaitBound::Fail,
        Wait::For(d) if d.is_zero() => WaitBound::Fail,
        Wait::For(d) => WaitBound::Until(now + d),
        Wait::Forever => WaitBound::Forever,
    }
}
