//! Deletes the nodes of keys that nobody uses any more.
//!
//! They are containers, so the server deletes them too, but only once a minute and 10 000 of them at
//! most: too few where keys come from requests. A node that somebody uses is not empty, and the
//! server refuses to delete it; who is about to create under one that has just gone makes it anew.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, sleep_until, timeout};
use zookeeper_client as zk;

use super::{client::Shared, layout::NodeLayout, session::Session};
use crate::key::LockKey;

/// How many deletions are under way at a time.
const AT_ONCE: usize = 64;
/// Deletions that are due within this time go together.
const TICK: Duration = Duration::from_millis(100);

pub(super) async fn walk(shared: Arc<Shared>) {
    loop {
        let (due, next) = shared.room.take_idle(false);
        // Without a session the servers see to it.
        if !due.is_empty()
            && let Ok(session) = shared.session().await
        {
            delete(&shared, &session, due).await;
        }
        let until = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until => {}
            () = shared.room.idle.notified() => {}
            () = shared.closing() => return,
        }
        sleep(TICK).await;
    }
}

/// Deletes all that nobody of this process uses.
pub(super) async fn all(shared: &Shared, session: &Session) {
    let (due, _) = shared.room.take_idle(true);
    delete(shared, session, due).await;
}

async fn delete(shared: &Shared, session: &Session, keys: Vec<(LockKey, bool)>) {
    let Ok(client) = session.client() else {
        return;
    };
    let kazoo = shared.config.layout == NodeLayout::Kazoo;
    let paths: Vec<_> = keys
        .iter()
        // kazoo's locks do not make it again: what it has made is kept for it.
        .filter(|(_, made)| *made || !kazoo)
        .map(|(key, _)| shared.config.parent(key))
        .collect();
    for paths in paths.chunks(AT_ONCE) {
        // Each is sent when its future is made.
        let deletions: Vec<_> = paths.iter().map(|path| client.delete(path, None)).collect();
        let all = async {
            for deletion in deletions {
                if let Err(zk::Error::NoAuth) = deletion.await {
                    tracing::debug!(target: "tower_lock", "ZooKeeper refused to delete an idle node");
                }
            }
        };
        if timeout(shared.config.timeout, all).await.is_err() {
            // The servers see to the rest.
            return;
        }
    }
}
