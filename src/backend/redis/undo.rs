//! Undoing what nobody waits for any more: attempts whose caller left or got no answer, leases
//! that were dropped, offers to nobody.
//!
//! An undo must not be overtaken by its attempt. It goes over the attempt's connection while that
//! lives. Else the old connection is ended at the server first, and where the user may not do
//! that, the undo leaves a tombstone which the attempt finds.

use std::{sync::Arc, time::Duration};

use redis::Cmd;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    client::{Shared, Via},
    connection::Connection,
    course::Course,
    names::{Names, Words},
    room::Asker,
    scripts::{ABANDON, Script, WITHDRAW},
    trouble::Trouble,
};
use crate::clock::jittered;

/// For how long undoing goes on after the last backend and lease were dropped.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// How long a tombstone stands: as long as a packet may be on its way, 15 minutes
/// (`tcp_retries2` in the manual page tcp(7)).
pub(super) const TOMBSTONE_MS: u32 = 900_000;

pub(super) struct Undo {
    /// Over which it was asked last.
    connection: Arc<Connection>,
    names: Arc<Names>,
    what: What,
}

enum What {
    Owner {
        asker: Asker,
        words: Words,
        /// An earlier attempt of it may come late, whatever this connection does.
        tainted: bool,
    },
    Gate {
        entry: String,
    },
}

impl Undo {
    pub(super) fn owner(
        connection: Arc<Connection>,
        names: Arc<Names>,
        asker: Asker,
        words: Words,
        tainted: bool,
    ) -> Self {
        let what = What::Owner {
            asker,
            words,
            tainted,
        };
        Self {
            connection,
            names,
            what,
        }
    }

    pub(super) fn gate(connection: Arc<Connection>, names: Arc<Names>, entry: String) -> Self {
        Self {
            connection,
            names,
            what: What::Gate { entry },
        }
    }

    async fn run(self, shared: Arc<Shared>) {
        self.see_through(&shared).await;
        if let What::Owner { asker, .. } = &self.what {
            shared.room.left(asker);
        }
    }

    async fn see_through(&self, shared: &Arc<Shared>) {
        let mut pause = Duration::from_millis(20);
        loop {
            match self.attempt(shared).await {
                Ok(()) => return,
                // It was heard: asking again would be answered the same.
                Err(trouble) if trouble.answered && !trouble.may_pass() => {
                    tracing::debug!(
                        target: "tower_lock",
                        "Redis refused to undo an attempt; it ends by its ttl"
                    );
                    return;
                }
                Err(_) => {
                    sleep(jittered(pause)).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    async fn attempt(&self, shared: &Arc<Shared>) -> Result<(), Trouble> {
        let tainted = matches!(self.what, What::Owner { tainted: true, .. });
        // Whether the attempt's own connection has answered: then nothing is on its way there.
        let mut settled = false;
        if !self.connection.has_ended() {
            match self.send(&self.connection, false, tainted).await {
                Err(trouble) if trouble.is_elsewhere() => settled = true,
                Err(trouble) if !trouble.answered => {}
                result => return result,
            }
        }
        let mut course = Course::new(shared);
        loop {
            let (connection, asking) = course.connection(shared, &self.names, Via::Lock).await?;
            if !settled && Arc::ptr_eq(&connection, &self.connection) {
                // Slow, or about to be found dead.
                return Err(Trouble::no_answer());
            }
            let harmless = settled || self.connection.retire(&connection).await?;
            match self.send(&connection, asking, tainted || !harmless).await {
                Err(trouble) => course.after(shared, trouble).await?,
                Ok(()) => return Ok(()),
            }
        }
    }

    async fn send(
        &self,
        connection: &Connection,
        asking: bool,
        buries: bool,
    ) -> Result<(), Trouble> {
        match &self.what {
            What::Gate { entry } => {
                let mut cmd = redis::cmd("ZREM");
                cmd.arg(&*self.names.queue).arg(entry);
                connection.ask_of(asking, cmd).await?;
            }
            What::Owner { words, .. } => {
                let call = abandoning(&self.names, words, buries);
                let script = script_for(words);
                connection.run(asking, script, &call).await?;
            }
        }
        Ok(())
    }
}

/// Leaves nothing of an owner on the server, but a tombstone if an attempt of it may come late.
pub(super) async fn abandon(
    shared: &Arc<Shared>,
    via: Via,
    names: &Names,
    words: &Words,
    buries: bool,
) -> Result<(), Trouble> {
    let call = abandoning(names, words, buries);
    shared
        .run(via, names, script_for(words), call)
        .await
        .map(drop)
}

fn script_for(words: &Words) -> &'static Script {
    if words.opens { &WITHDRAW } else { &ABANDON }
}

fn abandoning(names: &Names, words: &Words, buries: bool) -> impl Fn(&Script, bool) -> Cmd {
    let tombstone = buries.then(|| names.tombstone(words.owner()));
    let record = words.opens.then(|| names.record());
    move |script, by_code| {
        let mut cmd = match &record {
            None => script.call_lock(by_code, names, tombstone.as_deref()),
            Some(record) => script.call_record(by_code, names, record, tombstone.as_deref()),
        };
        cmd.arg(&words.who).arg(words.entry());
        if buries {
            cmd.arg(TOMBSTONE_MS);
        }
        cmd
    }
}

/// Undoes what comes in, and ends the client when nothing can come any more.
pub(super) async fn undo_all(shared: Arc<Shared>, mut queue: mpsc::UnboundedReceiver<Undo>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = running.join_next() => {}
            undo = queue.recv() => match undo {
                Some(undo) => {
                    running.spawn(undo.run(shared.clone()));
                }
                None => break,
            },
        }
    }
    let rest = async { while running.join_next().await.is_some() {} };
    let _ = timeout(AFTERWARDS, rest).await;
    shared.close();
}
