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

/// Two may hold, and what follows from it.
const FORGETS: &[Kind] = &[
    Kind::DoubleHold,
    Kind::LossLate,
    Kind::Overtaken,
    Kind::NotLinearizable,
];

/// What may be found, with the sentence of the documentation that says so.
pub(crate) fn allowed(backend: Backend, fault: Fault) -> (&'static [Kind], &'static str) {
    use Backend as B;
    use Fault as F;
    match (backend, fault) {
        (B::Naive | B::NaiveRedLock, _) => (&Kind::ALL, "what is broken is broken"),
        (B::Redis, F::Empty) => (FORGETS, "lost data ends exclusion"),
        (B::Redis, F::ServerClock) => (
            FORGETS,
            "a forward step of the server's clock ends leases early",
        ),
        (
            B::Sentinel | B::Cluster,
            F::KillServer | F::StopServer | F::FailOver | F::UnreplicatedFailOver,
        ) => (FORGETS, "a fail-over loses grants"),
        (B::RedLock, F::MajorityClock) => (
            FORGETS,
            "a majority whose clocks jump ends leases early",
        ),
        _ => (&[], ""),
    }
}

/// What has to be found, or the harness is blind.
pub(crate) fn must_find(backend: Backend, fault: Fault) -> &'static [Kind] {
    use Backend as B;
    use Fault as F;
    match (backend, fault) {
        (B::Naive, F::StopClient)
        | (B::NaiveRedLock, F::Empty)
        | (B::Sentinel, F::UnreplicatedFailOver) => &[Kind::DoubleHold],
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

pub(crate) fn rules(_backend: Backend, fault: Fault) -> Rules {
    let blocked = match fault {
        // Nobody of that process can be answered meanwhile.
        Fault::BlockThreads => TTL * 2,
        _ => Duration::ZERO,
    };
    Rules {
        answer_slack: (LATE + blocked).as_nanos() as u64,
        ..Rules::default()
    }
}

/// What is wrong with it.
pub(crate) fn judge(backend: Backend, fault: Fault, found: &Found) -> Vec<String> {
    let (allowed, _) = allowed(backend, fault);
    let mut wrong: Vec<_> = found
        .violations
        .iter()
        .filter(|violation| !allowed.contains(&violation.kind))
        .map(|violation| format!("{:?}: {}", violation.kind, violation.text))
        .collect();
    for kind in must_find(backend, fault) {
        if found.count(*kind) == 0 {
            wrong.push(format!("{kind:?} has to be found, and was not"));
        }
    }
    if found.figures.grants == 0 {
        wrong.push("nobody was granted anything".to_owned());
    }
    wrong
}
