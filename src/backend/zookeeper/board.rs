//! Where those of this process who wait for the record of a key hear of it together: one watch, and
//! one read when it changes, however many wait.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use zookeeper_client as zk;

use super::{
    answer::readable, client::Shared, kept::Kept, session::Session, shelf::Shelf, watches::Watch,
};
use crate::{clock::jittered, key::LockKey};

/// How often to look, whatever was heard.
const CEILING: Duration = Duration::from_secs(5);
/// The same for a node that is not watched.
const UNWATCHED: Duration = Duration::from_secs(1);

/// The same where it could not be looked at.
const TROUBLED: Duration = Duration::from_millis(250);

/// What stands there, once somebody has looked.
type Sight = Option<Option<Arc<Kept>>>;

/// What those who wait look at.
pub(super) type Told = watch::Receiver<Sight>;

#[derive(Clone, Default)]
pub(super) struct Board(watch::Sender<Sight>);

impl Board {
    /// The newest sight counts as news.
    pub(super) fn told(&self) -> Told {
        let mut told = self.0.subscribe();
        told.mark_changed();
        told
    }

    pub(super) fn is_looked_at(&self) -> bool {
        self.0.receiver_count() > 0
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.0.same_channel(&other.0)
    }
}

/// Looks after a board for as long as somebody looks at it.
pub(super) async fn keep(shared: Arc<Shared>, key: LockKey, board: Board) {
    let shelf = Shelf::new(&shared.config, &key);
    loop {
        tokio::select! {
            () = tell(&shared, &shelf, &board) => {}
            () = board.0.closed() => {
                if shared.room.leave_board(&key, &board) {
                    return;
                }
            }
        }
    }
}

/// Looks, tells what is new, and returns when it is worth to look again.
async fn tell(shared: &Shared, shelf: &Shelf, board: &Board) {
    let Ok(session) = shared.session().await else {
        return sleep(jittered(TROUBLED)).await;
    };
    let looked = tokio::select! {
        looked = readable(look(shared, &session, shelf)) => looked,
        () = session.over() => return,
    };
    let Ok((sight, watch)) = looked else {
        return sleep(jittered(TROUBLED)).await;
    };
    board.0.send_if_modified(|before| {
        let is_news = before.as_ref() != Some(&sight);
        if is_news {
            *before = Some(sight);
        }
        is_news
    });
    let ceiling = if watch.is_some() { CEILING } else { UNWATCHED };
    let changed = async {
        match watch {
            Some(watch) => watch.changed().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = changed => {}
        () = sleep(jittered(ceiling)) => {}
        () = session.over() => {}
    }
}

async fn look(
    shared: &Shared,
    session: &Session,
    shelf: &Shelf,
) -> Result<(Option<Arc<Kept>>, Option<Watch>), zk::Error> {
    let client = session.client().map_err(|_| zk::Error::ClientClosed)?;
    let room = session.room_for_watch(&shelf.path);
    // Each is sent when its future is made: what changes after the watch is set is told.
    let watched = room.map(|room| (client.check_and_watch_stat(&shelf.path), room));
    let read = shelf.read(&client, &shared.config);
    let watch = match watched {
        Some((watched, room)) => {
            let (_, watcher) = watched.await?;
            Some(Watch::new(watcher, room))
        }
        None => None,
    };
    let sight = read.await?.map(|standing| Arc::new(standing.kept));
    Ok((sight, watch))
}
