//! The verbs of operators: look at a key, take it away.

use std::time::Duration;

use super::{
    answer,
    client::Client,
    names::Names,
    scripts::{FORCE_RELEASE, INSPECT},
    trouble::Trouble,
};
use crate::{
    backend::{HolderState, KeyState, Mode},
    key::LockKey,
    lease::FencingToken,
};

pub(super) async fn inspect(client: &Client, key: &LockKey) -> Result<KeyState, Trouble> {
    let names = Names::new(&client.shared.prefix, key);
    let connection = client.connection().await?;
    let answer = connection
        .run(&INSPECT, |script, by_code| {
            script.call_lock(by_code, &names, None)
        })
        .await?;
    let [kind, waiters, ms, rest @ ..] = answer::list(&answer)? else {
        return Err(Trouble::strange());
    };
    let mut state = KeyState::free(&*names.lock);
    state.waiters = u64::try_from(answer::int(waiters)?).unwrap_or_default();
    let remaining = |ms: i64| u64::try_from(ms).ok().map(Duration::from_millis);
    let token = |number: i64| u64::try_from(number).ok().and_then(FencingToken::new);
    match (answer::string(kind)?, rest) {
        ("-", []) => {}
        ("f", []) => {
            let mut holder = HolderState::new(Mode::Exclusive);
            holder.remaining = remaining(answer::int(ms)?);
            state.holders.push(holder);
        }
        ("x", [number]) => {
            let mut holder = HolderState::new(Mode::Exclusive);
            holder.fencing_token = token(answer::int(number)?);
            holder.remaining = remaining(answer::int(ms)?);
            state.holders.push(holder);
        }
        ("s", readers) => {
            for reader in readers.chunks_exact(2) {
                let mut holder = HolderState::new(Mode::Shared);
                holder.fencing_token = token(answer::int(&reader[0])?);
                holder.remaining = remaining(answer::int(&reader[1])?);
                state.holders.push(holder);
            }
        }
        _ => return Err(Trouble::strange()),
    }
    Ok(state)
}

pub(super) async fn force_release(client: &Client, key: &LockKey) -> Result<bool, Trouble> {
    let names = Names::new(&client.shared.prefix, key);
    let connection = client.connection().await?;
    let answer = connection
        .run(&FORCE_RELEASE, |script, by_code| {
            script.call_lock(by_code, &names, None)
        })
        .await?;
    Ok(answer::int(&answer)? == 1)
}
