//! Who holds a key, for verbs that look at more than the lock.

use std::sync::Arc;

use hashbrown::HashTable;

use super::{
    effects::Effects,
    lease::Grant,
    slab::Place,
    table::{Slot, Table, shrink},
};
use crate::{key::LockKey, lease::OwnerToken};

/// Who holds a key, from where an owner stands.
pub(super) enum Holding {
    Nobody,
    /// It holds, and knows.
    Me(Arc<Grant>),
    /// It may, and does not know yet.
    Offered,
    Another,
}

impl Table {
    pub(super) fn holding(
        self: &Arc<Self>,
        slots: &mut HashTable<Slot>,
        key: &LockKey,
        owner: &OwnerToken,
        now: u64,
        fx: &mut Effects,
    ) -> Holding {
        let Ok(mut entry) = slots.find_entry(key.hash64(), |slot| slot.key() == key) else {
            return Holding::Nobody;
        };
        let room = match entry.get_mut() {
            Slot::Held(grant) if grant.expiry() <= now => return Holding::Nobody,
            Slot::Held(grant) if grant.owner == *owner => return Holding::Me(grant.clone()),
            Slot::Held(_) => return Holding::Another,
            Slot::Room(room) => room,
        };
        room.tick(self, now, fx);
        let mine = room.people.find(owner).map(|at| room.people.get(at));
        let holding = match mine.filter(|node| node.place() == Place::Holders) {
            Some(node) if !node.claimed => Holding::Offered,
            Some(node) => node.grant.clone().map_or(Holding::Nobody, Holding::Me),
            None if room.people.len(Place::Holders) == 0 => Holding::Nobody,
            None => Holding::Another,
        };
        if entry.get().is_idle() {
            entry.remove();
            shrink(slots);
        }
        holding
    }

    /// Takes an owner that waits, or was offered the key, out: an older future of it ends.
    pub(super) fn withdraw(
        self: &Arc<Self>,
        slots: &mut HashTable<Slot>,
        key: &LockKey,
        owner: &OwnerToken,
        fx: &mut Effects,
    ) {
        let Ok(mut entry) = slots.find_entry(key.hash64(), |slot| slot.key() == key) else {
            return;
        };
        if let Slot::Room(room) = entry.get_mut()
            && let Some(at) = room.people.find(owner)
        {
            let (waker, grant) = room.people.remove(at);
            fx.wake(waker);
            if let Some(grant) = grant {
                grant.end();
            }
            room.serve(self, fx);
        }
        if entry.get().is_idle() {
            entry.remove();
            shrink(slots);
        }
    }
}
