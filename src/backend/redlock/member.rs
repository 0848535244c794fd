//! The restart guard at work: which nodes vote, and how one that forgot comes to do so again.
//!
//! Any client does this for any node, and the scripts make sure that it is done once. See
//! [`quorum::guard`](super::quorum::guard) for why it is enough.
//!
//! Where too few members are left to teach, what there was is gone from a majority. Then a node
//! learns from all others, members or not, once each of them has waited too: that is everything
//! that is known. It is also how a deployment begins, of which nobody can tell that it is new.

use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::{
    client::{ANSWER, Shared},
    node::Node,
    post::{each, within},
    quorum::guard::{self, Marker, Step},
    scripts::{ADMIT, FOUND, JOIN, TEACH},
};
use crate::{
    backend::redis::{answer, connection::Connection, trouble::Trouble},
    clock::jittered,
    error::{BackendError, BackendErrorKind},
};

/// How soon after a failure a node's membership is looked at again.
const AGAIN: Duration = Duration::from_millis(500);
/// How often a member is looked at that nobody complains of.
const SELDOM: Duration = Duration::from_secs(30);

/// Sees to it that a node becomes a member whenever it is none.
pub(super) async fn join(shared: &Shared, at: usize) {
    let node = &shared.nodes[at];
    loop {
        let pause = match look(shared, node).await {
            Ok(Step::Vote) => {
                node.set_votes(shared, true);
                SELDOM
            }
            Ok(Step::Wait(left)) => {
                node.set_votes(shared, false);
                // Many clients wait for the same moment.
                left + jittered(Duration::from_millis(20))
            }
            Ok(Step::MarkJoining) => {
                node.set_votes(shared, false);
                jittered(Duration::from_millis(20))
            }
            Ok(Step::Learn) | Err(_) => {
                node.set_votes(shared, false);
                jittered(AGAIN)
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = node.abstained.notified() => {
                // Whoever asks often complains often.
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Looks at a node, and takes the next step with it.
async fn look(shared: &Shared, node: &Node) -> Result<Step, Trouble> {
    let connection = node.lock_link.connection().await?;
    let run = run_of(&connection)?;
    let names = &shared.names;
    let answer = connection
        .run(&JOIN, |script, by_code| {
            let mut cmd = script.call(by_code, &[&names.member, &names.joining]);
            cmd.arg(run);
            cmd
        })
        .await?;
    let marker = match u64::try_from(answer::int(&answer)?) {
        Err(_) => Marker::Member,
        // By now the script has marked it.
        Ok(0) => Marker::None,
        Ok(us) => Marker::Joining {
            since: Duration::from_micros(us),
        },
    };
    match guard::step(marker, shared.max_ttl) {
        Step::Learn => learn(shared, node, &connection).await,
        step => Ok(step),
    }
}

/// What another node knows.
struct Lesson {
    /// Since when it is joining, if it is no member.
    joining: Option<Duration>,
    /// The longest ttl of which it knows.
    longest: Duration,
    counters: Vec<i64>,
}

async fn learn(shared: &Shared, node: &Node, connection: &Connection) -> Result<Step, Trouble> {
    let mut lessons = Vec::new();
    let others = shared.nodes.iter().filter(|other| other.at != node.at);
    let asks = others.map(|other| teach(shared, other));
    let ask = each(asks, |_, lesson| {
        lessons.extend(lesson.ok().flatten());
        false
    });
    within(ANSWER, ask).await;

    let members = lessons.iter().filter(|l| l.joining.is_none()).count();
    let longest = lessons.iter().map(|lesson| lesson.longest);
    let longest = longest.fold(shared.max_ttl, Duration::max);
    let guard_time = guard::guard_time(longest);
    if members >= guard::teachers(shared.count()) {
        lessons.retain(|lesson| lesson.joining.is_none());
    } else {
        if lessons.len() < shared.nodes.len() - 1 {
            return Err(Trouble::unavailable("too few nodes to learn from"));
        }
        let joining = lessons.iter().filter_map(|lesson| lesson.joining);
        if let Some(since) = joining.min()
            && since < guard_time
        {
            return Ok(Step::Wait(guard_time - since));
        }
    }
    let run = run_of(connection)?;
    let counter = |n| lessons.iter().filter_map(move |l| l.counters.get(n)).max();
    let answer = connection
        .run(&ADMIT, |script, by_code| {
            let mut cmd = script.call(by_code, &shared.names.all());
            cmd.arg(run).arg(micros(guard_time)).arg(millis(longest));
            for n in 0..shared.names.counters.len() {
                cmd.arg(counter(n).copied().unwrap_or_default());
            }
            cmd
        })
        .await?;
    match answer::int(&answer)? {
        1 => {
            tracing::info!(target: "tower_lock", node = node.at + 1, "a node of RedLock votes");
            Ok(Step::Vote)
        }
        // Somebody had a longer ttl than is configured here.
        _ => Ok(Step::Wait(AGAIN)),
    }
}

/// Nothing from a node that has not been seen by anybody.
async fn teach(shared: &Shared, node: &Node) -> Result<Option<Lesson>, Trouble> {
    let connection = node.lock_link.connection().await?;
    let run = run_of(&connection)?;
    let answer = connection
        .run(&TEACH, |script, by_code| {
            let mut cmd = script.call(by_code, &shared.names.all());
            cmd.arg(run);
            cmd
        })
        .await?;
    let numbers = answer::ints(&answer)?;
    let [since, longest, counters @ ..] = numbers.as_slice() else {
        return Ok(None);
    };
    if counters.len() != shared.names.counters.len() {
        return Err(Trouble::strange());
    }
    Ok(Some(Lesson {
        joining: u64::try_from(*since).ok().map(Duration::from_micros),
        longest: Duration::from_millis(u64::try_from(*longest).unwrap_or_default()),
        counters: counters.to_vec(),
    }))
}

fn run_of(connection: &Connection) -> Result<&str, Trouble> {
    let run = connection.server().run_id.as_deref();
    run.ok_or_else(Trouble::strange)
}

/// See [`RedLockBackend::found`](super::RedLockBackend::found).
pub(super) async fn found(shared: &Shared) -> Result<bool, BackendError> {
    for marks in [false, true] {
        let mut answers = Vec::new();
        let asks = shared.nodes.iter().map(|node| ask_found(shared, node, marks));
        each(asks, |_, answer| {
            answers.push(answer);
            false
        })
        .await;
        let mut founded = true;
        for answer in answers {
            match answer {
                Ok(answer) => founded &= answer == 1,
                Err(trouble) => return Err(trouble.into()),
            }
        }
        if !founded {
            return Ok(false);
        }
    }
    for node in &shared.nodes {
        node.abstained.notify_one();
    }
    until_voting(shared, shared.nodes.len()).await?;
    Ok(true)
}

async fn ask_found(shared: &Shared, node: &Node, marks: bool) -> Result<i64, Trouble> {
    let ask = async {
        let connection = node.lock_link.connection().await?;
        let run = run_of(&connection)?;
        let answer: Value = connection
            .run(&FOUND, |script, by_code| {
                let mut cmd = script.call(by_code, &shared.names.all());
                cmd.arg(run).arg(millis(shared.max_ttl));
                cmd.arg(u8::from(marks));
                cmd
            })
            .await?;
        answer::int(&answer)
    };
    ask.await.map_err(|trouble| trouble.of_node(node.at + 1))
}

/// Waits until so many nodes vote, as far as this process knows.
pub(super) async fn until_voting(shared: &Shared, count: usize) -> Result<(), BackendError> {
    let mut votes = shared.votes.subscribe();
    loop {
        votes.borrow_and_update();
        if shared.nodes.iter().filter(|node| node.votes()).count() >= count {
            return Ok(());
        }
        tokio::select! {
            changed = votes.changed() => if changed.is_err() {
                return Err(BackendError::new(
                    BackendErrorKind::Unavailable,
                    "the client is closed",
                ));
            },
            // Connections come back without a word.
            () = sleep(Duration::from_millis(50)) => {}
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Rounded up, as leases are.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
