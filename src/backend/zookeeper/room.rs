//! Who of this process asks for or holds which key.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    board::{Board, Told},
    lease::Inner,
    place::{Joined, Loads, Place},
};
use crate::{backend::AcquireRequest, key::LockKey, lease::OwnerToken, sync::lock};

/// How long the node of a key is kept for the next one who asks.
const IDLE: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Room {
    lines: Mutex<HashMap<LockKey, Line>>,
    /// A key is idle, or nobody is left.
    pub(super) idle: Notify,
    emptied: Notify,
}

/// What this process knows of a key.
#[derive(Default)]
struct Line {
    places: HashMap<OwnerToken, Arc<Place>>,
    /// Whether its node was there when last heard of.
    known: bool,
    /// Whether it may be there, for all that was asked of the servers.
    touched: bool,
    /// Whether it was this process that made it.
    made: bool,
    idle_since: Option<Instant>,
    /// Where those who wait for its record hear of it.
    board: Option<Board>,
}

/// What became of an owner that asks.
pub(super) enum Entered {
    /// It stands here for the first time.
    New(Arc<Place>),
    /// Another acquire of it is under way: they share its place.
    Joined(Arc<Place>),
    /// It holds.
    Holds(Arc<Inner>),
    /// What it had is being undone.
    Leaves(Arc<Place>),
}

impl Room {
    pub(super) fn enter(
        &self,
        request: &AcquireRequest,
        patient: bool,
        loads: Option<Loads>,
    ) -> Entered {
        let mut lines = lock(&self.lines);
        let line = lines.entry(request.key.clone()).or_default();
        if let Some(place) = line.places.get(&request.owner) {
            if loads.is_some() && place.loads.is_none() {
                // It would get a key, and no record.
                return Entered::Leaves(place.clone());
            }
            return match place.join() {
                Joined::Waits => Entered::Joined(place.clone()),
                Joined::Holds(inner) => Entered::Holds(inner),
                Joined::Leaves => Entered::Leaves(place.clone()),
            };
        }
        line.idle_since = None;
        let place = Arc::new(Place::new(request, patient, loads));
        line.places.insert(request.owner, place.clone());
        Entered::New(place)
    }

    /// The place is over.
    pub(super) fn leave(&self, place: &Place) {
        let mut lines = lock(&self.lines);
        let Some(line) = lines.get_mut(&place.key) else {
            return;
        };
        line.places.remove(&place.owner);
        if !line.places.is_empty() {
            return;
        }
        if line.touched {
            line.idle_since = Some(Instant::now());
        } else {
            lines.remove(&place.key);
        }
        drop(lines);
        self.idle.notify_one();
        self.emptied.notify_waiters();
    }

    /// The place of this owner, if it has one.
    pub(super) fn place(&self, key: &LockKey, owner: &OwnerToken) -> Option<Arc<Place>> {
        lock(&self.lines).get(key)?.places.get(owner).cloned()
    }

    /// What is told of the record of a key that is asked for; with the board, if it is new and
    /// somebody has to look after it.
    pub(super) fn board(&self, key: &LockKey) -> (Told, Option<Board>) {
        let mut lines = lock(&self.lines);
        let line = lines.entry(key.clone()).or_default();
        match &line.board {
            Some(board) => (board.told(), None),
            None => {
                let board = line.board.insert(Board::default());
                (board.told(), Some(board.clone()))
            }
        }
    }

    /// Takes a board away that nobody looks at; whether that is so.
    pub(super) fn leave_board(&self, key: &LockKey, board: &Board) -> bool {
        let mut lines = lock(&self.lines);
        if board.is_looked_at() {
            return false;
        }
        if let Some(line) = lines.get_mut(key)
            && line.board.as_ref().is_some_and(|one| one.is(board))
        {
            line.board = None;
        }
        true
    }

    /// Whether others of this process ask for this key.
    pub(super) fn is_shared(&self, key: &LockKey) -> bool {
        lock(&self.lines)
            .get(key)
            .is_some_and(|line| line.places.len() > 1)
    }

    /// Whether the key's node is there, as far as is known.
    pub(super) fn knows(&self, key: &LockKey) -> bool {
        lock(&self.lines).get(key).is_some_and(|line| line.known)
    }

    /// The key's node is there, or not.
    pub(super) fn learn(&self, key: &LockKey, known: bool) {
        if let Some(line) = lock(&self.lines).get_mut(key) {
            line.known = known;
            line.touched |= known;
        }
    }

    /// The key's node is about to be made here.
    pub(super) fn makes(&self, key: &LockKey) {
        if let Some(line) = lock(&self.lines).get_mut(key) {
            line.touched = true;
            line.made = true;
        }
    }

    /// The key's node was not made here: somebody was first.
    pub(super) fn found(&self, key: &LockKey) {
        if let Some(line) = lock(&self.lines).get_mut(key) {
            line.known = true;
            line.made = false;
        }
    }

    /// Asks all others of this process that wait for the key whether they are still there.
    pub(super) fn probe(&self, besides: &Place) {
        if let Some(line) = lock(&self.lines).get(&besides.key) {
            for place in line.places.values() {
                if !std::ptr::eq(&**place, besides) {
                    place.probe();
                }
            }
        }
    }

    /// Takes the keys out whose nodes have been idle for long enough (or all that are), each with
    /// whether the node was made here; and says when to come again.
    pub(super) fn take_idle(&self, all: bool) -> (Vec<(LockKey, bool)>, Option<Instant>) {
        let now = Instant::now();
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        lock(&self.lines).retain(|key, line| match line.idle_since {
            Some(since) if all || since + IDLE <= now => {
                due.push((key.clone(), line.made));
                false
            }
            Some(since) => {
                let at = since + IDLE;
                next = Some(next.map_or(at, |next| next.min(at)));
                true
            }
            None => true,
        });
        (due, next)
    }

    /// What was taken out could not be looked after.
    pub(super) fn put_back(&self, key: LockKey, made: bool) {
        lock(&self.lines).entry(key).or_insert_with(|| Line {
            touched: true,
            made,
            idle_since: Some(Instant::now()),
            ..Line::default()
        });
    }

    /// Resolves when nobody holds, asks or leaves.
    pub(super) async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            let busy = lock(&self.lines)
                .values()
                .any(|line| !line.places.is_empty());
            if !busy {
                return;
            }
            emptied.await;
        }
    }
}
