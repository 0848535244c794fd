//! Looking at a record, and how a holder ended: see [`steps`](super::steps).

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    client::{Client, Shared},
    lease::Inner,
    lends,
    record::{Change, Close, Kept},
    room::Asker,
    steps::{self, Holding, Place, Seen, State, Write},
    trouble::Trouble,
};
use crate::{
    backend::Mode,
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::Loss,
    record::{Outcome, Record, RecordLimits, Save},
};

/// A server takes requests of 1.5 MiB, and one may hold two records: the open one, and the orphan
/// whose place it took.
const MAX_BYTES: usize = 512 * 1024;
/// A change of leader starts a lease again: over longer times there may always be one.
const MAX_TTL: std::time::Duration = std::time::Duration::from_secs(365 * 24 * 3600);

pub(super) fn limits() -> RecordLimits {
    RecordLimits::new(MAX_BYTES, MAX_TTL)
}

pub(super) async fn load(client: &Client, key: &LockKey) -> Result<Option<Record>, Trouble> {
    let shared = &client.shared;
    let record = super::names::record(&shared.prefix, key);
    let seen = steps::was_loaded(&shared.txn(steps::load(&record)).await?)?;
    Ok(seen.kept.and_then(|kept| kept.record()))
}

pub(super) async fn save(
    client: &Arc<Client>,
    save: &Save,
    releases: bool,
) -> Result<(), BackendError> {
    if let Outcome::Keep { bytes, ttl } = &save.outcome {
        limits().check(bytes, *ttl)?;
    }
    let shared = &client.shared;
    let place = Place::new(&shared.prefix, &save.key, &save.owner);
    let asker = Asker::new(save.owner, Mode::Exclusive, place.names.id());
    let inner = shared.room.held(&asker);
    let saving = Saving {
        shared: shared.clone(),
        place,
        save: save.clone(),
        releases,
        inner: inner.filter(|inner| inner.token() == save.token),
    };
    // It goes on to its answer when its caller does not.
    let saved = shared.see_through(saving.run()).await;
    let lost = |context| Err(BackendError::new(BackendErrorKind::Lost, context));
    match saved.unwrap_or_else(|_| Err(Trouble::unavailable("a save broke off")))? {
        Saved::Done => Ok(()),
        Saved::Another => lost("another has the key"),
        Saved::Later => lost("a later holder has left a record"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Saved {
    Done,
    /// Another has the key, and nothing was done.
    Another,
    /// Refused for its token, and released.
    Later,
}

struct Saving {
    shared: Arc<Shared>,
    place: Place,
    save: Save,
    releases: bool,
    /// The lock, where this process has it.
    inner: Option<Arc<Inner>>,
}

impl Saving {
    async fn run(self) -> Result<Saved, Trouble> {
        let leaving = self.inner.as_ref().filter(|_| self.releases);
        if let Some(inner) = leaving {
            inner.leaves();
        }
        let saved = self.close().await;
        if let Some(inner) = leaving {
            inner.has_left(matches!(saved, Ok(Saved::Done | Saved::Later)));
            if let Ok(Saved::Another) = saved {
                inner.lose(inner.session.loss().unwrap_or(Loss::Revoked));
            }
        }
        saved
    }

    /// What the grant left, and if that is not so any more, what there is.
    async fn close(&self) -> Result<Saved, Trouble> {
        let shared = &self.shared;
        let reserved = self.inner.as_ref().and_then(|inner| inner.reserved());
        let mut is_guess = reserved.is_some();
        let (mut seen, mut holding) = match reserved {
            Some(reserved) => (reserved.seen.clone(), self.mine()),
            None => self.look().await?,
        };
        let mut mark = self.inner.as_ref().and_then(|inner| inner.buries());
        let mut lease = None;
        let mut unsure = false;
        let started = Instant::now();
        loop {
            let close = Kept::close(seen.kept.as_ref(), &self.place.owner, &self.save);
            if holding == Holding::Another {
                // By an earlier one, whose answer may have been lost.
                let forgets = self.save.outcome == Outcome::Forget;
                let was_saved = match forgets {
                    true => unsure,
                    false => close == Close::Stands,
                };
                if !was_saved {
                    return Ok(Saved::Another);
                }
                self.leave_others(&seen, lease.filter(|_| !unsure));
                return Ok(Saved::Done);
            }
            // Another grant of this owner is not this one's to release.
            let releases = self.releases && holding == self.mine();
            let saved = match close {
                Close::Refused => Saved::Later,
                _ => Saved::Done,
            };
            let close_stands = close == Close::Stands;
            let write = match close {
                Close::Refused | Close::Stands => None,
                Close::Keep(text) => {
                    let id = self.lend(&mut lease).await?;
                    Some(Write::Put(text, id))
                }
                Close::Change(change) => Some(Write::Change(change)),
            };
            let mut left = match &write {
                None => Vec::new(),
                Some(_) => seen.leases(),
            };
            if let Some(Write::Change(Change::Write(_))) = write {
                left.retain(|lease| *lease != seen.lease);
            }
            let marks = mark.filter(|_| releases);
            let Some(step) = self.place.close(&seen, holding, write, releases, marks) else {
                if is_guess {
                    (seen, holding) = self.look().await?;
                    is_guess = false;
                    continue;
                }
                self.leave_others(&seen, lease.filter(|_| !unsure && close_stands));
                return Ok(saved);
            };
            let connection = shared.link.connection().await?;
            match connection.txn(step).await {
                Ok(answer) if answer.succeeded() => {
                    if marks.is_some() {
                        shared.agenda.marked(self.place.mark.clone());
                    }
                    left.retain(|left| Some(*left) != lease);
                    lends::leave(shared, left);
                    if close_stands {
                        self.leave_others(&seen, lease.filter(|_| !unsure));
                    }
                    return Ok(saved);
                }
                Ok(answer) => {
                    let state = State::of(&answer)?;
                    holding = state.holding(&self.place);
                    seen = state.seen;
                    is_guess = false;
                }
                Err(trouble) => {
                    if trouble.lease_gone {
                        // That of the record; or of the mark, and then no put can use it any more.
                        mark = mark.filter(|_| lease.take().is_some());
                    }
                    unsure |= !trouble.answered;
                    let again = trouble.elsewhere || !trouble.answered || trouble.lease_gone;
                    if !again || started.elapsed() >= shared.budget {
                        return Err(trouble);
                    }
                }
            }
        }
    }

    /// It was saved by an earlier step, whose answer got lost: the leases that nothing needs since.
    /// `lent`: one that this needed not.
    fn leave_others(&self, seen: &Seen, lent: Option<i64>) {
        let granted = self.inner.as_ref().and_then(|inner| inner.granted());
        let mut left = granted.map(|g| g.seen.leases()).unwrap_or_default();
        left.extend(lent);
        let needed = seen.leases();
        left.retain(|lease| !needed.contains(lease));
        lends::leave(&self.shared, left);
    }

    /// Under the grant that is named.
    fn mine(&self) -> Holding {
        i64::try_from(self.save.token.get()).map_or(Holding::Another, Holding::Me)
    }

    async fn look(&self) -> Result<(Seen, Holding), Trouble> {
        let state = State::of(&self.shared.txn(self.place.look()).await?)?;
        let holding = state.holding(&self.place);
        Ok((state.seen, holding))
    }

    async fn lend(&self, lease: &mut Option<i64>) -> Result<i64, Trouble> {
        if let Some(lease) = lease {
            return Ok(*lease);
        }
        let Outcome::Keep { ttl, .. } = &self.save.outcome else {
            return Err(Trouble::strange());
        };
        let id = lends::of(&self.save, *ttl);
        lends::lend(&self.shared, id, *ttl).await?;
        *lease = Some(id);
        Ok(id)
    }
}
