//! The restart guard at work: which nodes vote, and how one that forgot comes to do so again.
//!
//! Every client does this for all nodes, and the scripts make sure that it is done once. See
//! [`quorum::guard`](super::quorum::guard) for why it is enough.
//!
//! Nodes keep one thing more for it: the longest ttl that they have granted. Of two clients with
//! different limits, the one with the shorter would not wait for long enough.

use std::{collections::HashMap, time::Duration};

use redis::Value;
use tokio::time::{Instant, sleep, timeout};

use super::{
    client::{ANSWER, Shared},
    node::Node,
    post::{each, within},
    quorum::guard::{self, State, Step},
    scripts::{FOUND, JOIN, SURVEY},
};
use crate::{
    backend::redis::{answer, trouble::Trouble},
    clock::jittered,
    error::{BackendError, BackendErrorKind},
};

/// How soon nodes are looked at again of which some cannot vote.
const AGAIN: Duration = Duration::from_secs(1);
/// How often they are looked at when nobody complains.
const SELDOM: Duration = Duration::from_secs(30);
/// Where a node keeps the longest ttl that it granted, in milliseconds.
const LONGEST: &str = "longest";

/// What a node knows.
struct Told {
    /// The name under which it is joining, if it is no member.
    joining: Option<String>,
    /// Token counters, and the longest ttl.
    numbers: HashMap<String, u64>,
}

/// The name of a joining, and when it was heard first.
type Heard = Option<(String, Instant)>;

/// Sees to it that nodes become members that are none.
pub(super) async fn watch_over(shared: &Shared) {
    let mut heard: Vec<Heard> = vec![None; shared.nodes.len()];
    loop {
        let pause = look(shared, &mut heard).await;
        tokio::select! {
            () = sleep(jittered(pause)) => {}
            () = shared.look_again.notified() => {
                // A connection opens seldom alone.
                sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Looks at all nodes and takes the next step with each; when to do so again.
async fn look(shared: &Shared, heard: &mut [Heard]) -> Duration {
    let sent = Instant::now();
    let told = survey(shared).await;
    let mut states = Vec::new();
    for ((node, told), heard) in shared.nodes.iter().zip(&told).zip(&mut *heard) {
        let state = match told {
            None => State::Silent,
            Some(Told { joining: None, .. }) => State::Member,
            Some(Told {
                joining: Some(name),
                ..
            }) => {
                if heard.as_ref().is_none_or(|(known, _)| known != name) {
                    *heard = Some((name.clone(), Instant::now()));
                }
                let since = heard.as_ref().map_or(sent, |(_, since)| *since);
                State::Joining {
                    watched: sent.saturating_duration_since(since),
                }
            }
        };
        if state != State::Silent {
            node.set_votes(shared, state == State::Member);
        }
        states.push(state);
    }
    let highest = highest(told.iter().flatten());
    let longest = highest.get(LONGEST).copied().unwrap_or_default();
    let longest = shared.max_ttl.max(Duration::from_millis(longest));
    let mut pause = SELDOM;
    for node in &shared.nodes {
        match guard::step(&states, node.at, longest) {
            Step::Nothing if states[node.at] == State::Member => {}
            Step::Nothing | Step::TooFew => pause = pause.min(AGAIN),
            // Another client may have watched it for longer.
            Step::Watch(left) => pause = pause.min(left).min(AGAIN),
            Step::Join => {
                pause = pause.min(AGAIN);
                if let Some(Told {
                    joining: Some(name),
                    ..
                }) = &told[node.at]
                    && let Ok(true) = join(node, shared, name, &highest).await
                {
                    tracing::info!(
                        target: "tower_lock",
                        node = node.at + 1,
                        "a node of RedLock votes from now on"
                    );
                    node.set_votes(shared, true);
                }
            }
        }
    }
    pause
}

/// The highest of every number that any node told.
fn highest<'a>(told: impl Iterator<Item = &'a Told>) -> HashMap<String, u64> {
    let mut highest = HashMap::new();
    for (field, number) in told.flat_map(|told| &told.numbers) {
        let known = highest.entry(field.clone()).or_default();
        *known = (*number).max(*known);
    }
    highest
}

async fn survey(shared: &Shared) -> Vec<Option<Told>> {
    let mut told: Vec<_> = shared.nodes.iter().map(|_| None).collect();
    let asks = shared.nodes.iter().map(|node| survey_one(node, shared));
    let ask = each(asks, |at, answer| {
        told[at] = answer.ok();
        false
    });
    within(ANSWER, ask).await;
    told
}

async fn survey_one(node: &Node, shared: &Shared) -> Result<Told, Trouble> {
    let none = || Trouble::unavailable("there is no connection to Redis");
    let connection = node.lock_link.ready().ok_or_else(none)?;
    let name = format!("{:016x}", fastrand::u64(..));
    let answer = connection
        .run(false, &SURVEY, &|script, by_code| {
            let mut cmd = script.call(by_code, &[&shared.node_name]);
            cmd.arg(&name);
            cmd
        })
        .await?;
    let [name, fields] = answer::list(&answer)? else {
        return Err(Trouble::strange());
    };
    let name = answer::string(name)?;
    let mut numbers = HashMap::new();
    for (field, value) in pairs(fields)? {
        let (field, value) = (answer::string(field)?, answer::string(value)?);
        if let Ok(number) = value.parse() {
            numbers.insert(field.to_owned(), number);
        }
    }
    Ok(Told {
        joining: (!name.is_empty()).then(|| name.to_owned()),
        numbers,
    })
}

/// A map, in whichever form a script may answer it.
fn pairs(value: &Value) -> Result<Vec<(&Value, &Value)>, Trouble> {
    match value {
        Value::Map(pairs) => Ok(pairs.iter().map(|(field, value)| (field, value)).collect()),
        Value::Array(items) => Ok(items
            .chunks_exact(2)
            .map(|two| (&two[0], &two[1]))
            .collect()),
        _ => Err(Trouble::strange()),
    }
}

async fn join(
    node: &Node,
    shared: &Shared,
    name: &str,
    numbers: &HashMap<String, u64>,
) -> Result<bool, Trouble> {
    let connection = node.lock_link.connection().await?;
    let answer = connection
        .run(false, &JOIN, &|script, by_code| {
            let mut cmd = script.call(by_code, &[&shared.node_name]);
            cmd.arg(name);
            for (field, number) in numbers {
                cmd.arg(field).arg(number);
            }
            cmd
        })
        .await?;
    Ok(answer::int(&answer)? == 1)
}

/// See [`RedLockBackend::found`](super::RedLockBackend::found).
pub(super) async fn found(shared: &Shared) -> Result<bool, BackendError> {
    for marks in [false, true] {
        let mut refusal = None;
        let mut heard = 0;
        let asks = shared
            .nodes
            .iter()
            .map(|node| ask_found_patiently(shared, node, marks));
        let round = each(asks, |_, answer| {
            heard += 1;
            if !matches!(answer, Ok(true)) {
                refusal = Some(answer);
            }
            false
        });
        within(ANSWER * 6, round).await;
        match refusal {
            None if heard < shared.nodes.len() => return Err(not_all()),
            None => {}
            Some(Err(trouble)) => return Err(trouble.into()),
            Some(Ok(_)) => return Ok(false),
        }
    }
    shared.look_again.notify_one();
    let voting = until_voting(shared, shared.nodes.len());
    if timeout(ANSWER * 5, voting).await.is_err() {
        return Err(not_all());
    }
    Ok(true)
}

fn not_all() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unavailable,
        "not all nodes answered, and all are needed to found a deployment",
    )
}

async fn ask_found(shared: &Shared, node: &Node, marks: bool) -> Result<bool, Trouble> {
    let ask = async {
        let connection = node.lock_link.connection().await?;
        let answer = connection
            .run(false, &FOUND, &|script, by_code| {
                let mut cmd = script.call(by_code, &[&shared.node_name]);
                cmd.arg(u8::from(marks));
                cmd
            })
            .await?;
        Ok(answer::int(&answer)? == 1)
    };
    ask.await
        .map_err(|trouble: Trouble| trouble.of_node(node.at + 1))
}

/// The same of a node that may not be connected to yet.
async fn ask_found_patiently(shared: &Shared, node: &Node, marks: bool) -> Result<bool, Trouble> {
    let until = Instant::now() + ANSWER * 5;
    loop {
        match ask_found(shared, node, marks).await {
            Err(trouble) if trouble.may_pass() && Instant::now() < until => {
                sleep(Duration::from_millis(50)).await;
            }
            answer => return answer,
        }
    }
}

/// Waits until so many nodes vote, as far as this process knows.
pub(super) async fn until_voting(shared: &Shared, count: usize) {
    let mut votes = shared.votes.subscribe();
    loop {
        votes.borrow_and_update();
        if shared.nodes.iter().filter(|node| node.votes()).count() >= count {
            return;
        }
        tokio::select! {
            // The sender is in what we look at.
            _ = votes.changed() => {}
            // Connections come back without a word.
            () = sleep(Duration::from_millis(50)) => {}
        }
    }
}
