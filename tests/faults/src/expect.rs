//! What each backend promises under each fault: the table of expected violations, and bounds.
//!
//! Everything that is found and does not stand here is a failure.

use std::time::Duration;

use crate::{
    checks::{self, Found, Kind, Rules},
    excuses::Excuses,
    faults::Fault,
    history::{Attempt, Event, History, Nanos, Outcome, What},
    meets, rig,
    stage::Backend,
};

/// The lease of most runs: the shortest that a busy machine keeps.
const TTL: Duration = Duration::from_secs(2);

/// The lease of locks by hand, which nobody renews: half of it is held, and the rest is for a busy
/// machine.
const NAIVE_TTL: Duration = Duration::from_secs(3);

/// A lease that outlives a fail-over of Redis; and the bound of a hand-off, so that a release that
/// does nothing is seen.
const LONG_TTL: Duration = Duration::from_secs(6);

/// How late a busy machine may be.
pub(crate) const LATE: Duration = Duration::from_secs(2);

/// Two may hold, and what follows from it.
const FORGETS: &[Kind] = &[
    Kind::DoubleHold,
    Kind::LossLate,
    Kind::Overtaken,
    Kind::HandedOn,
    Kind::NotLinearizable,
];

/// Anything but what the storage's fence is for.
const UNFENCED: &[Kind] = &[
    Kind::DoubleHold,
    Kind::LossLate,
    Kind::Overtaken,
    Kind::Overdue,
    Kind::SlowRecovery,
    Kind::NotServed,
    Kind::SlowHandOff,
    Kind::NotLinearizable,
];

/// The same, and what a counter that is lost brings.
const UNCOUNTED: &[Kind] = &[
    Kind::DoubleHold,
    Kind::TokenInversion,
    Kind::TokenRepeat,
    Kind::Corrupt,
    Kind::LostUpdate,
    Kind::WrongRefusal,
    Kind::LossLate,
    Kind::Overtaken,
    Kind::Overdue,
    Kind::SlowRecovery,
    Kind::NotServed,
    Kind::SlowHandOff,
    Kind::NotLinearizable,
];

/// What may be found, with the sentence of the documentation that says so. When, is up to
/// [`Excuses`].
pub(crate) fn allowed(backend: Backend, fault: Fault) -> (&'static [Kind], &'static str) {
    use Backend as B;
    use Fault as F;
    match (backend, fault) {
        (B::Barging, _) => (&[Kind::Overtaken, Kind::HandedOn], "nobody keeps its queue"),
        (backend, F::Calm) if backend.is_control() => (&[], ""),
        (B::NaiveCounter, _) => (UNCOUNTED, "a counter is no fencing token"),
        (backend, _) if backend.is_control() => (UNFENCED, "it is broken; its tokens are not"),
        (B::Redis, F::Empty | F::Any) => (FORGETS, "lost data ends exclusion"),
        (B::Sentinel | B::Cluster, F::Empty) | (B::SentinelAcked, F::Empty | F::Any) => {
            (FORGETS, "lost data ends exclusion")
        }
        (B::Redis, F::ServerClock) => (
            FORGETS,
            "a forward step of the server's clock ends leases early",
        ),
        (B::Sentinel | B::Cluster, F::Any) => (FORGETS, "a fail-over loses grants"),
        (B::Sentinel | B::Cluster, fault) if is_fail_over(backend, fault) => {
            (FORGETS, "a fail-over loses grants")
        }
        (B::RedLock, F::ServerClock | F::MajorityClock) => {
            (FORGETS, "clocks that jump end leases early")
        }
        // https://github.com/etcd-io/etcd/issues/15247, as the docs of the backend say.
        (B::Etcd, F::StopServer | F::StopLeader | F::Any) => (
            FORGETS,
            "a leader that hangs and was replaced revokes leases",
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
        | (B::NaiveRedLock, F::EmptyMajority)
        | (B::NaiveSentinel, F::UnreplicatedFailOver) => &[Kind::DoubleHold],
        (B::NaiveCounter, F::Empty) => {
            &[Kind::DoubleHold, Kind::TokenInversion, Kind::WrongRefusal]
        }
        (B::Barging, F::Calm) => &[Kind::Overtaken, Kind::HandedOn],
        _ => &[],
    }
}

/// Whether another master takes over.
pub(crate) fn is_fail_over(backend: Backend, fault: Fault) -> bool {
    let replicated = matches!(
        backend,
        Backend::Sentinel | Backend::SentinelAcked | Backend::Cluster | Backend::NaiveSentinel
    );
    replicated
        && matches!(
            fault,
            Fault::KillServer
                | Fault::StopServer
                | Fault::FailOver
                | Fault::UnreplicatedFailOver
                | Fault::CutServers
                | Fault::Split
                | Fault::MuteLeader
        )
}

/// Whether a silent server is to be replaced soon.
pub(crate) fn fails_over(backend: Backend, fault: Fault) -> bool {
    is_fail_over(backend, fault) || fault == Fault::Any
}

/// Whether it is seen only by who holds at that moment, and so many should.
pub(crate) fn meets_holders(backend: Backend, fault: Fault) -> bool {
    backend.is_naive()
        || is_fail_over(backend, fault)
        || fault.is_of_one_process()
        || fault.may_forget()
        || fault == Fault::Split
        || matches!(fault, Fault::ServerClock | Fault::MajorityClock)
}

/// The lease of all locks of a run.
pub(crate) fn ttl(backend: Backend, fault: Fault) -> Duration {
    if is_fail_over(backend, fault) || hands_on(backend, fault) {
        LONG_TTL
    } else if backend.is_naive() {
        NAIVE_TTL
    } else {
        TTL
    }
}

/// Whether nothing stands between a release and the next grant, so that a lease may be long.
fn hands_on(backend: Backend, fault: Fault) -> bool {
    !backend.is_naive() && matches!(fault, Fault::Calm | Fault::Cancel)
}

/// How many leases it takes to hold for long.
pub(crate) fn long_hold(backend: Backend, fault: Fault) -> f32 {
    // Locks by hand are not renewed: without a fault they are good for a ttl. To be met by a
    // fail-over they are held for nearly that long.
    if backend.is_naive() && is_fail_over(backend, fault) {
        0.75
    } else if backend.is_naive() || hands_on(backend, fault) {
        0.5
    } else {
        1.5
    }
}

/// How long after a fault the load goes on: so long that who is never served is seen. At the end
/// those who wait then go on waiting; where another fault follows, they have to have had their time.
pub(crate) fn settles(backend: Backend, fault: Fault, repeats: bool) -> Duration {
    let rules = rules(backend, fault);
    let bound = Duration::from_nanos(rules.recovery);
    // And each process is to ask once it can be connected again.
    let reconnected = Duration::from_nanos(rules.reconnects) + Duration::from_millis(700);
    match fault {
        // A machine that is as busy as that recovers when it is over.
        Fault::Storm => reconnected,
        // There is nothing to recover from.
        Fault::Calm | Fault::Cancel => LATE,
        _ if repeats => bound + Duration::from_millis(500),
        _ => {
            let bound = (bound + Duration::from_secs(1)).saturating_sub(rig::PATIENT);
            bound.max(reconnected)
        }
    }
}

/// How long a process may take to end that is asked to. Its longest work goes on for that long, also
/// without its lock; and its shutdown waits for releases that take so long.
fn drain(backend: Backend, fault: Fault) -> Duration {
    let work = ttl(backend, fault).mul_f32(long_hold(backend, fault));
    work.max(rig::GRACE + Duration::from_secs(6)) + LATE
}

/// What an answer of servers is waited for: etcd is asked for three seconds.
fn operation(backend: Backend) -> Duration {
    Duration::from_secs(if backend == Backend::Etcd { 3 } else { 1 })
}

/// For how many milliseconds the key with the longest queue is held: so long that many stand in it
/// for longer than the slack of the order, and no longer than others have patience for.
pub(crate) fn queue(backend: Backend) -> u64 {
    match backend {
        Backend::Etcd => 80,
        Backend::ZooKeeper => 160,
        _ => 40,
    }
}

/// How long the next grant may take on a machine that has nothing else to do. An operation takes
/// milliseconds.
fn hand_off(backend: Backend) -> Duration {
    Duration::from_secs(match backend {
        // Waiters ask again at random, and votes split: a second and more was measured.
        Backend::RedLock => 2,
        _ => 1,
    })
}

pub(crate) fn rules(backend: Backend, fault: Fault) -> Rules {
    let ttl = ttl(backend, fault);
    // The machine is what they wait for.
    let storm = fault == Fault::Storm;
    let late = if storm { LATE * 4 } else { Duration::ZERO };
    let order_slack = Duration::from_millis(match (storm, backend) {
        (true, _) => 4000,
        // Each is a write that a majority has on its disks, and the first one opens a session or
        // lease. What counts is the order of these writes: the tokens. Measured on a busy machine:
        // 0.35 s.
        (false, Backend::Etcd) => 1000,
        // The same, but a session that has to find another server keeps its requests for so long
        // and tells nobody: 2.1 s, on a machine with ten times as much to do as it can.
        (false, Backend::ZooKeeper) => 2200,
        // A request takes a millisecond. The process, the proxy before the server or the server
        // itself may have to wait for a processor: 0.36 s was measured.
        (false, _) => 500,
    });
    let names = |faults: &[Fault]| faults.iter().map(|fault| fault.name().to_owned()).collect();
    let operation = operation(backend);
    let nanos = |time: Duration| time.as_nanos() as u64;
    Rules {
        order_slack: nanos(order_slack),
        own_order_slack: nanos(order_slack),
        order_kept_under: names(&[
            Fault::Calm,
            Fault::Cancel,
            Fault::Storm,
            Fault::ClientClock,
            Fault::Slow,
        ]),
        stopped_by: names(&[Fault::BlockThreads]),
        told_slack: nanos(LATE),
        // Three times what lies between two beats.
        stall: nanos(Duration::from_millis(150)),
        answer_slack: nanos(LATE + operation + late),
        recovery: nanos(ttl + LATE + operation + late),
        drain: nanos(drain(backend, fault)),
        hand_off: nanos(hand_off(backend) + LATE + late),
        reconnects: nanos(operation + LATE + late),
    }
}

/// What is wrong with it.
pub(crate) fn judge(
    backend: Backend,
    fault: Fault,
    history: &History,
    found: &Found,
) -> Vec<String> {
    let excuses = Excuses::of(backend, fault, history);
    let mut wrong: Vec<_> = found
        .violations
        .iter()
        .filter(|violation| !excuses.cover(violation))
        .map(|violation| format!("{:?}: {}", violation.kind, violation.text))
        .collect();
    let refused = history.attempts.values().filter(|it| is_away(it)).count();
    let undisturbed = matches!(
        fault,
        Fault::Calm | Fault::Cancel | Fault::ClientClock | Fault::MinorityFull
    );
    if undisturbed && refused * 10 > history.attempts.len() {
        wrong.push(format!("{refused} were refused although nothing was away"));
    }
    let begins = begins(history);
    for kind in must_find(backend, fault) {
        if found.count(*kind) == 0 {
            wrong.push(format!("{kind:?} has to be found, and was not"));
        }
        // It is the fault that brings it, if there is one.
        if fault != Fault::Calm && found.of(*kind).any(|it| it.at < begins) {
            wrong.push(format!("{kind:?} was found before anything had happened"));
        }
    }
    let two_hold = must_find(backend, fault).contains(&Kind::DoubleHold);
    if two_hold && backend != Backend::NaiveCounter {
        // Two held, and the storage saw to it that nothing came of it.
        let figures = &found.figures;
        if figures.stale_writes_refused == 0 || figures.unfenced_lost == 0 {
            wrong.push("no stale write was made and refused".to_owned());
        }
    }
    wrong.extend(history.events.iter().filter_map(|event| match &event.what {
        What::Panicked { process, text } => {
            Some(format!("process {process}: {}", text.replace('\n', " ")))
        }
        _ => None,
    }));
    wrong.extend(meets::missed(backend, fault, history, found));
    // With the slack of ZooKeeper a busy machine may leave no place to look at.
    let queues = backend.is_fifo() && backend.is_shared() && backend != Backend::ZooKeeper;
    if fault == Fault::Calm && queues && found.figures.places == 0 {
        wrong.push("nobody could have been overtaken: no order was put to the test".to_owned());
    }
    let is_over = !matches!(fault, Fault::Calm | Fault::Cancel | Fault::Storm);
    // Where the machine stood still, the load may have been over by then, or nobody was looked at.
    let figures = &found.figures;
    let ran = figures.stalled < LATE.as_nanos() as Nanos
        && (figures.looked_at > 0 || figures.stood_still == 0);
    if is_over && ran && !backend.is_control() && figures.served == 0 {
        wrong.push("nobody was granted anything once the fault was over".to_owned());
    }
    if found.figures.grants == 0 {
        wrong.push("nobody was granted anything".to_owned());
    }
    wrong
}

/// When the first thing was done to anybody.
fn begins(history: &History) -> Nanos {
    let done = |event: &&Event| matches!(event.what, What::Fault { .. } | What::Stopped { .. });
    let first = history.events.iter().find(done);
    first.map_or(Nanos::MAX, |event| event.at)
}

/// Whether it was refused, and not because another held.
fn is_away(attempt: &Attempt) -> bool {
    match &attempt.outcome {
        Outcome::Refused { why, .. } => !checks::is_busy(why),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_wrong() {
        let text = "panicked at src/lib.rs:1:1:\noh".to_owned();
        let what = What::Panicked { process: 2, text };
        let history = History::of(vec![Event { at: 1, what }]).expect("a history");
        let found = checks::check(&history, &rules(Backend::Redis, Fault::Calm));
        let wrong = judge(Backend::Redis, Fault::Calm, &history, &found);
        let told = "process 2: panicked at src/lib.rs:1:1: oh".to_owned();
        assert!(wrong.contains(&told), "{wrong:?}");
    }
}
