//! Acknowledgement by replicas: a grant or renewal counts when enough of them have it.
//!
//! `WAIT` speaks of what its own connection wrote last, and blocks that connection. So there is
//! one for it alone, over which leases are renewed, those just granted too: the stream to the
//! replicas is in order, so one that has the renewal has the grant. What comes in while a round is
//! under way goes together in the next one.
//!
//! <https://redis.io/docs/latest/commands/wait/>

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Pipeline, ServerErrorKind, Value};
use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{Instant, sleep},
};

use super::{
    answer,
    client::Shared,
    connection::Connection,
    place::Place,
    renewals::{self, Renewal},
    trouble::{Elsewhere, Trouble},
};
use crate::clock::jittered;

/// How many leases go in one round.
const MOST: usize = 500;
/// How soon one is asked for again that is elsewhere.
const PAUSE: Duration = Duration::from_millis(30);

/// Whether a lock counts before replicas have it.
///
/// An acknowledgement narrows what a fail-over can lose, and does not close it: Redis may promote
/// a replica that did not acknowledge. See [the guarantees](crate::backend::redis#what-can-lose-a-lock).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReplicaAck {
    /// Nobody is asked, and nothing is sent for it.
    #[default]
    Off,
    /// Waits until so many replicas have the grant or renewal, and goes on without them when the
    /// time for that is over.
    BestEffort(u32),
    /// Until so many replicas have a grant it does not count, and in time or not at all: then it
    /// is released, and the caller gets
    /// [`NotReplicated`](crate::BackendErrorKind::NotReplicated). A renewal that they do not have
    /// does not extend the lease.
    Require(u32),
}

impl ReplicaAck {
    fn replicas(self) -> Option<u32> {
        match self {
            Self::Off => None,
            Self::BestEffort(n) | Self::Require(n) => Some(n),
        }
    }
}

/// What is asked of replicas, and for how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Acks {
    pub(super) of: ReplicaAck,
    pub(super) within: Duration,
    /// Only counted once it is in the replica's append-only file.
    pub(super) fsynced: bool,
}

impl Acks {
    pub(super) fn check(&self) -> Result<(), Trouble> {
        let wrong = match self.of.replicas() {
            None if self.fsynced => "acknowledgements in append-only files need a `ReplicaAck`",
            None => return Ok(()),
            Some(0) => "an acknowledgement by no replica: one or more is needed, or `Off`",
            Some(_) if self.within < Duration::from_millis(1) => {
                "the time for acknowledgements is too short: 1 ms or more is needed"
            }
            Some(_) => return Ok(()),
        };
        Err(Trouble::misconfigured(wrong))
    }

    pub(super) fn are_on(&self) -> bool {
        self.of != ReplicaAck::Off
    }

    fn command(&self, replicas: u32, ms: u128) -> Cmd {
        let mut cmd = Cmd::new();
        if self.fsynced {
            cmd.arg("WAITAOF").arg(0);
        } else {
            cmd.arg("WAIT");
        }
        cmd.arg(replicas).arg(u64::try_from(ms).unwrap_or(u64::MAX));
        cmd
    }

    /// Whether the server can do that: some forbid it.
    pub(super) async fn probe(&self, connection: &Connection) -> Result<(), Trouble> {
        if !self.are_on() {
            return Ok(());
        }
        match connection.ask(&self.command(0, 1)).await {
            Ok(_) => Ok(()),
            Err(trouble) if trouble.is_server(ServerErrorKind::ResponseError) => {
                Err(Trouble::misconfigured(if self.fsynced {
                    "this server has no WAITAOF (Redis 7.2 has), which acknowledgements in \
                     append-only files need"
                } else {
                    "this server does not offer WAIT, which `ReplicaAck` needs"
                }))
            }
            Err(trouble) => Err(trouble),
        }
    }
}

/// Renews what comes in, with acknowledgements.
pub(super) async fn renew_all(
    shared: Arc<Shared>,
    place: Arc<Place>,
    mut queue: mpsc::UnboundedReceiver<Renewal>,
) {
    while let Some(first) = queue.recv().await {
        // Others that are due at this moment are about to ask too.
        yield_now().await;
        let mut batch = vec![first];
        while batch.len() < MOST
            && let Ok(next) = queue.try_recv()
        {
            batch.push(next);
        }
        let sent = Instant::now();
        let results = round(&shared, &place, &batch).await;
        for (n, renewal) in batch.into_iter().enumerate() {
            let result = match &results {
                Ok(results) => results.get(n).cloned().unwrap_or(Err(Trouble::strange())),
                Err(trouble) => Err(trouble.clone()),
            };
            match result {
                Err(trouble) if trouble.is_elsewhere() => sent_on(&shared, renewal, trouble),
                result => renewals::settle(renewal, sent, result),
            }
        }
    }
}

/// Renews at the node that has the key by now, as long as the lease lasts.
fn sent_on(shared: &Arc<Shared>, mut renewal: Renewal, trouble: Trouble) {
    if renewal.lease.has_ended() {
        return renewal.fails(trouble);
    }
    let Some(elsewhere) = trouble.elsewhere() else {
        return renewal.fails(trouble);
    };
    shared.learn(elsewhere);
    let target = match elsewhere {
        Elsewhere::AskAt(address) => Some(address.clone()),
        _ => None,
    };
    renewal.asking = target.is_some();
    let again = shared.clone();
    shared.spawn(async move {
        // Nodes may send us to each other for a moment.
        sleep(jittered(PAUSE)).await;
        match target.map(|address| again.place_at(&address)) {
            None => again.renew(renewal),
            Some(Ok(place)) => place.acknowledge(renewal),
            Some(Err(trouble)) => renewal.fails(trouble),
        }
    });
}

/// How many replicas, as `WAIT` or `WAITAOF` say.
fn acknowledged(waited: &Value) -> Option<i64> {
    match waited {
        Value::Array(_) => answer::ints(waited).ok()?.last().copied(),
        number => answer::int(number).ok(),
    }
}

async fn round(
    shared: &Shared,
    place: &Place,
    batch: &[Renewal],
) -> Result<Vec<Result<i64, Trouble>>, Trouble> {
    let connection = place.ack_link.connection().await?;
    let acks = &shared.acks;
    let mut results = Vec::new();
    let mut replicas = 0;
    for by_code in [false, true] {
        let mut questions = Pipeline::new();
        questions.ignore_errors();
        for renewal in batch {
            if renewal.asking {
                questions.cmd("ASKING");
            }
            questions.add_command(renewal.command(by_code));
        }
        let wanted = acks.of.replicas().unwrap_or_default();
        questions.add_command(acks.command(wanted, acks.within.as_millis()));
        let limit = shared.timeout + acks.within;
        let mut answers = connection.ask_all(&questions, limit).await?;
        // Where it fails, nobody has acknowledged; what the leases are is known all the same.
        replicas = answers
            .pop()
            .and_then(|waited| acknowledged(&waited.ok()?))
            .unwrap_or_default();
        let mut answers = answers.into_iter();
        let answers: Vec<_> = batch
            .iter()
            .map(|renewal| {
                if renewal.asking {
                    answers.next();
                }
                answers.next().unwrap_or(Err(Trouble::strange()))
            })
            .collect();
        let is_forgotten =
            |answer: &Result<Value, Trouble>| matches!(answer, Err(t) if t.is_no_script());
        let forgotten = answers.iter().any(is_forgotten);
        results = answers
            .into_iter()
            .map(|answer| answer.and_then(|answer| renewals::held(&answer)))
            .collect();
        if !forgotten {
            break;
        }
    }
    if replicas >= i64::from(acks.of.replicas().unwrap_or_default()) {
        return Ok(results);
    }
    match acks.of {
        ReplicaAck::Require(_) => {
            for result in &mut results {
                // Whoever holds no more needs no acknowledgement to know it.
                if matches!(result, Ok(1)) {
                    *result = Err(Trouble::not_replicated());
                }
            }
        }
        ReplicaAck::Off | ReplicaAck::BestEffort(_) => tracing::debug!(
            target: "tower_lock",
            replicas,
            "fewer replicas of Redis than asked for acknowledged in time; going on"
        ),
    }
    Ok(results)
}
