//! How much this process watches.
//!
//! After a reconnect the client library tells the new server of all watches, 128 KiB of paths at a
//! time, and takes the answer to the second such request for a mistake: the connection breaks, and
//! so does every one after it (zookeeper-client 0.11.2). So there is a limit to what is watched in
//! a session. What is beyond it is looked at instead, once a second.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use zookeeper_client as zk;

/// In bytes of paths, with what goes around each: less than the library's 128 KiB.
const MOST: usize = 100 * 1024;
/// The length before a path on the wire, and a margin.
const AROUND: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Watches {
    bytes: Arc<AtomicUsize>,
}

/// Room for one, until it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    bytes: Arc<AtomicUsize>,
    mine: usize,
}

impl Watches {
    pub(super) fn room_for(&self, path: usize) -> Option<Room> {
        let mine = path + AROUND;
        let fits = |bytes: usize| Some(bytes + mine).filter(|bytes| *bytes <= MOST);
        let taken = self
            .bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.ok().map(|_| Room {
            bytes: self.bytes.clone(),
            mine,
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.mine, Ordering::Relaxed);
    }
}

/// A watch on a node, which ends with this.
#[derive(Debug)]
pub(super) struct Watch {
    watcher: zk::OneshotWatcher,
    room: Room,
}

impl Watch {
    pub(super) fn new(watcher: zk::OneshotWatcher, room: Room) -> Self {
        Self { watcher, room }
    }

    /// Resolves when something happens to the node.
    pub(super) async fn changed(self) -> zk::WatchedEvent {
        let event = self.watcher.changed().await;
        drop(self.room);
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_again_when_some_are_gone() {
        let watches = Watches::default();
        let mut rooms = Vec::new();
        while let Some(room) = watches.room_for(100) {
            rooms.push(room);
        }
        assert_eq!(rooms.len(), MOST / (100 + AROUND));
        rooms.pop();
        let room = watches.room_for(100);
        assert!(room.is_some());
        assert!(watches.room_for(100).is_none());
    }
}
