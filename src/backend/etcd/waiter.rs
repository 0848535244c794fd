//! One acquire that asks and waits: where it stands at the server, and what it is told.

mod loading;
mod traces;

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use tokio::sync::Notify;

pub(super) use self::traces::Traces;
use super::{names::Names, session::Session};
use crate::{
    lease::FencingToken,
    record::{Record, Results},
    sync::lock,
};

/// After how many ticks of the [agenda](super::agenda) a waiter that was told something, and does
/// not take it, is taken for hung: 1 s.
pub(super) const TICKS: u32 = 10;

pub(super) struct Waiter {
    pub(super) names: Arc<Names>,
    pub(super) node: String,
    told: Mutex<Told>,
    woken: Notify,
    settled: Notify,
}

/// What it was told, and where it stands.
#[derive(Default)]
struct Told {
    /// To look again: what it waited for is gone.
    look: bool,
    /// To look again: what it waits for may have gone before it was watched.
    check: bool,
    /// To show that it lives.
    show: bool,
    replaced: bool,
    /// Its caller has left.
    left: bool,
    /// A put is under way, whoever waits for it.
    putting: bool,
    /// Another acquire of the same owner, in whose place it came, and whose put was under way.
    older: Option<Arc<Waiter>>,
    /// What a put may still bring about late, as it was not answered.
    tainted: bool,
    stand: Option<Stand>,
    /// The lease of the last put, answered or not.
    session: Option<Arc<Session>>,
    /// How many ticks it has left to show that it lives.
    ticks: Option<u32>,
    /// Whether the agenda looks after it.
    listed: bool,
    /// The server is being asked, by a task that sees it through: nobody has to be polled for that.
    asking: bool,
    /// Its node is being deleted, as nobody polled it.
    evicted: bool,
    /// It holds by its node, which nobody may evict it from.
    granted: bool,
    /// What was seen last of the record that it waits for too, at which revision of the store.
    seen: (i64, Option<Record>),
    /// At which revision it was seen first.
    came: i64,
    /// Which results are for it, and the token that was held when it began to wait.
    results: Results,
    since: Option<FencingToken>,
    /// A result was saved while it waited.
    result: Option<Record>,
    /// Of the record it is not told any more.
    deaf: bool,
    /// The last lease with which it asked for an open record, which may be there.
    opening: Option<i64>,
}

/// A node of its own at the server, which holds or waits by its revision.
#[derive(Clone)]
pub(super) struct Stand {
    /// Of its creation: the place in the queue, and the token of the grant.
    pub(super) revision: i64,
    pub(super) session: Arc<Session>,
}

/// Why a waiter was woken.
#[derive(Debug)]
pub(super) enum News {
    /// There is a result.
    Result(Record),
    /// It has to look again, and what it watched is gone.
    Look,
    /// It has to look again.
    Check,
    /// Somebody wants to know whether it is polled. It is.
    Show,
    /// Another acquire of the same owner has taken its place.
    Replaced,
}

/// What a tick found out.
pub(super) enum Tick {
    /// There is nothing to look after any more.
    Well,
    Waits,
    /// Half of its time has passed: whoever else waits here for this lock should show that it
    /// lives, in as many ticks.
    Doubtful(u32),
    Hung,
}

impl Waiter {
    pub(super) fn new(names: Arc<Names>, node: String) -> Self {
        Self {
            names,
            node,
            told: Mutex::default(),
            woken: Notify::new(),
            settled: Notify::new(),
        }
    }

    /// It has to look again; whether the agenda must be asked to look after it.
    #[must_use]
    pub(super) fn look(&self) -> bool {
        let mut told = lock(&self.told);
        told.look = true;
        let unlisted = told.expect_life(TICKS);
        drop(told);
        self.woken.notify_one();
        unlisted
    }

    /// It has to look again, if it is polled.
    pub(super) fn check(&self) {
        lock(&self.told).check = true;
        self.woken.notify_one();
    }

    /// It has to show within so many ticks that it lives; returns as [`look`](Self::look).
    #[must_use]
    pub(super) fn show(&self, ticks: u32) -> bool {
        let mut told = lock(&self.told);
        told.show = true;
        let unlisted = told.expect_life(ticks);
        drop(told);
        self.woken.notify_one();
        unlisted
    }

    /// It is about to ask the server, and has to take the answer in time; returns as
    /// [`look`](Self::look).
    #[must_use]
    pub(super) fn asks(&self) -> bool {
        let mut told = lock(&self.told);
        told.asking = true;
        told.ticks = None;
        told.expect_life(TICKS)
    }

    /// The server has answered, or does not.
    pub(super) fn answered(&self) {
        lock(&self.told).answered();
    }

    /// It is polled, and waits for news.
    pub(super) fn rests(&self) {
        let mut told = lock(&self.told);
        if !told.look && !told.show {
            told.ticks = None;
        }
    }

    pub(super) fn tick(&self) -> Tick {
        let mut told = lock(&self.told);
        let busy = told.asking || told.putting;
        let Some(ticks) = &mut told.ticks else {
            told.listed = false;
            return Tick::Well;
        };
        if busy {
            return Tick::Waits;
        }
        *ticks = ticks.saturating_sub(1);
        match *ticks {
            0 => {
                told.listed = false;
                told.ticks = None;
                Tick::Hung
            }
            left if left == TICKS / 2 => Tick::Doubtful(left),
            _ => Tick::Waits,
        }
    }

    /// Nobody polls it: it loses its node, which is to be deleted.
    pub(super) fn evict(&self) -> Option<Stand> {
        let mut told = lock(&self.told);
        if told.replaced || told.granted {
            return None;
        }
        told.evicted = true;
        told.stand.clone()
    }

    /// A put begins; `false` if another acquire of the owner has taken the place.
    pub(super) fn puts(&self, session: &Arc<Session>) -> bool {
        let mut told = lock(&self.told);
        if told.replaced {
            return false;
        }
        told.putting = true;
        told.session = Some(session.clone());
        true
    }

    /// The put, or one of its tries, was not answered.
    pub(super) fn taint(&self) {
        lock(&self.told).tainted = true;
    }

    /// The put is over: the node stands, or nobody knows, or it was refused.
    pub(super) fn settle(&self, stand: Option<Stand>) {
        let mut told = lock(&self.told);
        told.putting = false;
        told.evicted = false;
        told.stand = stand;
        told.answered();
        drop(told);
        self.settled.notify_waiters();
    }

    /// Returns when no put is under way, of the ones in whose place it came neither.
    pub(super) async fn settled(&self) {
        loop {
            let settled = self.settled.notified();
            let older = lock(&self.told).older.clone();
            if let Some(older) = older {
                Box::pin(older.settled()).await;
                let left = older.traces();
                let mut told = lock(&self.told);
                if told.older.take().is_some() {
                    told.tainted |= left.tainted;
                    // What is being deleted is no place to come back to.
                    told.evicted |= left.evicted;
                    told.stand = left.stand;
                    told.session = left.session;
                    told.opening = left.opening;
                    told.since = left.since;
                    told.results = left.results;
                    told.came = left.came;
                }
                continue;
            }
            if !lock(&self.told).putting {
                return;
            }
            settled.await;
        }
    }

    /// Where it stands, if that is still its place. `Err`: the revision of a node that must be
    /// deleted before another is put.
    pub(super) fn stand(&self) -> Result<Option<Stand>, i64> {
        let told = lock(&self.told);
        match &told.stand {
            None => Ok(None),
            Some(stand) if told.evicted || stand.session.loss().is_some() => Err(stand.revision),
            Some(stand) => Ok(Some(stand.clone())),
        }
    }

    /// Its node is gone.
    pub(super) fn fell(&self) {
        lock(&self.told).stand = None;
    }

    /// It holds from now on; `false` if it was evicted or replaced before.
    pub(super) fn grant(&self) -> bool {
        let mut told = lock(&self.told);
        if told.evicted || told.replaced {
            return false;
        }
        told.ticks = None;
        told.granted = true;
        true
    }

    /// Tells it that another has taken its place. What it was about is the other's from now on.
    pub(super) fn replace(&self) {
        let mut told = lock(&self.told);
        told.replaced = true;
        told.ticks = None;
        drop(told);
        self.woken.notify_one();
    }

    /// It comes in the place of a replaced one: what that one has, or may come to have, is its own
    /// when it has [settled](Self::settled).
    pub(super) fn inherit(&self, older: Arc<Self>) {
        lock(&self.told).older = Some(older);
    }

    /// Whether anybody is there to have what it asks for.
    pub(super) fn is_wanted(&self) -> bool {
        let told = lock(&self.told);
        !told.left && !told.replaced
    }

    pub(super) fn is_replaced(&self) -> bool {
        lock(&self.told).replaced
    }

    pub(super) fn is_tainted(&self) -> bool {
        lock(&self.told).tainted
    }

    /// Whether it stands by this session, or is about to.
    pub(super) fn is_on(&self, session: &Session) -> bool {
        let told = lock(&self.told);
        told.session
            .as_ref()
            .is_some_and(|its| std::ptr::eq(&**its, session))
    }

    /// Cancel safe: news that are not taken stay.
    pub(super) async fn news(&self) -> News {
        loop {
            {
                let mut told = lock(&self.told);
                if told.replaced {
                    return News::Replaced;
                }
                if let Some(record) = told.result.take() {
                    return News::Result(record);
                }
                if std::mem::take(&mut told.look) {
                    told.show = false;
                    told.check = false;
                    return News::Look;
                }
                if std::mem::take(&mut told.check) {
                    return News::Check;
                }
                if std::mem::take(&mut told.show) {
                    told.ticks = None;
                    return News::Show;
                }
            }
            // One task waits, and a permit is kept for it.
            self.woken.notified().await;
        }
    }
}

impl Told {
    /// Its caller has an answer to take.
    fn answered(&mut self) {
        self.asking = false;
        if self.ticks.is_some() {
            self.ticks = Some(TICKS);
        }
    }

    /// Whether the agenda must be asked to look after it.
    fn expect_life(&mut self, ticks: u32) -> bool {
        self.ticks = Some(self.ticks.map_or(ticks, |left| left.min(ticks)));
        !std::mem::replace(&mut self.listed, true)
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::{
        backend::{Mode, etcd::record::Kept},
        key::LockKey,
        lease::OwnerToken,
    };

    fn waiter() -> Waiter {
        let names = Names::new("", &LockKey::new("order", 7));
        let node = names.node(&OwnerToken::random(), Mode::Exclusive);
        Waiter::new(Arc::new(names), node)
    }

    fn ticks(waiter: &Waiter, count: u32) -> Vec<Tick> {
        (0..count).map(|_| waiter.tick()).collect()
    }

    fn kept(text: &str) -> Kept {
        Kept::read(text.as_bytes(), 0).ok().unwrap()
    }

    #[test]
    fn a_result_that_is_older_than_it_is_not_for_it() {
        let waiter = waiter();
        waiter.saw(18, kept("o 17 ab 0 0 x").record());
        waiter.hears(16, Some(&kept("c 12 x")));
        waiter.hears(18, Some(&kept("c 12 x")));
        assert_eq!(waiter.open_record(), kept("o 17 ab 0 0 x").record());
        assert!(lock(&waiter.told).result.is_none());
        waiter.hears(20, None);
        assert_eq!(waiter.open_record(), None);
        waiter.hears(22, Some(&kept("o 21 ab 0 0 x")));
        assert_eq!(waiter.open_record(), kept("o 21 ab 0 0 x").record());
        waiter.hears(24, Some(&kept("c 21 x")));
        assert_eq!(waiter.open_record(), None);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let news = runtime.block_on(waiter.news());
        let result = kept("c 21 x").record();
        assert!(matches!(news, News::Result(heard) if Some(&heard) == result.as_ref()));
    }

    /// The look found what a newcomer has put in its place, and the news come behind.
    #[test]
    fn a_result_for_which_it_waited_is_for_it_when_another_has_taken_its_place() {
        let waiter = waiter();
        waiter.saw(18, kept("o 17 ab 0 0 x").record());
        waiter.waits(Results::ForWaiting, FencingToken::new(17).unwrap());
        waiter.hears(20, Some(&kept("c 15 x")));
        assert!(lock(&waiter.told).result.is_none());
        waiter.saw(26, kept("o 25 cd 0 0 x").record());
        waiter.hears(24, Some(&kept("c 17 x")));
        let heard = lock(&waiter.told).result.clone();
        assert_eq!(heard, kept("c 17 x").record());
        assert_eq!(waiter.open_record(), kept("o 25 cd 0 0 x").record());
    }

    #[test]
    fn one_that_takes_its_news_is_well() {
        let waiter = waiter();
        assert!(waiter.look());
        assert!(!waiter.look(), "it is listed");
        assert!(matches!(waiter.tick(), Tick::Waits));
        waiter.rests();
        // The news are not taken yet.
        assert!(matches!(waiter.tick(), Tick::Waits));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        assert!(matches!(runtime.block_on(waiter.news()), News::Look));
        waiter.rests();
        assert!(matches!(waiter.tick(), Tick::Well));
        assert!(waiter.look(), "it was taken off the list");
    }

    #[test]
    fn one_that_nobody_polls_is_hung_once() {
        let waiter = waiter();
        assert!(waiter.look());
        let seen = ticks(&waiter, TICKS);
        assert!(matches!(seen[TICKS as usize / 2 - 1], Tick::Doubtful(5)));
        assert!(matches!(seen.last(), Some(Tick::Hung)));
        assert!(matches!(waiter.tick(), Tick::Well));
    }

    #[test]
    fn one_whose_question_is_under_way_is_not_hung() {
        let waiter = waiter();
        assert!(waiter.asks());
        let seen = ticks(&waiter, TICKS * 3);
        assert!(seen.iter().all(|tick| matches!(tick, Tick::Waits)));
        waiter.answered();
        assert!(matches!(ticks(&waiter, TICKS).last(), Some(Tick::Hung)));
    }

    fn stand() -> Stand {
        Stand {
            revision: 7,
            session: Arc::new(Session::new(1, Duration::from_secs(60), Instant::now())),
        }
    }

    #[test]
    fn what_is_being_deleted_is_not_inherited_as_a_place() {
        let older = Arc::new(waiter());
        older.settle(Some(stand()));
        assert!(older.evict().is_some());
        let newer = waiter();
        older.replace();
        newer.inherit(older);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(newer.settled());
        assert!(matches!(newer.stand(), Err(7)));
    }

    #[test]
    fn one_is_evicted_or_granted_and_never_both() {
        let granted = waiter();
        granted.settle(Some(stand()));
        assert!(granted.grant());
        assert!(granted.evict().is_none(), "it holds");
        let evicted = waiter();
        assert!(evicted.evict().is_none(), "it does not stand yet");
        assert!(!evicted.grant());
        evicted.settle(None);
        assert!(evicted.grant(), "it stands anew");
        let replaced = waiter();
        replaced.replace();
        assert!(!replaced.grant());
    }
}
