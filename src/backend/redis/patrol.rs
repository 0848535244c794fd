//! Looks at the keys for which this process waits, so that a holder that died, an offer that
//! lapsed or a message that was lost delays nobody for long.
//!
//! One timer for a process and key, not one for each waiter: at the end of a lease one command
//! serves the queue, and whoever is its head is offered the key.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    answer,
    client::{Shared, Via},
    names::Names,
    room::Outlook,
    scripts::LOOK,
    trouble::Trouble,
};

/// Looks that are due within this time go together.
const TICK: Duration = Duration::from_millis(2);

pub(super) async fn walk(shared: Arc<Shared>) {
    let mut looking = JoinSet::new();
    loop {
        let (due, next) = shared.room.due(Instant::now());
        for names in due {
            looking.spawn(look(shared.clone(), names));
        }
        let until = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = until => {}
            () = shared.room.earlier.notified() => {}
            Some(_) = looking.join_next() => {}
        }
        // All of them: there may be more in a tick than one, and those that ended take memory.
        while looking.try_join_next().is_some() {}
        sleep(TICK).await;
    }
}

async fn look(shared: Arc<Shared>, names: Arc<Names>) {
    // If it fails the next one is planned, and a new connection makes all ask again.
    if let Ok((outlook, queued)) = ask(&shared, &names).await {
        shared.room.looked(&names, outlook, queued);
    }
}

async fn ask(shared: &Arc<Shared>, names: &Names) -> Result<(Outlook, bool), Trouble> {
    let answer = shared
        .run(Via::Lock, names, &LOOK, |script, by_code| {
            let mut cmd = script.call_lock(by_code, names, None);
            cmd.arg(&*names.inbox);
            cmd
        })
        .await?;
    match answer::ints(&answer)?.as_slice() {
        [ms, foreign, head, queued] => Ok((
            Outlook {
                ms: *ms,
                foreign: *foreign == 1,
                head_is_here: *head == 1,
            },
            *queued == 1,
        )),
        _ => Err(Trouble::strange()),
    }
}
