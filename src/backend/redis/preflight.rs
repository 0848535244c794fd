//! What is found out before the first lock: whether the server and the user's rights will do.

use redis::Value;
use tokio::sync::mpsc;

use super::{client::Shared, connection::text, place::Place, scripts::PROBE, trouble::Trouble};

/// Everything that the backend will do, once, over a connection of its own.
pub(super) async fn check(shared: &Shared, place: &Place) -> Result<(), Trouble> {
    let (prefix, inbox) = (&*shared.prefix, &*shared.inbox);
    let (heard, mut messages) = mpsc::unbounded_channel();
    let connection = place
        .open(shared, move |push| {
            let _ = heard.send(push.kind);
        })
        .await?;
    match connection.server().mode.as_deref() {
        Some("cluster") => {
            return Err(Trouble::misconfigured(
                "this server is a node of a Redis Cluster, which this backend does not support: \
                 connect to a single server",
            ));
        }
        Some("sentinel") => {
            return Err(Trouble::misconfigured(
                "this server is a Redis Sentinel: connect to the master that it watches",
            ));
        }
        _ => {}
    }
    if connection.server().evicts {
        tracing::warn!(
            target: "tower_lock",
            "Redis evicts keys when its memory is full (maxmemory-policy), locks included: \
             use `noeviction`"
        );
    }
    connection.subscribe(inbox).await?;
    // Named after the inbox, so that every process has its own; a lock, and a key beside it.
    let lock = format!("{prefix}probe:{inbox}");
    let beside = format!("{{{lock}}}:q");
    // A server that forgets its scripts is asked in both ways.
    for by_code in [true, false] {
        let mut cmd = PROBE.call(by_code, &[&lock, &beside]);
        cmd.arg(inbox);
        let answer = connection.ask(&cmd).await?;
        match text(&answer) {
            Some("") => {}
            refusal => return Err(Trouble::refused_command(refusal.unwrap_or_default())),
        }
    }
    let _: Value = connection.ask(&redis::cmd("PING")).await?;
    // The pong follows the message.
    let mut delivered = false;
    while let Ok(kind) = messages.try_recv() {
        delivered |= kind == redis::PushKind::Message;
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
