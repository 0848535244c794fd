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
    fn take_back(&self) -> Option<Told>;
}

trait Place {
    fn taken(&self) -> Taken<'_>;
}

/// What another process would want too. One at a time has it.
#[derive(Default)]
struct Backend {
    held: Flag,
    inside: Tally,
    served: Tally,
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
            Manner::Grasping => {
                let taken = self.line.take_back();
                taken.or_else(|| block_on(place.taken()))
            }
        }
    }

    fn works(&self, told: Told) {
        let mut grant = match told {
            Told::Handed(grant) => grant,
            Told::Contend(right) => {
                let held = self.backend.held.swap(true, SeqCst);
                assert!(!held, "two contend");
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
        point();
        self.backend.inside.fetch_sub(1, SeqCst);
        self.backend.served.fetch_add(1, SeqCst);
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
    let stayed = manners.iter().filter(|it| **it != Manner::Fickle).count();
    assert!(
        caller.backend.served.load(SeqCst) >= stayed,
        "not all were served"
    );
    assert!(!caller.backend.held.load(SeqCst), "it is still held");
    // A queue that is left lets nobody in.
    caller.calls(Patient);
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

    fn take_back(&self) -> Option<Told> {
        self.0.take_back(&key(), Duration::ZERO).map(told)
    }
}

impl Place for Arc<Seat<Turn<Grant>>> {
    fn taken(&self) -> Taken<'_> {
        Box::pin(async { Seat::taken(self).await.map(told) })
    }
}

use Manner::{Fickle, Grasping, Patient};

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
}

#[test]
fn a_role_that_passes_before_the_release_is_found() {
    fails("two contend", || goes_round(ours(), [Patient; 3], false));
}

const ENDS_IN_TWO_STEPS: u8 = 1;
const GIVES_UP_ON_THE_GONE: u8 = 2;

/// A queue of one key that ends after another look, or passes the role to nobody but the first.
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

    fn take_back(&self) -> Option<Told> {
        None
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
                    back.downcast_mut::<Self>().unwrap().0 = None;
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
    fails("deadlock", || {
        goes_round(mistaken::<ENDS_IN_TWO_STEPS>(), [Patient; 3], true);
    });
}

#[test]
fn a_role_that_is_given_to_who_has_gone_is_found() {
    fails("deadlock", || {
        goes_round(
            mistaken::<GIVES_UP_ON_THE_GONE>(),
            [Patient, Fickle, Patient],
            true,
        );
    });
}
