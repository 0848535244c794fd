//! How a holder ended: what its task does about the record, while its node stands.
//!
//! An owner whose node was made by another process, or in a session that has ended, has its turn as
//! long as that node stands. Who has none any more and saves late takes one: it stands in the queue as any
//! other, for a moment, saves as it would have, and leaves. So a save is always one transaction
//! with the node of whoever has its turn ([`begin`](super::begin)).

use std::sync::Arc;

use tokio::time::{Instant, sleep, timeout};
use zookeeper_client as zk;

use super::{
    acquire,
    begin::{TRIES, millis},
    client::{Client, Shared},
    kept::{self, Leaves},
    place::{Errand, Place, Saved},
    queue::Queue,
    record,
    shelf::{Change, Standing, Wrote, commit},
    stand::{PAUSE, Stand, Stop},
    trouble::Trouble,
};
use crate::{
    backend::AcquireRequest,
    error::{BackendError, BackendErrorKind},
    lease::OwnerToken,
    record::{Outcome, Save},
};

/// For how long a late save tries to get a turn, so that others that only look do not refuse it.
/// Who holds for longer has the key.
const TURN: std::time::Duration = std::time::Duration::from_millis(300);

/// Saves for the owner of a save, and gives its key back if that is to be done.
pub(super) async fn save(
    client: &Arc<Client>,
    save: &Save,
    releases: bool,
) -> Result<(), BackendError> {
    let limit = client.shared.config.timeout * 2;
    // Whoever asked for it may leave.
    let task = client.shared.runtime.spawn({
        let (client, save) = (client.clone(), save.clone());
        async move {
            timeout(limit, run(&client, &save, releases))
                .await
                .unwrap_or_else(|_| Err(Trouble::no_answer().into()))
        }
    });
    task.await
        .unwrap_or_else(|_| Err(Trouble::unavailable("the save broke off").into()))
}

async fn run(client: &Arc<Client>, save: &Save, releases: bool) -> Result<(), BackendError> {
    if let Some(place) = client.shared.room.place(&save.key, &save.owner) {
        if let Some(saved) = place.save(save.clone(), releases)
            && let Ok(saved) = saved.await
            && let Some(ended) = told(saved)
        {
            return ended;
        }
        // What it had goes first.
        place.over().await;
    }
    loop {
        let session = client.shared.session().await?;
        match late(client, save, releases).await {
            // To repeat it is harmless.
            Err(error) if error.kind() == BackendErrorKind::Unavailable && session.is_over() => {}
            saved => return saved,
        }
    }
}

/// What to say; `None` if it has to take a turn.
fn told(saved: Saved) -> Option<Result<(), BackendError>> {
    match saved {
        Saved::Done => Some(Ok(())),
        Saved::Refused => Some(Err(lost("a later holder has left a record"))),
        Saved::Trouble(trouble) => Some(Err(trouble.into())),
        Saved::NotHeld => None,
    }
}

fn lost(why: &'static str) -> BackendError {
    BackendError::new(BackendErrorKind::Lost, why)
}

/// Of an owner that does not hold here.
async fn late(client: &Arc<Client>, save: &Save, releases: bool) -> Result<(), BackendError> {
    let shared = &client.shared;
    let mut request = AcquireRequest::new(save.key.clone(), shared.config.session_timeout);
    request.owner = save.owner;
    if let Some(ended) = elsewhere(shared, &request, save, releases).await? {
        return ended;
    }
    let standing = record::read(shared, &save.key).await?;
    // Either way it would be the same in its turn.
    match (&standing, &save.outcome) {
        (Some(kept), _) if kept.token() > save.token => {
            return Err(lost("a later holder has left a record"));
        }
        // It is done.
        (Some(kept), Outcome::Keep { .. }) if kept.is_closed() && kept.token() == save.token => {
            return Ok(());
        }
        _ => {}
    }
    let mut kept_out = None::<Instant>;
    let lease = loop {
        // The owner's place here may be asked for again meanwhile.
        request.owner = OwnerToken::random();
        match acquire::acquire(client, &request).await {
            Ok(lease) => break lease,
            Err(error) if !acquire::keeps_out(&error) => return Err(error),
            Err(_) => {}
        }
        if kept_out.get_or_insert_with(Instant::now).elapsed() >= TURN {
            return Err(lost("another has the key"));
        }
        sleep(PAUSE).await;
    };
    let broken = || Err(Trouble::unavailable("the save broke off").into());
    match lease.inner.save(save) {
        Some(saved) => saved.await.ok().and_then(told).unwrap_or_else(broken),
        None => broken(),
    }
}

/// By the owner's node, if that is there and has its turn, whoever made it.
async fn elsewhere(
    shared: &Arc<Shared>,
    request: &AcquireRequest,
    save: &Save,
    releases: bool,
) -> Result<Option<Result<(), BackendError>>, Trouble> {
    let session = shared.session().await?;
    let zk = session.client()?;
    // One of nobody: the owner's own is in its process.
    let place = Place::new(request, false, None);
    let mut stand = Stand::new(shared, &place, session, zk);
    let saved = match stand.find_holder().await {
        Ok(()) => stand.save(save, releases).await,
        Err(stop) => Err(stop),
    };
    match saved {
        Ok(saved) => Ok(told(saved)),
        Err(Stop::Refused(trouble)) => Err(trouble),
        Err(_) => Err(Trouble::no_session()),
    }
}

impl Stand<'_> {
    /// Takes the owner's node for its own, if it is the first.
    async fn find_holder(&mut self) -> Result<(), Stop> {
        let children = self.list().await?.unwrap_or_default();
        let layout = self.shared.config.layout;
        let queue = Queue::read(layout, &children).map_err(Stop::Refused)?;
        let owner = layout.of_owner(&self.place.owner);
        if let Some(first) = queue.holders().first()
            && first.name.starts_with(&owner)
        {
            self.stands([&self.parent, "/", first.name].concat(), 0);
        }
        Ok(())
    }

    /// Does what the holder asked for; whether the node has gone with that.
    pub(super) async fn errands(&mut self) -> Result<bool, Stop> {
        while let Some(errand) = self.place.next_errand() {
            let Errand {
                save,
                releases,
                answer,
            } = errand;
            let saved = self.save(&save, releases).await?;
            let is_over = self.node.is_none();
            if is_over {
                self.place.let_go();
            } else if releases {
                self.place.stays();
            }
            // It may have left.
            let _ = answer.send(saved);
            if is_over {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn save(&mut self, save: &Save, releases: bool) -> Result<Saved, Stop> {
        let mut tries = 0;
        loop {
            match self.try_save(save, releases, tries > 0).await {
                Ok(Some(saved)) => return Ok(saved),
                // Something has changed meanwhile.
                Ok(None) => {}
                Err(Stop::Refused(trouble)) if trouble.answered || tries + 1 >= TRIES => {
                    return Ok(Saved::Trouble(trouble));
                }
                Err(Stop::Refused(_)) => {
                    tries += 1;
                    sleep(PAUSE).await;
                }
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Once; `doubts` if it may have been done before.
    async fn try_save(
        &mut self,
        save: &Save,
        releases: bool,
        doubts: bool,
    ) -> Result<Option<Saved>, Stop> {
        let Some(node) = &self.node else {
            return Ok(Some(Saved::NotHeld));
        };
        let standing = match doubts {
            true => self.read_record().await?,
            false => {
                let read = self.shelf.read(&self.client, &self.shared.config);
                self.see(read).await??
            }
        };
        let kept = standing.as_ref().map(|standing| &standing.kept);
        let kept = kept.filter(|kept| self.lives(kept));
        let is_refused = kept.is_some_and(|kept| kept.token() > save.token);
        let change = match is_refused {
            true => None,
            false => self.change_of(save, &standing),
        };
        let saved = match is_refused {
            true => Saved::Refused,
            false => Saved::Done,
        };
        if change.is_none() && !releases {
            return Ok(Some(saved));
        }
        let mut writer = self.client.new_multi_writer();
        let at = match &change {
            Some(change) => self
                .shelf
                .change(change, &mut writer, &self.shared.config)?,
            None => 0,
        };
        match releases {
            true => writer.add_delete(&node.path, None)?,
            false => writer.add_check_version(&node.path, 0)?,
        }
        match self.see(commit(writer.commit())).await?? {
            Wrote::Done => {
                if releases {
                    self.node = None;
                }
                self.has_saved(save, &change);
                Ok(Some(saved))
            }
            Wrote::Refused(n, zk::Error::NoNode) if n == at => {
                if doubts && change.is_none() {
                    // That was us.
                    self.node = None;
                    return Ok(Some(saved));
                }
                self.is_robbed();
                Ok(Some(Saved::NotHeld))
            }
            Wrote::Refused(n, error) => {
                match change {
                    Some(change) => self.changed(n < at, error, &change).await?,
                    None => return Err(error.into()),
                }
                Ok(None)
            }
        }
    }

    /// What a save that is not refused makes of the record; `None` if it is so already.
    fn change_of(&self, save: &Save, standing: &Option<Standing>) -> Option<Change> {
        let now = self.session.servers_now();
        let live = standing.as_ref().filter(|one| one.kept.ends() > now);
        match &save.outcome {
            Outcome::Keep { bytes, ttl } => {
                // The first result of a token stays.
                let is_first = live
                    .is_none_or(|one| !(one.kept.is_closed() && one.kept.token() == save.token));
                let data = is_first.then(|| kept::closed(save.token, millis(*ttl), bytes))?;
                Some(match standing {
                    None => Change::Create(data),
                    Some(standing) => Change::Write(data, standing.version),
                })
            }
            Outcome::Forget => {
                let live = live?;
                match live.kept.forgotten_by(&save.owner, now) {
                    Leaves::AsItIs => None,
                    Leaves::Nothing => Some(Change::Delete(live.version)),
                    Leaves::Data(data) => Some(Change::Write(data, live.version)),
                }
            }
        }
    }

    fn has_saved(&self, save: &Save, change: &Option<Change>) {
        let (ends, name) = (&self.shared.ends, save.key.as_str());
        match (&save.outcome, change) {
            (Outcome::Keep { ttl, .. }, Some(_)) => ends.note(name, *ttl),
            (Outcome::Forget, Some(Change::Delete(_))) => ends.forget(name),
            _ => {}
        }
    }
}
