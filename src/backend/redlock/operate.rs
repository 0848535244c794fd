//! The verbs of operators, and what all nodes together say of a key.

use std::{collections::BTreeMap, time::Duration};

use redis::Value;

use super::{
    client::{ANSWER, Client, Shared},
    names::Names,
    node::Node,
    post::{each, patience, within},
    scripts::{FORCE_RELEASE, LOOK},
};
use crate::{
    backend::{
        HolderState, KeyState, Mode,
        redis::{answer, trouble::Trouble},
    },
    error::{BackendError, BackendErrorKind},
    key::LockKey,
    lease::FencingToken,
};

/// What a node says of a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// An owner of ours, or `?` and the value of another's; nothing if it is free.
    holder: String,
    remaining: Option<Duration>,
    waiters: u64,
    token: u64,
}

/// What the nodes say that answered.
#[derive(Debug, Default)]
pub(super) struct View {
    seen: Vec<Seen>,
    nodes: usize,
    majority: usize,
}

/// Who has the key on a majority of the nodes, or may have.
#[derive(Debug, PartialEq)]
pub(super) struct Holder {
    pub(super) token: Option<FencingToken>,
    /// Until there is no majority any more.
    pub(super) remaining: Option<Duration>,
    pub(super) is_foreign: bool,
}

impl View {
    /// Nodes that did not answer may be of the same holder as those that did.
    pub(super) fn holder(&self) -> Option<Holder> {
        let mut by_holder = BTreeMap::<&str, Vec<&Seen>>::new();
        for seen in self.seen.iter().filter(|seen| !seen.holder.is_empty()) {
            by_holder.entry(&seen.holder).or_default().push(seen);
        }
        let unknown = self.nodes - self.seen.len();
        let most = by_holder.into_values().max_by_key(Vec::len)?;
        if most.len() + unknown < self.majority {
            return None;
        }
        let mut ends: Vec<_> = most.iter().filter_map(|seen| seen.remaining).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        Some(Holder {
            token: most
                .iter()
                .filter_map(|seen| FencingToken::new(seen.token))
                .max(),
            remaining: ends.get(self.majority - 1).or(ends.last()).copied(),
            is_foreign: most.iter().any(|seen| seen.holder.starts_with('?')),
        })
    }

    /// As many as a majority of the nodes knows of.
    fn waiters(&self) -> u64 {
        let mut waiters: Vec<_> = self.seen.iter().map(|seen| seen.waiters).collect();
        waiters.sort_unstable_by(|a, b| b.cmp(a));
        waiters.get(self.majority - 1).copied().unwrap_or_default()
    }
}

/// Asks all nodes: a majority has to answer, and the others have their time.
pub(super) async fn look(shared: &Shared, names: &Names, gate: &str) -> Result<View, BackendError> {
    let asks = shared.nodes.iter();
    let seen = gather(shared, asks.map(|node| look_at(node, shared, names, gate))).await?;
    Ok(View {
        seen,
        nodes: shared.nodes.len(),
        majority: shared.majority(),
    })
}

async fn gather<'a, T>(
    shared: &Shared,
    asks: impl Iterator<Item = impl Future<Output = Result<Option<T>, Trouble>> + Send + 'a>,
) -> Result<Vec<T>, BackendError> {
    let (mut answers, mut refusal) = (Vec::new(), None);
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let all = each(asks, |_, answer| {
        // The other end is below.
        let _ = sender.send(answer);
        false
    });
    let round = async {
        tokio::pin!(all);
        let own_time = patience(shared.node_timeout(shared.max_ttl));
        tokio::select! {
            biased;
            () = &mut all => return,
            () = own_time => {}
        }
        // The channel is read when this ends, so what counts is how many there are.
        while heard.len() < shared.majority() {
            tokio::select! {
                biased;
                () = &mut all => return,
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    };
    within(ANSWER, round).await;
    while let Ok(answer) = heard.try_recv() {
        match answer {
            Ok(Some(answer)) => answers.push(answer),
            Ok(None) => {}
            Err(trouble) => refusal = Some(trouble),
        }
    }
    if answers.len() >= shared.majority() {
        return Ok(answers);
    }
    let error = BackendError::new(
        BackendErrorKind::Unavailable,
        format!(
            "{} of {} nodes answered, a majority is needed",
            answers.len(),
            shared.nodes.len()
        ),
    );
    Err(match refusal {
        Some(trouble) => error.with_source(BackendError::from(trouble)),
        None => error,
    })
}

/// Nothing from a node that may have forgotten what it granted.
async fn look_at(
    node: &Node,
    shared: &Shared,
    names: &Names,
    gate: &str,
) -> Result<Option<Seen>, Trouble> {
    let connection = ready(node)?;
    let answer = connection
        .run(false, &LOOK, &|script, by_code| {
            let keys = [&*names.lock, &*names.waiters, &*shared.node_name];
            let mut cmd = script.call(by_code, &keys);
            cmd.arg(gate);
            cmd
        })
        .await?;
    let [holder, ms, waiters, token] = answer::list(&answer)? else {
        return Ok(None);
    };
    Ok(Some(Seen {
        holder: text(holder)?,
        remaining: positive(ms)?.map(Duration::from_millis),
        waiters: positive(waiters)?.unwrap_or_default(),
        token: positive(token)?.unwrap_or_default(),
    }))
}

fn ready(
    node: &Node,
) -> Result<std::sync::Arc<crate::backend::redis::connection::Connection>, Trouble> {
    let none = || Trouble::unavailable("there is no connection to Redis");
    node.lock_link.ready().ok_or_else(none)
}

/// Whatever bytes others put there.
fn text(value: &Value) -> Result<String, Trouble> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        other => Ok(answer::string(other)?.to_owned()),
    }
}

fn positive(value: &Value) -> Result<Option<u64>, Trouble> {
    Ok(u64::try_from(answer::int(value)?).ok())
}

pub(super) async fn inspect(client: &Client, key: &LockKey) -> Result<KeyState, BackendError> {
    let names = Names::new(&client.shared.prefix, key);
    let view = look(&client.shared, &names, "").await?;
    let mut state = KeyState::free(&*names.lock);
    state.waiters = view.waiters();
    if let Some(holder) = view.holder() {
        let mut held = HolderState::new(Mode::Exclusive);
        held.fencing_token = holder.token;
        held.remaining = holder.remaining;
        state.holders.push(held);
    }
    Ok(state)
}

pub(super) async fn force_release(client: &Client, key: &LockKey) -> Result<bool, BackendError> {
    let shared = &client.shared;
    let names = &Names::new(&shared.prefix, key);
    let asks = shared.nodes.iter().map(async |node| {
        let answer = ready(node)?
            .run(false, &FORCE_RELEASE, &|script, by_code| {
                script.call(by_code, &[&names.lock, &names.waiters])
            })
            .await?;
        Ok(Some(Seen {
            holder: text(&answer)?,
            ..Seen::default()
        }))
    });
    let view = View {
        seen: gather(shared, asks).await?,
        nodes: shared.nodes.len(),
        majority: shared.majority(),
    };
    Ok(view.holder().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(holder: &str, ms: u64) -> Seen {
        Seen {
            holder: holder.into(),
            remaining: Some(Duration::from_millis(ms)),
            token: ms,
            waiters: 0,
        }
    }

    fn view(seen: &[Seen]) -> View {
        View {
            seen: seen.to_vec(),
            nodes: 5,
            majority: 3,
        }
    }

    #[test]
    fn a_holder_has_a_majority_or_may_have() {
        let (a, b, free) = (seen("a", 10), seen("b", 9), seen("", 0));
        let both = [a.clone(), a.clone(), b.clone(), b, free.clone()];
        assert_eq!(view(&both).holder(), None);
        assert!(view(&both[..4]).holder().is_some());
        let three = [free.clone(), seen("a", 7), seen("a", 9), free, seen("a", 8)];
        let holder = view(&three).holder().unwrap();
        assert_eq!(holder.remaining, Some(Duration::from_millis(7)));
        assert_eq!(holder.token, FencingToken::new(9));
        assert!(!holder.is_foreign);
        assert!(
            view(&[seen("?x", 1), seen("?x", 1), seen("?x", 1)])
                .holder()
                .unwrap()
                .is_foreign
        );
        assert_eq!(view(&[]).holder(), None);
    }

    #[test]
    fn waiters_are_those_of_whom_a_majority_knows() {
        let of = |waiters| Seen {
            waiters,
            ..Seen::default()
        };
        assert_eq!(view(&[of(2), of(1), of(2), of(2), of(9)]).waiters(), 2);
        assert_eq!(view(&[of(2), of(1), of(1)]).waiters(), 1);
        assert_eq!(view(&[of(2)]).waiters(), 0);
    }
}
