//! The one stream of watches of a process, over which the server tells that nodes are gone.
//!
//! # No gap
//!
//! A node is watched from the revision behind that of the read which saw it. The server delivers
//! what happened since, however late the watch is registered, so the deletion is never missed. A
//! stream that ends, with its connection or because its member lost the leader, is opened again over
//! the next connection, with every watch from the same revision as before. Revisions that the server
//! has compacted meanwhile cannot be watched: whoever waited reads again instead.
//!
//! Several that wait for the same node share its watch: the first one starts at an earlier revision
//! than the others, and is gone with the node's deletion.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use etcd_client::{EventType, WatchFilterType, WatchOptions, WatchRequestSender, WatchResponse};
use tokio::{sync::mpsc, time::sleep};

use super::{client::Shared, connection::Connection, gate::Gate, lease::Inner, waiter::Waiter};

/// The watch that is always there, of a key that nobody writes: a server counts pings on a
/// connection without a stream as an attack.
const RESIDENT: i64 = i64::MAX;

/// The other end of the stream, for everybody.
#[derive(Debug)]
pub(super) struct Hub {
    orders: mpsc::UnboundedSender<Order>,
    next: AtomicU64,
}

/// Who wants to know that a node is gone.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// Waits behind it.
    Waiter(Weak<Waiter>),
    /// Waits until it is free, without wanting it.
    Gate(Weak<Gate>),
    /// Holds by it.
    Holder(Weak<Inner>),
}

#[derive(Debug)]
pub(super) enum Order {
    Watch {
        ticket: u64,
        node: Arc<str>,
        from: i64,
        target: Target,
    },
    Leave {
        ticket: u64,
        node: Arc<str>,
    },
}

/// A place among those who are told of a node; given up with this.
#[derive(Debug)]
pub(super) struct Watching {
    orders: mpsc::UnboundedSender<Order>,
    ticket: u64,
    node: Arc<str>,
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
        // Without the other end the client is closed, and whoever waits ends by its own time.
        let _ = self.orders.send(Order::Watch {
            ticket,
            node: node.clone(),
            from,
            target,
        });
        Watching {
            orders: self.orders.clone(),
            ticket,
            node,
        }
    }
}

impl Watching {
    pub(super) fn is_of(&self, node: &str) -> bool {
        *self.node == *node
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Leave {
            ticket: self.ticket,
            node: self.node.clone(),
        });
    }
}

/// A watched node.
struct Watch {
    id: i64,
    from: i64,
    targets: Vec<(u64, Target)>,
}

/// What is watched, whether a stream is open or not.
#[derive(Default)]
struct Watches {
    by_node: HashMap<Arc<str>, Watch>,
    by_id: HashMap<i64, Arc<str>>,
    last: i64,
}

/// What is to be asked of the server.
enum Request {
    Create { id: i64, node: Arc<str>, from: i64 },
    Cancel { id: i64 },
}

impl Watches {
    fn take(&mut self, order: Order) -> Option<Request> {
        match order {
            Order::Watch {
                ticket,
                node,
                from,
                target,
            } => {
                if let Some(watch) = self.by_node.get_mut(&node) {
                    watch.targets.push((ticket, target));
                    return None;
                }
                self.last += 1;
                let id = self.last;
                let targets = vec![(ticket, target)];
                self.by_id.insert(id, node.clone());
                self.by_node
                    .insert(node.clone(), Watch { id, from, targets });
                Some(Request::Create { id, node, from })
            }
            Order::Leave { ticket, node } => {
                let watch = self.by_node.get_mut(&node)?;
                watch.targets.retain(|(other, _)| *other != ticket);
                if !watch.targets.is_empty() {
                    return None;
                }
                let id = watch.id;
                self.by_node.remove(&node);
                self.by_id.remove(&id);
                Some(Request::Cancel { id })
            }
        }
    }

    /// All of them, for a new stream.
    fn all(&self) -> Vec<Request> {
        let creates = self.by_node.iter().map(|(node, watch)| Request::Create {
            id: watch.id,
            node: node.clone(),
            from: watch.from,
        });
        creates.collect()
    }

    fn end(&mut self, id: i64) -> Vec<(u64, Target)> {
        let node = self.by_id.remove(&id);
        let watch = node.and_then(|node| self.by_node.remove(&node));
        watch.map(|watch| watch.targets).unwrap_or_default()
    }
}

/// Keeps the stream open for as long as it is polled, and tells who is to be told.
pub(super) async fn listen(shared: Arc<Shared>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut watches = Watches::default();
    loop {
        // Without a connection there is nothing to do but to note what is to be watched.
        let connection = loop {
            tokio::select! {
                connection = shared.link.connection() => match connection {
                    Ok(connection) => break connection,
                    Err(_) => sleep(Duration::from_millis(100)).await,
                },
                order = orders.recv() => match order {
                    Some(order) => drop(watches.take(order)),
                    None => return,
                },
            }
        };
        run(&shared, &connection, &mut watches, &mut orders).await;
        if !connection.has_ended() {
            // The member refuses a stream that it gave before: it has no leader, or wants a new
            // authentication.
            connection.end();
        }
        sleep(super::jittered(Duration::from_millis(10))).await;
    }
}

/// One stream, until it ends.
async fn run(
    shared: &Arc<Shared>,
    connection: &Connection,
    watches: &mut Watches,
    orders: &mut mpsc::UnboundedReceiver<Order>,
) {
    let options = WatchOptions::new().with_watch_id(RESIDENT);
    let Ok(stream) = connection.watch(&shared.resident, options).await else {
        return;
    };
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
                    }
                    Ok(None) | Err(_) => return,
                },
                order = orders.recv() => match order {
                    Some(order) => {
                        if let Some(request) = watches.take(order) {
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
                .with_filters([WatchFilterType::NoPut]);
            requests.watch(&*node, Some(options)).await
        }
        Request::Cancel { id } => requests.cancel(id).await,
    }
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
        for (_, target) in watches.end(id) {
            tell(shared, target);
        }
        return true;
    }
    let gone = |event: &etcd_client::Event| event.event_type() == EventType::Delete;
    if id != RESIDENT && answer.events().iter().any(gone) {
        for (_, target) in watches.end(id) {
            tell(shared, target);
        }
        let _ = send.send(Request::Cancel { id });
    }
    true
}

fn tell(shared: &Arc<Shared>, target: Target) {
    match target {
        Target::Waiter(waiter) => {
            if let Some(waiter) = waiter.upgrade() {
                shared.room.tell(&waiter);
            }
        }
        Target::Gate(gate) => {
            if let Some(gate) = gate.upgrade() {
                gate.open();
            }
        }
        Target::Holder(inner) => {
            if let Some(inner) = inner.upgrade()
                && inner.is_held()
            {
                shared.spawn({
                    let shared = shared.clone();
                    async move { inner.look(&shared).await }
                });
            }
        }
    }
}
