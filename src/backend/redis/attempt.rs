//! What one acquire does at the server.

mod ends;

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::{
    task::yield_now,
    time::{Instant, timeout},
};

use super::{
    client::Client,
    connection::Connection,
    course::Course,
    lease::{Grant, Inner, RedisLease},
    names::{Names, Words},
    near::Crossing,
    opening::{Loads, Said},
    room::{Asker, Known, Outlook},
    scripts::{CONFIRM, OPEN, STEP},
    trouble::Trouble,
    undo::Undo,
    waiter::{Asked, Together, Waiter},
};
use crate::{
    backend::{AcquireRequest, Mode, WaitBound},
    record::{Opening, Record},
};

/// The longest lease, so that no sum of times overflows.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(super) enum Step {
    Granted(RedisLease),
    /// Nothing is acquired, nor left.
    Found(Record),
    Wait(Outlook),
}

/// What an acquire asks for.
#[derive(Clone, Copy)]
pub(super) enum Asks<'a> {
    Lock,
    /// The record beside the lock, or the lock with this opening.
    Record(Option<&'a Opening>),
}

pub(super) enum Begun<'a> {
    Attempt(Attempt<'a>),
    Holds(Arc<Inner>),
}

/// One acquire. Dropped without a lease, it is undone: whatever became of what it asked.
pub(super) struct Attempt<'a> {
    client: &'a Arc<Client>,
    request: &'a AcquireRequest,
    names: Arc<Names>,
    asker: Asker,
    words: Option<Words>,
    pub(super) loads: Option<Box<Loads<'a>>>,
    ttl: Duration,
    pub(super) waiter: Arc<Waiter>,
    ticket: String,
    queued: bool,
    /// Over which it asked last.
    connection: Option<Arc<Connection>>,
    /// Whether that is not answered.
    open: bool,
    /// An ask may still come late, over a connection that could not be ended.
    tainted: bool,
    /// An older acquire of this owner may have a place in the queue.
    continues: bool,
}

impl<'a> Attempt<'a> {
    pub(super) async fn begin(
        client: &'a Arc<Client>,
        request: &'a AcquireRequest,
        asks: Asks<'a>,
    ) -> Result<Begun<'a>, Trouble> {
        let shared = &client.shared;
        let names = Arc::new(shared.names(&request.key));
        let asker = Asker::new(request.owner, names.lock.clone());
        let loads = match asks {
            Asks::Lock => None,
            Asks::Record(open) => Some(Box::new(Loads::new(&names, open))),
        };
        let waiter = Arc::new(Waiter::new(loads.is_some()));
        let before = match shared.room.enter(&asker, &waiter) {
            Known::Waits(before) => before,
            Known::Holds(inner) => return Ok(Begun::Holds(inner)),
            // The undo of what this owner had would undo what it gets now.
            _ => match timeout(shared.timeout, enter_later(client, &asker, &waiter)).await {
                Ok(Known::Holds(inner)) => return Ok(Begun::Holds(inner)),
                Ok(Known::Waits(before)) => before,
                _ => {
                    return Err(Trouble::unavailable(
                        "what this owner asked for before is not undone yet",
                    ));
                }
            },
        };
        // The server counts milliseconds; rounded up, so that it never ends before we do.
        let ttl = request.ttl.clamp(Duration::from_millis(1), LONGEST);
        let ms = ttl.as_nanos().div_ceil(1_000_000) as u64;
        let mut words = Words::new(request, &names.inbox, ms);
        if let Some(loads) = &loads {
            words.loads = true;
            words.opens = loads.open.is_some();
        }
        Ok(Begun::Attempt(Self {
            client,
            request,
            words: Some(words),
            loads,
            continues: before.is_some(),
            names,
            asker,
            ttl,
            waiter,
            ticket: String::new(),
            queued: false,
            open: before.is_some(),
            tainted: before.as_ref().is_some_and(|before| before.tainted),
            connection: before.map(|before| before.over),
        }))
    }

    /// Asks, and once more if the connection broke meanwhile: by the owner token that is harmless,
    /// as long as nothing older can still arrive.
    pub(super) async fn ask_patiently(&mut self, queues: bool) -> Result<Step, Trouble> {
        let started = Instant::now();
        let shared = &self.client.shared;
        let mut course = Course::new(shared);
        match self.request.wait {
            WaitBound::Fail => course = course.waits_until(started),
            WaitBound::Until(deadline) => course = course.waits_until(deadline),
            WaitBound::Forever => {}
        }
        loop {
            // In a line only those wait who will be heard: subscribed to before, where there is a
            // channel for each slot. Who finds the key free needs none.
            let is_heard = shared.hears(&self.names);
            // Where there is none, the link has waited for as long as it should.
            let found = match course.detour(shared).await {
                Ok(Some(connection)) => Ok((connection, true, None)),
                Ok(None) => self.connection().await.map(|(connection, crossing)| {
                    // Kept until there is an answer.
                    (connection, false, crossing)
                }),
                Err(trouble) => Err(trouble),
            };
            let (connection, asking, _crossing) = match found {
                Ok(found) => found,
                Err(trouble) => {
                    course.after(shared, trouble).await?;
                    continue;
                }
            };
            let asked = match self.ask(connection, asking, queues && is_heard).await {
                Ok(Step::Wait(_)) if queues && !is_heard => match shared.hear(&self.names).await {
                    Ok(()) => continue,
                    Err(trouble) => Err(trouble),
                },
                asked => asked,
            };
            match asked {
                Err(trouble) if trouble.is_elsewhere() => course.after(shared, trouble).await?,
                Err(trouble) if !trouble.answered && started.elapsed() < shared.timeout => {
                    // Most of these took a while; none may take no time at all.
                    yield_now().await;
                }
                result => return result,
            }
        }
    }

    /// Behind what is not answered yet, while that can be; else that has to be ended.
    async fn connection(&self) -> Result<(Arc<Connection>, Option<Crossing>), Trouble> {
        match &self.connection {
            Some(before) if self.open && !before.has_ended() => Ok((before.clone(), None)),
            _ => self.client.shared.connection_in_turn(&self.names).await,
        }
    }

    async fn ask(
        &mut self,
        connection: Arc<Connection>,
        asking: bool,
        queues: bool,
    ) -> Result<Step, Trouble> {
        self.settle_before(&connection).await?;
        self.begins_to_ask(&connection)?;
        let Some(words) = &self.words else {
            return Err(Trouble::strange());
        };
        let tombstone = self.tainted_or_doubtful(&connection, words);
        let script = if self.loads.is_some() { &OPEN } else { &STEP };
        let sent = Instant::now();
        let answer = connection
            .run(asking, script, &|script, by_code| {
                let tombstone = tombstone.as_deref();
                let mut cmd = match &self.loads {
                    None => script.call_lock(by_code, &self.names, tombstone),
                    Some(loads) => script.call_record(by_code, &self.names, &loads.name, tombstone),
                };
                cmd.arg(&words.who).arg(words.mode).arg(words.ttl);
                cmd.arg(match (words.unfair, queues) {
                    (false, true) => "fq",
                    (false, false) => "f-",
                    (true, true) => "uq",
                    (true, false) => "u-",
                });
                if words.tokens > 1 || !self.ticket.is_empty() || self.loads.is_some() {
                    cmd.arg(words.tokens);
                }
                if !self.ticket.is_empty() || self.loads.is_some() {
                    cmd.arg(&self.ticket);
                }
                if let Some(loads) = &self.loads {
                    loads.add_to(&mut cmd);
                }
                cmd
            })
            .await;
        if !matches!(&answer, Err(trouble) if !trouble.is_elsewhere()) {
            self.open = false;
        }
        match Said::read(answer?)? {
            Said::Granted(token, previous) => {
                Ok(Step::Granted(self.granted(token, sent, previous)?))
            }
            Said::Found(record) => {
                self.settles();
                Ok(Step::Found(record))
            }
            Said::Wait {
                outlook,
                ticket,
                seen,
                held,
            } => {
                self.ticket = ticket;
                if let Some(loads) = &mut self.loads {
                    loads.waits(held, seen);
                }
                Ok(Step::Wait(outlook))
            }
            Said::Undone => Err(Trouble::undone("this owner was undone")),
        }
    }

    fn begins_to_ask(&mut self, connection: &Arc<Connection>) -> Result<(), Trouble> {
        let asked = Asked {
            over: connection.clone(),
            tainted: self.tainted,
        };
        if !self.waiter.asks(asked) {
            return Err(Trouble::replaced());
        }
        self.connection = Some(connection.clone());
        self.open = true;
        Ok(())
    }

    /// What was asked over another connection and not answered must not run after this.
    async fn settle_before(&mut self, connection: &Arc<Connection>) -> Result<(), Trouble> {
        if self.open
            && let Some(before) = &self.connection
            && !Arc::ptr_eq(before, connection)
            && !before.retire(connection).await?
        {
            self.tainted = true;
        }
        Ok(())
    }

    /// Where connections cannot be ended, every ask looks for a tombstone.
    fn tainted_or_doubtful(&self, connection: &Connection, words: &Words) -> Option<String> {
        let looks = self.tainted || !connection.can_be_ended();
        looks.then(|| self.names.tombstone(words.owner()))
    }

    /// Takes an offer: `None` if it has lapsed, or nobody knows.
    pub(super) async fn confirm(&mut self, token: &str) -> Option<RedisLease> {
        let token: i64 = token.parse().ok()?;
        if self.request.mode == Mode::Shared || self.loads.is_some() {
            // Asking again confirms.
            return None;
        }
        let (connection, _crossing) = self.connection().await.ok()?;
        self.settle_before(&connection).await.ok()?;
        self.begins_to_ask(&connection).ok()?;
        let words = self.words.as_ref()?;
        let value = words.value(u64::try_from(token).ok()?);
        let sent = Instant::now();
        let keys = [&*self.names.lock, &*self.names.queue];
        let answer = connection
            .run(false, &CONFIRM, &|script, by_code| {
                let mut cmd = script.call(by_code, &keys);
                cmd.arg(&value)
                    .arg(words.ttl)
                    .arg(format!("!{}", words.entry()));
                cmd
            })
            .await
            .ok()?;
        self.open = false;
        match answer {
            Value::Int(1) => self.granted(token, sent, None).ok(),
            _ => None,
        }
    }

    pub(super) fn queue(&mut self, outlook: Outlook) {
        let newcomer = (!self.queued).then_some(&self.waiter);
        let room = &self.client.shared.room;
        room.queue(&self.names, newcomer, outlook);
        self.queued = true;
    }

    fn unqueue(&mut self) {
        if std::mem::take(&mut self.queued) {
            self.client.shared.room.unqueue(&self.names, &self.waiter);
        }
    }
}

/// Enters an owner when what it had is undone.
async fn enter_later(client: &Client, asker: &Asker, waiter: &Arc<Waiter>) -> Known {
    loop {
        match client.shared.room.enter(asker, waiter) {
            Known::Leaves(left) => left.cancelled().await,
            Known::Drops => yield_now().await,
            known => return known,
        }
    }
}
