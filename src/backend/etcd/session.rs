//! Leases at the server, each shared by all locks of this process with the same ttl.
//!
//! # One for a ttl, not one for a lock, nor one for a process
//!
//! A lease of its own would cost each lock two more writes at the server, and one more round trip
//! before it is held. One lease for the process would give all its routes the ttl of one of them: a
//! holder of 5 s that dies would block its successor for 60 s, or a route of 60 s would be lost in
//! an outage of 6 s. Routes have few ttls, so a process has few leases, and after the first lock
//! with a ttl the others find their lease there.
//!
//! The server's lease is for the death of the process: it is kept alive for as long as anybody here
//! uses it. The end of a lock that nobody renews is kept by this process, which deletes its node.
//!
//! # Until when it is valid
//!
//! The server counts from when it processed the last keep-alive, which is after it was sent. So
//! here it ends at the send time of the last one that was acknowledged, plus its time, less a
//! margin for clocks that drift; a new leader starts all leases again in full, which is later. The
//! end is terminal, as is the server's word that there is no such lease: all who hold or wait on it
//! are told at once, and whoever asks next gets a new one.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{client::Shared, trouble::Trouble};
use crate::{
    clock::jittered,
    lease::{self, Loss},
    sync::lock,
};

/// For how long a lease that nobody uses is kept for the next one.
const IDLE: Duration = Duration::from_secs(60);
/// The longest that the server takes: 9 000 000 000 s; far beyond any ttl, and sums do not overflow.
pub(super) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// One lease at the server.
pub(super) struct Session {
    pub(super) id: i64,
    ttl: Duration,
    state: Mutex<State>,
    over: CancellationToken,
    /// One keep-alive at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// When the last acknowledged keep-alive was sent.
    sent: Instant,
    loss: Option<Loss>,
}

impl Session {
    pub(super) fn new(id: i64, ttl: Duration, sent: Instant) -> Self {
        Self {
            id,
            ttl,
            state: Mutex::new(State { sent, loss: None }),
            over: CancellationToken::new(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Until when it is valid, unless it is over before.
    pub(super) fn ends(&self) -> Instant {
        lease::valid_until(lock(&self.state).sent, self.ttl)
    }

    /// Why it is over.
    pub(super) fn loss(&self) -> Option<Loss> {
        lock(&self.state).loss
    }

    pub(super) fn is_valid(&self) -> bool {
        self.loss().is_none() && Instant::now() < self.ends()
    }

    /// An acknowledgement counts only while the session lives.
    fn extend(&self, sent: Instant) {
        let mut state = lock(&self.state);
        if state.loss.is_none() {
            state.sent = state.sent.max(sent);
        }
    }

    /// It is over, for this reason; all who hold or wait on it are told.
    pub(super) fn end(&self, shared: &Shared, loss: Loss) {
        {
            let mut state = lock(&self.state);
            if state.loss.is_some() {
                return;
            }
            state.loss = Some(loss);
        }
        self.over.cancel();
        shared.room.session_over(self, loss);
    }

    /// Has it kept alive by a request that was sent at this moment or later.
    pub(super) async fn refresh(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        since: Instant,
    ) -> Result<(), Trouble> {
        if self.is_fresh(since) {
            return Ok(());
        }
        // Seen through, so that others do not wait for a caller that nobody polls.
        let asked = shared.see_through({
            let (session, shared) = (self.clone(), shared.clone());
            async move {
                let _turn = session.turn.lock().await;
                if session.is_fresh(since) {
                    return Ok(());
                }
                session.ask(&shared).await
            }
        });
        asked
            .await
            .unwrap_or_else(|_| Err(Trouble::unavailable("a keep-alive broke off")))
    }

    fn is_fresh(&self, since: Instant) -> bool {
        lock(&self.state).sent >= since
    }

    async fn ask(&self, shared: &Shared) -> Result<(), Trouble> {
        if self.loss().is_some() {
            return Err(Trouble::lease_gone());
        }
        let connection = shared.link.connection().await?;
        let sent = Instant::now();
        match connection.keep_alive(self.id, self.ttl / 3).await {
            Ok(()) => {
                self.extend(sent);
                Ok(())
            }
            Err(trouble) => {
                if trouble.lease_gone {
                    self.end(shared, Loss::Revoked);
                }
                Err(trouble)
            }
        }
    }

    /// Returns when it has ended by this process's clock.
    async fn runs_out(&self) {
        loop {
            let end = self.ends();
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }

    /// Keeps it alive until nobody uses it any more, or it is over.
    async fn keep(self: Arc<Self>, shared: Arc<Shared>) {
        // With five sixths left, no lock looks old when it is granted.
        let beat = self.ttl / 6;
        let mut pause = beat;
        let mut idle_since = None;
        loop {
            tokio::select! {
                () = self.over.cancelled() => break,
                () = self.runs_out() => {
                    self.end(&shared, Loss::Expired);
                    break;
                }
                () = sleep(jittered(pause)) => {}
            }
            if shared.sessions.is_idle(&self) {
                let since: &mut Instant = idle_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= IDLE && shared.sessions.retire(&self) {
                    // Nobody is there to be told, or they are.
                    self.end(&shared, Loss::Revoked);
                    break;
                }
            } else {
                idle_since = None;
            }
            let kept = tokio::select! {
                kept = self.ask(&shared) => kept,
                () = self.runs_out() => continue,
            };
            pause = match kept {
                Ok(()) => beat,
                Err(_) => (beat / 4).min(Duration::from_millis(250)),
            };
        }
        // What is left of it at the server goes sooner; else it runs out by itself.
        if let Ok(connection) = shared.link.connection().await {
            let _ = connection.revoke(self.id).await;
        }
    }
}

/// The sessions of a process, by their seconds.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    slots: Mutex<HashMap<i64, Arc<Slot>>>,
}

#[derive(Debug, Default)]
struct Slot {
    session: Mutex<Option<Arc<Session>>>,
    /// One is opened at a time.
    opening: tokio::sync::Mutex<()>,
    /// When the last one could not be opened, and why: for all who waited for it.
    failed: Mutex<Option<(Instant, Trouble)>>,
}

impl Slot {
    fn session(&self) -> Option<Arc<Session>> {
        let session = lock(&self.session);
        session
            .as_ref()
            .filter(|session| session.is_valid())
            .cloned()
    }
}

impl Sessions {
    fn slot(&self, seconds: i64) -> Arc<Slot> {
        lock(&self.slots).entry(seconds).or_default().clone()
    }

    /// The session for locks of this ttl, opened if there is none.
    pub(super) async fn get(shared: &Arc<Shared>, ttl: Duration) -> Result<Arc<Session>, Trouble> {
        // The server counts seconds; rounded up, so that it never ends before the lock does.
        let seconds = ttl.as_nanos().div_ceil(1_000_000_000).max(1) as i64;
        let slot = shared.sessions.slot(seconds);
        if let Some(session) = slot.session() {
            return Ok(session);
        }
        // On the lock runtime, so that a caller who leaves leaves no lease without a keeper.
        let asked = Instant::now();
        let opening = shared.see_through({
            let shared = shared.clone();
            async move {
                let _opening = slot.opening.lock().await;
                if let Some(session) = slot.session() {
                    return Ok(session);
                }
                if let Some((at, trouble)) = &*lock(&slot.failed)
                    && *at >= asked
                {
                    return Err(trouble.clone());
                }
                match open(&shared, seconds).await {
                    Ok(session) => {
                        *lock(&slot.session) = Some(session.clone());
                        shared.spawn(session.clone().keep(shared.clone()));
                        Ok(session)
                    }
                    Err(trouble) => {
                        *lock(&slot.failed) = Some((Instant::now(), trouble.clone()));
                        Err(trouble)
                    }
                }
            }
        });
        opening
            .await
            .unwrap_or_else(|_| Err(Trouble::unavailable("opening a lease broke off")))
    }

    /// Whether nobody has it but its keeper and its slot. Whoever gets one gets it from the slot.
    fn is_idle(&self, session: &Arc<Session>) -> bool {
        Arc::strong_count(session) <= 2
    }

    /// Takes a session that nobody uses out of its slot.
    fn retire(&self, session: &Arc<Session>) -> bool {
        // Under this lock nobody gets at the slot.
        let mut slots = lock(&self.slots);
        let is_its = |slot: &Slot| {
            let current = lock(&slot.session);
            current.as_ref().is_some_and(|s| Arc::ptr_eq(s, session))
        };
        let Some((&seconds, slot)) = slots.iter().find(|(_, slot)| is_its(slot)) else {
            return false;
        };
        // Somebody may be about to take it.
        if Arc::strong_count(slot) > 1 || !self.is_idle(session) {
            return false;
        }
        slots.remove(&seconds);
        true
    }

    /// All that live.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        let slots = lock(&self.slots);
        slots.values().filter_map(|slot| slot.session()).collect()
    }
}

/// A lease whose number is lost with the answer ends by itself.
async fn open(shared: &Shared, seconds: i64) -> Result<Arc<Session>, Trouble> {
    let started = Instant::now();
    loop {
        let connection = shared.link.connection().await?;
        let sent = Instant::now();
        match connection.grant(seconds).await {
            Ok((id, granted)) => {
                let granted = u64::try_from(granted).map_err(|_| Trouble::strange())?;
                return Ok(Arc::new(Session::new(
                    id,
                    Duration::from_secs(granted),
                    sent,
                )));
            }
            Err(trouble)
                if (trouble.elsewhere || !trouble.answered)
                    && started.elapsed() < shared.budget => {}
            Err(trouble) => return Err(trouble),
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("ttl", &self.ttl)
            .field("loss", &self.loss())
            .finish_non_exhaustive()
    }
}
