//! What each backend promises under each fault: the table of expected violations, and bounds.
//!
//! Everything that is found and does not stand here is a failure.

use std::time::Duration;

use crate::{
    checks::{Found, Kind, Rules},
    faults::Fault,
    stage::{Backend, TTL},
};

/// How late a busy machine may be.
const LATE: Duration = Duration::from_millis(1500);

/// What may be found. With the place in the documentation that says so.
pub(crate) fn allowed(backend: Backend, fault: Fault) -> &'static [Kind] {
    use Backend as B;
    use Fault as F;
    match (backend, fault) {
        // A lock by hand keeps nothing of what is asked of ours: see `must_find`.
        (B::Naive | B::NaiveRedLock, _) => Kind::ALL,
        // "Lost data ends exclusion."
        (B::Redis, F::Empty) => &[Kind::DoubleHold, Kind::LateLoss, Kind::Inversion, Kind::NotLinear],
        // "A forward step of the server's clock ends leases early."
        (B::Redis, F::ServerClock) => {
            &[Kind::DoubleHold, Kind::LateLoss, Kind::Inversion, Kind::NotLinear]
        }
        // "A fail-over loses grants."
        (
            B::Sentinel | B::Cluster,
            F::KillServer | F::StopServer | F::FailOver | F::UnreplicatedFailOver,
        ) => &[Kind::DoubleHold, Kind::LateLoss, Kind::Inversion, Kind::NotLinear],
        // "A majority whose clocks jump ends leases early."
        (B::RedLock, F::MajorityClock) => {
            &[Kind::DoubleHold, Kind::LateLoss, Kind::NotLinear]
        }
        _ => &[],
    }
}

/// What has to be found, or the harness is blind.
fn must_find(backend: Backend, fault: Fault) -> &'static [Kind] {
    use Backend as B;
    use Fault as F;
    match (backend, fault) {
        (B::Naive, F::StopClient) => &[Kind::DoubleHold],
        (B::NaiveRedLock, F::Empty) => &[Kind::DoubleHold],
        (B::Sentinel, F::UnreplicatedFailOver) => &[Kind::DoubleHold],
        _ => &[],
    }
}

/// How long after a fault the load goes on.
pub(crate) fn settles(backend: Backend, fault: Fault) -> Duration {
    let dead = match fault {
        // Whoever held is not there to give it back.
        Fault::KillClient | Fault::Empty | Fault::EmptyMajority | Fault::KillAll => TTL,
        _ => TTL / 2,
    };
    let slow = match backend {
        Backend::Etcd | Backend::ZooKeeper => Duration::from_secs(1),
        _ => Duration::ZERO,
    };
    dead + slow
}

pub(crate) fn rules(backend: Backend, fault: Fault) -> Rules {
    let _ = (backend, fault);
    Rules::default()
}

/// What is wrong with it.
pub(crate) fn judge(backend: Backend, fault: Fault, found: &Found) -> Vec<String> {
    let allowed = allowed(backend, fault);
    let mut wrong: Vec<_> = found
        .violations
        .iter()
        .filter(|violation| !allowed.contains(&violation.kind))
        .map(|violation| format!("{:?}: {}", violation.kind, violation.text))
        .collect();
    for kind in must_find(backend, fault) {
        if !found.violations.iter().any(|violation| violation.kind == *kind) {
            wrong.push(format!("{kind:?} has to be found, and was not"));
        }
    }
    if found.grants == 0 {
        wrong.push("nobody was granted anything".to_owned());
    }
    wrong
}
