//! The connection to one member of the cluster at a time, replaced whenever it ends or does not
//! answer for a majority.

use std::{sync::Arc, time::Duration};

use etcd_client::ConnectOptions;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use super::{connection::Connection, trouble::Trouble};
use crate::clock::jittered;

/// How often the connection is tried, so that a silent one is noticed although nobody asks, and
/// the server does not forget who is authenticated (after five minutes, it does).
const BEAT: Duration = Duration::from_secs(2);

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Link {
    endpoints: Vec<String>,
    options: ConnectOptions,
    /// A key that the user may read.
    probe: String,
    /// For how long one answer is waited for.
    pub(super) patience: Duration,
    /// How long a caller waits for a connection, from when it was lost.
    budget: Duration,
    state: watch::Sender<State>,
}

#[derive(Clone, Debug)]
enum State {
    /// Nobody has tried yet.
    Fresh,
    Up(Arc<Connection>),
    Down {
        since: Instant,
        trouble: Trouble,
    },
}

impl Link {
    pub(super) fn new(
        endpoints: Vec<String>,
        options: ConnectOptions,
        probe: String,
        patience: Duration,
        budget: Duration,
    ) -> Self {
        let (state, _) = watch::channel(State::Fresh);
        Self {
            endpoints,
            options,
            probe,
            patience,
            budget,
            state,
        }
    }

    /// The connection, or why there is none: at once if that has been so for the operation
    /// timeout.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, Trouble> {
        let mut changes = self.state.subscribe();
        let from_now = Instant::now() + self.budget;
        loop {
            let (limit, trouble) = match &*changes.borrow_and_update() {
                State::Up(connection) if connection.is_trusted() => return Ok(connection.clone()),
                // Found out about at this moment.
                State::Up(_) => (from_now, Trouble::no_answer()),
                State::Fresh => (
                    from_now,
                    Trouble::unavailable("there is no connection to etcd yet"),
                ),
                State::Down { since, trouble } => (*since + self.budget, trouble.clone()),
            };
            match timeout_at(limit, changes.changed()).await {
                Ok(Ok(())) => {}
                _ => return Err(trouble),
            }
        }
    }

    /// Opens a connection to this member, by its place in the URL.
    pub(super) async fn open(&self, member: usize) -> Result<Connection, Trouble> {
        let endpoint = &self.endpoints[member % self.endpoints.len()];
        Connection::open(endpoint, self.options.clone(), self.patience, &self.probe).await
    }

    pub(super) fn members(&self) -> usize {
        self.endpoints.len()
    }

    /// Keeps a connection up, for as long as this future is polled.
    pub(super) async fn supervise(&self) {
        let _lowered = Lowered(self);
        let mut pause = FIRST_PAUSE;
        // Not all processes to the same member.
        let mut member = fastrand::usize(..self.endpoints.len());
        let mut failed = 0;
        let mut at_hand = None;
        loop {
            let opened = match at_hand.take() {
                Some(connection) => Ok(connection),
                None => self.open(member).await,
            };
            let connection = match opened {
                Ok(connection) => Arc::new(connection),
                Err(trouble) => {
                    self.down(trouble);
                    member += 1;
                    failed += 1;
                    // Another member may be well.
                    if failed % self.endpoints.len() == 0 {
                        sleep(jittered(pause)).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                    continue;
                }
            };
            pause = FIRST_PAUSE;
            failed = 0;
            self.state.send_replace(State::Up(connection.clone()));
            member += 1;
            at_hand = self.watch_over(&connection, member).await;
            connection.end();
            if at_hand.is_none() {
                self.down(Trouble::unavailable("the connection to etcd has ended"));
            }
        }
    }

    /// Returns when the connection has ended, or does not answer for a majority while one to the
    /// `next` member does: that one.
    async fn watch_over(&self, connection: &Arc<Connection>, next: usize) -> Option<Connection> {
        loop {
            let doubted = tokio::select! {
                () = connection.ended() => return None,
                () = connection.doubted() => true,
                () = sleep(jittered(BEAT)) => false,
            };
            let probe = connection.probe(&self.probe);
            let another = async {
                if !doubted {
                    // A member that is merely busy answers soon.
                    sleep(self.patience / 4).await;
                }
                self.open(next).await
            };
            tokio::pin!(probe, another);
            let probed = tokio::select! {
                biased;
                probed = &mut probe => probed,
                new = &mut another => match new {
                    Ok(new) => return Some(new),
                    Err(_) => probe.await,
                },
            };
            if probed.is_err() {
                return None;
            }
            if doubted {
                // Whoever waits for the verdict hears it.
                self.state.send_replace(State::Up(connection.clone()));
            }
        }
    }

    /// Keeps the time since when it is down.
    fn down(&self, trouble: Trouble) {
        self.state.send_modify(|state| {
            let since = match state {
                State::Down { since, .. } => *since,
                State::Fresh | State::Up(_) => Instant::now(),
            };
            *state = State::Down { since, trouble };
        });
    }
}

/// Takes the link down when nobody keeps it up any more.
struct Lowered<'a>(&'a Link);

impl Drop for Lowered<'_> {
    fn drop(&mut self) {
        self.0.down(Trouble::unavailable("the client is closed"));
    }
}
