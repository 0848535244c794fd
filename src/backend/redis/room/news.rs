//! What a room is told, mostly by the messages of the inbox.

use super::{Asker, Entry, Room, Together};
use crate::{lease::Loss, sync::lock};

impl Room {
    /// An offer to an owner.
    pub(in crate::backend::redis) fn offer(&self, asker: &Asker, token: &str) {
        if let Some(Entry::Waits(waiter)) = lock(&self.tables).owners.get(asker) {
            waiter.offer(token);
        }
    }

    /// An owner has to ask again.
    pub(in crate::backend::redis) fn ask(&self, asker: &Asker) {
        if let Some(Entry::Waits(waiter)) = lock(&self.tables).owners.get(asker) {
            waiter.ask();
        }
    }

    /// An operator took the grant of this token from its owner.
    pub(in crate::backend::redis) fn revoked(&self, asker: &Asker, token: &str) {
        let held = match lock(&self.tables).owners.get(asker) {
            Some(Entry::Holds(inner)) => inner.upgrade(),
            Some(Entry::Waits(waiter)) => {
                waiter.revoke(token);
                None
            }
            Some(Entry::Leaves(..)) | None => None,
        };
        if let Some(inner) = held {
            inner.lose(Loss::ForceReleased);
        }
    }

    /// All that wait for this key here were taken out of its queue: also one that has not heard
    /// yet that it is in there.
    pub(in crate::backend::redis) fn evicted(&self, name: &str) {
        for (asker, entry) in &lock(&self.tables).owners {
            if let Entry::Waits(waiter) = entry
                && *asker.lock == *name
            {
                waiter.ask();
            }
        }
    }

    /// There is a result for all that wait for one here.
    pub(in crate::backend::redis) fn recorded(&self, name: &str) {
        let together = Together::default();
        for (asker, entry) in &lock(&self.tables).owners {
            if let Entry::Waits(waiter) = entry
                && waiter.loads
                && *asker.lock == *name
            {
                waiter.recorded(&together);
            }
        }
    }

    /// Messages for these locks may have been missed: everybody who waits for one asks again.
    pub(in crate::backend::redis) fn gap(&self, which: impl Fn(&str) -> bool) {
        let (waiters, gates): (Vec<_>, Vec<_>) = {
            let tables = lock(&self.tables);
            let waiters = tables
                .owners
                .iter()
                .filter_map(|(asker, entry)| match entry {
                    Entry::Waits(waiter) if which(&asker.lock) => Some(waiter.clone()),
                    _ => None,
                });
            let gates = tables.gates.iter().filter(|(name, _)| which(name));
            (
                waiters.collect(),
                gates.map(|(_, gate)| gate.clone()).collect(),
            )
        };
        for waiter in waiters {
            waiter.ask();
        }
        for gate in gates {
            gate.open();
        }
    }

    pub(in crate::backend::redis) fn open_gate(&self, name: &str) {
        let gate = lock(&self.tables).gates.get(name).cloned();
        if let Some(gate) = gate {
            gate.open();
        }
    }
}
