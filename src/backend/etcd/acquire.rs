//! From a request to a lease: put a node, wait for the one before it, look, hold.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, sleep_until, timeout},
};

use super::{
    client::{Client, Shared},
    hub::{Target, Watching},
    lease::{EtcdLease, Grant, Inner},
    names::{self, Names},
    nodes::{self, Blocker, Look, Put, Wish},
    room::{Asker, Known},
    session::{LONGEST, Session, Sessions},
    trouble::Trouble,
    undo::Undo,
    waiter::{News, Stand, TICKS, Waiter},
};
use crate::{
    backend::{AcquireRequest, Mode, WaitBound},
    error::{BackendError, BackendErrorKind},
    lease::{FencingToken, Lease as _, Loss},
};

/// A waiter looks again after this time, whatever it has heard.
const CEILING: Duration = Duration::from_secs(5);
/// The same, while the server does not answer.
const SOON: Duration = Duration::from_millis(250);

pub(super) async fn acquire(
    client: &Arc<Client>,
    request: &AcquireRequest,
) -> Result<EtcdLease, BackendError> {
    let mut attempt = match Attempt::begin(client, request).await? {
        Begun::Attempt(attempt) => attempt,
        Begun::Holds(inner) => return again(inner).await,
    };
    // What another acquire of this owner left is known when its put is answered.
    attempt.waiter.settled().await;
    loop {
        let turn = match attempt.waiter.stand() {
            Ok(None) => attempt.put(None).await?,
            Ok(Some(stand)) => attempt.look(stand).await?,
            Err(old) => attempt.put(Some(old)).await?,
        };
        let contended = attempt.at_once.unwrap_or(BackendErrorKind::Contended);
        match turn {
            Turn::Granted(lease) => return Ok(lease),
            Turn::Again => {}
            Turn::Contended => return Err(BackendError::new(contended, "")),
            Turn::Waits(_) if attempt.at_once.is_some() => {
                return Err(BackendError::new(contended, ""));
            }
            Turn::Unsure(trouble) if attempt.at_once.is_some() => return Err(trouble.into()),
            Turn::Waits(blocker) => attempt.rest(Some(blocker)).await?,
            Turn::Unsure(_) => attempt.rest(None).await?,
        }
    }
}

enum Turn {
    Granted(EtcdLease),
    Waits(Blocker),
    /// Its node stands, as far as anybody knows: the server does not answer.
    Unsure(Trouble),
    /// Its node was taken away: it needs a new one.
    Again,
    Contended,
}

enum Begun<'a> {
    Attempt(Attempt<'a>),
    Holds(Arc<Inner>),
}

/// One acquire. Dropped without a lease, it is undone: whatever became of what it asked.
struct Attempt<'a> {
    client: &'a Arc<Client>,
    wish: Wish,
    asker: Asker,
    ttl: Duration,
    wait: WaitBound,
    /// The answer to a held key, where that is not waited for.
    at_once: Option<BackendErrorKind>,
    waiter: Arc<Waiter>,
    watching: Option<Watching>,
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
    ) -> Result<Begun<'a>, Trouble> {
        let shared = &client.shared;
        let names = Arc::new(Names::new(&shared.prefix, &request.key));
        let asker = Asker::new(request.owner, names.id());
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
        Ok(Begun::Attempt(Self {
            client,
            wish: Wish {
                names,
                mode: request.mode,
                node,
                mark: names::mark(&shared.prefix, asker.owner()),
                // For operators.
                value: format!("{mode}, ttl {} ms", ttl.as_millis()),
                queues: at_once.is_none(),
            },
            asker,
            ttl,
            wait: request.wait,
            at_once,
            waiter,
            watching: None,
            granted: false,
        }))
    }

    fn shared(&self) -> &'a Arc<Shared> {
        &self.client.shared
    }

    /// Nobody may be waiting for its next step, and it is before others by then.
    fn expect_life(&self) {
        let shared = self.shared();
        let ticks = shared.link.patience.as_millis() as u32 / 100 + TICKS;
        if self.waiter.asks(ticks) {
            shared.room.expect(&self.waiter);
        }
    }

    /// Puts a node, in place of an `old` one that counts no more.
    async fn put(&mut self, old: Option<i64>) -> Result<Turn, Trouble> {
        let shared = self.shared();
        let session = Sessions::get(shared, self.ttl).await?;
        if !self.waiter.puts(&session) {
            return Err(Trouble::replaced());
        }
        // It goes on to its answer when this future does not.
        let put = shared.see_through(put(
            shared.clone(),
            self.wish.clone(),
            session.clone(),
            old,
            self.waiter.clone(),
        ));
        self.expect_life();
        let put = put.await;
        let (put, sent) = match put {
            Ok(Ok(put)) => put,
            // The next one has another lease.
            Ok(Err(trouble)) if trouble.lease_gone => return Ok(Turn::Again),
            Ok(Err(trouble)) => return Err(trouble),
            Err(_) => return Err(Trouble::unavailable("a put broke off")),
        };
        Ok(match put {
            Put::Stands(revision, None) => self.granted(Stand { revision, session }, sent)?,
            Put::Stands(_, Some(blocker)) => Turn::Waits(blocker),
            Put::Stood(..) => Turn::Again,
            Put::Contended => Turn::Contended,
        })
    }

    /// Looks at its node, and at who is before it: the grant rests on this, not on what was heard.
    async fn look(&mut self, stand: Stand) -> Result<Turn, Trouble> {
        self.expect_life();
        let shared = self.shared();
        let sent = Instant::now();
        let answer = match shared.txn(self.wish.look(stand.revision)).await {
            Ok(answer) => answer,
            Err(trouble) if trouble.may_pass() => return Ok(Turn::Unsure(trouble)),
            Err(trouble) => return Err(trouble),
        };
        let look = self
            .wish
            .was_seen(stand.revision, stand.session.id, &answer)?;
        Ok(match look {
            Look::Stands(None) => self.granted(stand, sent)?,
            Look::Stands(Some(blocker)) => Turn::Waits(blocker),
            Look::Gone => {
                self.waiter.fell();
                Turn::Again
            }
        })
    }

    fn granted(&mut self, stand: Stand, sent: Instant) -> Result<Turn, Trouble> {
        let token = u64::try_from(stand.revision).ok();
        let token = token
            .and_then(FencingToken::new)
            .ok_or_else(Trouble::strange)?;
        if !self.waiter.grant() {
            if self.waiter.is_replaced() {
                return Err(Trouble::replaced());
            }
            return Ok(Turn::Again);
        }
        let shared = self.shared();
        let session = stand.session;
        let inner = Arc::new(Inner::new(
            self.client.clone(),
            session.clone(),
            token,
            Grant {
                mode: self.wish.mode,
                asker: self.asker.clone(),
                node: self.wish.node.clone(),
                mark: self.wish.mark.clone(),
                revision: stand.revision,
                ttl: self.ttl,
                sent,
                tainted: self.waiter.is_tainted(),
            },
        ));
        if !shared.room.holds(&self.asker, &self.waiter, &inner) {
            // A newer acquire of this owner gets the same grant; this one must not free it.
            inner.disown();
            return Err(Trouble::replaced());
        }
        self.granted = true;
        // Entered first, then asked: the end of a session either sees this lock or is seen here.
        if !session.is_valid() {
            inner.lose(session.loss().unwrap_or(Loss::Expired));
            return Err(Trouble::unavailable(
                "the lease at the server ended while the key was granted",
            ));
        }
        shared.agenda.granted(&inner);
        Ok(Turn::Granted(EtcdLease { inner }))
    }

    /// Waits until it should look again.
    async fn rest(&mut self, blocker: Option<Blocker>) -> Result<(), BackendError> {
        let soon = blocker.is_none();
        if let Some(Blocker { node, seen }) = blocker
            && !self.watching.as_ref().is_some_and(|w| w.is_of(&node))
        {
            let target = Target::Waiter(Arc::downgrade(&self.waiter));
            self.watching = Some(self.shared().hub.watch(node, seen + 1, target));
        }
        let now = Instant::now();
        let mut next = now + super::jittered(if soon { SOON } else { CEILING });
        if let WaitBound::Until(deadline) = self.wait {
            next = next.min(deadline);
        }
        loop {
            self.waiter.rests();
            tokio::select! {
                biased;
                news = self.waiter.news() => match news {
                    News::Look => {
                        // The watch may have ended with this.
                        self.watching = None;
                        return Ok(());
                    }
                    News::Show => {}
                    News::Replaced => return Err(Trouble::replaced().into()),
                },
                () = sleep_until(next) => {
                    if let WaitBound::Until(deadline) = self.wait
                        && deadline <= Instant::now()
                    {
                        return Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""));
                    }
                    return Ok(());
                }
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.watching = None;
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
            ));
        }
    }
}

/// Tells where a waiter stands when its put is over, however that ends.
struct Settles {
    waiter: Arc<Waiter>,
    stand: Option<Stand>,
}

impl Drop for Settles {
    fn drop(&mut self) {
        self.waiter.settle(self.stand.take());
    }
}

/// Puts a node, and tries again where there was no answer: by the owner token that is harmless.
async fn put(
    shared: Arc<Shared>,
    wish: Wish,
    session: Arc<Session>,
    mut old: Option<i64>,
    waiter: Arc<Waiter>,
) -> Result<(Put, Instant), Trouble> {
    let mut settles = Settles {
        waiter: waiter.clone(),
        stand: None,
    };
    let started = Instant::now();
    loop {
        if let Some(revision) = old.take() {
            shared.txn(nodes::delete(&wish.node, revision)).await?;
        }
        // Where there is none, the link has waited for as long as it should.
        let connection = shared.link.connection().await?;
        let sent = Instant::now();
        let put = match connection.txn(wish.put(session.id)).await {
            Ok(answer) => wish.was_put(&answer)?,
            Err(trouble) => {
                if trouble.lease_gone {
                    session.end(&shared, Loss::Revoked);
                }
                if !trouble.answered {
                    waiter.taint();
                }
                let again = trouble.elsewhere || !trouble.answered;
                if again && started.elapsed() < shared.budget {
                    continue;
                }
                return Err(trouble);
            }
        };
        let revision = match put {
            // By a lease from before, which ends without asking anybody.
            Put::Stood(revision, lease) if lease != session.id => {
                if started.elapsed() >= shared.budget {
                    return Err(Trouble::unavailable("an older node of this owner stays"));
                }
                old = Some(revision);
                continue;
            }
            Put::Stands(revision, _) | Put::Stood(revision, _) => revision,
            Put::Contended => return Ok((put, sent)),
        };
        settles.stand = Some(Stand { revision, session });
        return Ok((put, sent));
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
