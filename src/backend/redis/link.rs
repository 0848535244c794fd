//! A connection that is opened again whenever it ends.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

use super::{connection::Connection, trouble::Trouble};
use crate::clock::jittered;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(in crate::backend) struct Link {
    state: RwLock<State>,
    /// Wakes those who wait for a connection in the order in which they came.
    changed: Notify,
    /// How long a caller waits for a connection, from when it was lost.
    patience: Duration,
}

#[derive(Clone, Debug)]
enum State {
    Up(Arc<Connection>),
    /// There is one, to be used in a moment.
    Opening {
        since: Instant,
    },
    Down {
        since: Instant,
        trouble: Trouble,
    },
    /// For good.
    Closed,
}

/// How a link stands right now.
pub(super) enum Standing {
    Up(Arc<Connection>),
    Opening,
    Down,
}

impl Link {
    pub(in crate::backend) fn new(patience: Duration) -> Self {
        let state = State::Down {
            since: Instant::now(),
            trouble: Trouble::unavailable("there is no connection to Redis yet"),
        };
        Self {
            state: RwLock::new(state),
            changed: Notify::new(),
            patience,
        }
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_waiters();
    }

    pub(super) fn standing(&self) -> Standing {
        match &*self.state() {
            State::Up(connection) if !connection.has_ended() => Standing::Up(connection.clone()),
            State::Opening { .. } => Standing::Opening,
            State::Up(_) | State::Down { .. } | State::Closed => Standing::Down,
        }
    }

    /// The connection, if there is one right now.
    pub(in crate::backend) fn ready(&self) -> Option<Arc<Connection>> {
        match self.standing() {
            Standing::Up(connection) => Some(connection),
            Standing::Opening | Standing::Down => None,
        }
    }

    /// The connection, or why there is none: at once if that has been so for the operation
    /// timeout.
    pub(in crate::backend) async fn connection(&self) -> Result<Arc<Connection>, Trouble> {
        if let Some(connection) = self.ready() {
            return Ok(connection);
        }
        let from_now = Instant::now() + self.patience;
        loop {
            // Registered before the look, so that no change is missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            let (limit, trouble) = match &*self.state() {
                State::Up(connection) if !connection.has_ended() => return Ok(connection.clone()),
                State::Up(_) => (from_now, Trouble::ended()),
                State::Opening { .. } => (
                    from_now,
                    Trouble::unavailable("the connection to Redis is not ready yet"),
                ),
                State::Down { since, trouble } => (*since + self.patience, trouble.clone()),
                // Of a Cluster's node that has no slot any more: the key is elsewhere by now.
                State::Closed => return Err(Trouble::nowhere()),
            };
            if timeout_at(limit, changed).await.is_err() {
                return Err(trouble);
            }
        }
    }

    /// Whether it has been down for so long that callers are refused at once.
    pub(in crate::backend) fn is_given_up(&self) -> bool {
        match &*self.state() {
            State::Up(_) => false,
            State::Closed => true,
            State::Opening { since } | State::Down { since, .. } => {
                since.elapsed() >= self.patience
            }
        }
    }

    /// Keeps the connection up, for as long as this future is polled. `open` opens one, and
    /// `opened` is told of each before anybody else has it.
    ///
    /// A new one is handed out only when nothing that was sent over the one before can run any
    /// more, so that an owner may ask again.
    pub(in crate::backend) async fn supervise<O, F>(
        &self,
        open: impl Fn() -> O,
        opened: impl Fn() -> F,
    ) where
        O: Future<Output = Result<Connection, Trouble>>,
        F: Future<Output = ()>,
    {
        let _lowered = Lowered(self);
        let mut before: Option<Arc<Connection>> = None;
        let mut pause = FIRST_PAUSE;
        let mut at_hand = None;
        loop {
            let attempt = match at_hand.take() {
                Some(connection) => Ok(connection),
                None => open().await,
            };
            let connection = match attempt {
                Ok(connection) => Arc::new(connection),
                Err(trouble) => {
                    self.down(trouble);
                    sleep(jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            };
            if let Some(before) = &before
                && let Err(trouble) = before.retire(&connection).await
            {
                self.down(trouble);
                sleep(jittered(pause)).await;
                continue;
            }
            // With this it is closed on our side too.
            drop(before.take());
            self.opening();
            opened().await;
            pause = FIRST_PAUSE;
            self.change(|state| *state = State::Up(connection.clone()));
            at_hand = watch_over(&connection, &open).await;
            connection.end();
            self.down(Trouble::ended());
            before = Some(connection);
        }
    }

    /// Keeps the time since when it is down.
    fn down(&self, trouble: Trouble) {
        self.change(|state| {
            let since = match state {
                State::Opening { since } | State::Down { since, .. } => *since,
                State::Up(_) | State::Closed => Instant::now(),
            };
            *state = State::Down { since, trouble };
        });
    }

    fn opening(&self) {
        self.change(|state| {
            if let State::Down { since, .. } = state {
                *state = State::Opening { since: *since };
            }
        });
    }
}

/// Takes the link down when nobody keeps it up any more. The inbox's connection knows the client
/// that has this link: left in it, both would live for ever.
struct Lowered<'a>(&'a Link);

impl Drop for Lowered<'_> {
    fn drop(&mut self) {
        self.0.change(|state| *state = State::Closed);
    }
}

/// Returns when the connection has ended, or does not answer while a new one does: that one.
async fn watch_over<O>(connection: &Connection, open: &impl Fn() -> O) -> Option<Connection>
where
    O: Future<Output = Result<Connection, Trouble>>,
{
    loop {
        tokio::select! {
            biased;
            () = connection.ended() => return None,
            () = connection.doubted() => {}
        }
        // A server that is merely slow answers on the old connection first, or on none.
        let ping = connection.ping();
        let another = open();
        tokio::pin!(ping, another);
        tokio::select! {
            biased;
            () = connection.ended() => return None,
            pong = &mut ping => if pong.is_err() { return None },
            new = &mut another => match new {
                Ok(new) => return Some(new),
                Err(_) => if ping.await.is_err() { return None },
            },
        }
    }
}
