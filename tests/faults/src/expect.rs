//! What each backend promises under each fault: the table of expected violations, and bounds.
//!
//! Everything that is found and does not stand here is a failure.

use std::time::Duration;

use crate::{
    checks::{Found, Kind, Rules},
    faults::Fault,
    stage::Backend,
};

/// The lease of most runs: the shortest that a busy machine keeps.
const TTL: Duration = Duration::from_secs(2);

/// A lease that outlives a fail-over of Redis.
const LONG_TTL: Duration = Duration::from_secs(6);

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
        (B::Sentinel | B::Cluster, fault) if is_fail_over(backend, fault) => {
            (FORGETS, "a fail-over loses grants")
        }
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

/// Whether another master takes over.
pub(crate) fn is_fail_over(backend: Backend, fault: Fault) -> bool {
    let replicated = matches!(
        backend,
        Backend::Sentinel | Backend::SentinelAcked | Backend::Cluster
    );
    replicated
        && matches!(
            fault,
            Fault::KillServer | Fault::StopServer | Fault::FailOver | Fault::UnreplicatedFailOver
        )
}

/// The lease of all locks of a run.
pub(crate) fn ttl(backend: Backend, fault: Fault) -> Duration {
    if is_fail_over(backend, fault) {
        LONG_TTL
    } else {
        TTL
    }
}

/// How long after a fault the load goes on.
pub(crate) fn settles(backend: Backend, fault: Fault) -> Duration {
    let ttl = ttl(backend, fault);
    let dead = match fault {
        // Whoever held is not there to give it back.
        Fault::KillClient | Fault::Empty | Fault::EmptyMajority | Fault::KillAll => ttl,
        _ => ttl / 2,
    };
    let slow = match backend {
        Backend::Etcd | Backend::ZooKeeper => Duration::from_secs(1),
        _ => Duration::ZERO,
    };
    dead + slow
}

pub(crate) fn rules(backend: Backend, fault: Fault) -> Rules {
    let ttl = ttl(backend, fault);
    let late = match fault {
        // Nobody of that process can be answered meanwhile.
        Fault::BlockThreads => ttl * 2,
        // The machine is what they wait for.
        Fault::Storm => LATE * 4,
        _ => Duration::ZERO,
    };
    let consensus = matches!(backend, Backend::Etcd | Backend::ZooKeeper);
    // What an answer is waited for beside the lock: etcd asks for three times a second.
    let operation = Duration::from_secs(if backend == Backend::Etcd { 3 } else { 1 });
    let nanos = |time: Duration| time.as_nanos() as u64;
    Rules {
        // Each is a write that a majority has on its disks.
        order_slack: nanos(Duration::from_millis(if consensus { 700 } else { 300 })),
        answer_slack: nanos(LATE + operation + late),
        recovery: nanos(ttl + LATE + operation + late),
        reconnects: nanos(operation + LATE),
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
