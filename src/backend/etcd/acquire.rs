//! From a request to a lease: put a node, wait for the one before it, look, hold.

mod load;
mod turn;

use std::{sync::Arc, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, sleep_until, timeout, timeout_at},
};

pub(super) use self::load::acquire_or_load;
use super::{
    client::{Client, Shared},
    hub::Watching,
    lease::{EtcdLease, Inner},
    names::{self, Names},
    nodes::{Blocker, Wish},
    opening::Loads,
    room::{Asker, Known},
    session::LONGEST,
    trouble::Trouble,
    undo::Undo,
    waiter::{News, Waiter},
    watches::Target,
};
use crate::{
    backend::{AcquireRequest, Mode, WaitBound},
    clock::jittered,
    error::{BackendError, BackendErrorKind},
    lease::Lease as _,
    record::Record,
};

/// A waiter looks again after this time, whatever it has heard.
const CEILING: Duration = Duration::from_secs(5);
/// The same, while the server does not answer.
const SOON: Duration = Duration::from_millis(250);

pub(super) async fn acquire(
    client: &Arc<Client>,
    request: &AcquireRequest,
) -> Result<EtcdLease, BackendError> {
    match ask_for(client, request, None).await? {
        End::Granted(lease) => Ok(lease),
        End::Refused { kind, .. } => Err(BackendError::new(kind, "")),
        // Nobody asked for one.
        End::Found(_) => Err(Trouble::strange().into()),
    }
}

/// How an acquire ended.
enum End {
    Granted(EtcdLease),
    Found(Record),
    /// Another holds the key.
    Refused {
        kind: BackendErrorKind,
        open: Option<Record>,
    },
}

async fn ask_for(
    client: &Arc<Client>,
    request: &AcquireRequest,
    loads: Option<Loads>,
) -> Result<End, BackendError> {
    let mut attempt = match Attempt::begin(client, request, loads).await? {
        Begun::Attempt(attempt) => attempt,
        Begun::Holds(inner) => return again(inner).await.map(End::Granted),
    };
    // What another acquire of this owner left is known when its put is answered.
    attempt.waiter.settled().await;
    let end = match attempt.at_once {
        Some(contended) => attempt.at_once(contended).await?,
        None => {
            // The first answer may take as long as that of a try.
            let first = attempt.turn().await?;
            let granted = attempt.until_granted(first);
            match request.wait {
                WaitBound::Until(deadline) => match timeout_at(deadline, granted).await {
                    Ok(end) => end?,
                    Err(_) => attempt.refused(BackendErrorKind::WaitTimedOut),
                },
                WaitBound::Fail | WaitBound::Forever => granted.await?,
            }
        }
    };
    if let End::Found(_) = end {
        attempt.leave().await;
    }
    Ok(end)
}

enum Turn {
    Granted(EtcdLease),
    /// There is a record that answers it.
    Found(Record),
    Waits(Blocker),
    /// Its node stands, as far as anybody knows: the server does not answer.
    Unsure(Trouble),
    /// Its node was taken away: it needs a new one.
    Again,
    Contended,
}

enum Begun<'a> {
    Attempt(Box<Attempt<'a>>),
    Holds(Arc<Inner>),
}

/// One acquire. Dropped without a lease, it is undone: whatever became of what it asked.
struct Attempt<'a> {
    client: &'a Arc<Client>,
    wish: Wish,
    asker: Asker,
    ttl: Duration,
    /// The answer to a held key, where that is not waited for.
    at_once: Option<BackendErrorKind>,
    waiter: Arc<Waiter>,
    watching: Option<Watching>,
    /// Where it looks at the record too.
    loads: Option<Loads>,
    hearing: Option<Watching>,
    /// It ended with a lease, which is undone by itself.
    granted: bool,
}

/// For an owner that holds: the same lease, if the server agrees.
async fn again(inner: Arc<Inner>) -> Result<EtcdLease, BackendError> {
    let lease = EtcdLease { inner };
    match lease.renew().await {
        Ok(()) => Ok(lease),
        Err(error) if error.kind() == BackendErrorKind::Lost => Err(BackendError::new(
            BackendErrorKind::Contended,
            "this owner has lost its lease",
        )),
        Err(error) => Err(error),
    }
}

impl<'a> Attempt<'a> {
    async fn begin(
        client: &'a Arc<Client>,
        request: &AcquireRequest,
        loads: Option<Loads>,
    ) -> Result<Begun<'a>, Trouble> {
        let shared = &client.shared;
        let names = Arc::new(Names::new(&shared.prefix, &request.key));
        let asker = Asker::new(request.owner, request.mode, names.id());
        let node = names.node(&request.owner, request.mode);
        let waiter = Arc::new(Waiter::new(names.clone(), node.clone()));
        let older = match shared.room.enter(&asker, &waiter) {
            Known::Waits(older) => older,
            Known::Holds(inner) => return Ok(Begun::Holds(inner)),
            // The undo of what this owner had would undo what it gets now.
            _ => match timeout(shared.budget, enter_later(shared, &asker, &waiter)).await {
                Ok(Known::Holds(inner)) => return Ok(Begun::Holds(inner)),
                Ok(Known::Waits(older)) => older,
                _ => {
                    return Err(Trouble::unavailable(
                        "what this owner asked for before is not undone yet",
                    ));
                }
            },
        };
        if let Some(older) = older {
            waiter.inherit(older);
        }
        let at_once = match request.wait {
            WaitBound::Fail => Some(BackendErrorKind::Contended),
            WaitBound::Until(deadline) if deadline <= Instant::now() => {
                Some(BackendErrorKind::WaitTimedOut)
            }
            _ => None,
        };
        let ttl = request.ttl.clamp(Duration::from_millis(1), LONGEST);
        let mode = match request.mode {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        };
        Ok(Begun::Attempt(Box::new(Self {
            client,
            wish: Wish {
                names,
                mode: request.mode,
                node,
                mark: names::mark(&shared.prefix, &request.owner, &request.key),
                // For operators.
                value: format!("{mode}, ttl {} ms", ttl.as_millis()),
                queues: at_once.is_none(),
                record: loads.as_ref().map(|loads| loads.place.record.clone()),
            },
            asker,
            ttl,
            at_once,
            waiter,
            watching: None,
            loads,
            hearing: None,
            granted: false,
        })))
    }

    fn shared(&self) -> &'a Arc<Shared> {
        &self.client.shared
    }

    async fn at_once(&mut self, contended: BackendErrorKind) -> Result<End, BackendError> {
        loop {
            match self.turn().await? {
                Turn::Granted(lease) => return Ok(End::Granted(lease)),
                Turn::Found(record) => return Ok(End::Found(record)),
                Turn::Again => {}
                Turn::Contended | Turn::Waits(_) => return Ok(self.refused(contended)),
                Turn::Unsure(trouble) => return Err(trouble.into()),
            }
        }
    }

    /// Cancel safe, as the attempt undoes what is left of it.
    async fn until_granted(&mut self, first: Turn) -> Result<End, BackendError> {
        let mut turn = first;
        loop {
            let result = match turn {
                Turn::Granted(lease) => return Ok(End::Granted(lease)),
                Turn::Found(record) => Some(record),
                Turn::Again => None,
                Turn::Waits(blocker) => self.rest(Some(blocker)).await?,
                Turn::Unsure(_) => self.rest(None).await?,
                // Only told to those who do not wait.
                Turn::Contended => return Err(Trouble::strange().into()),
            };
            if let Some(record) = result {
                return Ok(End::Found(record));
            }
            turn = self.turn().await?;
        }
    }

    /// Waits until it should look again, or there is a result.
    async fn rest(&mut self, blocker: Option<Blocker>) -> Result<Option<Record>, BackendError> {
        let soon = blocker.is_none();
        if let Some(Blocker { seen, .. }) = &blocker {
            self.listen(*seen);
        }
        if let Some(Blocker { node, seen }) = blocker
            && !self.watching.as_ref().is_some_and(|w| w.is_of(&node))
        {
            let target = Target::Waiter(Arc::downgrade(&self.waiter));
            // The one before goes first.
            self.watching = None;
            self.watching = Some(self.shared().hub.watch(node, seen + 1, target));
        }
        let next = Instant::now() + jittered(if soon { SOON } else { CEILING });
        loop {
            self.waiter.rests();
            tokio::select! {
                biased;
                news = self.waiter.news() => match news {
                    News::Result(record) => return Ok(Some(record)),
                    News::Look => {
                        // The watch may have ended with this.
                        self.watching = None;
                        return Ok(None);
                    }
                    News::Check => return Ok(None),
                    News::Show => {}
                    News::Replaced => return Err(Trouble::replaced().into()),
                },
                () = sleep_until(next) => return Ok(None),
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.watching = None;
        self.hearing = None;
        if self.granted {
            return;
        }
        let asked = self.waiter.leaves();
        let room = &self.client.shared.room;
        if room.leave(&self.asker, &self.waiter, asked) {
            self.client.undo(Undo::attempt(
                self.asker.clone(),
                self.waiter.clone(),
                self.wish.mark.clone(),
                self.opens(),
            ));
        }
    }
}

/// Enters an owner when what it had is undone.
async fn enter_later(shared: &Shared, asker: &Asker, waiter: &Arc<Waiter>) -> Known {
    loop {
        match shared.room.enter(asker, waiter) {
            Known::Leaves(left) => left.cancelled().await,
            Known::Drops => yield_now().await,
            known => return known,
        }
    }
}
