//! What one process has of a server: its connections, and the tasks that live with them.

use std::{fmt, sync::Arc, time::Duration};

use redis::{Cmd, Value};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    acks::Acks,
    names::Names,
    patrol,
    place::{Place, Source},
    renewals::{self, Renewal},
    room::Room,
    scripts::Script,
    trouble::Trouble,
    undo::{self, Undo},
};
use crate::key::LockKey;

/// What backends and leases hold on to. With the last of them the tasks end, after what is to be
/// undone has been undone.
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
    undos: mpsc::UnboundedSender<Undo>,
}

/// What the tasks have in common.
pub(super) struct Shared {
    place: Arc<Place>,
    pub(super) prefix: Box<str>,
    /// The channel of this process.
    pub(super) inbox: Box<str>,
    /// How long an answer may take.
    pub(super) timeout: Duration,
    pub(super) room: Room,
    pub(super) lock_runtime: Handle,
    pub(super) acks: Acks,
    renewals: mpsc::UnboundedSender<Renewal>,
    closed: CancellationToken,
}

/// What a client is set up with.
pub(super) struct Settings {
    pub(super) source: Source,
    pub(super) prefix: Box<str>,
    pub(super) inbox: Box<str>,
    pub(super) timeout: Duration,
    pub(super) acks: Acks,
}

/// Over whose connection something is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Via {
    /// That of the runtime that asks, where it has one.
    Near,
    /// The lock runtime's.
    Lock,
}

impl Client {
    /// Starts the tasks on the lock runtime; they connect by themselves.
    pub(super) fn start(settings: Settings, lock_runtime: Handle) -> Arc<Self> {
        let Settings {
            source,
            prefix,
            inbox,
            timeout,
            acks,
        } = settings;
        let (undos, undo_queue) = mpsc::unbounded_channel();
        let (renewals, renewal_queue) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            place: Place::new(source, timeout),
            prefix,
            inbox,
            timeout,
            room: Room::default(),
            lock_runtime: lock_runtime.clone(),
            acks,
            renewals,
            closed: CancellationToken::new(),
        });
        shared.place.start(&shared);
        shared.spawn_on(&lock_runtime, patrol::walk(shared.clone()));
        shared.spawn_on(
            &lock_runtime,
            renewals::renew_all(shared.clone(), renewal_queue),
        );
        // Not cut off at the end: it ends the others.
        lock_runtime.spawn(undo::undo_all(shared.clone(), undo_queue));
        Arc::new(Self { shared, undos })
    }

    /// Hands over what has to be undone, from anywhere: it neither waits nor fails.
    pub(super) fn undo(&self, undo: Undo) {
        // The other end outlives every sender.
        let _ = self.undos.send(undo);
    }
}

impl Shared {
    pub(super) fn names(&self, key: &LockKey) -> Names {
        Names::new(&self.prefix, key)
    }

    /// Where the key is.
    pub(super) fn place(&self, _names: &Names) -> &Arc<Place> {
        &self.place
    }

    pub(super) fn places(&self) -> impl Iterator<Item = &Arc<Place>> {
        std::iter::once(&self.place)
    }

    /// Runs a script where its key is. What is refused there because the role has moved did not
    /// run, so it is sent on for as long as an answer may take.
    pub(super) async fn run(
        self: &Arc<Self>,
        via: Via,
        names: &Names,
        script: &Script,
        call: impl Fn(&Script, bool) -> Cmd,
    ) -> Result<Value, Trouble> {
        let started = Instant::now();
        loop {
            let connection = match via {
                Via::Near => self.connection(names).await?,
                Via::Lock => self.place(names).lock_link.connection().await?,
            };
            match connection.run(script, &call).await {
                Err(trouble) if trouble.is_elsewhere() && started.elapsed() < self.timeout => {}
                result => return result,
            }
        }
    }

    pub(super) fn renew(&self, renewal: Renewal) {
        let place = self.place(&renewal.lease.names);
        if let Some(renewal) = place.renew(renewal) {
            // The task that takes them ends with the client.
            let _ = self.renewals.send(renewal);
        }
    }

    /// Renews whatever is held there, so that who holds it no more learns it at once.
    pub(super) fn renew_all(&self, _place: &Place) {
        for lease in self.room.holders() {
            // It tells its holder itself.
            let (done, _) = oneshot::channel();
            self.renew(Renewal { lease, done });
        }
    }

    /// Spawns what ends with the client.
    pub(super) fn spawn_on(
        self: &Arc<Self>,
        runtime: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let closed = self.closed.clone();
        runtime.spawn(async move {
            closed.run_until_cancelled(task).await;
        });
    }

    /// Ends all tasks and connections.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
