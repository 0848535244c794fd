//! The channel of this process: offers and other news of the keys that it waits for or holds.
//!
//! It has a connection of its own, so that no burst of commands delays an offer. Whenever that was
//! opened anew, everybody who waits asks again. An offer to an owner that is gone needs no answer:
//! its undo is on the way.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{PushInfo, PushKind};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    client::Shared,
    connection::{Connection, text},
    link::Link,
    names::unhex,
    place::Place,
    room::Asker,
    trouble::Trouble,
};
use crate::lease::OwnerToken;

/// How often the channel is tried with a message of our own.
const PROBES: Duration = Duration::from_secs(2);

/// What our scripts, or we ourselves, say in the channel of a process.
#[derive(Debug, PartialEq)]
enum Message<'a> {
    /// The owner may have its key, under this token.
    Offer(Asker, &'a str),
    /// Its key may be free.
    Ask(Asker),
    /// An operator took the grant of this token from it.
    Revoked(Asker, &'a str),
    /// All entries of this process were taken out of the queue of this key.
    Evicted(&'a str),
    /// There is a result for those who wait for one under this key; they are out of its queue.
    Recorded(&'a str),
    /// Nobody holds this key or waits for it.
    Free(&'a str),
    /// Only to be heard.
    Probe,
}

impl<'a> Message<'a> {
    fn read(message: &'a str) -> Option<Self> {
        let mut words = message.split(' ');
        let kind = words.next()?;
        let mut next = || words.next();
        let asker = |owner, key| {
            let owner = unhex(owner).map(OwnerToken::from_bytes)?;
            Some(Asker::new(owner, key))
        };
        Some(match kind {
            "g" => Self::Offer(asker(next()?, next()?)?, next()?),
            "w" => Self::Ask(asker(next()?, next()?)?),
            "r" => Self::Revoked(asker(next()?, next()?)?, next()?),
            "x" => Self::Evicted(next()?),
            "d" => Self::Recorded(next()?),
            "f" => Self::Free(next()?),
            "p" => Self::Probe,
            _ => return None,
        })
    }
}

fn hear(shared: &Shared, probes: &AtomicU64, push: &PushInfo) {
    match push.kind {
        PushKind::Message | PushKind::SMessage => {}
        _ => return,
    }
    let room = &shared.room;
    match push.data.last().and_then(text).and_then(Message::read) {
        Some(Message::Offer(asker, token)) => room.offer(&asker, token),
        Some(Message::Ask(asker)) => room.ask(&asker),
        Some(Message::Revoked(asker, token)) => room.revoked(&asker, token),
        Some(Message::Evicted(key)) => {
            room.evicted(key);
            room.open_gate(key);
        }
        Some(Message::Recorded(key)) => room.recorded(key),
        Some(Message::Free(key)) => room.open_gate(key),
        Some(Message::Probe) => {
            probes.fetch_add(1, Ordering::Release);
        }
        // From a newer version, or a question whether we are there.
        None => {}
    }
}

/// Keeps the channel subscribed, for as long as the client lives.
pub(super) async fn listen(shared: Arc<Shared>, place: Arc<Place>) {
    let heard = Arc::new(AtomicU64::new(0));
    let link = &place.inbox_link;
    let open = || async {
        let opened = subscribe(shared.clone(), &place, heard.clone()).await;
        if opened.is_err() && link.is_given_up() {
            // Nobody waits in silence for a server that is away: asking, they learn it.
            shared.gap_at(&place);
        }
        opened
    };
    let opened = async || shared.gap_at(&place);
    tokio::select! {
        biased;
        () = link.supervise(open, opened) => {}
        () = try_it(&shared, link, &heard) => {}
    }
}

async fn subscribe(
    shared: Arc<Shared>,
    place: &Place,
    heard: Arc<AtomicU64>,
) -> Result<Connection, Trouble> {
    let hearer = shared.clone();
    let moved = Arc::new(OnceLock::<CancellationToken>::new());
    let ends = moved.clone();
    let on_push = move |push: PushInfo| {
        if push.kind == PushKind::SUnsubscribe {
            // Nobody asked for that: the slot has moved. The client library takes it for an
            // answer, so all that come after it are another question's.
            if let Some(connection) = ends.get() {
                connection.cancel();
            }
        }
        hear(&hearer, &heard, &push);
    };
    let connection = place.open(&shared, on_push).await?;
    let _ = moved.set(connection.end_token());
    connection.subscribe(&shared.inbox).await?;
    Ok(connection)
}

/// A subscription can be dead while its connection lives, so it is tried with messages.
async fn try_it(shared: &Shared, link: &Link, heard: &AtomicU64) {
    loop {
        sleep(PROBES).await;
        let Some(connection) = link.ready() else {
            continue;
        };
        let (publish, channel) = match shared.cluster() {
            None => ("PUBLISH", Some(shared.inbox.clone())),
            Some(_) => ("SPUBLISH", connection.heard()),
        };
        let Some(channel) = channel else {
            continue;
        };
        let before = heard.load(Ordering::Acquire);
        let mut probe = redis::cmd(publish);
        probe.arg(&*channel).arg("p");
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

    #[test]
    fn messages_are_read_and_garbage_is_not() {
        let owner = OwnerToken::from_bytes([0xab; 16]);
        let offer = format!("g {} a:1; 17", "ab".repeat(16));
        let asker = Asker::new(owner, "a:1;");
        assert_eq!(Message::read(&offer), Some(Message::Offer(asker, "17")));
        assert_eq!(Message::read("x a:1;"), Some(Message::Evicted("a:1;")));
        assert_eq!(Message::read("d a:1;"), Some(Message::Recorded("a:1;")));
        assert_eq!(Message::read("p"), Some(Message::Probe));
        for garbage in ["", "g", "g 00 a:1; 17", "g zz", "w", "n", "r é", "x"] {
            assert_eq!(Message::read(garbage), None, "{garbage}");
        }
    }
}
