//! The task of a place, up to the grant: create a node, wait for the one before it, look again.
//!
//! # Why a grant is safe
//!
//! 1. *Order.* The server numbers the children of a key's node in the order in which it creates
//!    them, and the order in which it created them is that of their creation zxids. An exclusive
//!    owner is granted when no lower child is left; a shared one when no lower exclusive one is. The
//!    list may be old, but it shows our own node, so whatever was created before that, it shows too
//!    unless it was deleted. What was deleted never comes back under its name, and whoever comes
//!    later is higher. So a list that shows none lower stays true.
//! 2. *Own node.* Before the grant it is read, over the session that the lease will count on, and
//!    must belong to that session: a node that an earlier session left behind grants nothing.
//!    The session is valid for a while yet, by its heartbeats. So the node is there until the
//!    lease ends, or somebody deletes it, which the watch that was set by the same read tells.
//! 3. *Token.* It is the node's creation zxid. Zxids grow over all writes of an ensemble, whoever
//!    leads it, and 1 says that exclusive grants follow them. An owner's token stays the same
//!    however often it asks: it has one node.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};
use zookeeper_client as zk;

use super::{
    beats::Stamp,
    begin::Begun,
    board::{self, Told},
    client::Shared,
    hold,
    kept::Kept,
    place::{Grant, Place},
    queue::Queue,
    session::Session,
    shelf::Standing,
    stand::{PAUSE, Stand, Stop},
    trouble::Trouble,
    watches::Watch,
};
use crate::{
    clock,
    clock::jittered,
    lease::{FencingToken, Loss},
};

/// How long an offer stands that no acquire takes, or a question whether it is polled.
pub(super) const OFFER: Duration = Duration::from_secs(1);
/// How often the first in the queue looks whether its predecessor is there, whatever it has heard.
const HEAD: Duration = Duration::from_secs(1);
/// How often the others do.
const CEILING: Duration = Duration::from_secs(5);

pub(super) async fn run(shared: Arc<Shared>, place: Arc<Place>) {
    let task = Task { shared, place };
    let mut owed = None::<Instant>;
    while task.place.is_wanted() || task.place.owes() {
        match task.shared.session().await {
            Ok(session) => task.stand(session).await,
            Err(trouble) => task.place.refuse(trouble),
        }
        if task.place.is_wanted() || !task.place.owes() {
            continue;
        }
        // The session ended before an open record was taken back: over the next one, if that
        // comes before the record's own end.
        let ttl = task.place.opening().map_or(Duration::ZERO, |open| open.ttl);
        let since = owed.get_or_insert_with(Instant::now);
        if task.shared.is_closing() || since.elapsed() > ttl {
            break;
        }
        sleep(PAUSE).await;
    }
}

struct Task {
    shared: Arc<Shared>,
    place: Arc<Place>,
}

impl Task {
    /// Stands at the place for as long as it is wanted, or the session lasts.
    async fn stand(&self, session: Arc<Session>) {
        let Ok(client) = session.client() else {
            return;
        };
        let _ends = EndsWhenBroken(session.clone());
        let mut stand = Stand::new(&self.shared, &self.place, session, client);
        let stop = match stand.seek().await {
            Ok(watcher) => hold::hold(&mut stand, watcher).await,
            Err(stop) => stop,
        };
        match stop {
            // What it had there ends with it, whoever was told of it before.
            Stop::SessionOver => return self.place.lose(Loss::Expired),
            Stop::Refused(trouble) => self.place.refuse(trouble),
            Stop::Done => {}
        }
        stand.leave().await;
        // Where the session ended under it, the place may still be wanted: not here.
        self.place.withdraw();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let broken = Trouble::unavailable("the task of this lock broke off");
            self.place.lose(Loss::Revoked);
            self.place.refuse(broken.clone());
            self.place.released(&Err(broken));
        }
        self.shared.room.leave(&self.place);
        self.place.end();
    }
}

/// Nobody would delete the node of a task that panicked: it ends with the session.
struct EndsWhenBroken(Arc<Session>);

impl Drop for EndsWhenBroken {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

enum Step {
    First {
        token: FencingToken,
        watch: Option<Watch>,
        /// Of what was asked for a record too, what stands there.
        record: Option<Standing>,
        came: i64,
    },
    /// Behind this node; whether that is the first.
    Behind(String, bool),
    /// Our node is not there, or not ours.
    Gone,
    Again,
}

impl Stand<'_> {
    /// Comes back with a grant that is offered, and the watch on its node.
    async fn seek(&mut self) -> Result<Option<Watch>, Stop> {
        loop {
            if !self.place.is_wanted() {
                return Err(Stop::Done);
            }
            if self.node.is_none() {
                self.create().await?;
            }
            let asked = Stamp::now();
            match self.step().await? {
                Step::First {
                    token,
                    watch,
                    record,
                    came,
                } => {
                    let mut previous = None;
                    if self.place.loads.is_some() {
                        match self.begin(record, token, came).await? {
                            Begun::Granted(orphan) => previous = orphan,
                            Begun::Gone => {
                                self.node = None;
                                continue;
                            }
                        }
                    }
                    self.validate().await?;
                    let path = self.node.as_ref().map(|node| node.path.clone());
                    let grant = Grant {
                        session: self.session.clone(),
                        path: path.unwrap_or_default(),
                        token,
                        asked,
                        previous,
                    };
                    return match self.place.offer(grant) {
                        true => Ok(watch),
                        false => Err(Stop::Done),
                    };
                }
                Step::Behind(path, is_head) => self.wait_for(&path, is_head).await?,
                Step::Gone => self.node = None,
                Step::Again => sleep(PAUSE).await,
            }
        }
    }

    /// Looks who is before the node.
    async fn step(&mut self) -> Result<Step, Stop> {
        let Some(node) = &self.node else {
            return Ok(Step::Gone);
        };
        // Where nothing speaks against it, the node is read together with the list: its turn may
        // have come.
        let hopes =
            node.is_first || self.has_waited || !self.shared.room.is_shared(&self.place.key);
        let list = (!node.is_first).then(|| self.client.list_children(&self.parent));
        let mut own = hopes.then(|| self.read_own(&node.path));
        if let Some(list) = list {
            let children = match self.see(list).await? {
                Ok(children) => children,
                Err(zk::Error::NoNode) => {
                    self.shared.room.learn(&self.place.key, false);
                    return Ok(Step::Gone);
                }
                Err(error) => return again(error),
            };
            let layout = self.shared.config.layout;
            let queue = Queue::read(layout, &children).map_err(Stop::Refused)?;
            let Some(position) = queue.position(&node.name) else {
                return Ok(Step::Gone);
            };
            if queue.is_used_up(position) {
                return Err(Stop::Refused(Trouble::used_up()));
            }
            let of_owner = layout.of_owner(&self.place.owner);
            for name in queue.beginning_with(&of_owner) {
                let path = [&self.parent, "/", name].concat();
                if name != node.name && self.is_ours(&path).await? {
                    // Of a create that was not answered: this owner would wait for itself, or
                    // others for what nobody wants.
                    let _ = self.see(self.client.delete(&path, None)).await?;
                    return Ok(Step::Again);
                }
            }
            if let Some(ahead) = queue.ahead_of(position) {
                let path = [&self.parent, "/", ahead.name].concat();
                let is_head = queue.holders().contains(&ahead);
                return Ok(Step::Behind(path, is_head));
            }
        }
        let own = own.take().unwrap_or_else(|| self.read_own(&node.path));
        match self.see(own).await? {
            Ok((stat, watch, record)) if stat.ephemeral_owner == self.session.id => {
                match self.shared.config.token(stat.czxid) {
                    Some(token) => Ok(Step::First {
                        token,
                        watch,
                        record,
                        came: stat.czxid,
                    }),
                    None => Err(Stop::Refused(Trouble::no_token())),
                }
            }
            Ok(_) | Err(zk::Error::NoNode) => Ok(Step::Gone),
            Err(error) => again(error),
        }
    }

    /// Reads the own node, and what else the grant depends on: after the list, if that was sent
    /// before.
    fn read_own(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(zk::Stat, Option<Watch>, Option<Standing>), zk::Error>> + Send
    {
        // Each is sent when its future is made.
        let own = self.read(path);
        let loads = self.place.loads.is_some();
        let record = loads.then(|| self.shelf.read(&self.client, &self.shared.config));
        async move {
            let (stat, watch) = own.await?;
            let record = match record {
                Some(record) => record.await?,
                None => None,
            };
            Ok((stat, watch, record))
        }
    }

    /// Waits until it is worth to look again.
    async fn wait_for(&mut self, path: &str, is_head: bool) -> Result<(), Stop> {
        let watch = match self.see(self.read(path)).await? {
            Ok((_, watch)) => watch,
            Err(zk::Error::NoNode) => return Ok(()),
            Err(error) => return again(error).map(drop),
        };
        self.has_waited = true;
        let came = self.node.as_ref().map_or(i64::MAX, |node| node.came);
        let came = self.place.comes(came);
        let mut told = self.hears();
        self.place.waits();
        let limit = self.shared.config.timeout;
        let ceiling = if is_head || watch.is_none() {
            HEAD
        } else {
            CEILING
        };
        let mut look = Instant::now() + jittered(ceiling);
        let changed = async {
            match watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(changed);
        loop {
            let owed = self.place.probed().map(|since| since + OFFER);
            tokio::select! {
                biased;
                // Before the other, which comes of it where all leave the queue with a result.
                kept = hear(&mut told) => self.hears_of(kept, came)?,
                _ = &mut changed => return Ok(()),
                () = self.session.over() => return Err(Stop::SessionOver),
                () = self.place.told() => {
                    if !self.place.is_wanted() {
                        return Err(Stop::Done);
                    }
                }
                () = self.session.away_for(limit) => {
                    return Err(Stop::Refused(Trouble::no_connection()));
                }
                () = sleep_until(owed.unwrap_or(look)), if owed.is_some() => {
                    if self.place.probed() == owed.map(|owed| owed - OFFER) {
                        // Nobody polls. It would hold up those behind it, each time anew.
                        self.place.withdraw();
                        return Err(Stop::Done);
                    }
                }
                () = sleep_until(look) => {
                    if let Ok(None) = self.see(self.client.check_stat(path)).await? {
                        return Ok(());
                    }
                    look = Instant::now() + jittered(ceiling);
                }
            }
        }
    }

    /// What is told of the record while it waits, if it asks for one.
    fn hears(&mut self) -> Option<Told> {
        self.place.loads.as_ref()?;
        let (shared, key) = (self.shared, &self.place.key);
        let (told, new) = shared.room.board(key);
        if let Some(new) = new {
            let keep = board::keep(shared.clone(), key.clone(), new);
            shared.runtime.spawn(keep);
        }
        Some(told)
    }

    /// The record is this one by now.
    fn hears_of(&self, kept: Option<Arc<Kept>>, came: i64) -> Result<(), Stop> {
        let kept = kept.filter(|kept| self.lives(kept));
        if let Some(kept) = &kept
            && let Some(result) = kept.result(self.place.opening(), Some(came))
        {
            return Err(self.finds(result));
        }
        self.place.saw(kept.and_then(|kept| kept.open_record()));
        Ok(())
    }

    /// A lease that ends at once helps nobody: where the heartbeats are late, one is waited for.
    async fn validate(&self) -> Result<(), Stop> {
        let floor = self.session.timeout / 10;
        let is_valid = || {
            let end = self.session.valid_until(clock::suspended());
            end > Instant::now() + floor
        };
        if is_valid() {
            return Ok(());
        }
        let limit = self.shared.config.timeout;
        match self.session.hear(Instant::now(), limit).await {
            Ok(()) if is_valid() => Ok(()),
            Ok(()) => Err(Stop::Refused(Trouble::no_answer())),
            Err(trouble) => Err(Stop::Refused(trouble)),
        }
    }
}

async fn hear(told: &mut Option<Told>) -> Option<Arc<Kept>> {
    while let Some(told) = told
        && told.changed().await.is_ok()
    {
        if let Some(kept) = &*told.borrow_and_update() {
            return kept.clone();
        }
    }
    std::future::pending().await
}

/// A read failed: it is refused, or asked again.
fn again(error: zk::Error) -> Result<Step, Stop> {
    let trouble = Trouble::from(error);
    if trouble.answered {
        return Err(Stop::Refused(trouble));
    }
    Ok(Step::Again)
}
