//! What the task of a place does about the record of its key, up to the grant: look before it
//! stands, look when its turn has come, open; and undo what nobody was given.
//!
//! # Why records are safe
//!
//! 1. *Records change in the turn of their writer.* A grant that opens, and a save, are
//!    transactions that also check (or delete) the writer's own node, which had been the first of the
//!    key's queue when it was seen (see [`seek`](super::seek)), and stays first while it is there. So
//!    as long as a node is first, nobody but its owner makes or closes the record: who saves late
//!    stands in the queue for it ([`errand`](super::errand)). What such an owner has read is true
//!    until it writes, but for 3.
//! 2. *Nobody is granted a key that has a result* (R4, R5). The record is read after the list that
//!    shows the node first, in one session, so it is as new as the list; and by 1 nobody else writes
//!    a result from then on.
//! 3. *Two write out of turn*: the [sweep](super::ends) deletes records that have ended, and an undo
//!    whose session has ended takes back its own open record. Both compare the version of what
//!    they have read, and the version of the bucket, which changes whenever the node of a record is made.
//!    So they change what they have read and nothing else, and who has its turn sees that its
//!    own transaction fails, and reads again.
//! 4. *The token in a record never falls* while it stands. A grant opens with the token of its node,
//!    which is later than all who had a turn before; a save refuses what is lower than what it
//!    finds; a forget that had taken the place of something leaves its token. Only an undo lowers
//!    it, to what stood there before a grant of which nobody heard.
//! 5. *A stale holder writes neither before nor over its successor* (R2). Its node is gone, so it needs
//!    a turn. While its successor's node stands it gets none; afterwards it finds the token of
//!    that, if that opened or saved.
//! 6. *Save and release are one transaction* (R10), and so are the open record and the node that an
//!    undo deletes (R8): nobody sees the key free in between.
//! 7. *An open record names its owner*, so after a transaction whose answer was lost it is
//!    known by a read that comes after it (see [`stand`](super::stand)). A key that has neither node
//!    nor record gets both, and its holder's, in one transaction; the token is then the number of
//!    that.

use tokio::time::sleep;
use zookeeper_client as zk;

use super::{
    kept::{self, Before, Leaves},
    queue::Queue,
    shelf::{Change, Standing, Wrote, commit, has_changed},
    stand::{PAUSE, Stand, Stop},
    trouble::Trouble,
};
use crate::{lease::FencingToken, record::Record};

/// So often a transaction is sent that is not answered: it may be what breaks the connection.
pub(super) const TRIES: u32 = 3;

/// What became of a turn.
pub(super) enum Begun {
    /// It may be granted; with the orphan whose place was taken.
    Granted(Option<Record>),
    /// The node is gone.
    Gone,
}

impl Stand<'_> {
    /// Looks at the record and the queue before a node is made. Comes back if one is needed.
    pub(super) async fn look_up(&mut self) -> Result<(), Stop> {
        loop {
            if !self.place.is_wanted() {
                return Err(Stop::Done);
            }
            // Done in this order: a record that is the same before and after the list is what stood
            // there when the list was made.
            let sync = self.client.sync(&self.parent);
            let read = self.shelf.read(&self.client, &self.shared.config);
            let list = self.client.list_children(&self.parent);
            let again = self.client.check_stat(&self.shelf.path);
            let looked = async {
                sync.await?;
                let standing = read.await?;
                let children = match list.await {
                    Ok(children) => Some(children),
                    Err(zk::Error::NoNode) => None,
                    Err(error) => return Err(error),
                };
                let again = again.await?.map(|stat| stat.mzxid);
                Ok((standing, children, again))
            };
            match self.see(looked).await? {
                Ok((standing, children, again)) => {
                    let is_there = children.is_some();
                    self.shared.room.learn(&self.place.key, is_there);
                    let children = children.unwrap_or_default();
                    if self.is_needed(standing, &children, again)? {
                        return Ok(());
                    }
                }
                Err(error) => self.retry(error).await?,
            }
        }
    }

    /// Whether a node is needed, as far as these tell; `false` if they do not.
    fn is_needed(
        &mut self,
        standing: Option<Standing>,
        children: &[String],
        again: Option<i64>,
    ) -> Result<bool, Stop> {
        let queue = Queue::read(self.shared.config.layout, children).map_err(Stop::Refused)?;
        let first = queue.holders().first().map(|one| one.name);
        self.has_no_record = standing.is_none();
        if first.is_some() {
            // It has to wait: what is written from now on is written while it does.
            let written = standing.as_ref().map(|standing| standing.kept.written());
            self.place.comes(written.unwrap_or_default());
        }
        let kept = standing
            .map(|standing| standing.kept)
            .filter(|kept| self.lives(kept));
        if let Some(kept) = &kept {
            let open = self.place.opening();
            if let Some(result) = kept.result(open, self.place.came()) {
                return Err(self.finds(result));
            }
            if first.is_none()
                && let Some(orphan) = kept.orphan(&self.place.owner, open)
            {
                if again != Some(kept.written()) {
                    return Ok(false);
                }
                return Err(self.finds(orphan));
            }
        }
        self.place.saw(kept.and_then(|kept| kept.open_record()));
        if !self.place.patient && queue.keeps_out(self.place.mode) {
            return Err(Stop::Refused(Trouble::contended()));
        }
        Ok(true)
    }

    /// There is a record for those who wait here.
    pub(super) fn finds(&self, record: Record) -> Stop {
        self.place.found(record);
        Stop::Done
    }

    pub(super) fn lives(&self, kept: &kept::Kept) -> bool {
        let lives = kept.ends() > self.session.servers_now();
        if !lives {
            self.shared.ends.met(self.place.key.as_str());
        }
        lives
    }

    /// The data of an open record in a transaction of this number, or that makes its node.
    pub(super) fn opens(&self, token: Option<FencingToken>, before: &Before) -> Option<Vec<u8>> {
        let open = self.place.opening()?;
        let ttl = millis(open.ttl);
        Some(kept::open(
            token,
            ttl,
            &self.place.owner,
            before,
            &open.bytes,
        ))
    }

    /// The node is the first: looks at the record as it was read since, and opens.
    pub(super) async fn begin(
        &mut self,
        mut standing: Option<Standing>,
        token: FencingToken,
        came: i64,
    ) -> Result<Begun, Stop> {
        let mut tries = 0;
        loop {
            let Some(node) = &self.node else {
                return Ok(Begun::Gone);
            };
            let (owner, open) = (&self.place.owner, self.place.opening());
            let kept = standing.as_ref().map(|standing| &standing.kept);
            let kept = kept.filter(|kept| self.lives(kept));
            let mut before = Before::Nothing;
            if let Some(kept) = kept {
                before = kept.before(owner);
                if kept.token() == token && kept.before_of(owner).is_some() {
                    self.has_opened();
                    return Ok(Begun::Granted(before.record()));
                }
                let came = self.place.comes(came);
                let found = kept.result(open, Some(came));
                if let Some(record) = found.or_else(|| kept.orphan(owner, open)) {
                    return Err(self.finds(record));
                }
            }
            let Some(data) = self.opens(Some(token), &before) else {
                return Ok(Begun::Granted(before.record()));
            };
            let change = match &standing {
                None => Change::Create(data),
                Some(standing) => Change::Write(data, standing.version),
            };
            let mut writer = self.client.new_multi_writer();
            let at = self
                .shelf
                .change(&change, &mut writer, &self.shared.config)?;
            writer.add_check_version(&node.path, 0)?;
            self.place.owe();
            match self.see(commit(writer.commit())).await? {
                Ok(Wrote::Done) => {
                    self.has_opened();
                    return Ok(Begun::Granted(before.record()));
                }
                Ok(Wrote::Refused(n, error)) => match error {
                    zk::Error::NoNode if n == at => return Ok(Begun::Gone),
                    error => self.changed(n < at, error, &change).await?,
                },
                Err(error) => {
                    tries += 1;
                    self.doubted = true;
                    self.give_up_after(tries, error).await?;
                }
            }
            if !self.place.is_wanted() {
                return Err(Stop::Done);
            }
            standing = self.read_record().await?;
        }
    }

    fn has_opened(&self) {
        if let Some(open) = self.place.opening() {
            self.shared.ends.note(self.place.key.as_str(), open.ttl);
        }
    }

    /// A change of a record was refused: because it is not as it was read, or for good.
    pub(super) async fn changed(
        &self,
        is_records: bool,
        error: zk::Error,
        change: &Change,
    ) -> Result<(), Stop> {
        if !is_records || !has_changed(&error) {
            return Err(error.into());
        }
        if error == zk::Error::NoNode && matches!(change, Change::Create(_)) {
            let made = self.shelf.make(&self.client, &self.shared.config);
            if let Err(error) = self.see(made).await? {
                self.retry(error).await?;
            }
        }
        Ok(())
    }

    /// A transaction was not answered.
    pub(super) async fn give_up_after(&self, tries: u32, error: zk::Error) -> Result<(), Stop> {
        if tries >= TRIES {
            return Err(error.into());
        }
        self.retry(error).await
    }

    pub(super) async fn retry(&self, error: zk::Error) -> Result<(), Stop> {
        let trouble = Trouble::from(error);
        if trouble.answered {
            return Err(Stop::Refused(trouble));
        }
        sleep(PAUSE).await;
        Ok(())
    }

    /// The record, after all that this session has sent.
    pub(super) async fn read_record(&self) -> Result<Option<Standing>, Stop> {
        loop {
            let sync = self.client.sync(&self.shared.config.base);
            let read = self.shelf.read(&self.client, &self.shared.config);
            let both = async {
                sync.await?;
                read.await
            };
            match self.see(both).await? {
                Ok(standing) => return Ok(standing),
                Err(error) => self.retry(error).await?,
            }
        }
    }

    /// Takes back an open record whose grant nobody has taken, together with the node, if there is
    /// one.
    pub(super) async fn unopen(&mut self) -> Result<(), Stop> {
        loop {
            let bucket = match self.see(self.client.check_stat(&self.shelf.bucket)).await? {
                Ok(stat) => stat.map(|stat| stat.version),
                Err(error) => {
                    self.retry(error).await?;
                    continue;
                }
            };
            let standing = self.read_record().await?;
            let (Some(Standing { kept, version }), Some(bucket)) = (standing, bucket) else {
                return Ok(());
            };
            let leaves = match kept.ends() > self.session.servers_now() {
                true => kept.undone_by(&self.place.owner, self.session.servers_now()),
                false => Leaves::AsItIs,
            };
            let change = match leaves {
                Leaves::AsItIs => return Ok(()),
                Leaves::Nothing => Change::Delete(version),
                Leaves::Data(data) => Change::Write(data, version),
            };
            let mut writer = self.client.new_multi_writer();
            writer.add_check_version(&self.shelf.bucket, bucket)?;
            self.shelf
                .change(&change, &mut writer, &self.shared.config)?;
            if let Some(node) = &self.node {
                writer.add_delete(&node.path, None)?;
            }
            match self.see(commit(writer.commit())).await? {
                Ok(Wrote::Done) => {
                    self.node = None;
                    if let Change::Delete(_) = change {
                        self.shared.ends.forget(self.place.key.as_str());
                    }
                    return Ok(());
                }
                // The node is gone without us.
                Ok(Wrote::Refused(2, zk::Error::NoNode)) => self.node = None,
                Ok(Wrote::Refused(n, error)) => self.changed(n < 2, error, &change).await?,
                Err(error) => self.retry(error).await?,
            }
        }
    }
}

/// Rounded up, so that no ttl comes to nothing.
pub(super) fn millis(ttl: std::time::Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
