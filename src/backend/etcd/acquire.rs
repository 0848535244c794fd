//! From a request to a lease: put a node, wait for the one before it, look, hold.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use super::{
    client::{Client, Shared},
    hub::Watching,
    lease::{EtcdLease, Grant, Inner},
    names::{self, Names},
    nodes::{Blocker, Look, Put, Wish},
    put,
    room::{Asker, Known},
    session::{LONGEST, Sessions},
    trouble::Trouble,
    undo::Undo,
    waiter::{News, Stand, Waiter},
    watches::Target,
};
use crate::{
    backend::{AcquireRequest, Mode, WaitBound},
    clock::jittered,
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
    if let Some(contended) = attempt.at_once {
        return loop {
            match attempt.turn().await? {
                Turn::Granted(lease) => return Ok(lease),
                Turn::Again => {}
                Turn::Contended | Turn::Waits(_) => break Err(BackendError::new(contended, "")),
                Turn::Unsure(trouble) => break Err(trouble.into()),
            }
        };
    }
    // The first answer may take as long as that of a try.
    let first = attempt.turn().await?;
    let granted = attempt.until_granted(first);
    match request.wait {
        WaitBound::Until(deadline) => timeout_at(deadline, granted)
            .await
            .unwrap_or_else(|_| Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""))),
        WaitBound::Fail | WaitBound::Forever => granted.await,
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
        Ok(Begun::Attempt(Self {
            client,
            wish: Wish {
                names,
                mode: request.mode,
                node,
                mark: names::mark(&shared.prefix, &request.owner, &request.key),
                // For operators.
                value: format!("{mode}, ttl {} ms", ttl.as_millis()),
                queues: at_once.is_none(),
            },
            asker,
            ttl,
            at_once,
            waiter,
            watching: None,
            granted: false,
        }))
    }

    fn shared(&self) -> &'a Arc<Shared> {
        &self.client.shared
    }

    /// Nobody may be there to take the answer, and it is before others by then.
    fn expect_life(&self) {
        if self.waiter.asks() {
            self.shared().room.expect(&self.waiter);
        }
    }

    async fn turn(&mut self) -> Result<Turn, Trouble> {
        match self.waiter.stand() {
            Ok(None) => self.put(None).await,
            Ok(Some(stand)) => self.look(stand).await,
            Err(old) => self.put(Some(old)).await,
        }
    }

    /// Cancel safe, as the attempt undoes what is left of it.
    async fn until_granted(&mut self, first: Turn) -> Result<EtcdLease, BackendError> {
        let mut turn = first;
        loop {
            match turn {
                Turn::Granted(lease) => return Ok(lease),
                Turn::Again => {}
                Turn::Waits(blocker) => self.rest(Some(blocker)).await?,
                Turn::Unsure(_) => self.rest(None).await?,
                // Only told to those who do not wait.
                Turn::Contended => return Err(Trouble::strange().into()),
            }
            turn = self.turn().await?;
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
        let put = shared.see_through(put::put(
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
        // Seen through: whether its caller is polled shows when there is an answer to be taken.
        let asked = shared.see_through({
            let (shared, txn) = (shared.clone(), self.wish.look(stand.revision));
            let answered = Answered(self.waiter.clone());
            async move {
                let _answered = answered;
                shared.txn(txn).await
            }
        });
        let answer = match asked.await {
            Ok(Ok(answer)) => answer,
            Err(_) => return Err(Trouble::unavailable("a look broke off")),
            Ok(Err(trouble)) if trouble.may_pass() => return Ok(Turn::Unsure(trouble)),
            Ok(Err(trouble)) => return Err(trouble),
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
                    News::Look => {
                        // The watch may have ended with this.
                        self.watching = None;
                        return Ok(());
                    }
                    News::Check => return Ok(()),
                    News::Show => {}
                    News::Replaced => return Err(Trouble::replaced().into()),
                },
                () = sleep_until(next) => return Ok(()),
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

/// Tells a waiter that its question is over, however that ends.
struct Answered(Arc<Waiter>);

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.answered();
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
