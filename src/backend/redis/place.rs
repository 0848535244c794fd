//! A server by its role, with this process's connections to it. Where the role moves to another
//! server, they all follow.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use redis::PushInfo;
use tokio::{runtime::Handle, sync::mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    acks,
    client::{Shared, spawn_until},
    connection::Connection,
    inbox,
    link::Link,
    near::Nears,
    renewals::Renewal,
    sentinel::Sentinels,
    trouble::Trouble,
};

pub(super) struct Place {
    source: Source,
    /// The connection of the lock runtime: renewals, undo, looks.
    pub(super) lock_link: Link,
    pub(super) inbox_link: Link,
    /// Where grants and renewals are acknowledged, if they are.
    pub(super) ack_link: Link,
    acks: OnceLock<mpsc::UnboundedSender<Renewal>>,
    pub(super) nears: Nears,
    /// Ends its tasks, and with them its connections.
    pub(super) closed: CancellationToken,
}

/// Where connections are opened.
pub(super) enum Source {
    /// Always there.
    Fixed(Box<redis::Client>),
    /// Where Sentinels say that the master is.
    Master(Arc<Sentinels>),
    #[cfg(test)]
    Simulated(super::sim::Dialer),
}

impl Source {
    /// A connection to a server that takes writes.
    pub(super) async fn open(
        &self,
        limit: Duration,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
        lock_runtime: &Handle,
    ) -> Result<Connection, Trouble> {
        let connection = match self {
            Self::Fixed(client) => Connection::open(client, limit, on_push).await?,
            Self::Master(sentinels) => {
                return sentinels.open_master(limit, on_push, lock_runtime).await;
            }
            #[cfg(test)]
            Self::Simulated(dialer) => {
                Connection::open_by(|config| dialer.dial(config), limit, on_push).await?
            }
        };
        if connection.server().is_replica {
            return Err(Trouble::misconfigured(
                "this Redis server is a read-only replica: connect to its master",
            ));
        }
        Ok(connection)
    }
}

impl Place {
    pub(super) fn new(source: Source, patience: Duration, closed: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            closed,
            source,
            lock_link: Link::new(patience),
            inbox_link: Link::new(patience),
            ack_link: Link::new(patience),
            acks: OnceLock::new(),
            nears: Nears::default(),
        })
    }

    pub(super) fn fails_over(&self) -> bool {
        matches!(self.source, Source::Master(_))
    }

    pub(super) async fn open(
        &self,
        shared: &Shared,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Connection, Trouble> {
        let lock_runtime = &shared.lock_runtime;
        self.source
            .open(shared.timeout, on_push, lock_runtime)
            .await
    }

    /// Starts what keeps its connections up, on the lock runtime.
    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>) {
        if let Source::Master(sentinels) = &self.source {
            sentinels.start(shared);
        }
        let spawn = |task: Pin<Box<dyn Future<Output = ()> + Send>>| {
            spawn_until(&self.closed, &shared.lock_runtime, task);
        };
        let here = || (shared.clone(), self.clone());
        let (shared, place) = here();
        spawn(Box::pin(async move {
            let open = || place.open(&shared, |_| {});
            // A server that is another now, or was restarted, may not know who holds.
            let opened = async || shared.renew_all(&place);
            place.lock_link.supervise(open, opened).await;
        }));
        let (shared, place) = here();
        spawn(Box::pin(inbox::listen(shared, place)));
        let (shared, place) = here();
        if shared.acks.are_on() {
            let (acks, queue) = mpsc::unbounded_channel();
            let _ = self.acks.set(acks);
            spawn(Box::pin(acks::renew_all(shared, place, queue)));
            let (shared, place) = here();
            spawn(Box::pin(async move {
                let open = || place.open(&shared, |_| {});
                place.ack_link.supervise(open, || async {}).await;
            }));
        }
    }

    /// It has no role any more.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    /// Renews a lease with acknowledgements.
    pub(super) fn acknowledge(&self, renewal: Renewal) {
        let unsent = match self.acks.get() {
            Some(acks) => acks.send(renewal).err().map(|unsent| unsent.0),
            None => Some(renewal),
        };
        if let Some(renewal) = unsent {
            // It has just lost its last slot.
            renewal.fails(Trouble::nowhere());
        }
    }
}
