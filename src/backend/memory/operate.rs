//! The table's other verbs: renew, release, watch, inspect, take away, count.

use std::{sync::Arc, time::Duration};

use hashbrown::HashTable;

use super::{
    effects::Effects,
    lease::Grant,
    slab::{Node, Place},
    table::{Slot, Table, Ticket, refused, shrink},
};
use crate::{
    backend::{HolderState, KeyState, WaitBound},
    error::BackendError,
    key::LockKey,
    lease::Loss,
    sync::lock,
};

impl Table {
    /// Registers a future that waits for a free key; `None` if it is free.
    pub(super) fn watch(
        self: &Arc<Self>,
        key: &LockKey,
        wait: WaitBound,
    ) -> Option<Result<Ticket, BackendError>> {
        let now = self.now();
        self.locked(key.hash64(), |slots, fx| {
            let mut entry = slots
                .find_entry(key.hash64(), |slot| slot.key() == key)
                .ok()?;
            let remaining = match entry.get_mut() {
                Slot::Held(grant) if grant.expiry() <= now => {
                    grant.end();
                    fx.lost(grant.clone(), Loss::Expired);
                    entry.remove();
                    shrink(slots);
                    return None;
                }
                Slot::Held(grant) => Some(grant.expiry() - now),
                Slot::Room(room) => {
                    room.tick(self, now, fx);
                    room.remaining(now)
                }
            };
            let free = match entry.get() {
                Slot::Held(_) => false,
                Slot::Room(room) => room.people.len(Place::Holders) == 0,
            };
            if free {
                if entry.get().is_idle() {
                    entry.remove();
                    shrink(slots);
                }
                return None;
            }
            if self.deadline(wait, now).is_none() {
                return Some(Err(refused(wait, remaining)));
            }
            let seq = self.seq();
            let room = entry.get_mut().room(self.seq());
            let at = room.people.insert(Node::new(None, seq), Place::Watchers);
            Some(Ok(Ticket { at, seq }))
        })
    }

    pub(super) fn inspect(&self, key: &LockKey) -> KeyState {
        let now = self.now();
        self.locked(key.hash64(), |slots, _| {
            let mut state = KeyState::free(key.as_str());
            let mut add = |grant: &Arc<Grant>| {
                let remaining = grant.expiry().saturating_sub(now);
                if remaining > 0 {
                    let mut holder = HolderState::new(grant.mode);
                    holder.fencing_token = Some(grant.token);
                    holder.remaining = Some(Duration::from_nanos(remaining));
                    state.holders.push(holder);
                }
            };
            match slots.find(key.hash64(), |slot| slot.key() == key) {
                Some(Slot::Held(grant)) => add(grant),
                Some(Slot::Room(room)) => {
                    room.holders().for_each(add);
                    state.waiters = u64::from(room.people.len(Place::Queue));
                }
                None => {}
            }
            state
        })
    }

    /// Takes the key from all holders; whether there was one.
    pub(super) fn lose(self: &Arc<Self>, key: &LockKey, loss: Loss) -> bool {
        let now = self.now();
        self.locked(key.hash64(), |slots, fx| {
            let Ok(mut entry) = slots.find_entry(key.hash64(), |slot| slot.key() == key) else {
                return false;
            };
            let held = match entry.get_mut() {
                Slot::Held(grant) => {
                    let held = grant.expiry() > now;
                    let loss = if held { loss } else { Loss::Expired };
                    grant.end();
                    fx.lost(grant.clone(), loss);
                    entry.remove();
                    shrink(slots);
                    return held;
                }
                Slot::Room(room) => {
                    room.tick(self, now, fx);
                    room.evict(self, loss, fx)
                }
            };
            if entry.get().is_idle() {
                entry.remove();
                shrink(slots);
            }
            held
        })
    }

    /// Whether the grant still holds; its ttl begins anew then.
    pub(super) fn renew(self: &Arc<Self>, grant: &Arc<Grant>) -> bool {
        if grant.has_ended() {
            return false;
        }
        self.locked(grant.key.hash64(), |slots, fx| {
            let now = self.now();
            if grant.has_ended() {
                return false;
            }
            if grant.expiry() > now {
                grant.renewed(now);
                return true;
            }
            // Too late, even if nobody took it: its holder was told to stop before.
            self.take_out(slots, grant, fx);
            fx.lost(grant.clone(), Loss::Expired);
            false
        })
    }

    /// Frees the key if the grant still holds; after a drop, only if no lease of it is left.
    pub(super) fn release(self: &Arc<Self>, grant: &Arc<Grant>, dropped: bool) {
        self.locked(grant.key.hash64(), |slots, fx| {
            if !grant.has_ended() && (!dropped || grant.is_orphan()) {
                self.take_out(slots, grant, fx);
            }
        });
    }

    pub(super) fn take_out(
        self: &Arc<Self>,
        slots: &mut HashTable<Slot>,
        grant: &Arc<Grant>,
        fx: &mut Effects,
    ) {
        let found = slots.find_entry(grant.key.hash64(), |slot| match slot {
            Slot::Held(held) => Arc::ptr_eq(held, grant),
            Slot::Room(room) => room.key == grant.key,
        });
        let Ok(mut entry) = found else { return };
        if let Slot::Room(room) = entry.get_mut() {
            if room.leave(grant, fx) {
                room.serve(self, fx);
            }
            if !room.people.is_empty() {
                return;
            }
        }
        grant.end();
        entry.remove();
        shrink(slots);
    }

    pub(super) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| lock(&shard.0).slots.len())
            .sum()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| lock(&shard.0).slots.capacity())
            .sum()
    }
}
