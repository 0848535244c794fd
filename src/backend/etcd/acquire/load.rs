//! An acquire that looks at the record too: see [`steps`](super::super::steps).

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    super::{
        client::Client,
        lease::{EtcdLease, Reserved},
        nodes::{self, Blocker},
        opening::{self, Asked, Loads, Next, Opened},
        session::Sessions,
        steps::{Place, Seen, State},
        trouble::Trouble,
        undo::Opens,
        waiter::Stand,
        watches::Target,
    },
    Attempt, End, Turn, ask_for,
};
use crate::{
    backend::{AcquireRequest, Found},
    error::{BackendError, BackendErrorKind},
    record::Opening,
};

pub(in super::super) async fn acquire_or_load(
    client: &Arc<Client>,
    request: &AcquireRequest,
    open: Option<&Opening>,
) -> Result<Found<EtcdLease>, BackendError> {
    let place = Place::new(&client.shared.prefix, &request.key, &request.owner);
    let loads = Loads {
        place: place.into(),
        open: open.cloned(),
        since: None,
    };
    Ok(match ask_for(client, request, Some(loads)).await? {
        End::Granted(lease) => {
            // From here on its caller may begin.
            let previous = lease.inner.returns(open.is_some())?;
            Found::Lease { lease, previous }
        }
        End::Found(record) => Found::Record(record),
        End::Refused { open, .. } => Found::Held {
            open,
            remaining: None,
        },
    })
}

impl Attempt<'_> {
    /// What it may open, for its undo.
    pub(super) fn opens(&self) -> Option<Opens> {
        let loads = self.loads.as_ref()?;
        Some(Opens {
            record: loads.place.record.clone(),
            owner: loads.place.owner.clone(),
            ttl: loads.open.as_ref()?.ttl,
        })
    }

    fn loads(&self) -> Result<Loads, Trouble> {
        let loads = self.loads.clone().ok_or_else(Trouble::strange)?;
        let since = self.waiter.since();
        Ok(Loads { since, ..loads })
    }

    /// Asks without a node: nothing is put for a result, nor where it does not wait.
    pub(super) async fn first(&mut self) -> Result<Turn, Trouble> {
        let loads = self.loads()?;
        let shared = self.shared();
        let mut state = State::of(&shared.txn(loads.place.look()).await?)?;
        loop {
            let kept = state.seen.kept.as_ref();
            let record = kept.and_then(|kept| kept.record());
            self.waiter.saw(state.now, record);
            match loads.next(&state)? {
                Next::Found(record) => return Ok(Turn::Found(record)),
                Next::Wait if self.at_once.is_some() => return Ok(Turn::Contended),
                Next::Wait | Next::Stood => {
                    if let Some((_, holder)) = state.first {
                        let since = opening::token(holder)?;
                        self.waiter.waits(loads.results(), since);
                    }
                    return self.put(None).await;
                }
                Next::Grant => {}
            }
            let session = Sessions::get(shared, self.ttl).await?;
            if !self.waiter.puts(&session) {
                return Err(Trouble::replaced());
            }
            self.expect_life();
            let asked = shared.see_through(opening::grant(
                shared.clone(),
                loads.clone(),
                self.wish.value.clone(),
                session,
                state,
                self.waiter.clone(),
            ));
            state = match asked.await {
                Ok(Ok(Asked::Granted(grant))) => {
                    return self.granted(grant.stand, grant.sent, Some(grant.reserved));
                }
                Ok(Ok(Asked::Else(state))) => state,
                // The next one has another lease.
                Ok(Err(trouble)) if trouble.lease_gone => return Ok(Turn::Again),
                Ok(Err(trouble)) => return Err(trouble),
                Err(_) => return Err(Trouble::unavailable("a grant broke off")),
            };
            if self.waiter.stand().is_ok_and(|stand| stand.is_some()) {
                return Ok(Turn::Again);
            }
        }
    }

    /// Its node stands, and this was seen with it.
    pub(super) async fn stands(
        &mut self,
        stand: Stand,
        blocker: Option<Blocker>,
        seen: Option<Seen>,
        sent: Instant,
    ) -> Result<Turn, Trouble> {
        let (Some(_), Some(seen)) = (&self.loads, seen) else {
            return match blocker {
                None => self.granted(stand, sent, None),
                Some(blocker) => Ok(Turn::Waits(blocker)),
            };
        };
        let loads = self.loads()?;
        if let Some(record) = loads.found(&seen, blocker.is_none()) {
            return Ok(Turn::Found(record));
        }
        if let Some(blocker) = blocker {
            let record = seen.kept.as_ref().and_then(|kept| kept.record());
            self.waiter.saw(blocker.seen, record);
            return Ok(Turn::Waits(blocker));
        }
        if let Some(reserved) = loads.has_opened(stand.revision, &seen)? {
            return self.granted(stand, sent, Some(reserved));
        }
        self.open(stand, seen).await
    }

    async fn open(&mut self, stand: Stand, seen: Seen) -> Result<Turn, Trouble> {
        let loads = self.loads()?;
        if !self.waiter.works() {
            if self.waiter.is_replaced() {
                return Err(Trouble::replaced());
            }
            return Ok(Turn::Again);
        }
        let shared = self.shared();
        self.expect_life();
        let opened = shared.see_through(opening::open(
            shared.clone(),
            loads,
            stand,
            seen,
            self.waiter.clone(),
        ));
        match opened.await {
            Ok(Ok(Opened::Granted(grant))) => {
                self.granted(grant.stand, grant.sent, Some(grant.reserved))
            }
            Ok(Ok(Opened::Found(record))) => Ok(Turn::Found(record)),
            Ok(Ok(Opened::Fell)) => {
                self.waiter.fell();
                Ok(Turn::Again)
            }
            Ok(Err(trouble)) if trouble.may_pass() => Ok(Turn::Unsure(trouble)),
            Ok(Err(trouble)) => Err(trouble),
            Err(_) => Err(Trouble::unavailable("an opening broke off")),
        }
    }

    /// Has what is written to the record told from here on.
    pub(super) fn listen(&mut self, seen: i64) {
        let Some(loads) = &self.loads else { return };
        if self.waiter.was_deaf() {
            self.hearing = None;
        }
        if self.hearing.is_none() {
            let record = loads.place.record.as_str().into();
            let target = Target::Loader(Arc::downgrade(&self.waiter));
            self.hearing = Some(self.shared().hub.watch(record, seen + 1, target));
        }
    }

    /// It has its answer: its node goes first, so that nobody waits behind it.
    pub(super) async fn leave(&mut self) {
        self.watching = None;
        self.hearing = None;
        if let Ok(Some(stand)) = self.waiter.stand() {
            let gone = nodes::delete(&self.wish.node, stand.revision);
            if self.shared().txn(gone).await.is_ok() {
                self.waiter.fell();
            }
        }
    }

    /// How it ended without the key.
    pub(super) fn refused(&self, kind: BackendErrorKind) -> End {
        let open = self.waiter.open_record();
        End::Refused { kind, open }
    }

    pub(super) fn withdraws(
        &self,
        reserved: Option<&Reserved>,
    ) -> Option<super::super::undo::Withdraw> {
        reserved.filter(|reserved| reserved.opens)?;
        let lease = self.waiter.opening()?;
        Some(super::super::undo::Withdraw::new(self.opens()?, lease))
    }
}
