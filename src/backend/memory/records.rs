//! The records of one shard, and what ends when.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use bytes::Bytes;

use crate::{
    key::LockKey,
    lease::{FencingToken, OwnerToken},
    record::{Opening, Record, RecordState, Results},
};

/// What a record costs beside its bytes, about.
const OVERHEAD: usize = 256;
/// A list of ends shorter than this is not worth cleaning.
const SMALL: usize = 64;

/// What stands under a key.
pub(super) struct Kept {
    token: FencingToken,
    what: What,
    /// Nanoseconds of the table's clock.
    ends: u64,
}

enum What {
    Open {
        owner: OwnerToken,
        bytes: Bytes,
        /// What it took the place of.
        before: Before,
    },
    Closed(Bytes),
    /// Only the token counts: a holder that replaced an orphan forgot its record.
    Fence,
}

/// What an open record took the place of.
#[derive(Clone, Default)]
pub(super) enum Before {
    #[default]
    Nothing,
    Orphan(FencingToken, Bytes),
    /// For those who waited for its holder.
    Result(FencingToken, Bytes),
    Fence,
}

impl Before {
    pub(super) fn record(&self) -> Option<Record> {
        match self {
            Self::Orphan(token, bytes) => {
                Some(Record::new(RecordState::Open, *token, bytes.clone()))
            }
            Self::Nothing | Self::Result(..) | Self::Fence => None,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Orphan(_, bytes) | Self::Result(_, bytes) => bytes.len(),
            Self::Nothing | Self::Fence => 0,
        }
    }
}

impl Kept {
    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    pub(super) fn record(&self) -> Option<Record> {
        let (state, bytes) = match &self.what {
            What::Open { bytes, .. } => (RecordState::Open, bytes),
            What::Closed(bytes) => (RecordState::Closed, bytes),
            What::Fence => return None,
        };
        Some(Record::new(state, self.token, bytes.clone()))
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.what, What::Closed(_))
    }

    /// The result for this request; `since`: the token of the holder for whom it waits, if it does.
    pub(super) fn result(
        &self,
        open: Option<&Opening>,
        since: Option<FencingToken>,
    ) -> Option<Record> {
        let (token, bytes) = match &self.what {
            What::Closed(bytes) => (self.token, bytes),
            What::Open {
                before: Before::Result(token, bytes),
                ..
            } => (*token, bytes),
            What::Open { .. } | What::Fence => return None,
        };
        let is_for_it = match open.map_or(Results::ForAll, |open| open.results) {
            Results::ForAll => self.is_closed(),
            Results::ForWaiting => since.is_some_and(|since| token >= since),
        };
        is_for_it.then(|| Record::new(RecordState::Closed, token, bytes.clone()))
    }

    /// The orphan that is to be returned to this owner rather than a grant, where nobody holds the
    /// key.
    pub(super) fn orphan(&self, by: &OwnerToken, open: Option<&Opening>) -> Option<Record> {
        let (What::Open { owner, bytes, .. }, Some(open)) = (&self.what, open) else {
            return None;
        };
        let stays = owner != by && open.keeps(bytes);
        stays.then(|| Record::new(RecordState::Open, self.token, bytes.clone()))
    }

    /// What this owner's open record took the place of.
    pub(super) fn before_of(&self, by: &OwnerToken) -> Option<&Before> {
        match &self.what {
            What::Open { owner, before, .. } if owner == by => Some(before),
            _ => None,
        }
    }

    fn len(&self) -> usize {
        OVERHEAD
            + match &self.what {
                What::Open { bytes, before, .. } => bytes.len() + before.len(),
                What::Closed(bytes) => bytes.len(),
                What::Fence => 0,
            }
    }
}

#[derive(Default)]
pub(super) struct Records {
    kept: HashMap<LockKey, Kept>,
    /// Ends of records, some of which have changed since.
    ends: BinaryHeap<Reverse<End>>,
    /// Of all of them.
    bytes: usize,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct End {
    at: u64,
    key: LockKey,
}

impl Records {
    /// The record of the key, if it has not ended.
    pub(super) fn get(&self, key: &LockKey, now: u64) -> Option<&Kept> {
        self.kept.get(key).filter(|kept| kept.ends > now)
    }

    /// What opening a record would take the place of.
    pub(super) fn before(&self, key: &LockKey, owner: &OwnerToken, now: u64) -> Before {
        match self.get(key, now) {
            None => Before::Nothing,
            Some(kept) => match &kept.what {
                // Its own, of a grant that ended unheard of.
                What::Open {
                    owner: by, before, ..
                } if by == owner => before.clone(),
                What::Open { bytes, .. } => Before::Orphan(kept.token, bytes.clone()),
                What::Fence => Before::Fence,
                What::Closed(bytes) => Before::Result(kept.token, bytes.clone()),
            },
        }
    }

    pub(super) fn open(
        &mut self,
        key: &LockKey,
        owner: OwnerToken,
        token: FencingToken,
        open: &Opening,
        now: u64,
    ) {
        let what = What::Open {
            owner,
            bytes: open.bytes.clone(),
            before: self.before(key, &owner, now),
        };
        let ends = now.saturating_add(super::lease::nanos(open.ttl));
        self.put(key, Kept { token, what, ends });
    }

    pub(super) fn close(&mut self, key: &LockKey, token: FencingToken, bytes: Bytes, ends: u64) {
        let what = What::Closed(bytes);
        self.put(key, Kept { token, what, ends });
    }

    /// Takes this owner's open record out.
    pub(super) fn forget(&mut self, key: &LockKey, owner: &OwnerToken) {
        let Some(kept) = self.kept.get(key) else {
            return;
        };
        let Some(before) = kept.before_of(owner) else {
            return;
        };
        let (token, ends) = (kept.token, kept.ends);
        match before {
            Before::Nothing => self.remove(key),
            // Its holder may be there still, and is not to write after this one.
            Before::Orphan(..) | Before::Result(..) | Before::Fence => {
                let what = What::Fence;
                self.put(key, Kept { token, what, ends });
            }
        }
    }

    fn put(&mut self, key: &LockKey, kept: Kept) {
        self.bytes += kept.len();
        let at = kept.ends;
        let key = key.clone();
        if let Some(old) = self.kept.insert(key.clone(), kept) {
            self.bytes -= old.len();
        }
        self.ends.push(Reverse(End { at, key }));
        if self.ends.len() > SMALL && self.ends.len() / 2 > self.kept.len() {
            let ends = self.kept.iter().map(|(key, kept)| {
                Reverse(End {
                    at: kept.ends,
                    key: key.clone(),
                })
            });
            self.ends = ends.collect();
        }
    }

    fn remove(&mut self, key: &LockKey) {
        if let Some(old) = self.kept.remove(key) {
            self.bytes -= old.len();
        }
    }

    /// Takes out what has ended.
    pub(super) fn sweep(&mut self, now: u64) {
        while let Some(Reverse(end)) = self.ends.peek()
            && end.at <= now
        {
            if let Some(Reverse(End { key, .. })) = self.ends.pop()
                && self.kept.get(&key).is_some_and(|kept| kept.ends <= now)
            {
                self.remove(&key);
            }
        }
        if self.kept.is_empty() {
            *self = Self::default();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn len(&self, now: u64) -> usize {
        self.kept.values().filter(|kept| kept.ends > now).count()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        MemoryBackend,
        backend::{AcquireRequest, Found, LockingRecordStore},
        error::BackendErrorKind,
        lease::Lease,
        record::{RecordStore, Save},
    };

    const MINUTE: Duration = Duration::from_secs(60);

    fn key(n: usize) -> LockKey {
        LockKey::new("order", n)
    }

    async fn run(backend: &MemoryBackend, n: usize, keeps: usize) -> Result<(), BackendErrorKind> {
        let request = AcquireRequest::new(key(n), MINUTE);
        let open = Opening::new("open", MINUTE);
        let found = backend.acquire_or_load(&request, Some(&open)).await;
        let Found::Lease { lease, .. } = found.map_err(|error| error.kind())? else {
            panic!("a new key");
        };
        let (key, owner, token) = (request.key, request.owner, lease.fencing_token());
        let save = if keeps == 0 {
            Save::forget(key, owner, token)
        } else {
            Save::keep(key, owner, token, vec![0; keeps], MINUTE)
        };
        let saved = backend.save_and_release(&save).await;
        saved.map_err(|error| error.kind())
    }

    fn taken(backend: &MemoryBackend) -> usize {
        let taken = &backend.table.room_for_records.taken;
        taken.load(std::sync::atomic::Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_ended_gives_its_memory_back() {
        let backend = MemoryBackend::new();
        for n in 0..1000 {
            run(&backend, n, 1000).await.unwrap();
        }
        assert_eq!(backend.records_len(), 1000);
        assert!(taken(&backend) > 1_000_000, "{}", taken(&backend));
        tokio::time::advance(MINUTE).await;
        assert_eq!(backend.records_len(), 0);
        assert!(backend.load(&key(1)).await.unwrap().is_none());
        // Others that are written clean up, each a shard or two.
        for n in 1000..1100 {
            run(&backend, n, 0).await.unwrap();
        }
        assert_eq!(taken(&backend), 0);
    }

    /// What is forgotten leaves no list of ends behind.
    #[tokio::test(start_paused = true)]
    async fn ends_that_do_not_come_are_not_kept() {
        let backend = MemoryBackend::new();
        for n in 0..100_000 {
            run(&backend, n, 0).await.unwrap();
        }
        let ends = |shard: &super::super::table::Shard| {
            let keys = crate::sync::lock(&shard.0);
            keys.records
                .as_ref()
                .map_or(0, |records| records.ends.len())
        };
        let ends: usize = backend.table.shards.iter().map(ends).sum();
        assert!(ends <= 2 * SMALL * 64, "{ends}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_memory_refuses_until_something_ends() {
        let backend = MemoryBackend::with_record_capacity(100_000);
        let mut saved = 0;
        let refused = loop {
            match run(&backend, saved, 10_000).await {
                Ok(()) => saved += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, BackendErrorKind::Unavailable);
        assert!((8..=10).contains(&saved), "{saved}");
        assert!(taken(&backend) <= 110_000, "{}", taken(&backend));
        tokio::time::advance(MINUTE).await;
        run(&backend, saved + 1, 10_000).await.unwrap();
    }
}
