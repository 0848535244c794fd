//! The futures of those who wait: a place in the room, and a timer.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Poll, Waker, ready},
};

use tokio::time::{Sleep, sleep_until};

use super::{
    effects::Effects,
    lease::MemoryLease,
    room::Room,
    slab::{Node, Place},
    table::{self, Table, Ticket},
};
use crate::{
    backend::{AcquireRequest, WaitBound},
    error::{BackendError, BackendErrorKind},
    key::LockKey,
};

/// What a look at the room says.
pub(super) enum Look<T> {
    Ready(Result<T, BackendError>),
    /// Registered; to be looked at again by then.
    Again(u64),
}

/// Where a waiter stands after a look.
pub(super) enum Stand {
    /// The key is its own, to be taken now.
    Granted(u64),
    /// Registered; to be looked at again by then.
    Again(u64),
    /// Its time is over, and it has left; with what remains of the holder's lease.
    TimedOut(Option<u64>),
    Ended(BackendError),
}

/// Leaves the room when the future is dropped.
pub(super) struct Waiting<'a> {
    table: &'a Arc<Table>,
    key: &'a LockKey,
    ticket: Ticket,
    done: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(table: &'a Arc<Table>, key: &'a LockKey, ticket: Ticket) -> Self {
        Self {
            table,
            key,
            ticket,
            done: false,
        }
    }

    /// Polls `look` at every wake-up and whenever its timer says so.
    pub(super) async fn until_ready<T>(
        mut self,
        mut look: impl FnMut(&Self, &Waker) -> Look<T>,
    ) -> Result<T, BackendError> {
        let mut timer = pin!(None::<Sleep>);
        poll_fn(|cx| {
            loop {
                let at = match look(&self, cx.waker()) {
                    Look::Ready(result) => {
                        self.done = true;
                        return Poll::Ready(result);
                    }
                    Look::Again(at) => self.table.instant(at),
                };
                match timer.as_mut().as_pin_mut() {
                    None => timer.set(Some(sleep_until(at))),
                    // One that fires too early only looks once more.
                    Some(sleep) if at < sleep.deadline() || sleep.is_elapsed() => sleep.reset(at),
                    Some(_) => {}
                }
                if let Some(sleep) = timer.as_mut().as_pin_mut() {
                    ready!(sleep.poll(cx));
                }
            }
        })
        .await
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let Ticket { at, seq } = self.ticket;
        self.table.in_room(self.key, |room, fx| {
            if room.people.owned(at, seq).is_some() {
                leave(self.table, room, at, fx);
            }
        });
    }
}

/// Takes a waiter out, with its offer if it has one, and serves the next.
pub(super) fn leave(table: &Arc<Table>, room: &mut Room, at: u32, fx: &mut Effects) {
    let (waker, grant) = room.people.remove(at);
    fx.discard(waker);
    if let Some(grant) = grant {
        grant.end();
    }
    room.serve(table, fx);
}

pub(super) async fn for_grant(
    table: &Arc<Table>,
    request: &AcquireRequest,
    ticket: Ticket,
) -> Result<MemoryLease, BackendError> {
    let waiting = Waiting::new(table, &request.key, ticket);
    let deadline = table.deadline(request.wait, 0).unwrap_or(0);
    waiting
        .until_ready(|waiting, waker| {
            waiting
                .table
                .in_room(waiting.key, |room, fx| {
                    look_for_grant(waiting, room, deadline, waker, fx)
                })
                .unwrap_or_else(|| Look::Ready(Err(superseded())))
        })
        .await
}

fn look_for_grant(
    waiting: &Waiting<'_>,
    room: &mut Room,
    deadline: u64,
    waker: &Waker,
    fx: &mut Effects,
) -> Look<MemoryLease> {
    let table = waiting.table;
    match stand(waiting, room, deadline, waker, fx) {
        Stand::Again(at) => Look::Again(at),
        Stand::Ended(error) => Look::Ready(Err(error)),
        Stand::TimedOut(remaining) => {
            let wait = WaitBound::Until(table.instant(deadline));
            Look::Ready(Err(table::refused(wait, remaining)))
        }
        Stand::Granted(now) => {
            let lease = room.take_offer(waiting.ticket.at, now);
            Look::Ready(lease.ok_or_else(superseded))
        }
    }
}

/// Looks on behalf of a waiter, and registers it if it has to wait on.
pub(super) fn stand(
    waiting: &Waiting<'_>,
    room: &mut Room,
    deadline: u64,
    waker: &Waker,
    fx: &mut Effects,
) -> Stand {
    let (table, Ticket { at, seq }) = (waiting.table, waiting.ticket);
    let Some(node) = room.people.owned(at, seq) else {
        return Stand::Ended(superseded());
    };
    let now = table.now();
    if node.grant.is_none() {
        node.answered = true;
        if node.place() == Place::Aside {
            room.people.relink(at, Place::Queue, false);
            room.serve(table, fx);
        }
        room.tick(table, now, fx);
        room.take_unfair(table, at, now, fx);
        if room.people.get(at).grant.is_none() {
            if deadline <= now {
                let remaining = room.remaining(now);
                leave(table, room, at, fx);
                return Stand::TimedOut(remaining);
            }
            let again = room.look_again(now, deadline);
            let node = room.people.get_mut(at);
            if node
                .wish
                .is_some_and(|(wish, _)| table.is_used_up(wish.tokens))
            {
                leave(table, room, at, fx);
                return Stand::Ended(table::used_up());
            }
            node.armed = again;
            register(node, waker, fx);
            return Stand::Again(again);
        }
    }
    Stand::Granted(now)
}

fn register(node: &mut Node, waker: &Waker, fx: &mut Effects) {
    if !node.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
        fx.discard(node.waker.replace(waker.clone()));
    }
}

/// What the older future of an owner gets when the owner asks again: its wait is over.
pub(super) fn superseded() -> BackendError {
    BackendError::new(
        BackendErrorKind::WaitTimedOut,
        "the same owner has asked again, and the newer request has the place",
    )
}

pub(super) async fn for_free(
    table: &Arc<Table>,
    key: &LockKey,
    wait: WaitBound,
) -> Result<(), BackendError> {
    let ticket = match table.watch(key, wait) {
        None => return Ok(()),
        Some(ticket) => ticket?,
    };
    let waiting = Waiting::new(table, key, ticket);
    let deadline = table.deadline(wait, 0).unwrap_or(0);
    waiting
        .until_ready(|waiting, waker| {
            waiting
                .table
                .in_room(key, |room, fx| {
                    look_for_free(waiting, room, deadline, waker, fx)
                })
                // The room was cleared away: the key was free.
                .unwrap_or(Look::Ready(Ok(())))
        })
        .await
}

fn look_for_free(
    waiting: &Waiting<'_>,
    room: &mut Room,
    deadline: u64,
    waker: &Waker,
    fx: &mut Effects,
) -> Look<()> {
    let Ticket { at, seq } = waiting.ticket;
    let now = waiting.table.now();
    room.tick(waiting.table, now, fx);
    let again = room.look_again(now, deadline);
    let remaining = room.remaining(now);
    // Whoever frees the key takes all watchers out.
    let Some(node) = room.people.owned(at, seq) else {
        return Look::Ready(Ok(()));
    };
    if deadline <= now {
        let (waker, _) = room.people.remove(at);
        fx.discard(waker);
        let wait = WaitBound::Until(waiting.table.instant(deadline));
        return Look::Ready(Err(table::refused(wait, remaining)));
    }
    node.armed = again;
    register(node, waker, fx);
    Look::Again(again)
}
