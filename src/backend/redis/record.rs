//! Records beside locks: looking at one, and how a holder ended.

use std::{sync::Arc, time::Duration};

use tokio::{task::yield_now, time::Instant};

use super::{
    answer,
    client::{Client, Shared, Via},
    connection::Connection,
    course::Course,
    names::{self, Names},
    opening::{self, Stands},
    room::Asker,
    scripts::{SAVE, Script},
    trouble::Trouble,
    undo::TOMBSTONE_MS,
};
use crate::{
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    record::{Outcome, Record, RecordLimits, Save},
};

/// Larger ones would make everybody else at the server wait.
const MAX_BYTES: usize = 4 * 1024 * 1024;
const MAX_TTL: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(super) fn limits() -> RecordLimits {
    RecordLimits::new(MAX_BYTES, MAX_TTL)
}

pub(super) async fn load(client: &Client, key: &LockKey) -> Result<Option<Record>, Trouble> {
    let shared = &client.shared;
    Ok(load_of(shared, &shared.names(key)).await?.record)
}

pub(super) async fn load_of(shared: &Arc<Shared>, names: &Names) -> Result<Stands, Trouble> {
    let record = names.record();
    let mut course = Course::new(shared);
    loop {
        let (connection, asking) = course.connection(shared, names, Via::Near).await?;
        let mut get = redis::cmd("GET");
        get.arg(&record);
        match connection.ask_of(asking, get).await {
            Err(trouble) => course.after(shared, trouble).await?,
            Ok(value) => return opening::read(value),
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
    let shared = &client.shared;
    let names = shared.names(&save.key);
    let asker = Asker::new(save.owner, names.lock.clone());
    let lease = shared.room.lease(&asker);
    // Only the last script of an owner may bury it.
    let buries = releases && lease.as_ref().is_some_and(|lease| lease.is_tainted());
    let leaving = releases.then_some(lease).flatten();
    let leaving = leaving.map(|lease| lease.leaves());
    match ask(shared, &names, save, releases, buries).await? {
        1 => {
            if let Some(leaving) = leaving {
                leaving.has_left();
            }
            Ok(())
        }
        0 => {
            if let Some(leaving) = leaving {
                leaving.another_has_it();
            }
            Err(lost("another has the key"))
        }
        -1 => {
            // It was given back all the same.
            if let Some(leaving) = leaving {
                leaving.has_left();
            }
            Err(lost("a later holder has left a record"))
        }
        _ => Err(Trouble::strange().into()),
    }
}

fn lost(why: &'static str) -> BackendError {
    BackendError::new(BackendErrorKind::Lost, why)
}

/// Saves, and once more if the connection broke meanwhile: to repeat it is harmless, as long as
/// nothing older can still arrive.
async fn ask(
    shared: &Arc<Shared>,
    names: &Names,
    save: &Save,
    releases: bool,
    buries: bool,
) -> Result<i64, Trouble> {
    let owner = names::hex(&save.owner);
    let record = names.record();
    let tombstone = buries.then(|| names.tombstone(&owner));
    let call = |script: &Script, by_code| {
        let mut cmd = script.call_record(by_code, names, &record, tombstone.as_deref());
        cmd.arg(&owner).arg(save.token.get());
        match &save.outcome {
            Outcome::Keep { bytes, ttl } => {
                // Rounded up, so that no ttl comes to nothing.
                let ms = ttl.as_nanos().div_ceil(1_000_000) as u64;
                cmd.arg("k").arg(u8::from(releases)).arg(ms).arg(&**bytes);
            }
            Outcome::Forget => {
                cmd.arg("f").arg(u8::from(releases)).arg(0).arg("");
            }
        }
        if buries {
            cmd.arg(TOMBSTONE_MS);
        }
        cmd
    };
    let started = Instant::now();
    let mut before: Option<Arc<Connection>> = None;
    let mut course = Course::new(shared);
    loop {
        let (connection, asking) = course.connection(shared, names, Via::Near).await?;
        if let Some(before) = &before
            && !Arc::ptr_eq(before, &connection)
        {
            // Where that is not allowed, what comes late finds a newer record or its own.
            before.retire(&connection).await?;
        }
        match connection.run(asking, &SAVE, &call).await {
            Ok(answer) => return answer::int(&answer),
            Err(trouble) if trouble.is_elsewhere() => course.after(shared, trouble).await?,
            Err(trouble) if !trouble.answered && started.elapsed() < shared.timeout => {
                before = Some(connection);
                yield_now().await;
            }
            Err(trouble) => return Err(trouble),
        }
    }
}
