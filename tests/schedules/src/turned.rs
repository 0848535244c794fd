//! Turns in a process: the right to act for a key is passed on, taken back and dropped anywhere,
//! and never lost or doubled.

use std::{
    any::Any,
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc as Shared,
        atomic::{AtomicBool as Flag, AtomicUsize as Tally, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use shuttle::{future::block_on, thread};

use crate::{
    explore::{fails, holds},
    key::LockKey,
    seat::Seat,
    sync::{Arc, Mutex, Weak, lock, point},
    turns::{Role, Turn, Turns},
};

type Right = Box<dyn Any + Send>;
type Taken<'a> = Pin<Box<dyn Future<Output = Option<Told>> + 'a>>;

enum Told {
    Contend(Right),
    Handed(Grant),
}

/// Who waits for what in the process.
trait Line: Send + Sync {
    fn join(&self) -> Result<Right, Box<dyn Place>>;
    fn hand_on(&self, grant: Grant) -> Result<(), Grant>;
    /// What was given and not taken for so long.
    fn take_back(&self, after: Duration) -> Option<Told>;
    /// Whether nobody has anything of it.
    fn is_idle(&self) -> bool;
}

trait Place: Send {
    fn taken(&self) -> Taken<'_>;
}

/// What another process would want too. One at a time has it.
#[derive(Default)]
struct Backend {
    held: Flag,
    inside: Tally,
}

/// As a lease on its way: dropped, it goes on to the next, or back.
struct Grant(Option<Parts>);

struct Parts {
    right: Right,
    left: u32,
    backend: Shared<Backend>,
    line: Shared<dyn Line>,
    releases_first: bool,
}

impl Drop for Grant {
    fn drop(&mut self) {
        let Some(parts) = self.0.take() else {
            return;
        };
        let line = parts.line.clone();
        let handed = match parts.left {
            0 => Err(Self(Some(parts))),
            _ => line.hand_on(Self(Some(parts))),
        };
        let Err(Some(parts)) = handed.map_err(|mut back| back.0.take()) else {
            return;
        };
        if !parts.releases_first {
            drop(parts.right);
            point();
            parts.backend.held.store(false, SeqCst);
            return;
        }
        // A newcomer may come between any two steps.
        point();
        parts.backend.held.store(false, SeqCst);
        point();
        drop(parts.right);
    }
}

/// How it waits.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Patient,
    /// Looks once, and goes.
    Fickle,
    /// Takes what another was given, if there is something.
    Grasping,
    /// Does so where it was there for long, which it never is.
    Slow,
}

#[derive(Clone)]
struct Caller {
    line: Shared<dyn Line>,
    backend: Shared<Backend>,
    releases_first: bool,
}

impl Caller {
    fn calls(&self, manner: Manner) {
        loop {
            let told = match self.line.join() {
                Ok(right) => Told::Contend(right),
                Err(place) => match self.waits(&*place, manner) {
                    Some(told) => told,
                    None if manner == Manner::Fickle => return,
                    None => continue,
                },
            };
            return self.works(told);
        }
    }

    fn waits(&self, place: &dyn Place, manner: Manner) -> Option<Told> {
        match manner {
            Manner::Patient => block_on(place.taken()),
            Manner::Fickle => block_on(async {
                let mut taken = pin!(place.taken());
                let once = poll_fn(|cx| Poll::Ready(taken.as_mut().poll(cx)));
                match once.await {
                    Poll::Ready(told) => told,
                    Poll::Pending => None,
                }
            }),
            Manner::Grasping | Manner::Slow => {
                let after = match manner {
                    Manner::Slow => Duration::MAX,
                    _ => Duration::ZERO,
                };
                let taken = self.line.take_back(after);
                assert!(taken.is_none() || manner == Manner::Grasping, "too early");
                taken.or_else(|| block_on(place.taken()))
            }
        }
    }

    fn works(&self, told: Told) {
        let mut grant = match told {
            Told::Handed(grant) => grant,
            Told::Contend(right) => {
                let held = self.backend.held.swap(true, SeqCst);
                assert!(!held, "two have the role: both contend");
                Grant(Some(Parts {
                    right,
                    left: 2,
                    backend: self.backend.clone(),
                    line: self.line.clone(),
                    releases_first: self.releases_first,
                }))
            }
        };
        grant.0.as_mut().unwrap().left -= 1;
        let inside = self.backend.inside.fetch_add(1, SeqCst);
        assert_eq!(inside, 0, "two hold");
        // Who comes now, and goes.
        let newcomer = self.line.join();
        assert!(newcomer.is_err(), "two have the role: a newcomer as well");
        drop(newcomer);
        self.backend.inside.fetch_sub(1, SeqCst);
    }
}

/// Who stays is served, one at a time; and so is who comes afterwards. A lost role shows as a
/// deadlock.
fn goes_round(line: Shared<dyn Line>, manners: [Manner; 3], releases_first: bool) {
    let caller = Caller {
        line,
        backend: Shared::default(),
        releases_first,
    };
    let threads = manners.map(|manner| {
        let caller = caller.clone();
        thread::spawn(move || caller.calls(manner))
    });
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(!caller.backend.held.load(SeqCst), "it is still held");
    // A queue that is left lets nobody in.
    caller.calls(Patient);
    assert!(caller.line.is_idle(), "a role is left");
}

/// The library's.
struct Ours(Arc<Turns<Grant>>);

fn ours() -> Shared<dyn Line> {
    Shared::new(Ours(Turns::new()))
}

fn key() -> LockKey {
    LockKey::new(7)
}

fn told(turn: Turn<Grant>) -> Told {
    match turn {
        Turn::Contend(role) => {
            assert_eq!(*role.key(), key());
            Told::Contend(Box::<Role<Grant>>::new(role))
        }
        Turn::Handed(grant) => Told::Handed(grant),
    }
}

impl Line for Ours {
    fn join(&self) -> Result<Right, Box<dyn Place>> {
        match Turns::join(&self.0, &key()) {
            Ok(role) => Ok(Box::new(role)),
            Err(seat) => Err(Box::new(seat)),
        }
    }

    fn hand_on(&self, grant: Grant) -> Result<(), Grant> {
        self.0.hand_on(&key(), grant)
    }

    fn take_back(&self, after: Duration) -> Option<Told> {
        self.0.take_back(&key(), after).map(told)
    }

    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Place for Arc<Seat<Turn<Grant>>> {
    fn taken(&self) -> Taken<'_> {
        Box::pin(async { Seat::taken(self).await.map(told) })
    }
}

use Manner::{Fickle, Grasping, Patient, Slow};

#[test]
fn a_turn_comes_to_all_who_wait() {
    holds(|| goes_round(ours(), [Patient; 3], true));
}

#[test]
fn a_turn_passes_by_those_who_have_gone() {
    holds(|| goes_round(ours(), [Patient, Fickle, Patient], true));
    holds(|| goes_round(ours(), [Fickle, Fickle, Patient], true));
}

#[test]
fn a_turn_that_was_taken_back_is_had_once() {
    holds(|| goes_round(ours(), [Patient, Grasping, Patient], true));
    holds(|| goes_round(ours(), [Grasping, Grasping, Fickle], true));
    holds(|| goes_round(ours(), [Slow, Fickle, Patient], true));
}

/// Nobody polls the one who was told: another has its turn, and the next one after that.
fn is_taken_back(line: &dyn Line) {
    let first = line.join().ok().unwrap();
    let (second, third) = (line.join().err().unwrap(), line.join().err().unwrap());
    assert!(line.take_back(Duration::ZERO).is_none(), "nobody was told");
    let third = thread::spawn(move || matches!(block_on(third.taken()), Some(Told::Contend(_))));
    drop(first);
    assert!(line.take_back(Duration::MAX).is_none(), "too early");
    let back = line
        .take_back(Duration::ZERO)
        .expect("nothing to take back");
    assert!(block_on(second.taken()).is_none(), "two have it");
    drop(back);
    assert!(third.join().unwrap(), "the third has something else");
    assert!(line.is_idle(), "a role is left");
}

#[test]
fn a_turn_that_nobody_takes_is_taken_back() {
    holds(|| is_taken_back(&*ours()));
    fails("nothing to take back", || is_taken_back(&*mistaken::<0>()));
}

#[test]
fn a_role_that_passes_before_the_release_is_found() {
    fails("two have the role", || {
        goes_round(ours(), [Patient; 3], false)
    });
}

const ENDS_IN_TWO_STEPS: u8 = 1;
const GIVES_UP_ON_THE_GONE: u8 = 2;
const PASSES_TWICE: u8 = 3;

/// A queue of one key without take-back, and maybe with one of these mistakes: it looks for waiters
/// and ends without another look; the role is lost with the first waiter that has gone; or it is
/// passed on by the one that has it, and by the one that came back.
struct Mistaken<const WHICH: u8>(Shared<Queue>);

/// There is one while somebody has the role.
#[derive(Default)]
struct Queue(Mutex<Option<VecDeque<Weak<Seat<Told>>>>>);

struct Passing<const WHICH: u8>(Option<Shared<Queue>>);

fn mistaken<const WHICH: u8>() -> Shared<dyn Line> {
    Shared::new(Mistaken::<WHICH>(Shared::default()))
}

impl<const WHICH: u8> Line for Mistaken<WHICH> {
    fn join(&self) -> Result<Right, Box<dyn Place>> {
        let mut queue = lock(&self.0.0);
        match &mut *queue {
            Some(waiters) => {
                let seat = Seat::new();
                waiters.push_back(Arc::downgrade(&seat));
                Err(Box::new(seat))
            }
            None => {
                *queue = Some(VecDeque::new());
                Ok(Box::new(Passing::<WHICH>(Some(self.0.clone()))))
            }
        }
    }

    fn hand_on(&self, grant: Grant) -> Result<(), Grant> {
        Err(grant)
    }

    fn take_back(&self, _after: Duration) -> Option<Told> {
        None
    }

    fn is_idle(&self) -> bool {
        Shared::strong_count(&self.0) == 1
    }
}

impl Place for Arc<Seat<Told>> {
    fn taken(&self) -> Taken<'_> {
        Box::pin(Seat::taken(self))
    }
}

impl<const WHICH: u8> Drop for Passing<WHICH> {
    fn drop(&mut self) {
        let Some(queue) = self.0.take() else {
            return;
        };
        loop {
            let mut waiters = lock(&queue.0);
            let Some(next) = waiters.as_mut().and_then(VecDeque::pop_front) else {
                if WHICH == ENDS_IN_TWO_STEPS {
                    drop(waiters);
                    waiters = lock(&queue.0);
                }
                *waiters = None;
                return;
            };
            drop(waiters);
            let role = Box::new(Self(Some(queue.clone())));
            match Seat::give(&next, Told::Contend(role)) {
                Err(Told::Contend(mut back)) => {
                    // It is still ours.
                    if WHICH != PASSES_TWICE {
                        back.downcast_mut::<Self>().unwrap().0 = None;
                    }
                    if WHICH == GIVES_UP_ON_THE_GONE {
                        return;
                    }
                }
                _ => return,
            }
        }
    }
}

#[test]
fn the_control_is_right_without_its_mistake() {
    holds(|| goes_round(mistaken::<0>(), [Patient; 3], true));
    holds(|| goes_round(mistaken::<0>(), [Patient, Fickle, Patient], true));
}

#[test]
fn a_queue_that_ends_in_two_steps_is_found() {
    fails("deadlock! blocked", || {
        goes_round(mistaken::<ENDS_IN_TWO_STEPS>(), [Patient; 3], true);
    });
}

#[test]
fn a_role_that_is_given_to_who_has_gone_is_found() {
    fails("deadlock! blocked", || {
        goes_round(
            mistaken::<GIVES_UP_ON_THE_GONE>(),
            [Patient, Fickle, Patient],
            true,
        );
    });
}

#[test]
fn a_role_that_is_passed_on_twice_is_found() {
    fails("two have the role", || {
        goes_round(mistaken::<PASSES_TWICE>(), [Patient; 3], true);
    });
}
