//! A key with more than one holder, or with waiters: who is next, and what ends when.

use std::sync::Arc;

use super::{
    effects::Effects,
    lease::{Grant, MemoryLease, Wish},
    slab::{Node, Place, Slab},
    table::Table,
};
use crate::{
    backend::{Mode, Order},
    key::LockKey,
    lease::Loss,
};

/// How long an offer waits to be claimed, where somebody else waits behind it.
const OFFER: u64 = 1_000_000_000;
/// How long waiters have to show that they are alive after an offer has lapsed.
const ROLL_CALL: u64 = 50_000_000;
/// The longest that a waiter sleeps without looking, in a short queue and in a long one: the
/// more there are, the sooner one of them looks.
const CEILING: (u64, u64) = (1_000_000_000, 5_000_000_000);
const SHORT_QUEUE: u32 = 16;

pub(super) struct Room {
    pub(super) key: LockKey,
    pub(super) people: Slab,
    /// Nothing ends before this moment. Renewals only move ends to later.
    next_end: u64,
    /// When the roll call ends, during one. Nothing is granted meanwhile.
    roll_call: Option<u64>,
}

impl Room {
    pub(super) fn new(key: LockKey) -> Self {
        Self {
            key,
            people: Slab::new(),
            next_end: u64::MAX,
            roll_call: None,
        }
    }

    /// A room with one holder whose lease is out.
    pub(super) fn around(grant: Arc<Grant>, seq: u64) -> Self {
        let mut room = Self::new(grant.key.clone());
        room.next_end = grant.expiry();
        let wish = Wish {
            owner: grant.owner,
            ttl: 0,
            tokens: grant.tokens,
            mode: grant.mode,
        };
        let mut node = Node::new(Some((wish, Order::Fifo)), seq);
        node.claimed = true;
        node.grant = Some(grant);
        room.people.insert(node, Place::Holders);
        room
    }

    /// Whether a holder of this mode may stand beside the present ones.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        match self.people.head(Place::Holders) {
            None => true,
            Some(at) => {
                mode == Mode::Shared
                    && self
                        .people
                        .get(at)
                        .grant
                        .as_ref()
                        .is_some_and(|grant| grant.mode == Mode::Shared)
            }
        }
    }

    /// Whether a newcomer may have the key at once. Readers join readers only if nobody waits.
    pub(super) fn admits_newcomer(&self, mode: Mode, order: Order) -> bool {
        let alone = self.people.len(Place::Queue) == 0;
        let barges = order == Order::Unfair
            && !self.people.fifo_waiting()
            && self.people.len(Place::Holders) == 0;
        self.admits(mode) && (alone || barges)
    }

    /// Ends what has ended by now, and serves.
    pub(super) fn tick(&mut self, table: &Arc<Table>, now: u64, fx: &mut Effects) {
        if now < self.next_end {
            return;
        }
        let mut next_end = u64::MAX;
        let mut at = self.people.head(Place::Holders);
        let mut lapsed = Vec::new();
        while let Some(this) = at {
            at = self.people.next(this);
            let node = self.people.get(this);
            let Some(grant) = &node.grant else { continue };
            let end = if node.claimed {
                grant.expiry()
            } else {
                offer_end(grant)
            };
            if end > now {
                next_end = next_end.min(end);
            } else if node.claimed {
                let (waker, grant) = self.people.remove(this);
                fx.discard(waker);
                if let Some(grant) = grant {
                    grant.end();
                    fx.lost(grant, Loss::Expired);
                }
            } else {
                lapsed.push(this);
            }
        }
        match self.roll_call {
            Some(end) if end <= now => {
                self.roll_call = None;
                self.put_silent_aside();
            }
            Some(end) => next_end = next_end.min(end),
            None => {}
        }
        self.next_end = next_end;
        if !lapsed.is_empty() {
            self.call_roll(lapsed, now, fx);
        }
        self.serve(table, fx);
    }

    /// Withdraws offers that nobody claimed, and asks everybody who waits to answer.
    fn call_roll(&mut self, lapsed: Vec<u32>, now: u64, fx: &mut Effects) {
        for at in lapsed.into_iter().rev() {
            if let Some(grant) = self.people.get_mut(at).grant.take() {
                grant.end();
            }
            self.people.relink(at, Place::Queue, true);
        }
        let mut at = self.people.head(Place::Queue);
        while let Some(this) = at {
            at = self.people.next(this);
            let node = self.people.get_mut(this);
            node.answered = false;
            fx.wake(node.waker.take());
        }
        let end = now.saturating_add(ROLL_CALL);
        self.roll_call = Some(end);
        self.next_end = self.next_end.min(end);
    }

    fn put_silent_aside(&mut self) {
        let mut at = self.people.head(Place::Queue);
        while let Some(this) = at {
            at = self.people.next(this);
            if !self.people.get(this).answered {
                self.people.relink(this, Place::Aside, false);
            }
        }
    }

    /// Grants to the head of the queue until the head must wait; tells the watchers of a free
    /// key. Ends every critical section that changed who is here.
    pub(super) fn serve(&mut self, table: &Arc<Table>, fx: &mut Effects) {
        while let Some(head) = self.people.head(Place::Queue) {
            if self.roll_call.is_some() {
                break;
            }
            let Some((wish, _)) = self.people.get(head).wish else {
                break;
            };
            if !self.admits(wish.mode) {
                break;
            }
            if !self.people.fifo_waiting() {
                // Only unfair ones: the first is woken and takes it if it is still there.
                fx.wake(self.people.get_mut(head).waker.take());
                break;
            }
            if !self.grant_to(table, head, wish, None, fx) {
                break;
            }
            fx.wake(self.people.get_mut(head).waker.take());
        }
        if self.people.len(Place::Queue) == 0 {
            self.roll_call = None;
        }
        if self.people.len(Place::Holders) == 0 {
            while let Some(at) = self.people.head(Place::Watchers) {
                let (waker, _) = self.people.remove(at);
                fx.wake(waker);
            }
        }
    }

    /// Makes a node a holder. The caller has checked `admits`, and claims the grant at once if it
    /// gives the time; else it is an offer. False if the tokens are used up.
    fn grant_to(
        &mut self,
        table: &Arc<Table>,
        at: u32,
        wish: Wish,
        claimed_now: Option<u64>,
        fx: &mut Effects,
    ) -> bool {
        let now = claimed_now.unwrap_or_else(|| table.now());
        let Some(token) = table.draw(wish.tokens, now) else {
            return false;
        };
        let grant = Arc::new(Grant::new(table, &self.key, &wish, token, now));
        let expiry = grant.expiry();
        let end = match claimed_now {
            Some(_) => expiry,
            None => offer_end(&grant),
        };
        self.next_end = self.next_end.min(end);
        let node = self.people.get_mut(at);
        node.grant = Some(grant);
        node.claimed = false;
        self.people.relink(at, Place::Holders, false);
        // The next in line set its timer by an earlier holder.
        if let Some(head) = self.people.head(Place::Queue) {
            let head = self.people.get_mut(head);
            if head.armed > expiry {
                fx.wake(head.waker.take());
            }
        }
        true
    }

    /// A newcomer enters at once. The caller has checked `admits_newcomer`.
    pub(super) fn enter(
        &mut self,
        table: &Arc<Table>,
        wish: Wish,
        order: Order,
        (seq, now): (u64, u64),
        fx: &mut Effects,
    ) -> Option<MemoryLease> {
        let at = self
            .people
            .insert(Node::new(Some((wish, order)), seq), Place::Aside);
        if self.grant_to(table, at, wish, Some(now), fx) {
            self.claim(at, now)
        } else {
            let (waker, _) = self.people.remove(at);
            fx.discard(waker);
            None
        }
    }

    /// An unfair waiter takes what it was woken for, if it is still there.
    pub(super) fn take_unfair(&mut self, table: &Arc<Table>, at: u32, now: u64, fx: &mut Effects) {
        if let Some((wish, Order::Unfair)) = self.people.get(at).wish
            && self.people.get(at).place() == Place::Queue
            && !self.people.fifo_waiting()
            && self.roll_call.is_none()
            && self.admits(wish.mode)
            && self.grant_to(table, at, wish, Some(now), fx)
        {
            // The next may be a reader that fits beside it.
            self.serve(table, fx);
        }
    }

    /// Hands out a lease of the node's grant, if it has one. The claim of an offer begins the ttl
    /// anew: nobody can have had the key in between, however late the claim.
    pub(super) fn claim(&mut self, at: u32, now: u64) -> Option<MemoryLease> {
        let node = self.people.get_mut(at);
        let grant = node.grant.as_ref()?;
        if !node.claimed && node.place() == Place::Holders {
            grant.renewed(now);
        }
        let lease = grant.lease();
        node.claimed = true;
        node.armed = u64::MAX;
        Some(lease)
    }

    /// The same for a waiter that was granted the key.
    pub(super) fn take_offer(&mut self, at: u32, now: u64) -> Option<MemoryLease> {
        let lease = self.claim(at, now);
        if self.people.get(at).place() == Place::Aside {
            // Taken away before it was claimed: the lease is lost, and its signal says why.
            self.people.remove(at);
        }
        lease
    }

    /// Takes a holder's node out, if it holds by this grant.
    pub(super) fn leave(&mut self, grant: &Arc<Grant>, fx: &mut Effects) -> bool {
        let found = self.people.find(&grant.owner).filter(|&at| {
            let node = self.people.get(at);
            node.place() == Place::Holders
                && node.grant.as_ref().is_some_and(|g| Arc::ptr_eq(g, grant))
        });
        if let Some(at) = found {
            let (waker, _) = self.people.remove(at);
            fx.discard(waker);
            grant.end();
        }
        found.is_some()
    }

    /// Takes the key from all holders and serves the next; whether there was one.
    pub(super) fn evict(&mut self, table: &Arc<Table>, loss: Loss, fx: &mut Effects) -> bool {
        let mut held = false;
        while let Some(at) = self.people.head(Place::Holders) {
            held = true;
            let node = self.people.get_mut(at);
            let Some(grant) = node.grant.clone() else {
                self.people.remove(at);
                continue;
            };
            grant.end();
            fx.lost(grant, loss);
            if node.claimed {
                let (waker, _) = self.people.remove(at);
                fx.discard(waker);
            } else {
                // Its future claims a lease that is lost.
                fx.wake(node.waker.take());
                self.people.relink(at, Place::Aside, false);
            }
        }
        self.serve(table, fx);
        held
    }

    /// There is a result: all who wait for one are woken to take it, and none stands in the way of
    /// those who wait for the lock alone.
    pub(super) fn tell_loaders(&mut self, fx: &mut Effects) {
        let mut at = self.people.head(Place::Queue);
        while let Some(this) = at {
            at = self.people.next(this);
            let node = self.people.get_mut(this);
            if node.loads {
                fx.wake(node.waker.take());
                self.people.relink(this, Place::Aside, false);
            }
        }
    }

    /// When a waiter has to look again.
    pub(super) fn look_again(&self, now: u64, deadline: u64) -> u64 {
        let ceiling = if self.people.len(Place::Queue) <= SHORT_QUEUE {
            CEILING.0
        } else {
            CEILING.1
        };
        // Up to a quarter less, so that waiters do not look all at once.
        let ceiling = ceiling - fastrand::u64(..ceiling / 4);
        deadline.min(self.next_end).min(now.saturating_add(ceiling))
    }

    /// What remains of the holders' leases: the longest of the first few.
    pub(super) fn remaining(&self, now: u64) -> Option<u64> {
        self.holders()
            .take(8)
            .map(|grant| grant.expiry().saturating_sub(now))
            .max()
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = &Arc<Grant>> {
        std::iter::successors(self.people.head(Place::Holders), |&at| self.people.next(at))
            .filter_map(|at| self.people.get(at).grant.as_ref())
    }
}

fn offer_end(grant: &Grant) -> u64 {
    grant.expiry().min(grant.offered_at().saturating_add(OFFER))
}
