//! What this process does at a certain time, whether anybody is polled or not: it ends locks that
//! nobody renewed, has those watched that are held for longer than a moment, evicts waiters that
//! nobody polls, and removes marks that have had their time.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, VecDeque},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{client::Shared, lease::Inner, undo};
use crate::sync::lock;

/// A lock that is held for longer is watched, so that its holder hears at once that it was taken
/// away. Most are released before: they cost the server no watch, and as it starts from the
/// revision of the grant, nothing is missed.
pub(super) const MOMENT: Duration = Duration::from_millis(100);

/// Between two looks at waiters that have to show that they live. Counted rather than measured: a
/// machine that stalls takes their time from nobody.
const TICK: Duration = Duration::from_millis(100);

/// After how long a lock is looked at at the latest.
const LATEST: Duration = Duration::from_secs(30);

/// How long a mark stands: as long as a packet may be on its way, 15 minutes (`tcp_retries2` in the
/// manual page tcp(7)).
const MARK: Duration = Duration::from_secs(900);

#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// Grants, in the order in which they came.
    new: Mutex<VecDeque<(Instant, Weak<Inner>)>>,
    /// Locks that are held, by their end.
    ends: Mutex<BinaryHeap<Reverse<End>>>,
    /// Marks, in the order in which they were made.
    marks: Mutex<VecDeque<(Instant, String)>>,
    earlier: Notify,
}

#[derive(Debug)]
struct End {
    at: Instant,
    inner: Weak<Inner>,
}

impl PartialEq for End {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for End {}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for End {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl Agenda {
    /// Looks after a grant.
    pub(super) fn granted(&self, inner: &Arc<Inner>) {
        let at = Instant::now() + MOMENT;
        let mut new = lock(&self.new);
        new.push_back((at, Arc::downgrade(inner)));
        if new.len() == 1 {
            drop(new);
            self.earlier.notify_one();
        }
    }

    /// Removes a mark when it has had its time.
    pub(super) fn marked(&self, mark: String) {
        let mut marks = lock(&self.marks);
        marks.push_back((Instant::now() + MARK, mark));
        if marks.len() == 1 {
            drop(marks);
            self.earlier.notify_one();
        }
    }

    fn next_new(&self, now: Instant) -> Option<Weak<Inner>> {
        let mut new = lock(&self.new);
        if new.front()?.0 > now {
            return None;
        }
        new.pop_front().map(|(_, inner)| inner)
    }

    fn next_end(&self, now: Instant) -> Option<Weak<Inner>> {
        let mut ends = lock(&self.ends);
        match ends.peek() {
            Some(Reverse(end)) if end.at <= now => ends.pop().map(|Reverse(end)| end.inner),
            _ => None,
        }
    }

    fn old_marks(&self, now: Instant) -> Vec<String> {
        let mut marks = lock(&self.marks);
        let old = marks.iter().take_while(|(at, _)| *at <= now).count();
        marks.drain(..old).map(|(_, mark)| mark).collect()
    }

    /// When there is something to do next.
    fn next(&self) -> Option<Instant> {
        let new = lock(&self.new).front().map(|(at, _)| *at);
        let end = lock(&self.ends).peek().map(|Reverse(end)| end.at);
        let mark = lock(&self.marks).front().map(|(at, _)| *at);
        [new, end, mark].into_iter().flatten().min()
    }
}

pub(super) async fn keep(shared: Arc<Shared>) {
    let agenda = &shared.agenda;
    let mut tick = None;
    loop {
        let now = Instant::now();
        while let Some(inner) = agenda.next_new(now) {
            if let Some(inner) = inner.upgrade().filter(|inner| inner.is_open()) {
                inner.watch(&shared);
                plan(agenda, &inner);
            }
        }
        while let Some(inner) = agenda.next_end(now) {
            if let Some(inner) = inner.upgrade().filter(|inner| inner.is_open())
                && !inner.expires(now)
            {
                plan(agenda, &inner);
            }
        }
        let marks = agenda.old_marks(now);
        if !marks.is_empty() {
            shared.spawn(undo::unmark(shared.clone(), marks));
        }
        if shared.room.expects_anybody() {
            if tick.is_none_or(|at| at <= now) {
                if tick.is_some() {
                    for waiter in shared.room.tick() {
                        undo::evict(&shared, &waiter);
                    }
                }
                tick = Some(now + TICK);
            }
        } else {
            tick = None;
        }
        let next = [agenda.next(), tick].into_iter().flatten().min();
        let until = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until => {}
            () = agenda.earlier.notified() => {}
            () = shared.room.expects.notified(), if tick.is_none() => {}
        }
    }
}

/// Looks at a lock again at its end, which may have moved by then; sooner where that is far, so that
/// locks that are long released are not kept in mind.
fn plan(agenda: &Agenda, inner: &Arc<Inner>) {
    let end = End {
        at: inner.end().min(Instant::now() + LATEST),
        inner: Arc::downgrade(inner),
    };
    lock(&agenda.ends).push(Reverse(end));
}
