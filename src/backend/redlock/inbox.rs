//! The channel of this process on each node: which key is free, and which was taken away.
//!
//! It has a connection of its own, so that no burst of commands delays it. Whenever that was opened
//! anew, what the node may have said meanwhile counts as said.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{PushInfo, PushKind};
use tokio::time::sleep;

use super::{client::Shared, names::owner, node::Node, room::Asker};
use crate::backend::redis::connection::text;

/// How often the channel is tried with a message of our own.
const PROBES: Duration = Duration::from_secs(2);

/// What scripts, or we ourselves, say in the channel of a process.
#[derive(Debug, PartialEq)]
enum Message<'a> {
    /// The key of this owner is free, as far as this node goes.
    Free(Asker),
    /// An operator took the grant of this token from it.
    Revoked(Asker, u64),
    /// Nobody holds this key or waits for it.
    Open(&'a str),
    /// Only to be heard.
    Probe,
}

impl<'a> Message<'a> {
    fn read(message: &'a str) -> Option<Self> {
        let mut words = message.split(' ');
        let kind = words.next()?;
        let mut next = || words.next();
        Some(match kind {
            "w" => Self::Free(Asker::new(owner(next()?)?, next()?)),
            "r" => Self::Revoked(Asker::new(owner(next()?)?, next()?), next()?.parse().ok()?),
            "f" => Self::Open(next()?),
            "p" => Self::Probe,
            _ => return None,
        })
    }
}

fn hear(shared: &Shared, node: usize, probes: &AtomicU64, push: &PushInfo) {
    if push.kind != PushKind::Message {
        return;
    }
    match push.data.last().and_then(text).and_then(Message::read) {
        Some(Message::Free(asker)) => shared.room.free_at(node, &asker),
        Some(Message::Revoked(asker, token)) => shared.room.revoked(&asker, token),
        Some(Message::Open(key)) => shared.room.open_gate(key),
        Some(Message::Probe) => {
            probes.fetch_add(1, Ordering::Release);
        }
        // From a newer version.
        None => {}
    }
}

/// Keeps the channel of a node subscribed.
pub(super) async fn listen(shared: &Arc<Shared>, at: usize) {
    let heard = Arc::new(AtomicU64::new(0));
    let node = &shared.nodes[at];
    let open = || async {
        let (hearer, heard) = (shared.clone(), heard.clone());
        let connection = node.open(move |push| hear(&hearer, at, &heard, &push));
        let connection = connection.await?;
        connection.subscribe(&shared.inbox).await?;
        Ok(connection)
    };
    let opened = || async { shared.room.gap(at) };
    tokio::select! {
        () = node.inbox_link.supervise(open, opened) => {}
        () = try_it(shared, node, &heard) => {}
    }
}

/// A subscription can be dead while its connection lives, so it is tried with messages.
async fn try_it(shared: &Shared, node: &Node, heard: &AtomicU64) {
    loop {
        sleep(PROBES).await;
        let Some(connection) = node.inbox_link.ready() else {
            continue;
        };
        let before = heard.load(Ordering::Acquire);
        let mut probe = redis::cmd("PUBLISH");
        probe.arg(&*shared.inbox).arg("p");
        let published = connection.ask(&probe).await.is_ok();
        // Some servers send the message before that answer, others after it, but all before the
        // next one.
        let answered = published && connection.ping().await.is_ok();
        if answered && heard.load(Ordering::Acquire) == before {
            connection.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::OwnerToken;

    #[test]
    fn messages_are_read_and_garbage_is_not() {
        let owner = OwnerToken::from_bytes([0xab; 16]);
        let (hex, asker) = ("ab".repeat(16), Asker::new(owner, "a:1;"));
        let free = format!("w {hex} a:1;");
        assert_eq!(Message::read(&free), Some(Message::Free(asker.clone())));
        let revoked = format!("r {hex} a:1; 17");
        assert_eq!(Message::read(&revoked), Some(Message::Revoked(asker, 17)));
        assert_eq!(Message::read("f a:1;"), Some(Message::Open("a:1;")));
        assert_eq!(Message::read("p"), Some(Message::Probe));
        for garbage in ["", "w", "w 00 a:1;", "w zz", "f", "n", "r é", "r 00 a:1; x"] {
            assert_eq!(Message::read(garbage), None, "{garbage}");
        }
    }
}
