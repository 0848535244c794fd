//! Who of this process waits or holds: what the messages of the nodes are for.

use std::{
    collections::{HashMap, VecDeque, hash_map},
    sync::{Arc, Mutex, Weak},
};

use tokio_util::sync::CancellationToken;

use super::{lease::Inner, names::Names, waiter::Waiter};
pub(super) use crate::backend::redis::callers::Asker;
use crate::{backend::redis::callers::Gate, lease::Loss, sync::lock};

#[derive(Debug, Default)]
pub(super) struct Room {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    owners: HashMap<Asker, Entry>,
    lines: HashMap<Arc<str>, VecDeque<Arc<Waiter>>>,
    gates: HashMap<Arc<str>, Arc<Gate>>,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// Cancelled when nothing is left of it.
    gone: CancellationToken,
}

#[derive(Debug)]
enum State {
    Waits(Arc<Waiter>),
    Holds(Weak<Inner>),
    /// It is being undone; what it asks now would be undone too.
    Leaves,
}

/// What this process knows of an owner that asks.
pub(super) enum Known {
    /// It waits from now on.
    Waits,
    Holds(Arc<Inner>),
    /// It may ask when this is cancelled. Another wait of it was told to end.
    Leaves(CancellationToken),
}

impl Room {
    /// Enters an owner that is about to ask.
    pub(super) fn enter(&self, asker: &Asker, waiter: &Arc<Waiter>) -> Known {
        match lock(&self.tables).owners.entry(asker.clone()) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(Entry {
                    state: State::Waits(waiter.clone()),
                    gone: CancellationToken::new(),
                });
                Known::Waits
            }
            hash_map::Entry::Occupied(entry) => {
                let Entry { state, gone } = entry.get();
                match state {
                    State::Holds(inner) => match inner.upgrade() {
                        Some(inner) => Known::Holds(inner),
                        None => Known::Leaves(gone.clone()),
                    },
                    State::Waits(older) => {
                        older.replace();
                        Known::Leaves(gone.clone())
                    }
                    State::Leaves => Known::Leaves(gone.clone()),
                }
            }
        }
    }

    pub(super) fn holds(&self, asker: &Asker, inner: &Arc<Inner>) {
        self.set(asker, State::Holds(Arc::downgrade(inner)));
    }

    /// Its wait is over, or its lease: it is about to be undone, which is what
    /// [`left`](Self::left) ends.
    pub(super) fn leaves(&self, asker: &Asker) {
        self.set(asker, State::Leaves);
    }

    fn set(&self, asker: &Asker, state: State) {
        if let Some(entry) = lock(&self.tables).owners.get_mut(asker) {
            entry.state = state;
        }
    }

    /// Nothing is left of an owner.
    pub(super) fn left(&self, asker: &Asker) {
        let entry = lock(&self.tables).owners.remove(asker);
        if let Some(entry) = entry {
            entry.gone.cancel();
        }
    }

    /// Whether it is the first here that waits for this key. It may join the line.
    pub(super) fn stands_first(&self, names: &Names, waiter: &Arc<Waiter>) -> bool {
        let mut tables = lock(&self.tables);
        let line = tables.lines.entry(names.lock.clone()).or_default();
        if !line.iter().any(|other| Arc::ptr_eq(other, waiter)) {
            line.push_back(waiter.clone());
        }
        line.front().is_some_and(|first| Arc::ptr_eq(first, waiter))
    }

    pub(super) fn leave_line(&self, names: &Names, waiter: &Arc<Waiter>) {
        let mut tables = lock(&self.tables);
        let Some(line) = tables.lines.get_mut(&*names.lock) else {
            return;
        };
        let Some(at) = line.iter().position(|other| Arc::ptr_eq(other, waiter)) else {
            return;
        };
        line.remove(at);
        match line.front() {
            None => {
                tables.lines.remove(&*names.lock);
            }
            Some(first) if at == 0 => first.moved(),
            Some(_) => {}
        }
    }

    /// A node says that the key of this owner is free there.
    pub(super) fn free_at(&self, node: usize, asker: &Asker) {
        if let Some(Entry {
            state: State::Waits(waiter),
            ..
        }) = lock(&self.tables).owners.get(asker)
        {
            waiter.free_at(node);
        }
    }

    /// An operator took the grant of this token from its owner.
    pub(super) fn revoked(&self, asker: &Asker, token: u64) {
        let held = match lock(&self.tables).owners.get(asker).map(|e| &e.state) {
            Some(State::Holds(inner)) => inner.upgrade(),
            Some(State::Waits(waiter)) => {
                waiter.revoke(token);
                None
            }
            Some(State::Leaves) | None => None,
        };
        if let Some(inner) = held
            && inner.is_of(token)
        {
            inner.lose(Loss::ForceReleased);
        }
    }

    /// Messages of this node may have been missed.
    pub(super) fn gap(&self, node: usize) {
        let gates: Vec<_> = {
            let tables = lock(&self.tables);
            for entry in tables.owners.values() {
                if let State::Waits(waiter) = &entry.state {
                    waiter.free_at(node);
                }
            }
            tables.gates.values().cloned().collect()
        };
        for gate in gates {
            gate.open();
        }
    }

    /// Joins those who wait until this key is free.
    pub(super) fn join_gate(&self, names: &Names, create: impl FnOnce() -> Gate) -> Arc<Gate> {
        let mut tables = lock(&self.tables);
        let gate = match tables.gates.get(&*names.lock) {
            Some(gate) => gate.clone(),
            None => {
                let gate = Arc::new(create());
                tables.gates.insert(names.lock.clone(), gate.clone());
                gate
            }
        };
        gate.join();
        gate
    }

    /// Whether the last one left.
    pub(super) fn leave_gate(&self, names: &Names, gate: &Arc<Gate>) -> bool {
        let mut tables = lock(&self.tables);
        let last = gate.leave();
        if last {
            tables.gates.remove(&*names.lock);
        }
        last
    }

    pub(super) fn open_gate(&self, name: &str) {
        let gate = lock(&self.tables).gates.get(name).cloned();
        if let Some(gate) = gate {
            gate.open();
        }
    }
}
