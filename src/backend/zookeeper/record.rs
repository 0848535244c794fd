//! The verbs of records: what they take, looking at one, and the way to the tasks that do the rest.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, timeout},
};

use super::{
    answer::readable,
    client::{Client, Shared},
    errand,
    kept::Kept,
    shelf::Shelf,
    trouble::Trouble,
};
use crate::{
    error::BackendError,
    key::LockKey,
    record::{Outcome, Record, RecordLimits, Save},
};

/// Servers take a megabyte at a time, and an open record that has taken the place of another holds
/// both.
const MAX_BYTES: usize = 256 * 1024;
const MAX_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(super) fn limits() -> RecordLimits {
    RecordLimits::new(MAX_BYTES, MAX_TTL)
}

pub(super) async fn load(client: &Client, key: &LockKey) -> Result<Option<Record>, Trouble> {
    let kept = read(&client.shared, key).await?;
    Ok(kept.and_then(|kept| kept.record()))
}

/// What stands there as of now, if it has not ended.
pub(super) async fn read(shared: &Shared, key: &LockKey) -> Result<Option<Kept>, Trouble> {
    let shelf = Shelf::new(&shared.config, key);
    let begun = Instant::now();
    loop {
        let session = shared.session().await?;
        let client = session.client()?;
        // Done in this order.
        let sync = client.sync(&shared.config.base);
        let read = shelf.read(&client, &shared.config);
        let both = async {
            sync.await?;
            read.await
        };
        let answer = tokio::select! {
            answer = timeout(shared.config.timeout, readable(both)) => answer,
            () = session.over() => return Err(Trouble::no_session()),
        };
        match answer.map_err(|_| Trouble::no_answer())? {
            Ok(standing) => {
                let kept = standing.map(|standing| standing.kept);
                let now = session.servers_now();
                let (live, ended) = match kept {
                    Some(kept) if kept.ends() <= now => (None, true),
                    kept => (kept, false),
                };
                if ended {
                    shared.ends.met(key.as_str());
                }
                return Ok(live);
            }
            Err(error) => {
                let trouble = Trouble::from(error);
                // The connection broke; there may be another.
                if trouble.answered || begun.elapsed() >= shared.config.timeout {
                    return Err(trouble);
                }
                yield_now().await;
            }
        }
    }
}

pub(super) async fn save(
    client: &Arc<Client>,
    save: &Save,
    releases: bool,
) -> Result<(), BackendError> {
    if let Outcome::Keep { bytes, ttl } = &save.outcome {
        limits().check(bytes, *ttl)?;
    }
    errand::save(client, save, releases).await
}
