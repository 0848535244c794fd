//! Grants that look at the record, in tasks that go on to their answer: see [`steps`](super::steps).

use std::sync::Arc;

use tokio::time::{Instant, timeout};

use super::{
    client::Shared,
    lease::Reserved,
    lends,
    put::Settles,
    record::{Before, Kept},
    session::Session,
    steps::{Place, Seen, State},
    trouble::Trouble,
    waiter::{Stand, Waiter},
};
use crate::{
    lease::FencingToken,
    record::{Opening, Record, Results},
};

/// One owner that asks for a key and its record.
#[derive(Clone)]
pub(super) struct Loads {
    pub(super) place: Arc<Place>,
    pub(super) open: Option<Opening>,
    /// The token that was held when it began to wait, if it did.
    pub(super) since: Option<FencingToken>,
}

/// What a state of the key means to who asks for it.
pub(super) enum Next {
    Found(Record),
    /// The owner has a node from before.
    Stood,
    Wait,
    Grant,
}

/// What came of asking for a key that looked free.
pub(super) enum Asked {
    Granted(Grant),
    /// It was not, any more.
    Else(State),
}

/// What came of standing first.
pub(super) enum Opened {
    Granted(Box<Grant>),
    Found(Record),
    /// The node is gone.
    Fell,
}

pub(super) struct Grant {
    pub(super) stand: Stand,
    pub(super) reserved: Reserved,
    pub(super) sent: Instant,
}

impl Loads {
    pub(super) fn next(&self, state: &State) -> Result<Next, Trouble> {
        if state.marked {
            return Err(Trouble::undone());
        }
        if state.own.is_some() {
            return Ok(Next::Stood);
        }
        let is_free = state.first.is_none();
        if let Some(record) = self.found(&state.seen, is_free) {
            return Ok(Next::Found(record));
        }
        Ok(if is_free { Next::Grant } else { Next::Wait })
    }

    /// For whom results are that it wants.
    pub(super) fn results(&self) -> Results {
        self.open
            .as_ref()
            .map_or(Results::ForAll, |open| open.results)
    }

    /// The record that answers it.
    pub(super) fn found(&self, seen: &Seen, is_free: bool) -> Option<Record> {
        let kept = seen.kept.as_ref()?;
        let orphan = || kept.orphan(&self.place.owner, self.open.as_ref());
        kept.result(self.results(), self.since)
            .or_else(|| if is_free { orphan() } else { None })
    }

    /// A grant without an opening, beside what was seen.
    fn beside(&self, seen: Seen) -> Reserved {
        let previous = seen.before(&self.place.owner).0.record();
        Reserved {
            seen,
            opens: false,
            previous,
        }
    }

    /// A grant with its open record.
    fn opened(
        &self,
        token: FencingToken,
        (revision, lease): (i64, i64),
        before: Before,
    ) -> Reserved {
        Reserved {
            previous: before.record(),
            opens: true,
            seen: Seen {
                revision,
                lease,
                kept: Some(Kept::opened(token, &self.place.owner, before)),
            },
        }
    }

    /// The grant by this node, if that needs no writing: there is nothing to open, or it was opened.
    pub(super) fn has_opened(&self, node: i64, seen: &Seen) -> Result<Option<Reserved>, Trouble> {
        if self.open.is_none() {
            return Ok(Some(self.beside(seen.clone())));
        }
        let token = token(node)?;
        let kept = seen.kept.as_ref().filter(|kept| kept.token == token);
        let before = kept.and_then(|kept| kept.before_of(&self.place.owner));
        let at = (seen.revision, seen.lease);
        Ok(before.map(|before| self.opened(token, at, before.clone())))
    }
}

/// The token of the grant of a node.
pub(super) fn token(node: i64) -> Result<FencingToken, Trouble> {
    let token = u64::try_from(node).ok().and_then(FencingToken::new);
    token.ok_or_else(Trouble::strange)
}

/// A try of something that is decided by what was seen, and what became of the ones before.
struct Tries<'a> {
    shared: &'a Shared,
    waiter: &'a Waiter,
    started: Instant,
    /// The lease of the record.
    lease: Option<i64>,
    /// An earlier one may have taken place, or still will.
    unsure: bool,
}

impl<'a> Tries<'a> {
    fn new(shared: &'a Shared, waiter: &'a Waiter) -> Self {
        Self {
            shared,
            waiter,
            started: Instant::now(),
            lease: None,
            unsure: false,
        }
    }

    async fn lease(&mut self, open: &Opening) -> Result<i64, Trouble> {
        if let Some(lease) = self.lease {
            return Ok(lease);
        }
        let lease = lends::new();
        // Before it is asked for: whatever becomes of it is undone.
        self.waiter.opens(lease);
        lends::lend(self.shared, lease, open.ttl).await?;
        self.lease = Some(lease);
        Ok(lease)
    }

    /// Whether to try again after this.
    fn failed(&mut self, trouble: &Trouble) -> bool {
        self.unsure |= !trouble.answered;
        if trouble.lease_gone {
            self.lease = None;
        }
        (trouble.elsewhere || !trouble.answered || trouble.lease_gone)
            && self.started.elapsed() < self.shared.budget
    }

    /// A lease that was not needed.
    async fn in_vain(&mut self) {
        if let Some(lease) = self.lease.take_if(|_| !self.unsure) {
            lends::give_back(self.shared, lease).await;
        }
    }
}

/// Grants a key that is as it was seen, and if it is not, as it is.
pub(super) async fn grant(
    shared: Arc<Shared>,
    loads: Loads,
    value: String,
    session: Arc<Session>,
    mut state: State,
    waiter: Arc<Waiter>,
) -> Result<Asked, Trouble> {
    let mut settles = Settles::new(&waiter);
    let place = &loads.place;
    let line = shared.room.line_up(place.names.id());
    // Of many that find a key free, one does something about it.
    let _turn = match line.turn.try_lock() {
        Ok(turn) => turn,
        Err(_) => {
            let turn = timeout(shared.budget, line.turn.lock());
            let turn = turn.await.map_err(|_| Trouble::no_answer())?;
            state = State::of(&shared.txn(place.look()).await?)?;
            turn
        }
    };
    let mut tries = Tries::new(&shared, &waiter);
    let mut sent = Instant::now();
    loop {
        if !waiter.is_wanted() {
            return Err(Trouble::replaced());
        }
        match (loads.next(&state)?, state.own) {
            (Next::Grant, _) => {}
            // By an earlier try.
            (Next::Stood, Some((node, lease))) if tries.unsure && lease == session.id => {
                let revision = node;
                let stand = Stand { revision, session };
                settles.stand = Some(stand.clone());
                let Some(reserved) = loads.has_opened(node, &state.seen)? else {
                    return Ok(Asked::Else(state));
                };
                return Ok(Asked::Granted(Grant {
                    stand,
                    reserved,
                    sent,
                }));
            }
            _ => {
                tries.in_vain().await;
                return Ok(Asked::Else(state));
            }
        }
        let (before, left) = state.seen.before(&place.owner);
        let open = match &loads.open {
            Some(open) => {
                let lease = tries.lease(open).await?;
                Some((before.open(&place.owner, None, &open.bytes), lease))
            }
            None => None,
        };
        let lease = open.as_ref().map(|(_, lease)| *lease);
        let step = place.grant(&state.seen, (&value, session.id), open);
        let connection = shared.link.connection().await?;
        sent = Instant::now();
        let answer = match connection.txn(step).await {
            Ok(answer) => answer,
            Err(trouble) => {
                if !trouble.answered {
                    waiter.taint();
                }
                if trouble.lease_gone {
                    // That of the record, or of the lock: then all are told, and it needs another.
                    session.refresh(&shared, Instant::now()).await?;
                }
                if tries.failed(&trouble) {
                    continue;
                }
                return Err(trouble);
            }
        };
        // It may stand, whatever an answer means that cannot be read.
        if !answer.succeeded() {
            state = State::of(&answer).inspect_err(|_| waiter.taint())?;
            continue;
        }
        let revision = super::nodes::revision(&answer).inspect_err(|_| waiter.taint())?;
        let stand = Stand { revision, session };
        settles.stand = Some(stand.clone());
        let reserved = match lease {
            Some(lease) => {
                lends::leave(&shared, left);
                loads.opened(token(revision)?, (revision, lease), before)
            }
            None => loads.beside(state.seen),
        };
        return Ok(Asked::Granted(Grant {
            stand,
            reserved,
            sent,
        }));
    }
}

/// Opens the record under a node that nobody is before.
pub(super) async fn open(
    shared: Arc<Shared>,
    loads: Loads,
    stand: Stand,
    mut seen: Seen,
    waiter: Arc<Waiter>,
) -> Result<Opened, Trouble> {
    let _works = Works(waiter.clone());
    let place = &loads.place;
    let mut tries = Tries::new(&shared, &waiter);
    let mut sent = Instant::now();
    loop {
        if !waiter.is_wanted() {
            return Err(Trouble::replaced());
        }
        if let Some(record) = loads.found(&seen, true) {
            tries.in_vain().await;
            return Ok(Opened::Found(record));
        }
        if let Some(reserved) = loads.has_opened(stand.revision, &seen)? {
            return Ok(Opened::Granted(Box::new(Grant {
                stand,
                reserved,
                sent,
            })));
        }
        let (before, left) = seen.before(&place.owner);
        let Some(open) = &loads.open else {
            return Err(Trouble::strange());
        };
        let lease = tries.lease(open).await?;
        let token = token(stand.revision)?;
        let text = before.open(&place.owner, Some(token), &open.bytes);
        let step = place.open(&seen, stand.revision, text, lease);
        let connection = shared.link.connection().await?;
        sent = Instant::now();
        let answer = match connection.txn(step).await {
            Ok(answer) => answer,
            Err(trouble) if tries.failed(&trouble) => continue,
            Err(trouble) => return Err(trouble),
        };
        if answer.succeeded() {
            lends::leave(&shared, left);
            let at = (super::nodes::revision(&answer)?, lease);
            let reserved = loads.opened(token, at, before);
            return Ok(Opened::Granted(Box::new(Grant {
                stand,
                reserved,
                sent,
            })));
        }
        let state = State::of(&answer)?;
        if state.marked {
            return Err(Trouble::undone());
        }
        if state.own.is_none_or(|(node, _)| node != stand.revision) {
            tries.in_vain().await;
            return Ok(Opened::Fell);
        }
        seen = state.seen;
    }
}

/// Tells a waiter that something at its node is over, however it ended.
struct Works(Arc<Waiter>);

impl Drop for Works {
    fn drop(&mut self) {
        self.0.worked();
    }
}
