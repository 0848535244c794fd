//! The task of a place, up to the grant: create a node, wait for the one before it, look again.
//!
//! # Why a grant is safe
//!
//! 1. *Order.* The server numbers the children of a key's node in the order in which it creates
//!    them, and the order in which it created them is that of their creation zxids. An exclusive
//!    owner is granted when no lower child is left; a shared one when no lower exclusive one is. A
//!    child that was deleted never comes back under its name, and whoever comes later is higher. So
//!    the list that shows none lower may be old: it stays true.
//! 2. *Own node.* Before the grant it is read, over the session that the lease will count on, and
//!    must belong to that session: a node that an earlier session left behind grants nothing.
//!    The session is valid for a while yet, by its heartbeats. So the node is there until the
//!    lease ends, or somebody deletes it, which the watch that was set by the same read tells.
//! 3. *Token.* It is the node's creation zxid. Zxids grow over all writes of an ensemble, whoever
//!    leads it, and 1 says that exclusive grants follow them. An owner's token stays the same
//!    however often it asks: it has one node.
//!
//! # Why nothing is left behind
//!
//! A create whose answer is lost may have been done, or be done a moment later. Requests of a
//! session are done in the order in which they were sent over a connection. When the connection
//! breaks, the server that takes the session over closes the one it replaces, and the leader
//! refuses what comes late by another server, since the session has moved. So what is asked after
//! the session is back comes after the create: `sync`, which brings the server up to date, then the
//! list, in which the owner's name shows the node, if there is one. It is kept, or deleted. A second
//! look at the end, a second later, costs nothing to speak of and needs none of that to be true.
//!
//! The task never drops a request that writes; where nobody waits for it any more, it sees the request
//! through and then undoes it. What it cannot undo ends with the session, at once if the session
//! is closed.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};
use zookeeper_client as zk;

use super::{
    beats::Stamp,
    client::{Shared, jittered},
    hold,
    place::{Grant, Place},
    queue::Queue,
    session::Session,
    trouble::{Trouble, ends_session},
};
use crate::{clock, lease::FencingToken};

/// How long an offer stands that no acquire takes, or a question whether it is polled.
pub(super) const OFFER: Duration = Duration::from_secs(1);
/// How often the first in the queue looks whether its predecessor is there, whatever it has heard.
const HEAD: Duration = Duration::from_secs(1);
/// How often the others do.
const CEILING: Duration = Duration::from_secs(5);
/// Before what failed is tried again.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) async fn run(shared: Arc<Shared>, place: Arc<Place>) {
    let task = Task { shared, place };
    while task.place.is_wanted() {
        match task.shared.session().await {
            Ok(session) => task.stand(session).await,
            Err(trouble) => task.place.refuse(trouble),
        }
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
        let mut stand = Stand {
            parent: self.shared.parent(&self.place),
            shared: &self.shared,
            place: &self.place,
            session,
            client,
            node: None,
            in_doubt: false,
            doubted: false,
            has_waited: false,
        };
        let stop = match stand.seek().await {
            Ok(watcher) => hold::hold(&mut stand, watcher).await,
            Err(stop) => stop,
        };
        match stop {
            // What it had there ends with it.
            Stop::SessionOver => return,
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
            self.place.refuse(broken.clone());
            self.place.released(&Err(broken));
        }
        self.shared.room.leave(&self.place);
        self.place.end();
    }
}

/// Why standing ends.
pub(super) enum Stop {
    SessionOver,
    Refused(Trouble),
    /// The holder is done, or nobody waits any more.
    Done,
}

impl From<zk::Error> for Stop {
    fn from(error: zk::Error) -> Self {
        Self::Refused(error.into())
    }
}

/// A place in one session.
pub(super) struct Stand<'a> {
    pub(super) shared: &'a Shared,
    pub(super) place: &'a Place,
    pub(super) session: Arc<Session>,
    pub(super) client: Arc<zk::Client>,
    pub(super) parent: String,
    pub(super) node: Option<Node>,
    /// A create was not answered, and nobody has looked since.
    in_doubt: bool,
    /// One was not answered at some time.
    pub(super) doubted: bool,
    has_waited: bool,
}

pub(super) struct Node {
    name: String,
    pub(super) path: String,
    /// Its parent was made together with it, so nobody is before it.
    is_first: bool,
}

enum Step {
    First(FencingToken, zk::OneshotWatcher),
    /// Behind this node; whether that is the first.
    Behind(String, bool),
    /// Our node is not there, or not ours.
    Gone,
    Again,
}

impl Stand<'_> {
    /// Comes back with a grant that is offered, and the watch on its node.
    async fn seek(&mut self) -> Result<zk::OneshotWatcher, Stop> {
        loop {
            if !self.place.is_wanted() {
                return Err(Stop::Done);
            }
            if self.node.is_none() {
                self.create().await?;
            }
            let asked = Stamp::now();
            match self.step().await? {
                Step::First(token, watcher) => {
                    self.validate().await?;
                    let path = self.node.as_ref().map(|node| node.path.clone());
                    let grant = Grant {
                        session: self.session.clone(),
                        path: path.unwrap_or_default(),
                        token,
                        asked,
                    };
                    return match self.place.offer(grant) {
                        true => Ok(watcher),
                        false => Err(Stop::Done),
                    };
                }
                Step::Behind(path, is_head) => self.wait_for(&path, is_head).await?,
                Step::Gone => self.node = None,
                Step::Again => sleep(PAUSE).await,
            }
        }
    }

    /// Sees a request through. Those that wait for it are told when it takes too long.
    pub(super) async fn see<T>(
        &self,
        request: impl Future<Output = Result<T, zk::Error>>,
    ) -> Result<Result<T, zk::Error>, Stop> {
        tokio::pin!(request);
        let result = tokio::select! {
            biased;
            result = &mut request => result,
            () = self.session.over() => return Err(Stop::SessionOver),
            () = sleep(self.shared.config.timeout) => {
                self.place.refuse(Trouble::no_answer());
                self.place.released(&Err(Trouble::no_answer()));
                tokio::select! {
                    result = request => result,
                    () = self.session.over() => return Err(Stop::SessionOver),
                }
            }
        };
        match result {
            Err(error) if ends_session(&error) => {
                // Its supervisor hears the same.
                self.session.over().await;
                Err(Stop::SessionOver)
            }
            result => Ok(result),
        }
    }

    /// Makes the node, or finds it.
    async fn create(&mut self) -> Result<(), Stop> {
        let mut has_looked = self.place.patient;
        loop {
            if self.in_doubt && self.find().await? {
                return Ok(());
            }
            if !self.place.is_wanted() {
                return Err(Stop::Done);
            }
            if !self.shared.room.knows(&self.place.key) {
                self.create_both().await?;
            } else if has_looked {
                self.create_one().await?;
            } else {
                has_looked = self.look_first().await?;
            }
            if self.node.is_some() {
                return Ok(());
            }
        }
    }

    fn prefix(&self) -> String {
        let Place { owner, mode, .. } = self.place;
        let name = self.shared.config.layout.prefix(owner, *mode);
        [&self.parent, "/", &name].concat()
    }

    /// The node, in a parent that is there.
    async fn create_one(&mut self) -> Result<(), Stop> {
        let (prefix, config) = (self.prefix(), &self.shared.config);
        let options = config.nodes();
        match self
            .see(self.client.create(&prefix, &config.data, &options))
            .await?
        {
            Ok((_, sequence)) => self.stands(format!("{prefix}{sequence}"), false),
            Err(zk::Error::NoNode) => self.shared.room.learn(&self.place.key, false, false),
            Err(error) => self.doubt(error).await?,
        }
        Ok(())
    }

    /// The node together with its parent: both, or neither.
    async fn create_both(&mut self) -> Result<(), Stop> {
        let (prefix, config) = (self.prefix(), &self.shared.config);
        let mut writer = self.client.new_multi_writer();
        writer.add_create(&self.parent, b"", &config.parents())?;
        writer.add_create(&prefix, &config.data, &config.nodes())?;
        let mut first_failed = false;
        let written = async {
            writer.commit().await.map_err(|error| {
                first_failed = matches!(
                    &error,
                    zk::MultiWriteError::OperationFailed { index: 0, .. }
                );
                zk::Error::from(error)
            })
        };
        match self.see(written).await? {
            Ok(made) => {
                self.shared.room.learn(&self.place.key, true, true);
                match made.into_iter().nth(1) {
                    Some(zk::MultiWriteResult::Create { path, .. }) => self.stands(path, true),
                    // It is there, whatever the answer says.
                    _ => (self.in_doubt, self.doubted) = (true, true),
                }
            }
            Err(zk::Error::NodeExists) if first_failed => {
                self.shared.room.learn(&self.place.key, true, false);
            }
            Err(zk::Error::NoNode) if first_failed => {
                let base = async { Ok(config.make_base(&self.client).await) };
                if let Ok(Err(trouble)) = self.see(base).await? {
                    return Err(Stop::Refused(trouble));
                }
            }
            Err(error) => self.doubt(error).await?,
        }
        Ok(())
    }

    fn stands(&mut self, path: String, is_first: bool) {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        self.node = Some(Node {
            name,
            path,
            is_first,
        });
    }

    /// A create failed: it is refused, or nobody knows.
    async fn doubt(&mut self, error: zk::Error) -> Result<(), Stop> {
        let trouble = Trouble::from(error);
        if trouble.answered {
            return Err(Stop::Refused(trouble));
        }
        (self.in_doubt, self.doubted) = (true, true);
        sleep(PAUSE).await;
        Ok(())
    }

    /// The children of the key's node, as of now: `None` if that is not there.
    async fn list(&self) -> Result<Option<Vec<String>>, Stop> {
        loop {
            // Done in this order.
            let sync = self.client.sync(&self.parent);
            let list = self.client.list_children(&self.parent);
            let listed = async {
                sync.await?;
                list.await
            };
            match self.see(listed).await? {
                Ok(children) => return Ok(Some(children)),
                Err(zk::Error::NoNode) => {
                    self.shared.room.learn(&self.place.key, false, false);
                    return Ok(None);
                }
                Err(error) => {
                    let trouble = Trouble::from(error);
                    if trouble.answered {
                        return Err(Stop::Refused(trouble));
                    }
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Where a create would be in vain, says so. Whether it looked.
    async fn look_first(&self) -> Result<bool, Stop> {
        let Some(children) = self.list().await? else {
            return Ok(false);
        };
        let queue = Queue::read(self.shared.config.layout, &children).map_err(Stop::Refused)?;
        if queue.keeps_out(self.place.mode) {
            return Err(Stop::Refused(Trouble::contended()));
        }
        Ok(true)
    }

    /// The nodes of this owner in this session, the earliest first.
    pub(super) async fn find_all(&self) -> Result<Vec<String>, Stop> {
        let Some(children) = self.list().await? else {
            return Ok(Vec::new());
        };
        let layout = self.shared.config.layout;
        let owner = layout.of_owner(&self.place.owner);
        let queue = Queue::read(layout, &children).map_err(Stop::Refused)?;
        let mut found = Vec::new();
        for name in queue.beginning_with(&owner) {
            let path = [&self.parent, "/", name].concat();
            if self.is_ours(&path).await? {
                found.push(path);
            }
        }
        Ok(found)
    }

    async fn is_ours(&self, path: &str) -> Result<bool, Stop> {
        let stat = self.see(self.client.check_stat(path)).await??;
        Ok(stat.is_some_and(|stat| stat.ephemeral_owner == self.session.id))
    }

    /// After a create that was not answered; whether it was done.
    async fn find(&mut self) -> Result<bool, Stop> {
        match self.find_all().await {
            Ok(found) => {
                self.in_doubt = false;
                if let Some(path) = found.into_iter().next() {
                    self.stands(path, false);
                }
                Ok(self.node.is_some())
            }
            Err(Stop::Refused(trouble)) if !trouble.answered => {
                sleep(PAUSE).await;
                Ok(false)
            }
            Err(stop) => Err(stop),
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
        let mut own = hopes.then(|| self.client.get_and_watch_data(&node.path));
        if let Some(list) = list {
            let children = match self.see(list).await? {
                Ok(children) => children,
                Err(zk::Error::NoNode) => {
                    self.shared.room.learn(&self.place.key, false, false);
                    return Ok(Step::Gone);
                }
                Err(error) => return again(error),
            };
            let layout = self.shared.config.layout;
            let queue = Queue::read(layout, &children).map_err(Stop::Refused)?;
            let Some(position) = queue.position(&node.name) else {
                return Ok(Step::Gone);
            };
            if let Some(ahead) = queue.ahead_of(position) {
                let path = [&self.parent, "/", ahead.name].concat();
                let is_head = queue.holders().contains(&ahead);
                if ahead.name.starts_with(&layout.of_owner(&self.place.owner))
                    && self.is_ours(&path).await?
                {
                    // Of a create that was not answered: this owner would wait for itself.
                    let _ = self.see(self.client.delete(&path, None)).await?;
                    return Ok(Step::Again);
                }
                return Ok(Step::Behind(path, is_head));
            }
        }
        let own = own
            .take()
            .unwrap_or_else(|| self.client.get_and_watch_data(&node.path));
        match self.see(own).await? {
            Ok((_, stat, watcher)) if stat.ephemeral_owner == self.session.id => {
                match u64::try_from(stat.czxid).ok().and_then(FencingToken::new) {
                    Some(token) => Ok(Step::First(token, watcher)),
                    None => Err(zk::Error::BadVersion.into()),
                }
            }
            Ok(_) | Err(zk::Error::NoNode) => Ok(Step::Gone),
            Err(error) => again(error),
        }
    }

    /// Waits until it is worth to look again.
    async fn wait_for(&mut self, path: &str, is_head: bool) -> Result<(), Stop> {
        let watcher = match self.see(self.client.get_and_watch_data(path)).await? {
            Ok((_, _, watcher)) => watcher,
            Err(zk::Error::NoNode) => return Ok(()),
            Err(error) => return again(error).map(drop),
        };
        self.has_waited = true;
        self.place.waits();
        let limit = self.shared.config.timeout;
        let ceiling = if is_head { HEAD } else { CEILING };
        let mut look = Instant::now() + jittered(ceiling);
        let changed = watcher.changed();
        tokio::pin!(changed);
        loop {
            let owed = self.place.probed().map(|since| since + OFFER);
            tokio::select! {
                biased;
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

/// A read failed: it is refused, or asked again.
fn again(error: zk::Error) -> Result<Step, Stop> {
    let trouble = Trouble::from(error);
    if trouble.answered {
        return Err(Stop::Refused(trouble));
    }
    Ok(Step::Again)
}
