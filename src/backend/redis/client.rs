//! What one process has of a server: its connections, and the tasks that live with them.

use std::{fmt, sync::Arc, time::Duration};

use redis::{Cmd, Value};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{
    acks::Acks,
    cluster::Cluster,
    course::Course,
    endpoint::Endpoint,
    names::Names,
    patrol,
    place::{Place, Source},
    renewals::{self, Renewal},
    room::Room,
    scripts::Script,
    slots,
    trouble::{Elsewhere, Trouble},
    undo::{self, Undo},
    url::Address,
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
    servers: Servers,
    pub(super) prefix: Box<str>,
    /// The channel of this process; in a Cluster, how those of its slots begin.
    pub(super) inbox: Arc<str>,
    /// How long an answer may take.
    pub(super) timeout: Duration,
    pub(super) room: Room,
    pub(super) lock_runtime: Handle,
    pub(super) acks: Acks,
    renewals: mpsc::UnboundedSender<Renewal>,
    pub(super) closed: CancellationToken,
}

enum Servers {
    One(Arc<Place>),
    Cluster(Box<Cluster>),
}

/// What a client is set up with.
pub(super) struct Settings {
    pub(super) servers: ServerSettings,
    pub(super) prefix: Box<str>,
    pub(super) inbox: Arc<str>,
    pub(super) timeout: Duration,
    pub(super) acks: Acks,
}

pub(super) enum ServerSettings {
    One(Source),
    Cluster(Box<Endpoint>, Vec<Address>),
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
            servers,
            prefix,
            inbox,
            timeout,
            acks,
        } = settings;
        let (undos, undo_queue) = mpsc::unbounded_channel();
        let (renewals, renewal_queue) = mpsc::unbounded_channel();
        let closed = CancellationToken::new();
        let servers = match servers {
            ServerSettings::One(source) => {
                Servers::One(Place::new(source, timeout, closed.child_token()))
            }
            ServerSettings::Cluster(endpoint, seeds) => {
                Servers::Cluster(Box::new(Cluster::new(*endpoint, seeds)))
            }
        };
        let shared = Arc::new(Shared {
            servers,
            prefix,
            inbox,
            timeout,
            room: Room::default(),
            lock_runtime: lock_runtime.clone(),
            acks,
            renewals,
            closed,
        });
        match &shared.servers {
            Servers::One(place) => place.start(&shared),
            Servers::Cluster(_) => shared.spawn(follow(shared.clone())),
        }
        shared.spawn(patrol::walk(shared.clone()));
        shared.spawn(renewals::renew_all(shared.clone(), renewal_queue));
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
        match &self.servers {
            Servers::One(_) => Names::new(&self.prefix, key, &self.inbox),
            Servers::Cluster(_) => Names::in_slot(&self.prefix, key, &self.inbox),
        }
    }

    pub(super) fn cluster(&self) -> Option<&Cluster> {
        match &self.servers {
            Servers::One(_) => None,
            Servers::Cluster(cluster) => Some(cluster),
        }
    }

    /// Whether another server takes over when one is gone.
    pub(super) fn fails_over(&self) -> bool {
        match &self.servers {
            Servers::One(place) => place.fails_over(),
            Servers::Cluster(_) => true,
        }
    }

    /// Where the key is.
    pub(super) fn place(&self, names: &Names) -> Result<Arc<Place>, Trouble> {
        match &self.servers {
            Servers::One(place) => Ok(place.clone()),
            Servers::Cluster(cluster) => cluster.place(names.slot.unwrap_or_default()),
        }
    }

    fn is_at(&self, names: &Names, place: &Arc<Place>) -> bool {
        match &self.servers {
            Servers::One(_) => true,
            Servers::Cluster(_) => self.place(names).is_ok_and(|at| Arc::ptr_eq(&at, place)),
        }
    }

    pub(super) fn places(&self) -> Vec<Arc<Place>> {
        match &self.servers {
            Servers::One(place) => vec![place.clone()],
            Servers::Cluster(cluster) => cluster.places(),
        }
    }

    /// A node of the Cluster.
    pub(super) fn place_at(self: &Arc<Self>, address: &Address) -> Result<Arc<Place>, Trouble> {
        match &self.servers {
            Servers::One(place) => Ok(place.clone()),
            Servers::Cluster(cluster) => cluster.place_at(self, address),
        }
    }

    /// What a server said of where something is.
    pub(super) fn learn(self: &Arc<Self>, elsewhere: &Elsewhere) {
        let Servers::Cluster(cluster) = &self.servers else {
            return;
        };
        match elsewhere {
            Elsewhere::Moved(slot, Some(address)) => cluster.moved(self, *slot, address),
            Elsewhere::Moved(_, None) | Elsewhere::Nowhere => cluster.look_again(),
            // The end of the move will tell.
            Elsewhere::AskAt(_) | Elsewhere::BeingMoved | Elsewhere::OtherMaster => {}
        }
    }

    /// Runs a script where its key is.
    pub(super) async fn run(
        self: &Arc<Self>,
        via: Via,
        names: &Names,
        script: &Script,
        call: impl Fn(&Script, bool) -> Cmd,
    ) -> Result<Value, Trouble> {
        let mut course = Course::new(self);
        loop {
            let (connection, asking) = course.connection(self, names, via).await?;
            match connection.run(asking, script, &call).await {
                Err(trouble) => course.after(self, trouble).await?,
                result => return result,
            }
        }
    }

    pub(super) fn renew(&self, renewal: Renewal) {
        if !self.acks.are_on() {
            // The task that takes them ends with the client.
            let _ = self.renewals.send(renewal);
            return;
        }
        match self.place(&renewal.lease.names) {
            Ok(place) => place.acknowledge(renewal),
            Err(trouble) => renewal.fails(trouble),
        }
    }

    fn renew_those(&self, which: impl Fn(&Names) -> bool) {
        for lease in self.room.holders() {
            if which(&lease.names) {
                // It tells its holder itself.
                let (done, _) = oneshot::channel();
                self.renew(Renewal::new(lease, done));
            }
        }
    }

    /// Renews whatever is held there, so that who holds it no more learns it at once.
    pub(super) fn renew_all(&self, place: &Arc<Place>) {
        self.renew_those(|names| self.is_at(names, place));
    }

    /// Messages of this place may have been missed.
    pub(super) fn gap_at(&self, place: &Arc<Place>) {
        match &self.servers {
            Servers::One(_) => self.room.gap(|_| true),
            Servers::Cluster(cluster) => self.room.gap(|lock| {
                let place_of = cluster.place(slots::slot(lock.as_bytes()));
                place_of.is_ok_and(|at| Arc::ptr_eq(&at, place))
            }),
        }
    }

    /// These slots are on another node now.
    pub(super) fn slots_moved(&self, which: &dyn Fn(u16) -> bool) {
        self.room.gap(|lock| which(slots::slot(lock.as_bytes())));
        self.renew_those(|names| names.slot.is_some_and(which));
    }

    /// Whether this process hears of the key.
    pub(super) fn hears(&self, names: &Names) -> bool {
        if names.slot.is_none() {
            // Its only channel is subscribed to with each connection.
            return true;
        }
        let connection = self
            .place(names)
            .ok()
            .and_then(|place| place.inbox_link.ready());
        connection.is_some_and(|connection| connection.hears(&names.inbox))
    }

    /// Makes sure of that, before anybody counts on it.
    pub(super) async fn hear(&self, names: &Names) -> Result<(), Trouble> {
        if names.slot.is_none() {
            return Ok(());
        }
        let connection = self.place(names)?.inbox_link.connection().await?;
        connection.hear(&names.inbox).await?;
        if connection.has_ended() {
            // A slot has moved, so that was the answer to another question.
            return Err(Trouble::ended());
        }
        Ok(())
    }

    /// Spawns what ends with the client, on the lock runtime.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        spawn_until(&self.closed, &self.lock_runtime, task);
    }

    /// Ends all tasks and connections.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }
}

async fn follow(shared: Arc<Shared>) {
    if let Servers::Cluster(cluster) = &shared.servers {
        cluster.follow(&shared).await;
    }
}

/// Spawns a task that is dropped when the token is cancelled.
pub(super) fn spawn_until(
    closed: &CancellationToken,
    runtime: &Handle,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let closed = closed.clone();
    runtime.spawn(async move {
        closed.run_until_cancelled(task).await;
    });
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}
