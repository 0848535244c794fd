//! Deletes the nodes of keys that nobody uses any more.
//!
//! They are containers, so the server deletes them too, but only once a minute and 10 000 of them at
//! most: too few where keys come from requests. A node that somebody uses is not empty, and the
//! server refuses to delete it; who is about to create under one that has just gone makes it anew.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, sleep_until, timeout};
use zookeeper_client as zk;

use super::{client::Shared, layout::NodeLayout, session::Session, trouble::Trouble};
use crate::key::LockKey;

/// How many deletions are under way at a time.
const AT_ONCE: usize = 64;
/// Deletions that are due within this time go together.
const TICK: Duration = Duration::from_millis(100);

pub(super) async fn walk(shared: Arc<Shared>) {
    loop {
        let (due, next) = shared.room.take_idle(false);
        if !due.is_empty() {
            match shared.session().await {
                Ok(session) => delete(&shared, &session, due).await,
                Err(_) => put_back(&shared, due),
            }
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

/// For later.
fn put_back(shared: &Shared, keys: impl IntoIterator<Item = (LockKey, bool)>) {
    for (key, made) in keys {
        shared.room.put_back(key, made);
    }
    shared.room.idle.notify_one();
}

/// Deletes all that nobody of this process uses.
pub(super) async fn all(shared: &Shared, session: &Session) {
    let (due, _) = shared.room.take_idle(true);
    delete(shared, session, due).await;
}

async fn delete(shared: &Shared, session: &Session, mut keys: Vec<(LockKey, bool)>) {
    if shared.config.layout == NodeLayout::Kazoo {
        // kazoo's locks do not make it again: what they have made is kept for them.
        keys.retain(|(_, made)| *made);
    }
    let mut keys = keys.into_iter();
    while keys.len() > 0 {
        let chunk: Vec<_> = keys.by_ref().take(AT_ONCE).collect();
        if delete_some(shared, session, &chunk).await.is_err() {
            return put_back(shared, chunk.into_iter().chain(keys));
        }
    }
}

/// Fails where nobody knows.
async fn delete_some(
    shared: &Shared,
    session: &Session,
    keys: &[(LockKey, bool)],
) -> Result<(), Trouble> {
    let client = session.client()?;
    let paths: Vec<_> = keys
        .iter()
        .map(|(key, _)| shared.config.parent(key))
        .collect();
    // Each is sent when its future is made.
    let deletions: Vec<_> = paths.iter().map(|path| client.delete(path, None)).collect();
    let all = async {
        for deletion in deletions {
            match deletion.await {
                Ok(()) | Err(zk::Error::NoNode | zk::Error::NotEmpty) => {}
                Err(error) => {
                    let trouble = Trouble::from(error);
                    if !trouble.answered {
                        return Err(trouble);
                    }
                    tracing::debug!(target: "tower_lock", "ZooKeeper refused to delete an idle node");
                }
            }
        }
        Ok(())
    };
    timeout(shared.config.timeout, all)
        .await
        .unwrap_or_else(|_| Err(Trouble::no_answer()))
}
