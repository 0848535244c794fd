//! The one stream of watches of a process, over which the server tells that nodes are gone.
//!
//! # No gap
//!
//! A waiter watches the node before it from *now* on: the server tells of such a watch at once,
//! while one that starts in the past is told of with the others of its kind, ten times a second. It
//! says at which revision the watch began. If that is the one of the read which saw the node, there
//! is no gap; if not, something was written since, and the waiter looks once more, behind the
//! beginning of its watch.
//!
//! A stream that ends, with its connection or because its member lost the leader, is opened again over
//! the next connection, with every watch from the revision behind that read: the server delivers what
//! happened since. So does it for holders, who are watched from their grant on. Revisions that the
//! server has compacted meanwhile cannot be watched: whoever waited reads again instead.
//!
//! Several that wait for the same node share its watch. Whoever joins it compares its beginning with
//! the own read, as if it had been begun for this one: where the beginning is later, it looks.
//!
//! A record is watched in the same way by those who wait for it, but for what is written to it, and
//! without its past when a stream is opened again: they all look once then.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use etcd_client::{EventType, WatchOptions, WatchRequestSender, WatchResponse};
use tokio::{sync::mpsc, time::sleep};

use super::{
    client::Shared,
    connection::Connection,
    record::Kept,
    watches::{Of, Order, Request, Target, Watches},
};
use crate::clock::jittered;

/// The watch that is always there, of a key that nobody writes: a server counts pings on a
/// connection without a stream as an attack.
const RESIDENT: i64 = i64::MAX;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The other end of the stream, for everybody.
#[derive(Debug)]
pub(super) struct Hub {
    orders: mpsc::UnboundedSender<Order>,
    next: AtomicU64,
}

/// A place among those who are told of a node; given up with this.
#[derive(Debug)]
pub(super) struct Watching {
    orders: mpsc::UnboundedSender<Order>,
    ticket: u64,
    of: Of,
}

impl Hub {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (orders, queue) = mpsc::unbounded_channel();
        let next = AtomicU64::new(0);
        (Self { orders, next }, queue)
    }

    /// Has somebody told when this node is gone, which a read of the revision before `from` saw.
    pub(super) fn watch(&self, node: Arc<str>, from: i64, target: Target) -> Watching {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let by_holder = matches!(target, Target::Holder(_));
        let of = Of { node, by_holder };
        // Without the other end the client is closed, and whoever waits ends by its own time.
        let _ = self.orders.send(Order::Watch {
            ticket,
            of: of.clone(),
            from,
            target,
        });
        Watching {
            orders: self.orders.clone(),
            ticket,
            of,
        }
    }
}

impl Watching {
    pub(super) fn is_of(&self, node: &str) -> bool {
        *self.of.node == *node
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Leave {
            ticket: self.ticket,
            of: self.of.clone(),
        });
    }
}

/// What there is to be told of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    /// It may have gone before it was watched.
    Begun,
    Written,
    Deleted,
    /// Nothing will be told of it any more.
    Unknown,
}

/// Keeps the stream open for as long as it is polled, and tells who is to be told.
pub(super) async fn listen(shared: Arc<Shared>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut watches = Watches::default();
    let mut pause = FIRST_PAUSE;
    loop {
        // Without a connection there is nothing to do but to note what is to be watched.
        let connection = loop {
            tokio::select! {
                connection = shared.link.connection() => match connection {
                    Ok(connection) => break connection,
                    Err(_) => sleep(Duration::from_millis(100)).await,
                },
                order = orders.recv() => match order {
                    // What there is to be asked, is asked over the next stream.
                    Some(order) => drop(take(&shared, &mut watches, order)),
                    None => return,
                },
            }
        };
        let was_open = run(&shared, &connection, &mut watches, &mut orders).await;
        if !connection.has_ended() {
            // The member refuses a stream that it gave before: it has no leader, or wants a new
            // authentication.
            connection.end();
        }
        // Where streams are refused over and over, as to a user who may not watch any more.
        pause = match was_open {
            true => FIRST_PAUSE,
            false => (pause * 2).min(LONGEST_PAUSE),
        };
        sleep(jittered(pause)).await;
    }
}

/// One stream, until it ends; whether it was open.
async fn run(
    shared: &Arc<Shared>,
    connection: &Connection,
    watches: &mut Watches,
    orders: &mut mpsc::UnboundedReceiver<Order>,
) -> bool {
    let options = WatchOptions::new().with_watch_id(RESIDENT);
    let Ok(stream) = connection.watch(&shared.resident, options).await else {
        return false;
    };
    let mut was_open = false;
    let (mut requests, mut answers) = stream.split();
    let (send, mut queue) = mpsc::unbounded_channel();
    for request in watches.all() {
        let _ = send.send(request);
    }
    // Apart from what reads: a server that waits for its answers to be read takes no requests.
    let sending = async {
        while let Some(request) = queue.recv().await {
            if send_request(&mut requests, request).await.is_err() {
                return;
            }
        }
        std::future::pending().await
    };
    let receiving = async {
        loop {
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => {
                        if !heard(shared, watches, &send, &answer) {
                            return;
                        }
                        was_open = true;
                    }
                    Ok(None) | Err(_) => return,
                },
                order = orders.recv() => match order {
                    Some(order) => {
                        if let Some(request) = take(shared, watches, order) {
                            let _ = send.send(request);
                        }
                    }
                    None => return,
                },
                () = connection.ended() => return,
            }
        }
    };
    tokio::select! {
        () = sending => {}
        () = receiving => {}
    }
    was_open
}

async fn send_request(
    requests: &mut WatchRequestSender,
    request: Request,
) -> Result<(), etcd_client::Error> {
    match request {
        Request::Create { id, node, from } => {
            let options = WatchOptions::new()
                .with_watch_id(id)
                .with_start_revision(from)
                // Several large records in one answer would be more than the client takes.
                .with_fragment();
            requests.watch(&*node, Some(options)).await
        }
        Request::Cancel { id } => requests.cancel(id).await,
    }
}

fn take(shared: &Arc<Shared>, watches: &mut Watches, order: Order) -> Option<Request> {
    let taken = watches.take(order);
    if let Some(target) = taken.looks {
        tell(shared, target, Fact::Begun);
    }
    taken.request
}

/// Whether the stream is still good.
fn heard(
    shared: &Arc<Shared>,
    watches: &mut Watches,
    send: &mpsc::UnboundedSender<Request>,
    answer: &WatchResponse,
) -> bool {
    let id = answer.watch_id();
    if answer.canceled() {
        if id == RESIDENT || id < 0 {
            // Refused as a whole: the rights of this user have changed, or its token is too old.
            return false;
        }
        // Compacted, or by our own wish, and then nobody is there to be told.
        for target in watches.end(id) {
            tell(shared, target, Fact::Unknown);
        }
        return true;
    }
    if id == RESIDENT {
        return true;
    }
    if answer.created() {
        let revision = answer.header().map_or(i64::MAX, |header| header.revision());
        for target in watches.begins(id, revision) {
            tell(shared, target, Fact::Begun);
        }
    }
    for event in answer.events() {
        let loaders = watches.targets(id);
        if let (Some(Target::Loader(_)), Some(kv)) = (loaders.first(), event.kv()) {
            let is_put = event.event_type() == EventType::Put;
            let kept = is_put.then(|| Kept::read(kv.value(), kv.mod_revision()));
            let kept = kept.and_then(Result::ok);
            for loader in loaders {
                if let Target::Loader(waiter) = loader
                    && let Some(waiter) = waiter.upgrade()
                {
                    waiter.hears(kv.mod_revision(), kept.as_ref());
                }
            }
            continue;
        }
        if event.event_type() == EventType::Put {
            for target in watches.targets(id) {
                tell(shared, target, Fact::Written);
            }
            continue;
        }
        for target in watches.end(id) {
            tell(shared, target, Fact::Deleted);
        }
        let _ = send.send(Request::Cancel { id });
    }
    true
}

fn tell(shared: &Arc<Shared>, target: Target, fact: Fact) {
    match target {
        Target::Waiter(waiter) => {
            let Some(waiter) = waiter.upgrade() else {
                return;
            };
            match fact {
                Fact::Begun => waiter.check(),
                Fact::Written => {}
                Fact::Deleted | Fact::Unknown => shared.room.tell(&waiter),
            }
        }
        Target::Loader(waiter) => {
            let Some(waiter) = waiter.upgrade() else {
                return;
            };
            match fact {
                Fact::Begun => waiter.check(),
                Fact::Written | Fact::Deleted => {}
                Fact::Unknown => waiter.deafen(),
            }
        }
        Target::Gate(gate) => {
            let Some(gate) = gate.upgrade() else { return };
            match fact {
                Fact::Begun => gate.check(),
                Fact::Written => {}
                Fact::Deleted | Fact::Unknown => gate.open(),
            }
        }
        Target::Holder(inner) => {
            let Some(inner) = inner.upgrade() else { return };
            if fact == Fact::Written {
                return inner.was_taken();
            }
            shared.spawn({
                let shared = shared.clone();
                async move {
                    match fact {
                        Fact::Deleted => inner.was_deleted(&shared).await,
                        Fact::Begun | Fact::Written | Fact::Unknown => inner.look(&shared).await,
                    }
                }
            });
        }
    }
}
