//! What is found out before the first lock: whether the cluster and the user's rights will do, and
//! what the servers are.

use std::{sync::Arc, time::Duration};

use etcd_client::WatchOptions;
use tokio::time::timeout;

use super::{
    connection::Connection,
    link::Link,
    names::{self, Names},
    nodes::{self, Put, Wish},
    trouble::Trouble,
    version,
};
use crate::{backend::Mode, key::LockKey, lease::OwnerToken};

/// The lease of the trial, in seconds: it outlives the trial on a busy machine too, and ends soon
/// where that was broken off.
const TRIAL: i64 = 10;

/// What was found out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Whether all servers keep their leases: see [`version`].
    pub(super) sound: bool,
    /// The shortest lease that they give.
    pub(super) shortest: Duration,
}

pub(super) async fn check(link: &Link, prefix: &str) -> Result<Found, Trouble> {
    let mut connections = Vec::new();
    let mut refusal = None;
    for member in 0..link.members() {
        match link.open(member).await {
            Ok(connection) => connections.push(connection),
            // What needs a change says more than what is not there.
            Err(trouble) => match &refusal {
                Some(first) if !Trouble::may_pass(first) => {}
                _ => refusal = Some(trouble),
            },
        }
    }
    let Some(first) = connections.first() else {
        return Err(refusal.map_or_else(Trouble::no_answer, Trouble::at_first));
    };
    let mut sound = true;
    for connection in &connections {
        // A server that does not say, or may not, is not relied upon.
        let version = connection.version().await.unwrap_or_default();
        sound &= version::keeps_its_leases(&version);
    }
    let (brief, shortest) = first.grant(1).await?;
    let _ = first.revoke(brief).await;
    let (lease, _) = first.grant(TRIAL).await?;
    let tried = try_all(first, link, prefix, lease).await;
    // With it goes what the trial has put.
    let _ = first.revoke(lease).await;
    tried?;
    let shortest = u64::try_from(shortest).map_err(|_| Trouble::strange())?;
    Ok(Found {
        sound,
        shortest: Duration::from_secs(shortest),
    })
}

/// Everything that the backend will do, once, under a lock that nobody else wants.
async fn try_all(
    connection: &Connection,
    link: &Link,
    prefix: &str,
    lease: i64,
) -> Result<(), Trouble> {
    let owner = OwnerToken::random();
    let key = LockKey::new("probe", format_args!("{:016x}", fastrand::u64(..)));
    let names = Arc::new(Names::new(prefix, &key));
    let mut wish = Wish {
        node: names.node(&owner, Mode::Exclusive),
        mark: names::mark(prefix, &owner, &key),
        names,
        mode: Mode::Exclusive,
        value: "probe".into(),
        queues: false,
        record: None,
    };
    connection.keep_alive(lease, link.patience).await?;
    let answer = connection.txn(wish.put(lease)).await?;
    let Put::Stands(revision, None) = wish.was_put(&answer)? else {
        return Err(Trouble::strange());
    };
    wish.queues = true;
    let answer = connection.txn(wish.put(lease)).await?;
    let Put::Stood(..) = wish.was_put(&answer)? else {
        return Err(Trouble::strange());
    };
    let answer = connection.txn(wish.look(revision)).await?;
    wish.was_seen(revision, lease, &answer)?;
    watch(connection, link, &wish.node, revision).await?;
    connection
        .txn(nodes::bury(&wish.node, &wish.mark, lease))
        .await?;
    connection.delete(&wish.mark).await
}

/// The put of the node is delivered to who watches from its revision.
async fn watch(
    connection: &Connection,
    link: &Link,
    node: &str,
    revision: i64,
) -> Result<(), Trouble> {
    let options = WatchOptions::new()
        .with_watch_id(1)
        .with_start_revision(revision);
    let mut stream = connection.watch(node, options).await?;
    let delivered = async {
        loop {
            match stream.message().await? {
                Some(answer) if answer.canceled() => {
                    return Err(Trouble::misconfigured(
                        "the etcd user may not watch what is under the prefix",
                    ));
                }
                Some(answer) if !answer.events().is_empty() => return Ok(()),
                Some(_) => {}
                None => return Err(Trouble::no_answer()),
            }
        }
    };
    timeout(link.patience, delivered)
        .await
        .unwrap_or_else(|_| Err(Trouble::no_answer()))
}
