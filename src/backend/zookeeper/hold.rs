//! The task of a place, from the grant on: offer it, watch over it, leave nothing.

use std::{future::Future, pin::Pin, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};
use zookeeper_client as zk;

use super::{
    place::Offer,
    seek::OFFER,
    stand::{Stand, Stop},
    trouble::Trouble,
    watches::Watch,
};
use crate::clock::jittered;
use crate::{clock, lease::Loss};

/// When the others of the process that wait for the key are asked whether they are polled: one hung
/// process is to cost its successors one offer, however many waiters it has.
const SUSPICION: Duration = Duration::from_millis(250);
/// Before a watch on a node that is held is set again.
const PAUSE: Duration = Duration::from_secs(1);
/// How late a create may come that was not answered, beyond all that is known.
const LATE: Duration = Duration::from_secs(1);

type Event = Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>;

/// Returns when the node is to be deleted.
pub(super) async fn hold(stand: &mut Stand<'_>, watch: Option<Watch>) -> Stop {
    match stand.is_taken().await {
        Ok(true) => stand.watch_over(watch).await,
        Ok(false) => Stop::Done,
        Err(stop) => stop,
    }
}

impl Stand<'_> {
    /// Waits for an acquire to take the grant.
    async fn is_taken(&self) -> Result<bool, Stop> {
        let offered = Instant::now();
        // One that owes an answer from before has no more time for it.
        let ends = self
            .place
            .probed()
            .map_or(offered, |since| since.min(offered))
            + OFFER;
        let mut suspects = false;
        loop {
            match self.place.taken() {
                Offer::Taken => return Ok(true),
                Offer::Void => return Ok(false),
                Offer::Open => {}
            }
            let next = if suspects {
                ends
            } else {
                ends.min(offered + SUSPICION)
            };
            tokio::select! {
                () = self.place.told() => {}
                () = self.session.over() => {
                    self.place.withdraw();
                    return Err(Stop::SessionOver);
                }
                () = sleep_until(next) => {
                    if suspects {
                        self.place.withdraw();
                    } else {
                        suspects = true;
                        self.shared.room.probe(self.place);
                    }
                }
            }
        }
    }

    /// Stays until the holder is done or has lost the key.
    async fn watch_over(&mut self, watch: Option<Watch>) -> Stop {
        let mut event = watch.map(|watch| Box::pin(watch.changed()) as Event);
        loop {
            match self.errands().await {
                Ok(false) => {}
                Ok(true) => return Stop::Done,
                Err(stop) => return stop,
            }
            if self.place.is_let_go() {
                return Stop::Done;
            }
            let Some(ends) = self
                .place
                .lease()
                .map(|lease| lease.ends(clock::suspended()))
            else {
                return Stop::Done;
            };
            let happened = async {
                match &mut event {
                    Some(event) => Some(event.await.event_type),
                    None => {
                        sleep(PAUSE).await;
                        None
                    }
                }
            };
            tokio::select! {
                () = self.place.told() => {}
                () = self.session.over() => {
                    self.place.lose(Loss::Expired);
                    return Stop::SessionOver;
                }
                happened = happened => {
                    match self.watch_again(happened).await {
                        Ok(again) => event = again,
                        Err(stop) => return stop,
                    }
                }
                () = sleep_until(ends) => {
                    // It may have been renewed meanwhile.
                    if self.place.lease().is_none_or(|lease| lease.ends_by_now()) {
                        return Stop::Done;
                    }
                }
            }
        }
    }

    /// Something happened to the node, or to the watch on it.
    async fn watch_again(&mut self, event: Option<zk::EventType>) -> Result<Option<Event>, Stop> {
        match event {
            Some(zk::EventType::NodeDeleted) => return Err(self.is_robbed()),
            Some(zk::EventType::Session) => {
                self.session.over().await;
                self.place.lose(Loss::Expired);
                return Err(Stop::SessionOver);
            }
            _ => {}
        }
        let Some(node) = &self.node else {
            return Err(Stop::Done);
        };
        match self.see(self.read(&node.path)).await? {
            Ok((_, watch)) => Ok(watch.map(|watch| Box::pin(watch.changed()) as Event)),
            Err(zk::Error::NoNode) => Err(self.is_robbed()),
            Err(_) => Ok(None),
        }
    }

    pub(super) fn is_robbed(&mut self) -> Stop {
        self.place.lose(Loss::ForceReleased);
        self.node = None;
        Stop::Done
    }

    /// Leaves nothing on the servers, or ends with the session.
    pub(super) async fn leave(&mut self) {
        let mut pause = Duration::from_millis(20);
        let begun = Instant::now();
        loop {
            match self.clear().await {
                Ok(()) | Err(Stop::SessionOver) => return,
                Err(Stop::Done) => {}
                Err(Stop::Refused(trouble)) => {
                    // A connection that broke may be back in time.
                    if trouble.answered || begun.elapsed() >= self.shared.config.timeout {
                        self.place.released(&Err(trouble));
                    }
                }
            }
            tokio::select! {
                () = sleep(jittered(pause)) => {}
                () = self.session.over() => return,
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    async fn clear(&mut self) -> Result<(), Stop> {
        self.undo().await?;
        if let Some(node) = &self.node {
            self.delete(&node.path).await?;
            self.node = None;
        }
        if !self.doubted {
            return Ok(());
        }
        self.clear_all().await?;
        // As far as anybody can know.
        self.place.released(&Ok(()));
        sleep(LATE).await;
        self.undo().await?;
        self.clear_all().await?;
        self.doubted = false;
        self.place.settle();
        Ok(())
    }

    /// Takes back what was opened for a grant that nobody has taken.
    async fn undo(&mut self) -> Result<(), Stop> {
        if !self.place.owes() {
            return Ok(());
        }
        if self.node.is_none() && self.doubted {
            self.find().await?;
        }
        match self.unopen().await {
            // Somebody else's rights, or something that is no record: it is not the key's matter.
            Err(Stop::Refused(trouble)) if trouble.answered && !trouble.may_pass() => {
                tracing::debug!(target: "tower_lock", "ZooKeeper refused to undo an open record");
                self.place.settle();
            }
            undone => undone?,
        }
        if !self.doubted {
            self.place.settle();
        }
        Ok(())
    }

    async fn clear_all(&self) -> Result<(), Stop> {
        for (path, _) in self.find_all().await? {
            self.delete(&path).await?;
        }
        Ok(())
    }

    async fn delete(&self, path: &str) -> Result<(), Stop> {
        match self.see(self.client.delete(path, None)).await? {
            Ok(()) | Err(zk::Error::NoNode) => Ok(()),
            Err(error) => Err(Stop::Refused(Trouble::from(error))),
        }
    }
}
