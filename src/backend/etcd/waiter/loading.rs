//! What a waiter knows of the record that it waits for too.

use super::{super::record::Kept, Waiter};
use crate::{
    lease::FencingToken,
    record::{Record, Results},
    sync::lock,
};

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

    /// It has to wait, while this token is held.
    pub(in super::super) fn waits(&self, results: Results, since: FencingToken) {
        let mut told = lock(&self.told);
        told.results = results;
        told.since.get_or_insert(since);
    }

    pub(in super::super) fn since(&self) -> Option<FencingToken> {
        lock(&self.told).since
    }

    /// What a read of this revision saw of the record.
    pub(in super::super) fn saw(&self, revision: i64, record: Option<Record>) {
        let mut told = lock(&self.told);
        if told.came == 0 {
            told.came = revision;
        }
        if revision > told.seen.0 {
            told.seen = (revision, record);
        }
    }

    /// What the record says since this revision. It may have seen more by then.
    pub(in super::super) fn hears(&self, revision: i64, kept: Option<&Kept>) {
        let mut told = lock(&self.told);
        if revision > told.seen.0 {
            told.seen = (revision, kept.and_then(Kept::record));
        }
        let is_new = told.results == Results::ForWaiting || revision > told.came;
        let result = kept.and_then(|kept| kept.result(told.results, told.since));
        if let Some(result) = result.filter(|_| is_new) {
            told.result = Some(result);
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
