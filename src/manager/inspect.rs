//! What this process holds and waits for, for operators.

use std::time::Duration;

use tokio::time::Instant;

use super::LockManager;
use crate::{backend::Mode, key::LockKey, lease::FencingToken};

/// What a manager holds and waits for, in this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagerState {
    /// The locks that are held, the longest held first.
    pub held: Vec<HeldState>,
    /// The keys that have waiters.
    pub waiting: Vec<WaitingState>,
}

/// One lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldState {
    /// What is locked.
    pub key: LockKey,
    /// Exclusive or shared.
    pub mode: Mode,
    /// The token of the grant.
    pub fencing_token: FencingToken,
    /// For how long it has been held.
    pub held_for: Duration,
    /// What remains of the lease; zero once lost.
    pub remaining: Duration,
}

/// The waiters of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingState {
    /// What they wait for.
    pub key: LockKey,
    /// How many there are.
    pub waiters: usize,
}

impl LockManager {
    /// What this process holds and waits for now. Locks of other instances: see
    /// [`inspect_key`](Self::inspect_key).
    pub fn inspect(&self) -> ManagerState {
        let mut held = Vec::new();
        self.shared().registry.for_each(|hold| {
            held.push(HeldState {
                key: hold.key.clone(),
                mode: hold.mode,
                fencing_token: hold.token,
                held_for: hold.held_for(Instant::now()),
                remaining: hold.remaining(),
            });
        });
        held.sort_by_key(|h| std::cmp::Reverse(h.held_for));
        let mut waiting: Vec<_> = self
            .shared()
            .admission
            .list()
            .into_iter()
            .map(|(key, waiters)| WaitingState { key, waiters })
            .collect();
        waiting.sort_by(|a, b| a.key.cmp(&b.key));
        ManagerState { held, waiting }
    }
}
