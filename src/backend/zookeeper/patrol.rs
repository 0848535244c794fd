//! Finds records that have ended, of processes that are gone.
//!
//! Where there are records, one process of all is on duty: the one whose session has the node
//! `~patrol`. It walks through the buckets, one after the other, and reads the records whose ends it
//! does not have in mind, so many in a second. So what this costs does not grow with the number of
//! processes, and hardly with that of records: these bound how long a walk takes.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use zookeeper_client as zk;

use super::{answer::readable, client::Shared, ends, session::Session, shelf::RECORDS};
use crate::clock::jittered;

/// Between two walks, and between two looks whether somebody is on duty.
const REST: Duration = Duration::from_secs(10);
/// Between two buckets, and two parts of a large one.
const PACE: Duration = Duration::from_millis(500);
/// So many unknown records are read in that time.
const AT_ONCE: usize = 50;

pub(super) async fn walk(shared: Arc<Shared>) {
    let walks = async {
        loop {
            sleep(jittered(REST)).await;
            if let Ok(session) = shared.session().await {
                tokio::select! {
                    () = walk_once(&shared, &session) => {}
                    () = session.over() => {}
                }
            }
        }
    };
    tokio::select! {
        () = walks => {}
        () = shared.closing() => {}
    }
}

/// Whether this session is on duty, from now on if nobody was.
async fn is_on_duty(shared: &Shared, session: &Session) -> bool {
    let Ok(client) = session.client() else {
        return false;
    };
    let config = &shared.config;
    let node = [&config.base, "/~patrol"].concat();
    let asked = async {
        if let Some(stat) = client.check_stat(&node).await? {
            return Ok(stat.ephemeral_owner == session.id);
        }
        let options = zk::CreateMode::Ephemeral.with_acls(config.acls());
        // Of two that do this the second is told that the node exists.
        client.create(&node, &config.data, &options).await?;
        Ok::<_, zk::Error>(true)
    };
    matches!(timeout(config.timeout, readable(asked)).await, Ok(Ok(true)))
}

async fn walk_once(shared: &Shared, session: &Session) {
    let records = [&shared.config.base, "/", RECORDS].concat();
    let buckets = list(shared, session, &records).await;
    if buckets.is_empty() || !is_on_duty(shared, session).await {
        return;
    }
    for bucket in buckets {
        let path = [&records, "/", &bucket].concat();
        let mut names = list(shared, session, &path).await;
        names.retain(|name| !shared.ends.knows(name));
        let names: Vec<Arc<str>> = names.into_iter().map(Arc::from).collect();
        for some in names.chunks(AT_ONCE) {
            ends::look_at(shared, some).await;
            sleep(PACE).await;
        }
        if names.is_empty() {
            sleep(PACE).await;
        }
    }
}

/// The children of a node; none where they cannot be had now.
async fn list(shared: &Shared, session: &Session, path: &str) -> Vec<String> {
    let Ok(client) = session.client() else {
        return Vec::new();
    };
    let listed = readable(client.list_children(path));
    match timeout(shared.config.timeout, listed).await {
        Ok(Ok(children)) => children,
        _ => Vec::new(),
    }
}
