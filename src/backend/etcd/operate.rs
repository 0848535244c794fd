//! The verbs of operators: look at a key, take it away.

use std::time::Duration;

use etcd_client::{KeyValue, TxnOpResponse};
use tokio::time::sleep;

use super::{
    agenda::MOMENT,
    client::{Client, Shared},
    names::Names,
    nodes,
    trouble::Trouble,
};
use crate::{
    backend::{HolderState, KeyState, Mode},
    key::LockKey,
    lease::FencingToken,
};

/// How many nodes are read at most; those behind are counted.
const MOST: i64 = 1000;
/// For how many holders the server is asked how long they have left.
const MOST_LEASES: usize = 16;

/// How long holders have to hear of a forced release before the key goes to the next: a lock is
/// watched when it has been held for a moment, and what happened by then is told within 100 ms.
const NOTICE: Duration = MOMENT.saturating_add(Duration::from_millis(200));

/// The nodes of a lock in their order, and how many there are.
async fn queue(shared: &Shared, names: &Names) -> Result<(Vec<KeyValue>, u64), Trouble> {
    let answer = shared.txn(nodes::queue(names, MOST)).await?;
    match answer.op_responses().into_iter().next() {
        Some(TxnOpResponse::Get(mut nodes)) => {
            let count = u64::try_from(nodes.count()).map_err(|_| Trouble::strange())?;
            Ok((nodes.take_kvs(), count))
        }
        _ => Err(Trouble::strange()),
    }
}

/// How many of the first ones hold: a single exclusive one, or shared ones up to the first that
/// is not.
fn holders(names: &Names, nodes: &[KeyValue]) -> usize {
    let shared = nodes
        .iter()
        .take_while(|kv| names.read(kv.key()).0 == Mode::Shared)
        .count();
    shared.max(1).min(nodes.len())
}

pub(super) async fn inspect(client: &Client, key: &LockKey) -> Result<KeyState, Trouble> {
    let shared = &client.shared;
    let names = Names::new(&shared.prefix, key);
    let (nodes, count) = queue(shared, &names).await?;
    let holding = holders(&names, &nodes);
    let mut state = KeyState::free(names.lock());
    state.waiters = count.saturating_sub(holding as u64);
    let mut leases: Vec<(i64, Option<Duration>)> = Vec::new();
    for kv in &nodes[..holding] {
        let (mode, ours) = names.read(kv.key());
        let mut holder = HolderState::new(mode);
        if ours {
            let token = u64::try_from(kv.create_revision()).ok();
            holder.fencing_token = token.and_then(FencingToken::new);
        }
        let known = leases.iter().find(|(lease, _)| *lease == kv.lease());
        holder.remaining = match known {
            Some((_, remaining)) => *remaining,
            None if leases.len() < MOST_LEASES && kv.lease() != 0 => {
                let remaining = remaining(shared, kv.lease()).await?;
                leases.push((kv.lease(), remaining));
                remaining
            }
            None => None,
        };
        state.holders.push(holder);
    }
    Ok(state)
}

/// For how long the server would keep a lease if its process died now.
async fn remaining(shared: &Shared, lease: i64) -> Result<Option<Duration>, Trouble> {
    let connection = shared.link.connection().await?;
    let seconds = connection.time_to_live(lease).await?;
    Ok(u64::try_from(seconds).ok().map(Duration::from_secs))
}

/// In two steps: the nodes are written first, which their holders hear of, and deleted when they
/// have had the time to. So who hears at all knows before the next one holds, and why.
pub(super) async fn force_release(client: &Client, key: &LockKey) -> Result<bool, Trouble> {
    let shared = &client.shared;
    let names = Names::new(&shared.prefix, key);
    let (nodes, _) = queue(shared, &names).await?;
    let holders = &nodes[..holders(&names, &nodes)];
    if holders.is_empty() {
        return Ok(false);
    }
    let mut taken = Vec::new();
    for kv in holders {
        let node = std::str::from_utf8(kv.key()).map_err(|_| Trouble::strange())?;
        // Each by itself, and no other than was seen.
        let answer = shared.txn(nodes::take(node, kv.create_revision())).await?;
        if answer.succeeded() {
            taken.push((node, kv.create_revision()));
        }
    }
    if !taken.is_empty() {
        sleep(NOTICE).await;
    }
    for (node, revision) in taken {
        shared.txn(nodes::delete(node, revision)).await?;
    }
    Ok(true)
}
