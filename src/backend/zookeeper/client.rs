//! What one process has of the servers: a session at a time, and the tasks that live with it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    config::Config,
    ends::{self, Ends},
    patrol,
    place::Loads,
    room::{Entered, Room},
    seek,
    session::Session,
    sweep,
    trouble::Trouble,
};
use crate::clock::jittered;
use crate::{backend::AcquireRequest, sync::lock};

/// How long undoing goes on after the last backend, wait and lease were dropped. Then the session is
/// closed, which leaves nothing either.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// What backends and leases hold on to. With the last of them the session is closed.
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
}

/// What the tasks have in common.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) room: Room,
    /// When records end that this process knows of.
    pub(super) ends: Ends,
    pub(super) runtime: Handle,
    session: watch::Sender<Option<Arc<Session>>>,
    /// Why there is no session.
    trouble: Mutex<Option<Trouble>>,
    closing: CancellationToken,
}

impl Client {
    /// Starts the tasks on the lock runtime, with a session that is open.
    pub(super) fn start(config: Config, session: Session, runtime: Handle) -> Arc<Self> {
        let session = Arc::new(session);
        let shared = Arc::new(Shared {
            config,
            room: Room::default(),
            ends: Ends::default(),
            runtime: runtime.clone(),
            session: watch::Sender::new(Some(session.clone())),
            trouble: Mutex::default(),
            closing: CancellationToken::new(),
        });
        runtime.spawn(supervise(shared.clone(), session));
        runtime.spawn(sweep::walk(shared.clone()));
        runtime.spawn(ends::walk(shared.clone()));
        runtime.spawn(patrol::walk(shared.clone()));
        Arc::new(Self { shared })
    }

    /// Enters an owner that asks for a key. Who is new gets a task of its own.
    pub(super) fn enter(
        &self,
        request: &AcquireRequest,
        patient: bool,
        loads: Option<Loads>,
    ) -> Entered {
        let entered = self.shared.room.enter(request, patient, loads);
        if let Entered::New(place) = &entered {
            let task = seek::run(self.shared.clone(), place.clone());
            self.shared.runtime.spawn(task);
        }
        entered
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.closing.cancel();
    }
}

impl Shared {
    /// The session, waited for as long as an answer may take.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Trouble> {
        let limit = self.config.timeout;
        let mut sessions = self.session.subscribe();
        let usable = |session: &Option<Arc<Session>>| {
            session.as_ref().is_some_and(|session| !session.is_over())
        };
        let session = match timeout(limit, sessions.wait_for(usable)).await {
            Ok(Ok(session)) => session.clone(),
            _ => None,
        };
        match session {
            // What is asked would only wait for its end.
            Some(session) if session.is_away_for(limit) => Err(Trouble::no_connection()),
            Some(session) => Ok(session),
            None => Err(lock(&self.trouble)
                .clone()
                .unwrap_or_else(Trouble::no_connection)),
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Resolves when nobody is left who could ask.
    pub(super) async fn closing(&self) {
        self.closing.cancelled().await;
    }
}

/// Keeps one session after the other.
async fn supervise(shared: Arc<Shared>, mut session: Arc<Session>) {
    loop {
        tokio::select! {
            () = session.live(&shared.config) => {}
            () = shared.closing() => {
                let done = async {
                    shared.room.empty().await;
                    sweep::all(&shared, &session).await;
                };
                let _ = timeout(AFTERWARDS, done).await;
                session.end();
                return;
            }
        }
        session.end();
        tracing::warn!(
            target: "tower_lock",
            "the session with ZooKeeper has ended: what was held in it is lost"
        );
        shared.session.send_replace(None);
        session = tokio::select! {
            session = open_again(&shared) => session,
            () = shared.closing() => return,
        };
        tracing::info!(target: "tower_lock", "there is a new session with ZooKeeper");
        shared.session.send_replace(Some(session.clone()));
    }
}

async fn open_again(shared: &Shared) -> Arc<Session> {
    let mut pause = Duration::from_millis(10);
    loop {
        let begun = Instant::now();
        match Session::open(&shared.config).await {
            Ok(session) => {
                // The next outage has reasons of its own.
                *lock(&shared.trouble) = None;
                return Arc::new(session);
            }
            Err(trouble) => *lock(&shared.trouble) = Some(trouble),
        }
        // The library has tried all servers, for a while.
        if begun.elapsed() < Duration::from_secs(1) {
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}
