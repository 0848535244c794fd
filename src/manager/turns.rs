//! Who acts for a key in this process: one at a time, and those who wait for their turn.
//!
//! A key's queue exists while somebody has its [`Role`]. The role is never lost: dropped anywhere,
//! it passes to the next waiter, or ends the queue when there is none. A newcomer that finds no role
//! takes it. A turn that its waiter does not take, because nobody polls it, another may take back.

use std::{collections::VecDeque, time::Duration};

use hashbrown::{HashTable, hash_table::Entry};

use super::seat::Seat;
use crate::{
    key::LockKey,
    sync::{Arc, Mutex, Weak, lock},
};

/// The queues of this process, by key. `T` has the role within it: whatever becomes of it, it hands
/// the role on or drops it.
#[derive(Debug)]
pub(super) struct Turns<T>(Mutex<HashTable<Queue<T>>>);

#[derive(Debug)]
struct Queue<T> {
    key: LockKey,
    waiters: VecDeque<Weak<Seat<Turn<T>>>>,
    /// The last waiter that was chosen.
    chosen: Weak<Seat<Turn<T>>>,
    /// When to look for waiters that have gone.
    sweep_at: usize,
}

/// What a waiter is told.
#[derive(Debug)]
pub(super) enum Turn<T> {
    /// It is up to you.
    Contend(Role<T>),
    /// Here is what the one before has, the role within it.
    Handed(T),
}

/// The right to act for a key.
#[derive(Debug)]
pub(super) struct Role<T> {
    turns: Arc<Turns<T>>,
    key: LockKey,
    /// Another has it now: to drop this one does nothing.
    passed: bool,
}

impl<T> Turns<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    /// Takes the role if nobody has it, else queues.
    pub(super) fn join(this: &Arc<Self>, key: &LockKey) -> Result<Role<T>, Arc<Seat<Turn<T>>>> {
        let mut table = lock(&this.0);
        match table.entry(key.hash64(), |q| q.key == *key, |q| q.key.hash64()) {
            Entry::Vacant(vacant) => {
                vacant.insert(Queue {
                    key: key.clone(),
                    waiters: VecDeque::new(),
                    chosen: Weak::new(),
                    sweep_at: 64,
                });
                Ok(Role::new(this, key))
            }
            Entry::Occupied(mut queue) => {
                let queue = queue.get_mut();
                if queue.waiters.len() >= queue.sweep_at {
                    queue.waiters.retain(|w| w.strong_count() > 0);
                    queue.sweep_at = (queue.waiters.len() * 2).max(64);
                }
                let seat = Seat::new();
                queue.waiters.push_back(Arc::downgrade(&seat));
                Err(seat)
            }
        }
    }

    /// Gives the next waiter what has the role within it; back if nobody waits. Then the queue is
    /// still there, and newcomers go on queueing: it ends with the role.
    pub(super) fn hand_on(&self, key: &LockKey, mut value: T) -> Result<(), T> {
        loop {
            let Some(waiter) = self.next(key, false) else {
                return Err(value);
            };
            match Seat::give(&waiter, Turn::Handed(value)) {
                Err(Turn::Handed(back)) => value = back,
                Ok(()) | Err(Turn::Contend(_)) => return Ok(()),
            }
        }
    }

    /// The turn of the waiter that was chosen last, if it has not taken it for this long.
    pub(super) fn take_back(&self, key: &LockKey, after: Duration) -> Option<Turn<T>> {
        let chosen = {
            let table = lock(&self.0);
            table
                .find(key.hash64(), |q| q.key == *key)?
                .chosen
                .upgrade()
        };
        chosen?.take_back(after)
    }

    /// The next waiter that is still there. Without one, `end` ends the queue, and with it the
    /// role, in the same breath: a newcomer either queues before or finds the role free.
    fn next(&self, key: &LockKey, end: bool) -> Option<Weak<Seat<Turn<T>>>> {
        let mut table = lock(&self.0);
        let mut queue = table.find_entry(key.hash64(), |q| q.key == *key).ok()?;
        while let Some(waiter) = queue.get_mut().waiters.pop_front() {
            if waiter.strong_count() > 0 {
                queue.get_mut().chosen = waiter.clone();
                return Some(waiter);
            }
        }
        if end {
            queue.remove();
        }
        None
    }
}

impl<T> Role<T> {
    fn new(turns: &Arc<Turns<T>>, key: &LockKey) -> Self {
        Self {
            turns: turns.clone(),
            key: key.clone(),
            passed: false,
        }
    }

    pub(super) fn key(&self) -> &LockKey {
        &self.key
    }
}

impl<T> Drop for Role<T> {
    fn drop(&mut self) {
        if self.passed {
            return;
        }
        while let Some(waiter) = self.turns.next(&self.key, true) {
            let role = Self::new(&self.turns, &self.key);
            match Seat::give(&waiter, Turn::Contend(role)) {
                // `self` goes on looking, and `back` must not.
                Err(Turn::Contend(mut back)) => back.passed = true,
                Ok(()) | Err(Turn::Handed(_)) => return,
            }
        }
    }
}
