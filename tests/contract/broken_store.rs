//! A little store of records with a switch for each way to be wrong.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};
use tower_lock::{
    BackendError, BackendErrorKind, BoxError, FencingToken, Lease, LockBackend, LockKey, Loss,
    Mode, OwnerToken,
    backend::{
        AcquireRequest, Capabilities, DynRecords, Found, HolderState, KeyState, LockingRecordStore,
        Scope, WaitBound,
    },
    contract::{ContractTarget, Options},
    lease::{LossSignal, valid_until},
    record::{
        Opening, Orphans, Outcome, Record, RecordLimits, RecordState, RecordStore, Results, Save,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    ComparesNoToken,
    ComparesNoOwner,
    ForgetsItsToken,
    RefusesTheLate,
    OverwritesItself,
    LooksOnce,
    LooksAndThenAcquires,
    WakesOneByOne,
    LeavesOpenRecords,
    LosesOrphans,
    ReleasesAndThenSaves,
    KeepsForEver,
    AddsAByte,
    ReplacesAllOrphans,
    HasNoLimits,
    ClosesWithTheLease,
    HidesOpenRecords,
    GrantsAgain,
    ReportsALoss,
    LeavesMarks,
    KeepsResults,
    HidesResults,
    LosesReplaced,
}

/// The server and its target, and a client of it.
#[derive(Clone)]
pub(crate) struct Store {
    server: Arc<Mutex<Server>>,
    changed: Arc<Notify>,
    fault: Fault,
}

#[derive(Default)]
struct Server {
    keys: HashMap<LockKey, Key>,
    last: u64,
}

#[derive(Default)]
struct Key {
    holder: Option<Holder>,
    waiting: u64,
    record: Option<Kept>,
}

struct Holder {
    owner: OwnerToken,
    token: FencingToken,
    ends: Instant,
    lost: Arc<LossSignal>,
}

#[derive(Clone)]
struct Kept {
    /// None of a mark.
    record: Option<Record>,
    token: FencingToken,
    owner: OwnerToken,
    before: Option<Box<Kept>>,
    ends: Instant,
}

/// What those who wait look for.
fn state(key: &Key) -> (Option<FencingToken>, Option<Record>) {
    let holder = key.holder.as_ref().map(|holder| holder.token);
    let record = key.record.as_ref();
    (holder, record.and_then(|kept| kept.record.clone()))
}

fn error(kind: BackendErrorKind) -> BackendError {
    BackendError::new(kind, "")
}

impl Store {
    pub(crate) fn new(fault: Fault) -> Self {
        Self {
            server: Arc::default(),
            changed: Arc::default(),
            fault,
        }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs on a key's state, without what has ended.
    fn on<R>(&self, name: &LockKey, section: impl FnOnce(&mut Key, &mut u64) -> R) -> R {
        let mut server = self.lock();
        let Server { keys, last } = &mut *server;
        let key = keys.entry(name.clone()).or_default();
        let now = Instant::now();
        if key.holder.as_ref().is_some_and(|holder| holder.ends <= now) {
            key.holder = None;
        }
        if key.record.as_ref().is_some_and(|kept| kept.ends <= now) && !self.is(Fault::KeepsForEver)
        {
            key.record = None;
        }
        let before = state(key);
        let result = section(key, last);
        let changed = state(key) != before;
        if key.holder.is_none() && key.waiting == 0 && key.record.is_none() {
            keys.remove(name);
        }
        drop(server);
        if changed {
            self.changed.notify_waiters();
        }
        result
    }

    fn held(&self, wish: &AcquireRequest, holder: &Holder) -> Held {
        Held {
            store: self.clone(),
            key: wish.key.clone(),
            owner: wish.owner,
            token: holder.token,
            ttl: wish.ttl,
            valid_until: Mutex::new(valid_until(Instant::now(), wish.ttl)),
            lost: holder.lost.clone(),
        }
    }

    fn grant(&self, wish: &AcquireRequest, key: &mut Key, last: &mut u64) -> Held {
        *last += 1;
        let holder = Holder {
            owner: wish.owner,
            token: FencingToken::new(*last).expect("small"),
            ends: Instant::now() + wish.ttl,
            lost: Arc::default(),
        };
        let held = self.held(wish, &holder);
        key.holder = Some(holder);
        held
    }

    fn open(&self, wish: &AcquireRequest, open: &Opening, token: FencingToken, key: &mut Key) {
        let before = key.record.take().and_then(|kept| {
            let mine = kept.owner == wish.owner && kept.record.is_some();
            if mine {
                kept.before
            } else {
                Some(Box::new(kept))
            }
        });
        key.record = Some(Kept {
            record: Some(Record::new(RecordState::Open, token, open.bytes.clone())),
            token,
            owner: wish.owner,
            before,
            ends: Instant::now() + open.ttl,
        });
    }

    /// A grant, a record, or nothing yet.
    fn look(
        &self,
        wish: &AcquireRequest,
        open: Option<&Opening>,
        looks_at_record: bool,
        since: &mut Option<FencingToken>,
    ) -> Option<Found<Held>> {
        self.on(&wish.key, |key, last| {
            let stands = key.record.clone();
            let record = stands.as_ref().and_then(|kept| kept.record.clone());
            if let Some(holder) = &key.holder
                && holder.owner == wish.owner
                && !self.is(Fault::GrantsAgain)
            {
                let previous = stands.and_then(|kept| kept.before?.record);
                let previous = previous.filter(|record| !record.is_closed());
                return Some(Found::Lease {
                    lease: self.held(wish, holder),
                    previous,
                });
            }
            // What a newcomer took the place of, for those who came before it.
            let replaced = stands.and_then(|kept| kept.before?.record);
            if let Some(record) = replaced.filter(Record::is_closed)
                && open.is_some_and(|open| open.results == Results::ForWaiting)
                && !self.is(Fault::LosesReplaced)
                && self.is_for(&record, open, *since)
            {
                return Some(Found::Record(record));
            }
            if let Some(record) = record.clone().filter(|_| looks_at_record) {
                let orphans = open.map_or(Orphans::Replace, |open| open.orphans);
                let stays = match orphans {
                    _ if record.is_closed() => self.is_for(&record, open, *since),
                    _ if key.holder.is_some() => false,
                    _ if self.is(Fault::ReplacesAllOrphans) => false,
                    Orphans::Replace => false,
                    Orphans::ReplaceEqual => open.is_some_and(|open| open.bytes != record.bytes),
                    Orphans::Keep => true,
                };
                if stays {
                    return Some(Found::Record(record));
                }
            }
            if let Some(holder) = &key.holder
                && holder.owner != wish.owner
            {
                since.get_or_insert(holder.token);
                return None;
            }
            let lease = self.grant(wish, key, last);
            if let Some(open) = open {
                self.open(wish, open, lease.token, key);
            }
            Some(Found::Lease {
                lease,
                previous: record.filter(|record| !record.is_closed()),
            })
        })
    }

    /// Whether a result is for a request that waits since this token was held.
    fn is_for(&self, result: &Record, open: Option<&Opening>, since: Option<FencingToken>) -> bool {
        match open.map_or(Results::ForAll, |open| open.results) {
            Results::ForAll => true,
            Results::ForWaiting if self.is(Fault::KeepsResults) => true,
            Results::ForWaiting if self.is(Fault::HidesResults) => false,
            Results::ForWaiting => since.is_some_and(|since| result.token >= since),
        }
    }

    /// Asks until `look` finds something or the wait is over.
    async fn until<R>(
        &self,
        wish: &AcquireRequest,
        mut look: impl FnMut(bool) -> Option<R>,
    ) -> Result<R, BackendErrorKind> {
        let mut waiting = None;
        let mut first = true;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look(first) {
                if !first && self.is(Fault::WakesOneByOne) {
                    // Behind those who wait too.
                    sleep(Duration::from_millis(20) * fastrand::u32(..200)).await;
                }
                return Ok(found);
            }
            first = false;
            let now = Instant::now();
            let again = now + Duration::from_millis(50);
            let again = match wish.wait {
                WaitBound::Fail => return Err(BackendErrorKind::Contended),
                WaitBound::Until(end) if end <= now => return Err(BackendErrorKind::WaitTimedOut),
                WaitBound::Until(end) => again.min(end),
                WaitBound::Forever => again,
            };
            waiting.get_or_insert_with(|| Waiting::new(self, &wish.key));
            let _ = timeout_at(again, changed).await;
        }
    }

    fn settle(&self, save: &Save, releases: bool) -> Result<(), BackendError> {
        self.on(&save.key, |key, _| {
            let mine = key.holder.as_ref().map(|holder| holder.owner == save.owner);
            if mine == Some(false) && !self.is(Fault::ComparesNoOwner)
                || mine.is_none() && self.is(Fault::RefusesTheLate)
            {
                return Err(error(BackendErrorKind::Lost));
            }
            let stood = key.record.as_ref().map(|kept| kept.token);
            let refused = stood > Some(save.token) && !self.is(Fault::ComparesNoToken);
            let closed = key.record.as_ref().is_some_and(|kept| {
                let closed = kept.record.as_ref().is_some_and(Record::is_closed);
                closed && kept.token == save.token
            });
            match &save.outcome {
                _ if refused => {}
                Outcome::Keep { .. } if closed && !self.is(Fault::OverwritesItself) => {}
                Outcome::Keep { bytes, ttl } => {
                    let mut bytes = bytes.to_vec();
                    bytes.extend(self.is(Fault::AddsAByte).then_some(0));
                    key.record = Some(Kept {
                        record: Some(Record::new(RecordState::Closed, save.token, bytes)),
                        token: save.token,
                        owner: save.owner,
                        before: None,
                        ends: Instant::now() + *ttl,
                    });
                }
                Outcome::Forget => {
                    if let Some(kept) = key.record.take_if(|kept| {
                        kept.owner == save.owner
                            && !kept.record.as_ref().is_some_and(Record::is_closed)
                    }) && (kept.before.is_some() && !self.is(Fault::ForgetsItsToken)
                        || self.is(Fault::LeavesMarks))
                    {
                        let ends = if self.is(Fault::LeavesMarks) {
                            Instant::now() + Duration::from_secs(600)
                        } else {
                            kept.ends
                        };
                        key.record = Some(Kept {
                            record: None,
                            before: None,
                            ends,
                            ..kept
                        });
                    }
                }
            }
            if releases
                && mine == Some(true)
                && let Some(holder) = key.holder.take()
                && self.is(Fault::ReportsALoss)
            {
                holder.lost.fire(Loss::Revoked);
            }
            if refused {
                Err(error(BackendErrorKind::Lost))
            } else {
                Ok(())
            }
        })
    }

    fn check(&self, bytes: &Bytes, ttl: Duration) -> Result<(), BackendError> {
        if self.is(Fault::HasNoLimits) {
            return Ok(());
        }
        self.limits().check(bytes, ttl)
    }

    fn take_back(&self, wish: &AcquireRequest) {
        self.on(&wish.key, |key, _| {
            key.holder.take_if(|holder| holder.owner == wish.owner);
            if self.is(Fault::LeavesOpenRecords) {
                return;
            }
            let opened = key.record.take_if(|kept| kept.owner == wish.owner);
            if let Some(kept) = opened
                && !self.is(Fault::LosesOrphans)
            {
                key.record = kept.before.map(|before| *before);
            }
        });
    }
}

/// Counts one who waits.
struct Waiting(Store, LockKey);

impl Waiting {
    fn new(store: &Store, name: &LockKey) -> Self {
        store.on(name, |key, _| key.waiting += 1);
        Self(store.clone(), name.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.on(&self.1, |key, _| key.waiting -= 1);
    }
}

/// A grant whose answer is on its way.
struct Undo<'a>(&'a Store, Option<&'a AcquireRequest>);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(wish) = self.1 {
            self.0.take_back(wish);
        }
    }
}

impl ContractTarget for Store {
    type Backend = Self;

    async fn connect(&self) -> Result<Self, BoxError> {
        Ok(self.clone())
    }

    async fn leftovers(&self) -> Option<u64> {
        let names: Vec<_> = self.lock().keys.keys().cloned().collect();
        names.iter().for_each(|name| self.on(name, |_, _| {}));
        Some(self.lock().keys.len() as u64)
    }

    async fn restart(&self) -> bool {
        false
    }

    async fn slow_replies(&self, _: Duration) -> bool {
        false
    }

    fn options(&self) -> Options {
        let mut options = Options::in_process();
        options.settle = Duration::from_secs(2);
        options.patience = Duration::from_secs(30);
        options.aborts = 4000;
        options
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl LockBackend for Store {
    type Lease = Held;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("store", Scope::Host)
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Held, BackendError> {
        let look = |_| match self.look(request, None, false, &mut None)? {
            Found::Lease { lease, .. } => Some(lease),
            _ => None,
        };
        self.until(request, look).await.map_err(error)
    }

    async fn wait_free(&self, _: &LockKey, _: WaitBound) -> Result<(), BackendError> {
        Err(error(BackendErrorKind::Unsupported))
    }

    async fn inspect(&self, name: &LockKey) -> Result<KeyState, BackendError> {
        let mut state = KeyState::free(name.as_str());
        self.on(name, |key, _| {
            state.waiters = key.waiting;
            let holder = key.holder.as_ref();
            state
                .holders
                .extend(holder.map(|_| HolderState::new(Mode::Exclusive)));
        });
        Ok(state)
    }

    async fn force_release(&self, name: &LockKey) -> Result<bool, BackendError> {
        let holder = self.on(name, |key, _| key.holder.take());
        Ok(holder.is_some_and(|holder| holder.lost.fire(Loss::ForceReleased)))
    }

    fn records(&self) -> Option<&dyn DynRecords> {
        Some(self)
    }
}

impl RecordStore for Store {
    fn limits(&self) -> RecordLimits {
        RecordLimits::new(100_000, Duration::from_secs(3600))
    }

    async fn load(&self, name: &LockKey) -> Result<Option<Record>, BackendError> {
        Ok(self.on(name, |key, _| {
            key.record.clone().and_then(|kept| kept.record)
        }))
    }

    async fn save(&self, save: &Save) -> Result<(), BackendError> {
        if let Outcome::Keep { bytes, ttl } = &save.outcome {
            self.check(bytes, *ttl)?;
        }
        self.settle(save, false)
    }
}

impl LockingRecordStore for Store {
    async fn acquire_or_load(
        &self,
        request: &AcquireRequest,
        open: Option<&Opening>,
    ) -> Result<Found<Held>, BackendError> {
        if request.mode == Mode::Shared {
            return Err(error(BackendErrorKind::Unsupported));
        }
        if let Some(open) = open {
            self.check(&open.bytes, open.ttl)?;
        }
        let in_two_steps = self.is(Fault::LooksAndThenAcquires);
        if in_two_steps {
            let record = self.load(&request.key).await?;
            if let Some(record) = record.filter(Record::is_closed) {
                return Ok(Found::Record(record));
            }
            sleep(Duration::from_millis(2)).await;
        }
        // Dropped after the undo, or somebody would come in between.
        let found;
        let mut undo = Undo(self, Some(request));
        let mut since = None;
        let looks = |first| !in_two_steps && (first || !self.is(Fault::LooksOnce));
        found = self
            .until(request, |first| {
                self.look(request, open, looks(first), &mut since)
            })
            .await;
        if let Ok(Found::Lease { .. }) = found {
            // The answer is on its way.
            tokio::task::yield_now().await;
        }
        undo.1 = None;
        drop(undo);
        found.or_else(|_| {
            let record = self.on(&request.key, |key, _| key.record.clone());
            let open = record
                .and_then(|kept| kept.record)
                .filter(|record| !record.is_closed());
            Ok(Found::Held {
                open: open.filter(|_| !self.is(Fault::HidesOpenRecords)),
                remaining: None,
            })
        })
    }

    async fn save_and_release(&self, save: &Save) -> Result<(), BackendError> {
        if let Outcome::Keep { bytes, ttl } = &save.outcome {
            self.check(bytes, *ttl)?;
        }
        if self.is(Fault::ReleasesAndThenSaves) {
            free(self, &save.key, &save.owner);
            sleep(Duration::from_millis(2)).await;
        }
        self.settle(save, true)
    }
}

fn free(store: &Store, name: &LockKey, owner: &OwnerToken) {
    store.on(name, |key, _| {
        let held = key
            .holder
            .take_if(|holder| holder.owner == *owner)
            .is_some();
        if held && store.is(Fault::ClosesWithTheLease) {
            key.record = None;
        }
    });
}

pub(crate) struct Held {
    store: Store,
    key: LockKey,
    owner: OwnerToken,
    token: FencingToken,
    ttl: Duration,
    valid_until: Mutex<Instant>,
    lost: Arc<LossSignal>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        free(&self.store, &self.key, &self.owner);
    }
}

impl Lease for Held {
    fn fencing_token(&self) -> FencingToken {
        self.token
    }

    fn reserved_tokens(&self) -> u32 {
        1
    }

    fn valid_until(&self) -> Instant {
        *self
            .valid_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn renew(&self) -> Result<(), BackendError> {
        let sent = Instant::now();
        let renewed = self.store.on(&self.key, |key, _| {
            let holder = key.holder.as_mut();
            let mine = holder.filter(|holder| holder.owner == self.owner);
            mine.map(|holder| holder.ends = sent + self.ttl)
        });
        if renewed.is_none() {
            self.lost.fire(Loss::Revoked);
            return Err(error(BackendErrorKind::Lost));
        }
        *self
            .valid_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = valid_until(sent, self.ttl);
        Ok(())
    }

    fn lost(&self) -> &LossSignal {
        &self.lost
    }

    async fn release(&self) -> Result<(), BackendError> {
        free(&self.store, &self.key, &self.owner);
        Ok(())
    }
}
