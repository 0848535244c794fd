//! Deletes the nodes of keys that nobody uses any more.
//!
//! They are containers, so the server deletes them too, but only once a minute and 10 000 of them at
//! most: too few where keys come from requests. A node that somebody uses is not empty, and the
//! server refuses to delete it; who is about to create under one that has just gone makes it anew.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, sleep_until, timeout};
use zookeeper_client as zk;

use super::{answer::readable, client::Shared, config::PARENT, session::Session, trouble::Trouble};
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

async fn delete(shared: &Shared, session: &Session, keys: Vec<(LockKey, bool)>) {
    let mut keys = keys.into_iter();
    while keys.len() > 0 {
        let chunk: Vec<_> = keys.by_ref().take(AT_ONCE).collect();
        if delete_some(shared, session, &chunk).await.is_err() {
            return put_back(shared, chunk.into_iter().chain(keys));
        }
    }
}

/// The nodes of these keys that are there for our locks alone: those that this process made, and
/// those in which it is written. Others were made on purpose, with rights of their own perhaps, or
/// by clients in other languages, for themselves.
async fn idle_containers(
    shared: &Shared,
    client: &zk::Client,
    keys: &[(LockKey, bool)],
) -> Result<Vec<String>, Trouble> {
    let paths: Vec<_> = keys
        .iter()
        .map(|(key, made)| (shared.config.parent(key), *made))
        .collect();
    // Each is sent when its future is made.
    let asked: Vec<_> = paths
        .iter()
        .map(|(path, made)| (!made).then(|| client.get_data(path)))
        .collect();
    let all = async {
        let mut found = Vec::new();
        for ((path, _), asked) in paths.iter().zip(asked) {
            let goes = match asked {
                None => true,
                Some(read) => match read.await {
                    Ok((data, _)) => data == PARENT,
                    Err(zk::Error::NoNode | zk::Error::NoAuth) => false,
                    Err(error) => return Err(error),
                },
            };
            if goes {
                found.push(path.clone());
            }
        }
        Ok::<_, zk::Error>(found)
    };
    match timeout(shared.config.timeout, readable(all)).await {
        Ok(found) => Ok(found?),
        Err(_) => Err(Trouble::no_answer()),
    }
}

/// Fails where nobody knows.
async fn delete_some(
    shared: &Shared,
    session: &Session,
    keys: &[(LockKey, bool)],
) -> Result<(), Trouble> {
    let client = session.client()?;
    let paths = idle_containers(shared, &client, keys).await?;
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
    timeout(shared.config.timeout, readable(all))
        .await
        .unwrap_or_else(|_| Err(Trouble::no_answer()))
}
