//! Whether a fault that only holders see has met one: a run in which it has not shows nothing.
//!
//! A holder that is met when its process is stopped for longer than the lease, is killed, or is cut
//! off in silence for longer than the lease, loses its lock, since it has just begun to hold for
//! longer than that: it is told, or another one is granted while nobody can tell it. So does one
//! whose grant dies with the server that alone knew of it. Threads that are blocked lose nothing, as
//! locks are renewed elsewhere; after the other fail-overs a lock may be held as before. A process that
//! drains tells those who hold on for longer than its grace.

use crate::{
    checks::Found,
    expect,
    faults::Fault,
    history::{End, Event, Grant, History, Nanos, What},
    rig::{self, HELD_LONG},
    stage::Backend,
};

/// What was done to one process, or to those that all use.
struct Blow {
    process: Option<u32>,
    from: Nanos,
    to: Nanos,
}

/// What should have been seen and was not.
pub(crate) fn missed(
    backend: Backend,
    fault: Fault,
    history: &History,
    found: &Found,
) -> Option<String> {
    // A broken lock has its own list of what must be found.
    if backend.is_control() || !expect::meets_holders(backend, fault) {
        return None;
    }
    let blows = blows(fault, history);
    if !blows.iter().any(|blow| met(history, blow)) {
        return Some("the fault met nobody who held".to_owned());
    }
    let ttl = expect::ttl(backend, fault).as_nanos() as Nanos;
    let takes = |blow: &Blow| match fault {
        Fault::StopClient | Fault::KillClient | Fault::UnreplicatedFailOver => true,
        Fault::BlackHole | Fault::LoseRequests | Fault::LoseReplies => {
            blow.to - blow.from > ttl + ttl / 10
        }
        // Nearly, as it hears of it a moment later.
        Fault::Drain => {
            let grace = rig::GRACE.as_nanos() as Nanos / 10 * 9;
            holders(history, blow).any(|grant| grant.until() > blow.from + grace)
        }
        _ => false,
    };
    let figures = &found.figures;
    let lost = figures.losses + figures.losses_excluded;
    let takes = blows.iter().any(|blow| takes(blow) && met(history, blow));
    (takes && lost == 0).then(|| "the fault met a holder, and nobody lost a lock".to_owned())
}

fn blows(fault: Fault, history: &History) -> Vec<Blow> {
    let mut blows: Vec<Blow> = Vec::new();
    let begins = |event: &Event| match &event.what {
        What::Stopped { process } if fault == Fault::StopClient => Some(Some(*process)),
        What::Killed { process } if fault == Fault::KillClient => Some(Some(*process)),
        What::Drains { process } if fault == Fault::Drain => Some(Some(*process)),
        What::Fault { name, process } if name == fault.name() => Some(*process),
        _ => None,
    };
    for event in &history.events {
        if let Some(process) = begins(event) {
            blows.push(Blow {
                process,
                from: event.at,
                to: event.at,
            });
        }
        if let What::Healed { name, process } = &event.what
            && name == fault.name()
            && let Some(last) = blows.last_mut().filter(|last| last.process == *process)
        {
            last.to = event.at;
        }
    }
    blows
}

fn met(history: &History, blow: &Blow) -> bool {
    holders(history, blow).next().is_some()
}

/// Those who held one of the keys that are held for long, when it began; or had lost it just before,
/// as it happens on a busy machine, and were still at work.
fn holders<'h>(history: &'h History, blow: &Blow) -> impl Iterator<Item = &'h Grant> {
    let Blow { process, from, .. } = *blow;
    let attempts = history.attempts.values().filter(move |attempt| {
        attempt.key >= HELD_LONG && process.is_none_or(|of| of == attempt.id.process)
    });
    attempts
        .filter_map(|attempt| attempt.grant())
        .filter(move |grant| {
            let lost = grant.ended.filter(|ended| ended.how == End::Lost);
            let late = lost.map_or(0, |_| expect::LATE.as_nanos() as Nanos);
            grant.at <= from && from < grant.until().saturating_add(late)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{AttemptId, Order};

    const MS: Nanos = 1_000_000;

    /// Somebody in the process 1 holds from one time to another, and that befalls process 1.
    fn history(from: u64, to: u64, befalls: [(u64, What); 2]) -> History {
        let (process, number) = (1, 0);
        let id = AttemptId { process, number };
        let call = What::Call {
            id,
            key: HELD_LONG,
            order: Order::Fifo,
            wait: 0,
        };
        let granted = What::Granted {
            id,
            token: 1,
            valid_until: (from + 5000) * MS,
        };
        let mut events = vec![(from, call), (from, granted), (to, What::Releases { id })];
        events.extend(befalls);
        let events = events.into_iter();
        let events = events.map(|(at, what)| Event { at: at * MS, what });
        History::of(events.collect()).expect("a history")
    }

    fn lost(losses: u64, losses_excluded: u64) -> Found {
        let mut found = Found::default();
        found.figures.losses = losses;
        found.figures.losses_excluded = losses_excluded;
        found
    }

    fn stop(at: u64) -> [(u64, What); 2] {
        let process = 1;
        [
            (at, What::Stopped { process }),
            (at + 3000, What::Continued { process }),
        ]
    }

    fn silence(at: u64, healed: u64) -> [(u64, What); 2] {
        let (name, process) = (|| "black-hole".to_owned(), Some(1));
        [
            (
                at,
                What::Fault {
                    name: name(),
                    process,
                },
            ),
            (
                healed,
                What::Healed {
                    name: name(),
                    process,
                },
            ),
        ]
    }

    #[test]
    fn a_holder_is_met_and_loses() {
        let missed = |fault, history, found| missed(Backend::Redis, fault, &history, &found);
        let stopped = |at| history(100, 3100, stop(at));
        let nobody = |text: Option<String>| text.is_some_and(|it| it.contains("nobody who held"));
        let nothing = |text: Option<String>| text.is_some_and(|it| it.contains("nobody lost"));
        assert!(nobody(missed(Fault::StopClient, stopped(50), lost(1, 0))));
        assert!(nobody(missed(Fault::StopClient, stopped(3200), lost(1, 0))));
        assert!(nothing(missed(Fault::StopClient, stopped(200), lost(0, 0))));
        assert_eq!(missed(Fault::StopClient, stopped(200), lost(1, 0)), None);
        assert_eq!(missed(Fault::StopClient, stopped(200), lost(0, 1)), None);
        // Another fault than it is about.
        assert!(nobody(missed(Fault::KillClient, stopped(200), lost(1, 0))));
        // Longer and shorter than the lease.
        let silent = |healed| history(100, 3100, silence(200, healed));
        assert!(nothing(missed(Fault::BlackHole, silent(2500), lost(0, 0))));
        assert_eq!(missed(Fault::BlackHole, silent(2500), lost(1, 0)), None);
        assert_eq!(missed(Fault::BlackHole, silent(2300), lost(0, 0)), None);
        // What is not about holders.
        assert_eq!(missed(Fault::Calm, stopped(50), lost(0, 0)), None);
    }
}
