//! A place in one session: what is asked of the servers for it, and its node.
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

use tokio::time::sleep;
use tokio_util::either::Either;
use zookeeper_client as zk;

use super::{
    answer::readable,
    client::Shared,
    config::PARENT,
    kept::Before,
    place::Place,
    queue::Queue,
    session::Session,
    shelf::{Change, Shelf, has_changed},
    trouble::{Trouble, ends_session},
    watches::Watch,
};

/// Before what failed is tried again.
pub(super) const PAUSE: Duration = Duration::from_millis(20);
/// How often later requests are to be answered before one counts as passed over.
const ROUNDS: usize = 4;

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
    pub(super) shared: &'a Arc<Shared>,
    pub(super) place: &'a Place,
    pub(super) session: Arc<Session>,
    pub(super) client: Arc<zk::Client>,
    pub(super) parent: String,
    pub(super) shelf: Shelf,
    pub(super) node: Option<Node>,
    /// A create was not answered, and nobody has looked since.
    in_doubt: bool,
    /// One was not answered at some time.
    pub(super) doubted: bool,
    /// It has waited for another: its turn may come.
    pub(super) has_waited: bool,
    /// There was no record when it looked before it stood.
    pub(super) has_no_record: bool,
}

pub(super) struct Node {
    pub(super) name: String,
    pub(super) path: String,
    /// Its parent was made together with it, so nobody is before it.
    pub(super) is_first: bool,
    /// The number of the write that made it, but for the first.
    pub(super) came: i64,
}

impl<'a> Stand<'a> {
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        place: &'a Place,
        session: Arc<Session>,
        client: Arc<zk::Client>,
    ) -> Self {
        Self {
            parent: shared.config.parent(&place.key),
            shelf: Shelf::new(&shared.config, &place.key),
            shared,
            place,
            session,
            client,
            node: None,
            in_doubt: false,
            doubted: false,
            has_waited: false,
            has_no_record: false,
        }
    }

    /// Sees a request through. Those that wait for it are told when it takes too long.
    pub(super) async fn see<T>(
        &self,
        request: impl Future<Output = Result<T, zk::Error>>,
    ) -> Result<Result<T, zk::Error>, Stop> {
        let request = readable(request);
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
                    () = self.is_passed_over() => {
                        tracing::warn!(
                            target: "tower_lock",
                            "ZooKeeper answers later requests and not this one: the session ends"
                        );
                        self.session.end();
                        return Err(Stop::SessionOver);
                    }
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

    /// Resolves when requests that were sent later have been answered for so long that this one never
    /// will be: a server answers in order. What it did about it would stand for as long as the
    /// session does.
    async fn is_passed_over(&self) {
        // It may be several, one after the other.
        for _ in 0..ROUNDS {
            while !self.session.answers(self.shared.config.timeout).await {}
            sleep(self.shared.config.timeout).await;
        }
    }

    /// Makes the node, or finds it.
    pub(super) async fn create(&mut self) -> Result<(), Stop> {
        let mut has_looked = self.place.patient;
        let mut is_up = self.place.loads.is_none();
        loop {
            if !self.place.is_wanted() {
                return Err(Stop::Done);
            }
            if self.in_doubt {
                // Never a second node while there may be a first.
                if self.find().await? {
                    return Ok(());
                }
                continue;
            }
            if !is_up {
                self.look_up().await?;
                (is_up, has_looked) = (true, true);
            } else if !self.shared.room.knows(&self.place.key) {
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
            Ok((stat, sequence)) => self.stands(format!("{prefix}{sequence}"), stat.czxid),
            Err(zk::Error::NoNode) => self.shared.room.learn(&self.place.key, false),
            Err(error) => self.doubt(error).await?,
        }
        Ok(())
    }

    /// The node together with its parent, and the record that it opens if there is none: all, or
    /// nothing.
    async fn create_both(&mut self) -> Result<(), Stop> {
        let (prefix, config) = (self.prefix(), &self.shared.config);
        let mut writer = self.client.new_multi_writer();
        writer.add_create(&self.parent, PARENT, &config.parents())?;
        writer.add_create(&prefix, &config.data, &config.nodes())?;
        let open = self
            .has_no_record
            .then(|| self.opens(None, &Before::Nothing));
        let open = open.flatten().map(Change::Create);
        if let Some(open) = &open {
            self.shelf.change(open, &mut writer, config)?;
            self.place.owe();
        }
        self.shared.room.makes(&self.place.key);
        let mut failed = None;
        let written = async {
            writer.commit().await.map_err(|error| {
                if let zk::MultiWriteError::OperationFailed { index, .. } = &error {
                    failed = Some(*index);
                }
                zk::Error::from(error)
            })
        };
        match self.see(written).await? {
            Ok(made) => {
                self.shared.room.learn(&self.place.key, true);
                match made.into_iter().nth(1) {
                    Some(zk::MultiWriteResult::Create { path, .. }) => {
                        self.stands(path, 0);
                        self.node.iter_mut().for_each(|node| node.is_first = true);
                    }
                    // It is there, whatever the answer says.
                    _ => (self.in_doubt, self.doubted) = (true, true),
                }
            }
            Err(error) if failed > Some(1) && has_changed(&error) => {
                // Whatever stands there now is looked at when the node does.
                self.has_no_record = error == zk::Error::NoNode;
                if let Some(open) = &open {
                    self.changed(true, error, open).await?;
                }
            }
            Err(zk::Error::NodeExists) if failed == Some(0) => {
                self.shared.room.found(&self.place.key);
            }
            Err(zk::Error::NoNode) if failed == Some(0) => {
                let base = async { Ok(config.make_base(&self.client).await) };
                if let Ok(Err(trouble)) = self.see(base).await? {
                    return Err(Stop::Refused(trouble));
                }
            }
            Err(error) => self.doubt(error).await?,
        }
        Ok(())
    }

    /// Its node, which was made by the write of this number.
    pub(super) fn stands(&mut self, path: String, came: i64) {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        self.node = Some(Node {
            name,
            path,
            is_first: false,
            came,
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
    pub(super) async fn list(&self) -> Result<Option<Vec<String>>, Stop> {
        loop {
            // Done in this order.
            let sync = self.client.sync(&self.parent);
            let list = self.client.list_children(&self.parent);
            let listed = async {
                sync.await?;
                list.await
            };
            match self.see(listed).await? {
                Ok(children) => {
                    self.shared.room.learn(&self.place.key, true);
                    return Ok(Some(children));
                }
                Err(zk::Error::NoNode) => {
                    self.shared.room.learn(&self.place.key, false);
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
    pub(super) async fn find_all(&self) -> Result<Vec<(String, i64)>, Stop> {
        let Some(children) = self.list().await? else {
            return Ok(Vec::new());
        };
        let owner = self.shared.config.layout.of_owner(&self.place.owner);
        let mut names: Vec<_> = children
            .iter()
            .filter(|name| name.starts_with(&owner))
            .collect();
        // By the number at the end, which has ten digits.
        names.sort_by_key(|name| &name[name.len().saturating_sub(10)..]);
        let mut found = Vec::new();
        for name in names {
            let path = [&self.parent, "/", name].concat();
            if let Some(stat) = self.ours(&path).await? {
                found.push((path, stat.czxid));
            }
        }
        Ok(found)
    }

    /// Reads a node, and has it watched, if there is room for a watch.
    pub(super) fn read<'s>(
        &'s self,
        path: &str,
    ) -> impl Future<Output = Result<(zk::Stat, Option<Watch>), zk::Error>> + Send + use<'s, 'a>
    {
        // Each is sent when its future is made.
        match self.session.room_for_watch(path) {
            Some(room) => {
                let read = self.client.get_and_watch_data(path);
                Either::Left(async move {
                    let (_, stat, watcher) = read.await?;
                    Ok((stat, Some(Watch::new(watcher, room))))
                })
            }
            None => {
                let read = self.client.get_data(path);
                Either::Right(async move { read.await.map(|(_, stat)| (stat, None)) })
            }
        }
    }

    pub(super) async fn is_ours(&self, path: &str) -> Result<bool, Stop> {
        Ok(self.ours(path).await?.is_some())
    }

    async fn ours(&self, path: &str) -> Result<Option<zk::Stat>, Stop> {
        let stat = self.see(self.client.check_stat(path)).await??;
        Ok(stat.filter(|stat| stat.ephemeral_owner == self.session.id))
    }

    /// After a create that was not answered; whether it was done.
    pub(super) async fn find(&mut self) -> Result<bool, Stop> {
        match self.find_all().await {
            Ok(found) => {
                self.in_doubt = false;
                // One of the other mode is not what is asked for; it goes when this one stands.
                let prefix = self.prefix();
                let mine = |(path, _): &(String, i64)| path.starts_with(&prefix);
                if let Some((path, came)) = found.into_iter().find(mine) {
                    self.stands(path, came);
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
}
