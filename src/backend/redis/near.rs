//! A connection for each runtime that acquires: an answer that crosses threads takes twice as
//! long. They carry nothing that has to go on while that runtime is blocked.
//!
//! Until such a connection is up, asks cross to that of the lock runtime. It takes over when none
//! of them is on its way, so that no later ask of the same runtime is at the server before them.

use std::{
    sync::{Arc, Mutex, RwLock},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::timeout,
};

use super::{
    client::{Shared, spawn_until},
    connection::Connection,
    link::{Link, Standing},
    names::Names,
    place::Place,
    trouble::Trouble,
};
use crate::sync::lock;

/// How long a new connection waits for its turn while asks never cease to cross.
const LONGEST_CROSSING: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Nears(RwLock<Vec<(Id, Arc<Near>)>>);

struct Near {
    link: Link,
    crossing: Mutex<Crossings>,
    nobody_crosses: Notify,
}

#[derive(Default)]
struct Crossings {
    unanswered: usize,
    /// The connection of here takes over.
    over: bool,
}

/// An ask that crosses to the lock runtime's connection, until it is answered.
pub(super) struct Crossing(Arc<Near>);

impl Drop for Crossing {
    fn drop(&mut self) {
        let mut crossing = lock(&self.0.crossing);
        crossing.unanswered -= 1;
        if crossing.unanswered == 0 {
            self.0.nobody_crosses.notify_one();
        }
    }
}

enum Way {
    Here(Arc<Connection>),
    /// Any moment.
    HereSoon,
    Across(Crossing),
}

impl Near {
    fn new(patience: Duration) -> Self {
        Self {
            link: Link::new(patience),
            crossing: Mutex::default(),
            nobody_crosses: Notify::new(),
        }
    }

    fn way(self: &Arc<Self>) -> Way {
        let mut crossing = lock(&self.crossing);
        match self.link.standing() {
            Standing::Up(connection) => Way::Here(connection),
            Standing::Opening if crossing.over => Way::HereSoon,
            Standing::Opening | Standing::Down => {
                crossing.unanswered += 1;
                Way::Across(Crossing(self.clone()))
            }
        }
    }

    /// Before a connection that was opened is used: returns when nobody crosses.
    async fn takes_over(&self) {
        lock(&self.crossing).over = false;
        let quiet = async {
            loop {
                {
                    let mut crossing = lock(&self.crossing);
                    if crossing.unanswered == 0 {
                        crossing.over = true;
                        return;
                    }
                }
                self.nobody_crosses.notified().await;
            }
        };
        if timeout(LONGEST_CROSSING, quiet).await.is_err() {
            lock(&self.crossing).over = true;
        }
    }
}

impl Shared {
    /// The connection to use from here: that of this runtime, or the lock runtime's while there is
    /// none.
    pub(super) async fn connection(
        self: &Arc<Self>,
        names: &Names,
    ) -> Result<Arc<Connection>, Trouble> {
        let place = self.place(names)?;
        match self.near(&place, |near| near.link.ready()).flatten() {
            Some(connection) => Ok(connection),
            None => place.lock_link.connection().await,
        }
    }

    /// The same for an ask, which comes to the server in its turn. What comes along is to be kept
    /// until there is an answer.
    pub(super) async fn connection_in_turn(
        self: &Arc<Self>,
        names: &Names,
    ) -> Result<(Arc<Connection>, Option<Crossing>), Trouble> {
        let place = self.place(names)?;
        if let Some(connection) = self.near(&place, |near| near.link.ready()).flatten() {
            return Ok((connection, None));
        }
        let crossing = match self.near(&place, Near::way) {
            Some(Way::Here(connection)) => return Ok((connection, None)),
            Some(Way::HereSoon) => match self.settled(&place).await {
                Ok(Some(connection)) => return Ok((connection, None)),
                _ => None,
            },
            Some(Way::Across(crossing)) => Some(crossing),
            None => None,
        };
        Ok((place.lock_link.connection().await?, crossing))
    }

    /// Connects from this runtime too, so that the first requests need not cross threads. Nothing
    /// on the lock runtime, and where there is none.
    pub(super) async fn settled(
        self: &Arc<Self>,
        place: &Arc<Place>,
    ) -> Result<Option<Arc<Connection>>, Trouble> {
        match self.near(place, Arc::clone) {
            Some(near) => near.link.connection().await.map(Some),
            None => Ok(None),
        }
    }

    /// Looks at what this runtime has, and begins to connect from it where that is nothing.
    fn near<T>(self: &Arc<Self>, place: &Arc<Place>, look: impl Fn(&Arc<Near>) -> T) -> Option<T> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        if id == self.lock_runtime.id() {
            return None;
        }
        let find = |nears: &[(Id, Arc<Near>)]| {
            let near = nears.iter().find(|(known, _)| *known == id);
            near.map(|(_, near)| look(near))
        };
        let found = find(&place.nears.0.read().unwrap_or_else(|e| e.into_inner()));
        if found.is_some() {
            return found;
        }
        let mut nears = place.nears.0.write().unwrap_or_else(|e| e.into_inner());
        // Another thread of this runtime may have been faster.
        if let Some(found) = find(&nears) {
            return Some(found);
        }
        let near = Arc::new(Near::new(self.timeout));
        nears.push((id, near.clone()));
        drop(nears);
        self.settle_on(&runtime, place.clone(), id, near.clone());
        Some(look(&near))
    }

    fn settle_on(self: &Arc<Self>, runtime: &Handle, place: Arc<Place>, id: Id, near: Arc<Near>) {
        let shared = self.clone();
        let closed = place.closed.clone();
        let settled = Settled { place, id };
        spawn_until(&closed, runtime, async move {
            let open = || settled.place.open(&shared, |_| {});
            near.link.supervise(open, || near.takes_over()).await;
        });
    }
}

/// A runtime that has a connection; dropped with it.
struct Settled {
    place: Arc<Place>,
    id: Id,
}

impl Drop for Settled {
    fn drop(&mut self) {
        // A runtime without the IO driver, most likely: what failed once is not tried again, and
        // its asks go on crossing.
        if !std::thread::panicking() {
            let mut nears = self
                .place
                .nears
                .0
                .write()
                .unwrap_or_else(|e| e.into_inner());
            nears.retain(|(id, _)| *id != self.id);
        }
    }
}
