//! The verbs of operators: look at a key, take it away.

use std::time::Duration;

use super::{
    answer,
    client::{Client, Via},
    connection::text,
    scripts::{FORCE_RELEASE, INSPECT},
    trouble::Trouble,
};
use crate::{
    backend::{HolderState, KeyState, Mode},
    key::LockKey,
    lease::FencingToken,
};

pub(super) async fn inspect(client: &Client, key: &LockKey) -> Result<KeyState, Trouble> {
    let shared = &client.shared;
    let names = shared.names(key);
    let answer = shared
        .run(Via::Near, &names, &INSPECT, |script, by_code| {
            script.call_lock(by_code, &names, None)
        })
        .await?;
    let [kind, waiters, token, ends @ ..] = answer::list(&answer)? else {
        return Err(Trouble::strange());
    };
    let mode = match answer::string(kind)? {
        "s" => Mode::Shared,
        _ => Mode::Exclusive,
    };
    let positive = |number: i64| u64::try_from(number).ok();
    let token = positive(answer::int(token)?).and_then(FencingToken::new);
    let mut state = KeyState::free(&*names.lock);
    state.waiters = positive(answer::int(waiters)?).unwrap_or_default();
    for ms in ends {
        let mut holder = HolderState::new(mode);
        holder.fencing_token = token;
        holder.remaining = positive(answer::int(ms)?).map(Duration::from_millis);
        state.holders.push(holder);
    }
    Ok(state)
}

pub(super) async fn force_release(client: &Client, key: &LockKey) -> Result<bool, Trouble> {
    let shared = &client.shared;
    let names = shared.names(key);
    let answer = shared
        .run(Via::Near, &names, &FORCE_RELEASE, |script, by_code| {
            script.call_lock(by_code, &names, None)
        })
        .await?;
    let [held, unheard @ ..] = answer::list(&answer)? else {
        return Err(Trouble::strange());
    };
    for pair in unheard.chunks_exact(2) {
        // Who holds in a Cluster and never waited there hears of it by the channel of its process:
        // a message of ours reaches all nodes, one of a script does not. Lost, it costs the time to
        // the next renewal.
        if let (Some((inbox, _)), Some(message)) = (
            text(&pair[0]).and_then(|inbox| inbox.rsplit_once(":{")),
            text(&pair[1]),
        ) {
            let mut tell = redis::cmd("PUBLISH");
            tell.arg(inbox).arg(message);
            let _ = shared.connection(&names).await?.ask(&tell).await;
        }
    }
    Ok(answer::int(held)? == 1)
}
