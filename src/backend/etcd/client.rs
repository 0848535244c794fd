//! What one process has of a cluster: its connection, its leases, and the tasks that live with them,
//! all on the lock runtime.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use etcd_client::{Txn, TxnResponse};
use tokio::{
    runtime::Handle,
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    agenda::{self, Agenda},
    hub::{self, Hub},
    link::Link,
    room::Room,
    session::Sessions,
    trouble::Trouble,
    undo::{self, Undo},
};

/// For how long the end of a client gives its leases back.
const FAREWELL: Duration = Duration::from_secs(2);

/// What backends and leases hold on to. With the last of them the tasks end, after what is to be
/// undone has been undone.
pub(super) struct Client {
    pub(super) shared: Arc<Shared>,
    undos: mpsc::UnboundedSender<Undo>,
}

/// What the tasks have in common.
pub(super) struct Shared {
    pub(super) prefix: Box<str>,
    /// A key that nobody writes.
    pub(super) resident: String,
    /// How long all tries of a request may take.
    pub(super) budget: Duration,
    pub(super) link: Link,
    pub(super) room: Room,
    pub(super) sessions: Sessions,
    pub(super) hub: Hub,
    pub(super) agenda: Agenda,
    pub(super) lock_runtime: Handle,
    undos: mpsc::WeakUnboundedSender<Undo>,
    closed: CancellationToken,
}

impl Client {
    /// Starts the tasks on the lock runtime; they connect by themselves.
    pub(super) fn start(
        prefix: Box<str>,
        resident: String,
        budget: Duration,
        link: Link,
        lock_runtime: Handle,
    ) -> Arc<Self> {
        let (undos, undo_queue) = mpsc::unbounded_channel();
        let (hub, orders) = Hub::new();
        let shared = Arc::new(Shared {
            prefix,
            resident,
            budget,
            link,
            room: Room::default(),
            sessions: Sessions::default(),
            hub,
            agenda: Agenda::default(),
            lock_runtime: lock_runtime.clone(),
            undos: undos.downgrade(),
            closed: CancellationToken::new(),
        });
        shared.spawn({
            let shared = shared.clone();
            async move { shared.link.supervise().await }
        });
        shared.spawn(hub::listen(shared.clone(), orders));
        shared.spawn(agenda::keep(shared.clone()));
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
    /// Runs on the lock runtime until the client is closed.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let closed = self.closed.clone();
        self.lock_runtime.spawn(async move {
            closed.run_until_cancelled_owned(task).await;
        });
    }

    /// Runs on the lock runtime to its end, which it must have.
    pub(super) fn see_through<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.lock_runtime.spawn(task)
    }

    /// The answer to what may be done twice, also if it takes a second connection to get it.
    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnResponse, Trouble> {
        let started = Instant::now();
        loop {
            // Where there is none, the link has waited for as long as it should.
            let connection = self.link.connection().await?;
            match connection.txn(txn.clone()).await {
                Err(trouble)
                    if (trouble.elsewhere || !trouble.answered)
                        && started.elapsed() < self.budget => {}
                result => return result,
            }
        }
    }

    /// As [`Client::undo`]; nothing once the client is closed, when its leases end.
    pub(super) fn undo(&self, undo: Undo) {
        if let Some(undos) = self.undos.upgrade() {
            let _ = undos.send(undo);
        }
    }

    /// Gives the leases back, with all that a late request might still have put on them.
    pub(super) async fn close(&self) {
        let farewell = async {
            for session in self.sessions.all() {
                let Ok(connection) = self.link.connection().await else {
                    return;
                };
                // Else it runs out by itself.
                let _ = connection.revoke(session.id).await;
            }
        };
        let _ = timeout(FAREWELL, farewell).await;
        self.closed.cancel();
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
