//! What is asked of a backend.

use std::time::Duration;

use tokio::time::Instant;

use crate::{key::LockKey, lease::OwnerToken};

/// Whether a lock tolerates others beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One holder alone.
    #[default]
    Exclusive,
    /// Any number of shared holders, no exclusive one beside them.
    Shared,
}

/// In which order a backend serves waiters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Grants follow arrivals, across all instances; a newcomer never barges.
    #[default]
    Fifo,
    /// Whoever comes first; a newcomer may barge, but past no `Fifo` waiter.
    Unfair,
}

/// How long an acquire may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitBound {
    /// Not at all: a held key is answered with `Contended` at once.
    Fail,
    /// Until this moment; then `WaitTimedOut`.
    Until(Instant),
    /// As long as it takes.
    Forever,
}

/// One wish for a lock. The same owner may ask again: it gets the same grant (must 11).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// What is to be locked.
    pub key: LockKey,
    /// Who asks; new for every acquisition.
    pub owner: OwnerToken,
    /// Exclusive or shared.
    pub mode: Mode,
    /// The order among waiters.
    pub order: Order,
    /// How long to wait.
    pub wait: WaitBound,
    /// How long the grant lasts without a renewal.
    pub ttl: Duration,
    /// How many fencing tokens to reserve with the grant, at least 1. Above 1 only where
    /// [`Capabilities::reserves_tokens`](super::Capabilities::reserves_tokens).
    pub tokens: u32,
}

impl AcquireRequest {
    /// A request of a new random owner: exclusive, `Fifo`, without waiting, one token.
    pub fn new(key: LockKey, ttl: Duration) -> Self {
        Self {
            key,
            owner: OwnerToken::random(),
            mode: Mode::Exclusive,
            order: Order::Fifo,
            wait: WaitBound::Fail,
            ttl,
            tokens: 1,
        }
    }

    /// Sets exclusive or shared.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the order among waiters.
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets how long to wait.
    #[must_use]
    pub fn with_wait(mut self, wait: WaitBound) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how many fencing tokens to reserve with the grant.
    #[must_use]
    pub fn with_tokens(mut self, tokens: u32) -> Self {
        self.tokens = tokens;
        self
    }
}
