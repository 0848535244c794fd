//! Long histories are checked quickly. Counted is this thread's time on a processor, whatever else
//! the machine does.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::script::{MS, rules};
use crate::{
    checks::check,
    history::{AttemptId, Event, History, Order, What},
};

/// A queue of many for one key, and as many for keys of their own.
fn long(attempts: u64, order: impl Fn(u64) -> u64) -> History {
    let mut events = Vec::new();
    for number in 0..attempts {
        let id = AttemptId {
            process: (number % 5) as u32,
            number,
        };
        let key = if number % 2 == 0 { 0 } else { number as u32 };
        let call = number * MS;
        let at = (order(number) + 200) * MS;
        let event = |at, what| Event { at, what };
        events.push(event(
            call,
            What::Call {
                id,
                key,
                order: Order::Fifo,
                wait: 60_000 * MS,
            },
        ));
        events.push(event(
            at,
            What::Granted {
                id,
                token: order(number) + 1,
                valid_until: at + 1000 * MS,
            },
        ));
        for (offset, claims) in [(1, true), (2, false)] {
            let (token, accepted) = (order(number) + 1, true);
            let what = if claims {
                What::Claim {
                    id,
                    key,
                    token,
                    accepted,
                }
            } else {
                What::Write {
                    id,
                    key,
                    token,
                    accepted,
                }
            };
            events.push(event(at + offset * MS / 10, what));
        }
        events.push(event(at + MS / 2, What::Releases { id }));
    }
    for turn in 0..200 {
        let (name, process) = ("cut".to_owned(), None);
        let at = turn * attempts * MS / 200;
        events.push(Event {
            at,
            what: What::Fault {
                name: name.clone(),
                process,
            },
        });
        events.push(Event {
            at: at + 5 * MS,
            what: What::Healed { name, process },
        });
    }
    History::of(events).expect("a history")
}

fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_hundred_thousand_attempts() {
    let right = long(100_000, |number| number);
    let begun = spent();
    let found = check(&right, &rules());
    let took = spent() - begun;
    println!("{} attempts: {took:?}", found.figures.attempts);
    assert_eq!(found.violations, []);
    assert_eq!(found.figures.attempts, 100_000);
    // A second is the aim; a slow machine may take longer, a square of the length takes minutes.
    assert!(took.as_secs() < 8, "{took:?}");
}

/// Everything that is wrong is as quick: a queue in which the last of each hundred goes first.
#[test]
fn a_hundred_thousand_attempts_in_the_wrong_order() {
    let wrong = long(100_000, |number| number / 100 * 100 + 99 - number % 100);
    let begun = spent();
    let found = check(&wrong, &rules());
    let took = spent() - begun;
    println!("{} violations: {took:?}", found.violations.len());
    assert!(found.violations.len() > 10_000);
    assert!(took.as_secs() < 8, "{took:?}");
}
