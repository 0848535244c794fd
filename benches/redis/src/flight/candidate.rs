//! What is waited with.

use std::fmt;

/// A way to wait for a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Candidate {
    /// Tasks that wait for a bare `tokio::sync::watch`, with no request.
    Watch,
    /// The same with `Notify::notify_waiters`.
    Notify,
    /// Requests behind a `SingleFlightLayer`.
    Layer { store: Store, shares: bool },
}

/// What a layer's locks and records stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Memory,
    Redis,
}

impl Candidate {
    const ALL: [Self; 6] = [
        Self::Watch,
        Self::Notify,
        Self::layer(Store::Memory, false),
        Self::layer(Store::Memory, true),
        Self::layer(Store::Redis, false),
        Self::layer(Store::Redis, true),
    ];

    const fn layer(store: Store, shares: bool) -> Self {
        Self::Layer { store, shares }
    }

    /// Each with the number of its processes.
    pub(super) fn runs() -> Vec<(Self, usize)> {
        let in_one = Self::ALL.map(|candidate| (candidate, 1));
        let in_three = [false, true].map(|shares| (Self::layer(Store::Redis, shares), 3));
        [&in_one[..], &in_three].concat()
    }

    pub(super) fn is_on_redis(self) -> bool {
        matches!(self, Self::Layer { store, .. } if store == Store::Redis)
    }

    pub(super) fn named(name: &str) -> Self {
        let candidate = Self::ALL.into_iter().find(|c| c.to_string() == name);
        candidate.unwrap_or_else(|| panic!("no candidate is called {name}"))
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Watch => f.write_str("tokio::sync::watch, no request"),
            Self::Notify => f.write_str("tokio::sync::Notify, no request"),
            Self::Layer { store, shares } => {
                let shared = if *shares { ", share_response" } else { "" };
                write!(f, "SingleFlightLayer, {store:?}Backend{shared}")
            }
        }
    }
}
