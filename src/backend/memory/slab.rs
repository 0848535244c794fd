//! The people of one room: nodes in a slab, linked into lists by index, found by owner. Every
//! operation is O(1) whatever their number.

use std::{sync::Arc, task::Waker};

use hashbrown::HashTable;

use super::lease::{Grant, Wish};
use crate::{backend::Order, lease::OwnerToken};

/// No node.
pub(super) const NIL: u32 = u32::MAX;

/// Where a node stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Holds the key.
    Holders = 0,
    /// Waits for it.
    Queue = 1,
    /// Waits until it is free.
    Watchers = 2,
    /// In no list: its future did not answer a roll call, or its grant was taken away unclaimed.
    Aside = 3,
}

/// One holder or waiter.
pub(super) struct Node {
    /// `None` for watchers.
    pub(super) wish: Option<(Wish, Order)>,
    /// The number of the future that owns this place; 0 for a free node.
    pub(super) seq: u64,
    /// When its future's timer fires.
    pub(super) armed: u64,
    pub(super) waker: Option<Waker>,
    pub(super) grant: Option<Arc<Grant>>,
    prev: u32,
    next: u32,
    place: Place,
    /// A lease of the grant was handed out.
    pub(super) claimed: bool,
    /// Polled since the last roll call began.
    pub(super) answered: bool,
    /// It waits for a record too.
    pub(super) loads: bool,
}

impl Node {
    pub(super) fn new(wish: Option<(Wish, Order)>, seq: u64) -> Self {
        Self {
            wish,
            seq,
            armed: u64::MAX,
            waker: None,
            grant: None,
            prev: NIL,
            next: NIL,
            place: Place::Aside,
            claimed: false,
            answered: true,
            loads: false,
        }
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    fn owner(&self) -> Option<OwnerToken> {
        self.wish.map(|(wish, _)| wish.owner)
    }

    fn is_fifo(&self) -> bool {
        matches!(self.wish, Some((_, Order::Fifo)))
    }
}

#[derive(Clone, Copy)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

/// All nodes of a room.
pub(super) struct Slab {
    nodes: Vec<Node>,
    free: u32,
    live: u32,
    lists: [List; 3],
    by_owner: HashTable<u32>,
    /// How many in the queue are `Fifo`.
    fifo: u32,
}

impl Slab {
    pub(super) fn new() -> Self {
        let list = List {
            head: NIL,
            tail: NIL,
            len: 0,
        };
        Self {
            nodes: Vec::new(),
            free: NIL,
            live: 0,
            lists: [list; 3],
            by_owner: HashTable::new(),
            fifo: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(super) fn len(&self, place: Place) -> u32 {
        self.lists[place as usize].len
    }

    pub(super) fn head(&self, place: Place) -> Option<u32> {
        let head = self.lists[place as usize].head;
        (head != NIL).then_some(head)
    }

    pub(super) fn next(&self, at: u32) -> Option<u32> {
        let next = self.nodes[at as usize].next;
        (next != NIL).then_some(next)
    }

    pub(super) fn fifo_waiting(&self) -> bool {
        self.fifo > 0
    }

    pub(super) fn find(&self, owner: &OwnerToken) -> Option<u32> {
        self.by_owner
            .find(owner.hash64(), |&at| {
                self.nodes[at as usize].owner().as_ref() == Some(owner)
            })
            .copied()
    }

    /// The node, if this future still owns it.
    pub(super) fn owned(&mut self, at: u32, seq: u64) -> Option<&mut Node> {
        self.nodes
            .get_mut(at as usize)
            .filter(|node| node.seq == seq)
    }

    pub(super) fn get(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    pub(super) fn get_mut(&mut self, at: u32) -> &mut Node {
        &mut self.nodes[at as usize]
    }

    /// Puts a node at the end of a list.
    pub(super) fn insert(&mut self, node: Node, place: Place) -> u32 {
        let owner = node.owner();
        let at = if self.free == NIL {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer waiters than 2^32")
        } else {
            let at = self.free;
            self.free = self.nodes[at as usize].next;
            self.nodes[at as usize] = node;
            at
        };
        self.live += 1;
        if let Some(owner) = owner {
            let nodes = &self.nodes;
            self.by_owner.insert_unique(owner.hash64(), at, |&at| {
                nodes[at as usize].owner().map_or(0, |owner| owner.hash64())
            });
        }
        self.link(at, place, false);
        at
    }

    /// Takes a node out and leaves its number free. Returns its waker and its grant.
    pub(super) fn remove(&mut self, at: u32) -> (Option<Waker>, Option<Arc<Grant>>) {
        self.unlink(at);
        if let Some(owner) = self.nodes[at as usize].owner()
            && let Ok(entry) = self
                .by_owner
                .find_entry(owner.hash64(), |&other| other == at)
        {
            entry.remove();
        }
        let node = &mut self.nodes[at as usize];
        node.seq = 0;
        node.wish = None;
        let taken = (node.waker.take(), node.grant.take());
        node.next = self.free;
        self.free = at;
        self.live -= 1;
        taken
    }

    /// Moves a node to the front or the end of a list.
    pub(super) fn relink(&mut self, at: u32, place: Place, front: bool) {
        self.unlink(at);
        self.link(at, place, front);
    }

    fn link(&mut self, at: u32, place: Place, front: bool) {
        self.nodes[at as usize].place = place;
        if place == Place::Aside {
            return;
        }
        if place == Place::Queue && self.nodes[at as usize].is_fifo() {
            self.fifo += 1;
        }
        let list = &mut self.lists[place as usize];
        list.len += 1;
        let (prev, next) = if front {
            (NIL, list.head)
        } else {
            (list.tail, NIL)
        };
        if prev == NIL {
            list.head = at;
        }
        if next == NIL {
            list.tail = at;
        }
        self.nodes[at as usize].prev = prev;
        self.nodes[at as usize].next = next;
        if prev != NIL {
            self.nodes[prev as usize].next = at;
        }
        if next != NIL {
            self.nodes[next as usize].prev = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let node = &mut self.nodes[at as usize];
        let (prev, next, place, fifo) = (node.prev, node.next, node.place, node.is_fifo());
        node.prev = NIL;
        node.next = NIL;
        node.place = Place::Aside;
        if place == Place::Aside {
            return;
        }
        if place == Place::Queue && fifo {
            self.fifo -= 1;
        }
        let list = &mut self.lists[place as usize];
        list.len -= 1;
        if prev == NIL {
            list.head = next;
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next == NIL {
            list.tail = prev;
        } else {
            self.nodes[next as usize].prev = prev;
        }
    }
}
