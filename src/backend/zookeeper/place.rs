//! One owner's place for one key, shared by the acquires that wait for it and the task that stands
//! there for them.
//!
//! The task ([`seek`](super::seek), [`hold`](super::hold), [`stand`](super::stand)) runs on the lock runtime and is the only one
//! that creates or deletes the place's node. It sees every request through, whatever becomes of
//! those that wait. So an acquire may be dropped at any moment, and no undo is overtaken by what it
//! undoes.
//!
//! Invariants:
//!
//! - A place is over when nothing of it is left on the servers or its session has ended, and is in
//!   the room until then. Whoever asks for the same owner meanwhile waits for that.
//! - A grant is taken by an acquire that polls, or it is withdrawn: the lease is made when it is
//!   taken, so one that exists has an owner.
//! - An open record that was written for a grant is its holder's from the moment in which that is
//!   taken. Until then the place owes its undo, over sessions, and is not over.

mod records;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, Weak},
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

pub(super) use self::records::{Errand, Loads, Saved};
use super::{beats::Stamp, client::Client, lease::Inner, session::Session, trouble::Trouble};
use crate::{
    backend::{AcquireRequest, Mode},
    key::LockKey,
    lease::{FencingToken, Loss, OwnerToken},
    record::Record,
    sync::lock,
};

pub(super) struct Place {
    pub(super) owner: OwnerToken,
    pub(super) key: LockKey,
    pub(super) mode: Mode,
    pub(super) ttl: std::time::Duration,
    /// Whether it may stand in the queue. Else, if the key is not free, it is left at once.
    pub(super) patient: bool,
    /// Whether a record will do instead of the key.
    pub(super) loads: Option<Loads>,
    state: Mutex<State>,
    /// Wakes the task.
    told: Notify,
    /// Wakes the acquires.
    changed: Notify,
}

struct State {
    phase: Phase,
    /// Nothing is left of it. What became of it can still be seen.
    over: bool,
    /// How many acquires wait here.
    callers: usize,
    /// Others come first.
    waits: bool,
    /// Since when the acquires have been asked whether they are still polled.
    probed: Option<Instant>,
    /// The holder is done.
    let_go: bool,
    /// The number of a write after which whatever is written was written while it waited.
    came: Option<i64>,
    /// What was open under the key when it was last looked at.
    seen: Option<Record>,
    /// An open record may be there whose grant nobody has taken.
    owes: bool,
    errands: VecDeque<Errand>,
    /// One of them is to release it.
    leaves: bool,
    releases: Vec<oneshot::Sender<Result<(), Trouble>>>,
}

enum Phase {
    Seeks,
    Granted(Grant),
    Held(Weak<Inner>),
    Refused(Trouble),
    Found(Record),
    /// Taken back from acquires that did not take it.
    Withdrawn,
}

/// What a lease is made of.
pub(super) struct Grant {
    pub(super) session: Arc<Session>,
    pub(super) path: String,
    pub(super) token: FencingToken,
    /// When the servers were asked for what they granted.
    pub(super) asked: Stamp,
    /// The orphan whose place it took.
    pub(super) previous: Option<Record>,
}

pub(super) enum Joined {
    Waits,
    Holds(Arc<Inner>),
    Leaves,
}

/// What an acquire sees.
pub(super) enum Seen {
    Nothing,
    /// Others come first.
    Waits,
    Held(Arc<Inner>),
    Refused(Trouble),
    Found(Record),
    /// It may ask anew when the place is over.
    Leaves,
}

/// What the task sees of the grant that it offers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    Open,
    Taken,
    /// Nobody is left to take it.
    Void,
}

impl Place {
    /// With one acquire.
    pub(super) fn new(request: &AcquireRequest, patient: bool, loads: Option<Loads>) -> Self {
        Self {
            owner: request.owner,
            key: request.key.clone(),
            mode: request.mode,
            ttl: request.ttl.min(super::LONGEST),
            patient,
            loads,
            state: Mutex::new(State {
                phase: Phase::Seeks,
                over: false,
                callers: 1,
                waits: false,
                probed: None,
                let_go: false,
                came: None,
                seen: None,
                owes: false,
                errands: VecDeque::new(),
                leaves: false,
                releases: Vec::new(),
            }),
            told: Notify::new(),
            changed: Notify::new(),
        }
    }

    // For acquires.

    pub(super) fn join(&self) -> Joined {
        let mut state = lock(&self.state);
        match &state.phase {
            Phase::Seeks | Phase::Granted(_) => {
                state.callers += 1;
                Joined::Waits
            }
            Phase::Held(_) if state.let_go => Joined::Leaves,
            Phase::Held(inner) => inner.upgrade().map_or(Joined::Leaves, Joined::Holds),
            Phase::Refused(_) | Phase::Found(_) | Phase::Withdrawn => Joined::Leaves,
        }
    }

    /// Looks, which shows that the acquire is polled; a grant is taken.
    pub(super) fn look(self: &Arc<Self>, client: &Arc<Client>) -> Seen {
        let mut state = lock(&self.state);
        state.probed = None;
        let (waits, let_go) = (state.waits, state.let_go);
        match &mut state.phase {
            Phase::Seeks if waits => Seen::Waits,
            Phase::Seeks => Seen::Nothing,
            phase @ Phase::Granted(_) => {
                let Phase::Granted(grant) = std::mem::replace(phase, Phase::Withdrawn) else {
                    return Seen::Leaves;
                };
                let inner = Arc::new(Inner::new(client.clone(), self.clone(), grant));
                *phase = Phase::Held(Arc::downgrade(&inner));
                state.owes = false;
                drop(state);
                self.told.notify_one();
                self.changed.notify_waiters();
                Seen::Held(inner)
            }
            // On its way out.
            Phase::Held(_) if let_go => Seen::Leaves,
            Phase::Held(inner) => {
                let inner = inner.upgrade();
                drop(state);
                inner.map_or(Seen::Leaves, Seen::Held)
            }
            Phase::Refused(trouble) => Seen::Refused(trouble.clone()),
            Phase::Found(record) => Seen::Found(record.clone()),
            Phase::Withdrawn => Seen::Leaves,
        }
    }

    /// Resolves when there is something new to see, since this was called.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).over
    }

    /// Resolves when it is over.
    pub(super) async fn over(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_over() {
                return;
            }
            changed.await;
        }
    }

    /// One acquire less.
    pub(super) fn leave(&self) {
        let mut state = lock(&self.state);
        state.callers -= 1;
        if state.callers == 0 {
            drop(state);
            self.told.notify_one();
        }
    }

    // For the lease.

    /// The last handle of the lease is gone.
    pub(super) fn let_go(&self) {
        lock(&self.state).let_go = true;
        self.told.notify_one();
    }

    /// Asks for the release; `None` if nothing is left to release.
    pub(super) fn release(&self) -> Option<oneshot::Receiver<Result<(), Trouble>>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = lock(&self.state);
        if state.over {
            return None;
        }
        state.let_go = true;
        state.releases.push(sender);
        drop(state);
        self.told.notify_one();
        Some(receiver)
    }

    // For the task.

    /// Resolves when an acquire or a lease has done something.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }

    /// Whether somebody waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        let state = lock(&self.state);
        state.callers > 0 && matches!(state.phase, Phase::Seeks)
    }

    pub(super) fn is_let_go(&self) -> bool {
        lock(&self.state).let_go
    }

    pub(super) fn waits(&self) {
        let mut state = lock(&self.state);
        if !state.waits {
            state.waits = true;
            drop(state);
            self.changed.notify_waiters();
        }
    }

    pub(super) fn refuse(&self, trouble: Trouble) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Seeks) {
            state.phase = Phase::Refused(trouble);
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Offers a grant to the acquires; whether there is one.
    pub(super) fn offer(&self, grant: Grant) -> bool {
        let mut state = lock(&self.state);
        if state.callers == 0 || !matches!(state.phase, Phase::Seeks) {
            return false;
        }
        state.phase = Phase::Granted(grant);
        drop(state);
        self.changed.notify_waiters();
        true
    }

    /// A grant that nobody is left to take is taken back: its node is about to go, and whoever asks
    /// from now on must not find it.
    pub(super) fn taken(&self) -> Offer {
        let mut state = lock(&self.state);
        match &state.phase {
            Phase::Granted(_) if state.callers > 0 => Offer::Open,
            Phase::Granted(_) => {
                state.phase = Phase::Withdrawn;
                Offer::Void
            }
            Phase::Held(_) => Offer::Taken,
            _ => Offer::Void,
        }
    }

    /// Takes back what the acquires have not taken.
    pub(super) fn withdraw(&self) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Seeks | Phase::Granted(_)) {
            state.phase = Phase::Withdrawn;
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// Asks the acquires whether they are still polled.
    pub(super) fn probe(&self) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Seeks) && state.probed.is_none() {
            state.probed = Some(Instant::now());
            drop(state);
            self.changed.notify_waiters();
            self.told.notify_one();
        }
    }

    /// Since when they owe an answer.
    pub(super) fn probed(&self) -> Option<Instant> {
        lock(&self.state).probed
    }

    /// The lease that was taken, if it is still there.
    pub(super) fn lease(&self) -> Option<Arc<Inner>> {
        match &lock(&self.state).phase {
            Phase::Held(inner) => inner.upgrade(),
            _ => None,
        }
    }

    pub(super) fn lose(&self, loss: Loss) {
        if let Some(inner) = self.lease() {
            inner.lose(loss);
        }
    }

    /// Answers those that wait for a release.
    pub(super) fn released(&self, result: &Result<(), Trouble>) {
        let releases = std::mem::take(&mut lock(&self.state).releases);
        for release in releases {
            // It may have left.
            let _ = release.send(result.clone());
        }
    }

    /// The end. The room has forgotten it, and nothing is left to release.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.over = true;
        // Whoever waits for them asks elsewhere.
        let errands = std::mem::take(&mut state.errands);
        drop((state, errands));
        self.changed.notify_waiters();
        self.released(&Ok(()));
    }
}
