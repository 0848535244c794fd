//! What a backend can do, as plain data.

use std::time::Duration;

/// How far a backend's locks reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// One process. `acquire` without waiting and `release` finish on their first poll.
    Process,
    /// All processes of one host.
    Host,
    /// All instances of a service.
    Fleet,
}

/// Faults under which must 1 (exclusion) and must 3 (growing tokens) hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Faults {
    /// A holder or waiter dies.
    pub client_crash: bool,
    /// The server restarts with its data.
    pub server_restart: bool,
    /// One node of several dies and another takes over.
    pub fail_over: bool,
    /// The network splits clients or nodes from each other.
    pub partition: bool,
    /// The server's clock is set.
    pub clock_step: bool,
    /// The server's data is lost.
    pub data_loss: bool,
}

/// What a backend can do. Policies are checked against it when a layer is built, and the
/// contract suite chooses its tests by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name for logs and errors, such as `memory`.
    pub name: &'static str,
    /// How far its locks reach.
    pub scope: Scope,
    /// Whether it serves waiters in arrival order ([`Order::Fifo`](super::Order::Fifo)).
    pub fifo: bool,
    /// Whether it has [`Mode::Shared`](super::Mode::Shared).
    pub shared: bool,
    /// Whether it agrees on grants among several nodes, or is alone by nature, so that a
    /// `Correctness` route may stand on it.
    pub consensus: bool,
    /// Whether its fencing tokens grow with every grant (must 3).
    pub fencing: bool,
    /// Whether one grant can reserve a range of tokens (`Fairness::Batched`).
    pub reserves_tokens: bool,
    /// The shortest ttl that it takes, where a session gives one.
    pub min_ttl: Option<Duration>,
    /// The longest ttl that it takes, where there is one.
    pub max_ttl: Option<Duration>,
    /// The faults that it survives.
    pub survives: Faults,
}

impl Capabilities {
    /// A backend of this name and scope that can do nothing else; set the fields that it can.
    pub const fn new(name: &'static str, scope: Scope) -> Self {
        Self {
            name,
            scope,
            fifo: false,
            shared: false,
            consensus: false,
            fencing: false,
            reserves_tokens: false,
            min_ttl: None,
            max_ttl: None,
            survives: Faults {
                client_crash: false,
                server_restart: false,
                fail_over: false,
                partition: false,
                clock_step: false,
                data_loss: false,
            },
        }
    }

    /// The nearest ttl that it takes.
    pub(crate) fn clamp_ttl(&self, ttl: Duration) -> Duration {
        let ttl = self.min_ttl.map_or(ttl, |min| ttl.max(min));
        self.max_ttl.map_or(ttl, |max| ttl.min(max))
    }
}
