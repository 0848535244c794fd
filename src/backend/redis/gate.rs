//! Waiting until nobody holds a key, without holding it: any number of callers of a process stand
//! behind one entry of the key's queue, behind all who want to hold.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::yield_now,
    time::{Instant, sleep_until},
};

use super::{
    callers::Gate,
    client::{Client, Via},
    connection::Connection,
    course::Course,
    names::Names,
    room::Outlook,
    scripts::GATE,
    trouble::Trouble,
    undo::Undo,
};
use crate::{
    backend::WaitBound,
    clock::jittered,
    error::{BackendError, BackendErrorKind},
    key::LockKey,
};

/// How long a lost notification may delay.
const CEILING: Duration = Duration::from_secs(1);

/// One caller.
struct Caller<'a> {
    client: &'a Arc<Client>,
    names: Arc<Names>,
    gate: Arc<Gate>,
    /// Where the entry was last asked for.
    asked: Option<Arc<Connection>>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let last = self.client.shared.room.leave_gate(&self.names, &self.gate);
        if last && let Some(connection) = self.asked.take() {
            self.client.undo(Undo::gate(
                connection,
                self.names.clone(),
                self.gate.entry().to_owned(),
            ));
        }
    }
}

pub(super) async fn wait_free(
    client: &Arc<Client>,
    key: &LockKey,
    wait: WaitBound,
) -> Result<(), BackendError> {
    let shared = &client.shared;
    let names = Arc::new(shared.names(key));
    if wait == WaitBound::Fail {
        let mut course = Course::new(shared);
        let outlook = loop {
            let (connection, asking) = course.connection(shared, &names, Via::Near).await?;
            match ask(&connection, asking, &names, "").await {
                Err(trouble) => course.after(shared, trouble).await?,
                Ok(outlook) => break outlook,
            }
        };
        return match outlook {
            None => Ok(()),
            Some(outlook) => Err(BackendError::new(BackendErrorKind::Contended, "")
                .with_remaining(outlook.remaining())),
        };
    }
    let gate = shared.room.join_gate(&names, || Gate::new(&names.inbox));
    let mut caller = Caller {
        client,
        names,
        gate,
        asked: None,
    };
    let mut backoff = Duration::from_millis(25);
    let mut troubled: Option<Instant> = None;
    let mut course = Course::new(shared);
    loop {
        let gate = caller.gate.clone();
        let opened = gate.opened();
        tokio::pin!(opened);
        // Registered here and at the server before the answer is looked at.
        opened.as_mut().enable();
        if troubled.is_none() {
            course = Course::new(shared);
        }
        // Where there is no connection, this has waited for one.
        let (connection, asking) = course.connection(shared, &caller.names, Via::Near).await?;
        let asked = async {
            shared.hear(&caller.names).await?;
            caller.asked = Some(connection.clone());
            ask(&connection, asking, &caller.names, gate.entry()).await
        };
        let outlook = match asked.await {
            Ok(None) => return Ok(()),
            Ok(Some(outlook)) => outlook,
            Err(trouble) => {
                let since = *troubled.get_or_insert_with(Instant::now);
                if trouble.is_elsewhere() {
                    course.after(shared, trouble).await?;
                } else if trouble.answered || since.elapsed() >= shared.timeout {
                    return Err(trouble.into());
                } else {
                    yield_now().await;
                }
                continue;
            }
        };
        troubled = None;
        let now = Instant::now();
        if let WaitBound::Until(deadline) = wait
            && deadline <= now
        {
            return Err(BackendError::new(BackendErrorKind::WaitTimedOut, "")
                .with_remaining(outlook.remaining()));
        }
        let mut delay = jittered(CEILING);
        if let Some(remaining) = outlook.remaining() {
            delay = delay.min(remaining + Duration::from_millis(2));
        }
        if outlook.foreign {
            delay = delay.min(jittered(backoff));
            backoff = (backoff * 2).min(CEILING);
        }
        let mut next = now + delay;
        if let WaitBound::Until(deadline) = wait {
            next = next.min(deadline);
        }
        tokio::select! {
            () = &mut opened => {}
            () = sleep_until(next) => {}
        }
    }
}

/// Nothing if nobody holds the key; else an entry, if it is not empty, is told later.
async fn ask(
    connection: &Connection,
    asking: bool,
    names: &Names,
    entry: &str,
) -> Result<Option<Outlook>, Trouble> {
    let answer = connection
        .run(asking, &GATE, &|script, by_code| {
            let mut cmd = script.call_lock(by_code, names, None);
            cmd.arg(entry);
            cmd
        })
        .await?;
    match super::answer::ints(&answer)?.as_slice() {
        [1] => Ok(None),
        [0, ms, foreign] => Ok(Some(Outlook {
            ms: *ms,
            foreign: *foreign == 1,
            head_is_here: true,
        })),
        _ => Err(Trouble::strange()),
    }
}
