//! What one process has of a server: its connections, and the tasks that live with them.

use std::{fmt, sync::Arc, time::Duration};

use redis::PushInfo;
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    connection::Connection,
    inbox,
    link::Link,
    near::Nears,
    patrol,
    renewals::{self, Renewal},
    room::Room,
    trouble::Trouble,
    undo::{self, Undo},
};

/// What backends and leases hold on to. With the last of them the tasks end, after what is to be
/// undone has been undone.
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
    undos: mpsc::UnboundedSender<Undo>,
    renewals: mpsc::UnboundedSender<Renewal>,
}

/// What the tasks have in common.
pub(super) struct Shared {
    pub(super) redis: redis::Client,
    pub(super) prefix: Box<str>,
    /// The channel of this process.
    pub(super) inbox: Box<str>,
    /// How long an answer may take.
    pub(super) timeout: Duration,
    pub(super) room: Room,
    /// The connection of the lock runtime: renewals, undo, looks.
    pub(super) lock_link: Link,
    pub(super) inbox_link: Link,
    pub(super) lock_runtime: Handle,
    pub(super) nears: Nears,
    closed: CancellationToken,
}

impl Client {
    /// Starts the tasks on the lock runtime; they connect by themselves.
    pub(super) fn start(
        redis: redis::Client,
        prefix: Box<str>,
        inbox: Box<str>,
        timeout: Duration,
        lock_runtime: Handle,
    ) -> Arc<Self> {
        let shared = Arc::new(Shared {
            redis,
            prefix,
            inbox,
            timeout,
            room: Room::default(),
            lock_link: Link::new(timeout),
            inbox_link: Link::new(timeout),
            lock_runtime: lock_runtime.clone(),
            nears: Nears::default(),
            closed: CancellationToken::new(),
        });
        let (undos, undo_queue) = mpsc::unbounded_channel();
        let (renewals, renewal_queue) = mpsc::unbounded_channel();
        shared.spawn_on(&lock_runtime, {
            let shared = shared.clone();
            async move {
                let open = || shared.open(|_| {});
                shared.lock_link.supervise(open, || async {}).await;
            }
        });
        shared.spawn_on(&lock_runtime, inbox::listen(shared.clone()));
        shared.spawn_on(&lock_runtime, patrol::walk(shared.clone()));
        shared.spawn_on(
            &lock_runtime,
            renewals::renew_all(shared.clone(), renewal_queue),
        );
        // Not cut off at the end: it ends the others.
        lock_runtime.spawn(undo::undo_all(shared.clone(), undo_queue));
        Arc::new(Self {
            shared,
            undos,
            renewals,
        })
    }

    /// Hands over what has to be undone, from anywhere: it neither waits nor fails.
    pub(super) fn undo(&self, undo: Undo) {
        // The other end outlives every sender.
        let _ = self.undos.send(undo);
    }

    pub(super) fn renew(&self, renewal: Renewal) {
        let _ = self.renewals.send(renewal);
    }
}

impl Shared {
    pub(super) async fn open(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Connection, Trouble> {
        Connection::open(&self.redis, self.timeout, on_push).await
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
