//! What one process has of a server: its connections, and the tasks that live with them.

use std::{
    fmt,
    sync::{Arc, RwLock},
    time::Duration,
};

use redis::PushInfo;
use tokio::{
    runtime::{Handle, Id},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::Connection,
    inbox,
    link::Link,
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
    lock_runtime: Handle,
    /// A connection for each runtime that acquires: an answer that crosses threads takes twice as
    /// long. They carry nothing that has to go on while that runtime is blocked.
    near: RwLock<Vec<(Id, Arc<Link>)>>,
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
            near: RwLock::default(),
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

    /// The connection to ask over from here: that of this runtime, or the lock runtime's while
    /// there is none.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, Trouble> {
        if let Some(near) = self.shared.near() {
            return Ok(near);
        }
        self.shared.lock_link.connection().await
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
    fn spawn_on(
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

    fn near(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        if id == self.lock_runtime.id() {
            return None;
        }
        {
            let near = self.near.read().unwrap_or_else(|e| e.into_inner());
            if let Some((_, link)) = near.iter().find(|(known, _)| *known == id) {
                return link.ready();
            }
        }
        self.settle_on(&runtime, id);
        None
    }

    /// Connects from this runtime too, so that the first requests need not cross threads.
    pub(super) async fn settle(self: &Arc<Self>) -> Result<(), Trouble> {
        if self.near().is_some() {
            return Ok(());
        }
        let Ok(here) = Handle::try_current().map(|runtime| runtime.id()) else {
            return Ok(());
        };
        let link = {
            let near = self.near.read().unwrap_or_else(|e| e.into_inner());
            near.iter()
                .find(|(id, _)| *id == here)
                .map(|(_, link)| link.clone())
        };
        match link {
            Some(link) => link.connection().await.map(drop),
            None => Ok(()),
        }
    }

    /// Begins to connect from this runtime too, until the runtime ends.
    fn settle_on(self: &Arc<Self>, runtime: &Handle, id: Id) {
        let mut near = self.near.write().unwrap_or_else(|e| e.into_inner());
        if near.iter().any(|(known, _)| *known == id) {
            return;
        }
        let link = Arc::new(Link::new(self.timeout));
        near.push((id, link.clone()));
        drop(near);
        let settled = Settled {
            shared: self.clone(),
            id,
        };
        self.spawn_on(runtime, async move {
            let shared = &settled.shared;
            link.supervise(|| shared.open(|_| {}), || async {}).await;
        });
    }
}

/// A runtime that has a connection; dropped with it.
struct Settled {
    shared: Arc<Shared>,
    id: Id,
}

impl Drop for Settled {
    fn drop(&mut self) {
        let mut near = self.shared.near.write().unwrap_or_else(|e| e.into_inner());
        near.retain(|(id, _)| *id != self.id);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
