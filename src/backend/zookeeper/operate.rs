//! The verbs beside the lock: wait until nobody holds, look at a key, take it away.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout, timeout_at};
use zookeeper_client as zk;

use super::{
    answer::readable, client::Client, config::OURS, queue::Queue, session::Session,
    trouble::Trouble, watches::Watch,
};
use crate::{
    backend::{HolderState, KeyState, WaitBound},
    clock::jittered,
    error::{BackendError, BackendErrorKind},
    key::LockKey,
};

/// How often to look whether the key is free, whatever was heard.
const CEILING: Duration = Duration::from_secs(1);
/// The same for a node that is not watched, or has just gone.
const UNWATCHED: Duration = Duration::from_millis(50);

/// What is asked of a key in passing.
struct Look<'a> {
    client: &'a Client,
    parent: String,
}

impl<'a> Look<'a> {
    fn new(client: &'a Client, key: &LockKey) -> Self {
        let parent = client.shared.config.parent(key);
        Self { client, parent }
    }

    async fn ask<T>(
        &self,
        session: &Session,
        request: impl Future<Output = Result<T, zk::Error>>,
    ) -> Result<Result<T, zk::Error>, Trouble> {
        let limit = self.client.shared.config.timeout;
        tokio::select! {
            answer = timeout(limit, readable(request)) => answer.map_err(|_| Trouble::no_answer()),
            () = session.over() => Err(Trouble::no_session()),
        }
    }

    /// The children of the key's node, as of now.
    async fn list(&self, session: &Session) -> Result<Vec<String>, Trouble> {
        let client = session.client()?;
        // Done in this order.
        let sync = client.sync(&self.parent);
        let list = client.list_children(&self.parent);
        let listed = async {
            sync.await?;
            list.await
        };
        match self.ask(session, listed).await? {
            Ok(children) => Ok(children),
            Err(zk::Error::NoNode) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    fn queue<'b>(&self, children: &'b [String]) -> Result<Queue<'b>, Trouble> {
        Queue::read(self.client.shared.config.layout, children)
    }

    fn path(&self, name: &str) -> String {
        [&self.parent, "/", name].concat()
    }
}

pub(super) async fn wait_free(
    client: &Client,
    key: &LockKey,
    wait: WaitBound,
) -> Result<(), BackendError> {
    let look = Look::new(client, key);
    // The first answer may take as long as that of a try.
    let Some(holder) = look.holder().await? else {
        return Ok(());
    };
    let freed = look.until_free(holder);
    match wait {
        WaitBound::Fail => Err(BackendError::new(BackendErrorKind::Contended, "")),
        WaitBound::Until(end) => timeout_at(end, freed)
            .await
            .unwrap_or_else(|_| Err(BackendError::new(BackendErrorKind::WaitTimedOut, ""))),
        WaitBound::Forever => freed.await,
    }
}

impl Look<'_> {
    /// The last of those who hold, and the session that said so.
    async fn holder(&self) -> Result<Option<(Arc<Session>, String)>, Trouble> {
        let begun = Instant::now();
        loop {
            let session = self.client.shared.session().await?;
            match self.list(&session).await {
                Ok(children) => {
                    let queue = self.queue(&children)?;
                    let holder = queue.holders().last();
                    return Ok(holder.map(|holder| (session, self.path(holder.name))));
                }
                // The connection broke; there may be another.
                Err(trouble)
                    if !trouble.answered
                        && trouble.may_pass()
                        && begun.elapsed() < self.client.shared.config.timeout =>
                {
                    tokio::task::yield_now().await;
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn until_free(
        &self,
        (mut session, mut path): (Arc<Session>, String),
    ) -> Result<(), BackendError> {
        loop {
            let watch = match session.room_for_watch(&path) {
                Some(room) => {
                    let zk = session.client()?;
                    let read = self.ask(&session, zk.get_and_watch_data(&path)).await;
                    // Gone, or not to be asked: the list says which.
                    let watcher = read
                        .ok()
                        .and_then(Result::ok)
                        .map(|(_, _, watcher)| watcher);
                    watcher.map(|watcher| Watch::new(watcher, room))
                }
                None => None,
            };
            let has_watch = watch.is_some();
            let changed = async {
                match watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            let ceiling = if has_watch { CEILING } else { UNWATCHED };
            tokio::select! {
                _ = changed => {}
                () = sleep(jittered(ceiling)) => {}
                () = session.over() => {}
            }
            match self.holder().await? {
                Some(holder) => (session, path) = holder,
                None => return Ok(()),
            }
        }
    }
}

pub(super) async fn inspect(client: &Client, key: &LockKey) -> Result<KeyState, Trouble> {
    let look = Look::new(client, key);
    let session = client.shared.session().await?;
    let children = look.list(&session).await?;
    let queue = look.queue(&children)?;
    let chroot = &client.shared.config.chroot;
    let mut state = KeyState::free([chroot, look.parent.as_str()].concat());
    state.waiters = queue.waiters() as u64;
    let zk = session.client()?;
    for standing in queue.holders() {
        let path = look.path(standing.name);
        let mut holder = HolderState::new(standing.mode);
        match look.ask(&session, zk.get_data(&path)).await? {
            Ok((data, stat)) => {
                if data.starts_with(OURS) {
                    holder.fencing_token = client.shared.config.token(stat.czxid);
                }
                state.holders.push(holder);
            }
            // It has gone meanwhile.
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(state)
}

/// The holders hear of it by the watches on their nodes.
pub(super) async fn force_release(client: &Client, key: &LockKey) -> Result<bool, Trouble> {
    let look = Look::new(client, key);
    let session = client.shared.session().await?;
    let children = look.list(&session).await?;
    let queue = look.queue(&children)?;
    let zk = session.client()?;
    let mut was_held = false;
    for holder in queue.holders() {
        let path = look.path(holder.name);
        match look.ask(&session, zk.delete(&path, None)).await? {
            Ok(()) => was_held = true,
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(was_held)
}
