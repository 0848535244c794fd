//! What a waiter knows of the record that it waits for too.

use super::Waiter;
use crate::{record::Record, sync::lock};

impl Waiter {
    /// Something that is under way at its node begins; `false` if that is not its place any more.
    pub(in super::super) fn works(&self) -> bool {
        let mut told = lock(&self.told);
        if told.replaced || told.evicted {
            return false;
        }
        told.putting = true;
        true
    }

    /// It is over. Its node stands as before, as far as anybody knows.
    pub(in super::super) fn worked(&self) {
        let mut told = lock(&self.told);
        told.putting = false;
        told.answered();
        drop(told);
        self.settled.notify_waiters();
    }

    /// An open record with this lease is about to be asked for.
    pub(in super::super) fn opens(&self, lease: i64) {
        lock(&self.told).opening = Some(lease);
    }

    pub(in super::super) fn opening(&self) -> Option<i64> {
        lock(&self.told).opening
    }

    /// What a read of this revision saw of the record.
    pub(in super::super) fn saw(&self, revision: i64, record: Option<Record>) {
        let mut told = lock(&self.told);
        if revision > told.seen.0 {
            told.seen = (revision, record);
        }
    }

    /// What the record says since this revision.
    pub(in super::super) fn hears(&self, revision: i64, record: Option<&Record>) {
        let mut told = lock(&self.told);
        // Of what was before it came, it has seen more.
        if revision <= told.seen.0 {
            return;
        }
        told.seen = (revision, record.cloned());
        if record.is_some_and(Record::is_closed) {
            told.result = record.cloned();
            drop(told);
            self.woken.notify_one();
        }
    }

    /// Of the record nothing is told any more.
    pub(in super::super) fn deafen(&self) {
        lock(&self.told).deaf = true;
        self.check();
    }

    /// Whether it is [deaf](Self::deafen), and now cured of that.
    pub(in super::super) fn was_deaf(&self) -> bool {
        std::mem::take(&mut lock(&self.told).deaf)
    }

    /// What is open, as far as it has heard.
    pub(in super::super) fn open_record(&self) -> Option<Record> {
        let seen = lock(&self.told).seen.1.clone();
        seen.filter(|record| !record.is_closed())
    }
}
