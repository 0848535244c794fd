//! What is found out before the first lock: whether the server and the user's rights will do.

use std::sync::Arc;

use redis::{PushKind, Value};
use tokio::sync::mpsc;

use super::{
    client::Shared,
    connection::{Connection, text},
    names,
    place::Place,
    scripts::PROBE,
    slots,
    trouble::Trouble,
};

/// How many slots of a Cluster's node are tried that are being moved.
const TRIES: u32 = 5;

/// Everything that the backend will do, once, over a connection of its own.
pub(super) async fn check(shared: &Shared, place: &Arc<Place>) -> Result<(), Trouble> {
    for _ in 0..TRIES {
        match try_all(shared, place).await {
            // The slot that was tried is being moved: another one may not be.
            Err(trouble) if trouble.is_elsewhere() => {}
            result => return result,
        }
    }
    try_all(shared, place).await
}

async fn try_all(shared: &Shared, place: &Arc<Place>) -> Result<(), Trouble> {
    let (heard, mut messages) = mpsc::unbounded_channel();
    let connection = place
        .open(shared, move |push| {
            let _ = heard.send(push.kind);
        })
        .await?;
    check_mode(&connection, shared.cluster().is_some())?;
    if connection.server().evicts {
        tracing::warn!(
            target: "tower_lock",
            "Redis evicts keys when its memory is full (maxmemory-policy), locks included: \
             use `noeviction`"
        );
    }
    // Named after the inbox, so that every process has its own; a lock, and a key beside it.
    let (prefix, inbox) = (&*shared.prefix, &*shared.inbox);
    let (lock, beside, inbox, kind) = match shared.cluster() {
        None => {
            connection.subscribe(inbox).await?;
            let lock = format!("{prefix}probe:{inbox}");
            let beside = format!("{{{lock}}}:q");
            (lock, beside, inbox.to_owned(), PushKind::Message)
        }
        Some(cluster) => {
            let Some(slot) = cluster.slot_at(place) else {
                // It has lost all its slots just now.
                return Ok(());
            };
            let tag = slots::tag(slot);
            let lock = format!("{prefix}probe:{inbox}:{{{tag}}}");
            let beside = format!("{prefix}probe:{inbox}:q:{{{tag}}}");
            let channel = names::channel(inbox, slot);
            connection.hear(&channel.as_str().into()).await?;
            (lock, beside, channel, PushKind::SMessage)
        }
    };
    // A server that forgets its scripts is asked in both ways.
    for by_code in [true, false] {
        let mut cmd = PROBE.call(by_code, &[&lock, &beside]);
        cmd.arg(&inbox);
        let answer = connection.ask(&cmd).await?;
        match text(&answer) {
            Some("") => {}
            refusal => return Err(Trouble::refused_command(refusal.unwrap_or_default())),
        }
    }
    let _: Value = connection.ask(&redis::cmd("PING")).await?;
    // The pong follows the message.
    let mut delivered = false;
    while let Ok(pushed) = messages.try_recv() {
        delivered |= pushed == kind;
    }
    if !delivered {
        return Err(Trouble::misconfigured(
            "Redis does not deliver published messages: is there a proxy in between?",
        ));
    }
    shared.acks.probe(&connection).await?;
    connection.end();
    Ok(())
}

/// Whether the server is of the kind that the URL says.
pub(super) fn check_mode(connection: &Connection, is_cluster: bool) -> Result<(), Trouble> {
    let wrong = match connection.server().mode.as_deref() {
        Some("cluster") if !is_cluster => {
            "this server is a node of a Redis Cluster: the URL is to begin with `redis+cluster://`"
        }
        Some("sentinel") => {
            "this server is a Redis Sentinel: the URL is to begin with `redis+sentinel://`"
        }
        Some("standalone") if is_cluster => {
            "this server is no node of a Redis Cluster: the URL is to begin with `redis://`"
        }
        _ => return Ok(()),
    };
    Err(Trouble::misconfigured(wrong))
}
