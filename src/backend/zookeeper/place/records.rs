//! What a place has to do with the record beside its key.

use tokio::sync::oneshot;

use super::{Phase, Place};
use crate::{
    backend::zookeeper::trouble::Trouble,
    record::{Opening, Record, Save},
    sync::lock,
};

/// What is asked together with the key.
pub(in crate::backend::zookeeper) struct Loads {
    /// What is written in the step of the grant.
    pub(in crate::backend::zookeeper) open: Option<Opening>,
}

/// What the holder has the task do.
pub(in crate::backend::zookeeper) struct Errand {
    pub(in crate::backend::zookeeper) save: Save,
    pub(in crate::backend::zookeeper) releases: bool,
    pub(in crate::backend::zookeeper) answer: oneshot::Sender<Saved>,
}

/// What became of a save.
#[derive(Debug)]
pub(in crate::backend::zookeeper) enum Saved {
    Done,
    /// There is a record of a higher token.
    Refused,
    /// Its node has gone: somebody else may hold.
    NotHeld,
    Trouble(Trouble),
}

impl Place {
    // For acquires.

    /// What was open under the key when it was last looked at.
    pub(in crate::backend::zookeeper) fn seen(&self) -> Option<Record> {
        lock(&self.state).seen.clone()
    }

    /// Has the task save; `None` if it does not hold.
    pub(in crate::backend::zookeeper) fn save(
        &self,
        save: Save,
        releases: bool,
    ) -> Option<oneshot::Receiver<Saved>> {
        let (answer, receiver) = oneshot::channel();
        let mut state = lock(&self.state);
        if state.over || state.let_go || !matches!(state.phase, Phase::Held(_)) {
            return None;
        }
        state.leaves |= releases;
        state.errands.push_back(Errand {
            save,
            releases,
            answer,
        });
        drop(state);
        self.told.notify_one();
        Some(receiver)
    }

    /// Whether its node may go without being lost.
    pub(in crate::backend::zookeeper) fn is_leaving(&self) -> bool {
        let state = lock(&self.state);
        state.let_go || state.leaves
    }

    // For the task.

    /// What was to release it did not.
    pub(in crate::backend::zookeeper) fn stays(&self) {
        lock(&self.state).leaves = false;
    }

    pub(in crate::backend::zookeeper) fn opening(&self) -> Option<&Opening> {
        self.loads.as_ref()?.open.as_ref()
    }

    /// It has come before what is written after this write; tells since which it has, over all
    /// sessions.
    pub(in crate::backend::zookeeper) fn comes(&self, came: i64) -> i64 {
        let mut state = lock(&self.state);
        let first = state.came.map_or(came, |first| first.min(came));
        state.came = Some(first);
        first
    }

    /// Since which write it waits, if it does.
    pub(in crate::backend::zookeeper) fn came(&self) -> Option<i64> {
        lock(&self.state).came
    }

    pub(in crate::backend::zookeeper) fn saw(&self, open: Option<Record>) {
        lock(&self.state).seen = open;
    }

    /// There is a record for those who ask, and no grant.
    pub(in crate::backend::zookeeper) fn found(&self, record: Record) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Seeks) {
            state.phase = Phase::Found(record);
            drop(state);
            self.changed.notify_waiters();
        }
    }

    /// An open record is about to be written, for a grant that nobody was given.
    pub(in crate::backend::zookeeper) fn owe(&self) {
        lock(&self.state).owes = true;
    }

    /// Whether one may be there that has to be undone.
    pub(in crate::backend::zookeeper) fn owes(&self) -> bool {
        lock(&self.state).owes
    }

    /// It is undone.
    pub(in crate::backend::zookeeper) fn settle(&self) {
        lock(&self.state).owes = false;
    }

    pub(in crate::backend::zookeeper) fn next_errand(&self) -> Option<Errand> {
        lock(&self.state).errands.pop_front()
    }
}
