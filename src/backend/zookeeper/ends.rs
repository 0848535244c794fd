//! Deletes records that have ended. Whoever looks at one sees that it has; this is so that none is
//! left.
//!
//! Each process keeps the ends of the records that it wrote or met. Those of processes that are gone
//! are found by the [patrol](super::patrol).

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};
use zookeeper_client as zk;

use super::{
    answer::readable,
    client::Shared,
    session::Session,
    shelf::{Change, Shelf, Standing, Wrote, commit},
};
use crate::sync::lock;

/// So many are kept in mind, those that end first; what is beyond them is the patrol's.
const MOST: usize = 50_000;
/// How many are looked at at a time: each may be large.
const AT_ONCE: usize = 16;
/// Those that are due within this time go together.
const TICK: Duration = Duration::from_millis(100);
/// How long after its end a record is deleted: the clock is known by answers that take their time.
const LATE: Duration = Duration::from_millis(250);
/// When to look again at one that could not be looked at.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Ends {
    known: Mutex<Known>,
    earlier: Notify,
}

#[derive(Default)]
struct Known {
    due: HashMap<Arc<str>, Instant>,
    order: BTreeSet<(Instant, Arc<str>)>,
}

impl Known {
    fn put(&mut self, name: &str, at: Instant) {
        let name = match self.due.get_key_value(name) {
            Some((name, before)) => {
                let name = name.clone();
                self.order.remove(&(*before, name.clone()));
                name
            }
            None => Arc::from(name),
        };
        self.due.insert(name.clone(), at);
        self.order.insert((at, name));
        if self.order.len() > MOST
            && let Some((_, last)) = self.order.pop_last()
        {
            self.due.remove(&last);
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some((name, at)) = self.due.remove_entry(name) {
            self.order.remove(&(at, name));
        }
    }

    fn take_due(&mut self, now: Instant) -> Vec<Arc<str>> {
        let mut due = Vec::new();
        while let Some((at, _)) = self.order.first()
            && *at <= now
            && let Some((_, name)) = self.order.pop_first()
        {
            self.due.remove(&name);
            due.push(name);
        }
        due
    }
}

impl Ends {
    /// A record of this name was written just now.
    pub(super) fn note(&self, name: &str, ttl: Duration) {
        // Beyond any deadline that a timer takes, it is looked at again.
        let at = Instant::now() + ttl.min(super::LONGEST) + LATE;
        let mut known = lock(&self.known);
        known.put(name, at);
        let is_first = known.order.first().is_some_and(|(first, _)| *first == at);
        drop(known);
        if is_first {
            self.earlier.notify_one();
        }
    }

    /// A record of this name has ended, and is there.
    pub(super) fn met(&self, name: &str) {
        self.note(name, Duration::ZERO);
    }

    pub(super) fn forget(&self, name: &str) {
        lock(&self.known).remove(name);
    }

    pub(super) fn knows(&self, name: &str) -> bool {
        lock(&self.known).due.contains_key(name)
    }

    fn next(&self) -> Option<Instant> {
        lock(&self.known).order.first().map(|(at, _)| *at)
    }
}

pub(super) async fn walk(shared: Arc<Shared>) {
    loop {
        let due = lock(&shared.ends.known).take_due(Instant::now());
        if !due.is_empty() {
            look_at(&shared, &due).await;
        }
        let next = shared.ends.next();
        let until = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = until => {}
            () = shared.ends.earlier.notified() => {}
            () = shared.closing() => return,
        }
        sleep(TICK).await;
    }
}

/// Looks at the records of these names, and deletes those that have ended.
pub(super) async fn look_at(shared: &Shared, names: &[Arc<str>]) {
    let session = shared.session().await;
    for chunk in names.chunks(AT_ONCE) {
        let looked = match &session {
            Ok(session) => {
                let all = look_at_some(shared, session, chunk);
                timeout(shared.config.timeout, all).await.is_ok()
            }
            Err(_) => false,
        };
        if !looked {
            for name in chunk {
                shared.ends.note(name, AGAIN);
            }
        }
    }
}

async fn look_at_some(shared: &Shared, session: &Session, names: &[Arc<str>]) {
    let Ok(client) = session.client() else {
        return names.iter().for_each(|name| shared.ends.note(name, AGAIN));
    };
    let shelves = names
        .iter()
        .map(|name| Shelf::of_name(&shared.config, name));
    // Each is sent when its future is made; the bucket is read before the record.
    let asked: Vec<_> = shelves
        .map(|shelf| {
            let bucket = client.check_stat(&shelf.bucket);
            let record = shelf.read(&client, &shared.config);
            (shelf, bucket, record)
        })
        .collect();
    let mut deletions = Vec::new();
    for ((shelf, bucket, record), name) in asked.into_iter().zip(names) {
        let (bucket, standing) = match (readable(bucket).await, readable(record).await) {
            (Ok(Some(bucket)), Ok(Some(standing))) => (bucket, standing),
            (Ok(_), Ok(_)) => continue,
            // It is no record: somebody else's.
            (_, Err(zk::Error::BadArguments(_) | zk::Error::NoAuth)) => continue,
            _ => {
                shared.ends.note(name, AGAIN);
                continue;
            }
        };
        let left = standing.kept.ends().saturating_sub(session.servers_now());
        if left > -(LATE.as_millis() as i64) {
            let left = Duration::from_millis(left.max(0).unsigned_abs());
            shared.ends.note(name, left);
        } else {
            let deletion = delete(shared, &client, &shelf, &standing, bucket.version);
            deletions.push((name, deletion));
        }
    }
    for (name, deletion) in deletions {
        let is_done = match deletion {
            Ok(deletion) => matches!(readable(commit(deletion)).await, Ok(Wrote::Done)),
            Err(_) => false,
        };
        if !is_done {
            shared.ends.note(name, AGAIN);
        }
    }
}

/// Deletes it if it is what was read: its version is, and no node was made in its bucket since.
fn delete<'a>(
    shared: &Shared,
    client: &'a zk::Client,
    shelf: &Shelf,
    standing: &Standing,
    bucket: i32,
) -> Result<
    impl Future<Output = Result<Vec<zk::MultiWriteResult>, zk::MultiWriteError>> + Send + use<'a>,
    zk::Error,
> {
    let mut writer = client.new_multi_writer();
    writer.add_check_version(&shelf.bucket, bucket)?;
    let change = Change::Delete(standing.version);
    shelf.change(&change, &mut writer, &shared.config)?;
    // It is sent when its future is made.
    Ok(writer.commit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_due_is_taken_once_and_in_order() {
        let ends = Ends::default();
        let secs = Duration::from_secs;
        for (name, after) in [("a", 3), ("b", 1), ("c", 2), ("b", 4), ("d", 1)] {
            ends.note(name, secs(after));
        }
        ends.forget("d");
        let take = |after| {
            let now = Instant::now() + secs(after) + LATE;
            lock(&ends.known).take_due(now)
        };
        assert!(take(1).is_empty());
        assert_eq!(take(3), [Arc::from("c"), Arc::from("a")]);
        assert!(ends.knows("b") && !ends.knows("a"));
        assert_eq!(take(9), [Arc::from("b")]);
        assert!(ends.next().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_is_bounded() {
        let ends = Ends::default();
        for n in 0..MOST + 10 {
            ends.note(&n.to_string(), Duration::from_secs(1 + n as u64));
        }
        assert_eq!(lock(&ends.known).due.len(), MOST);
        assert!(ends.knows("0") && !ends.knows(&MOST.to_string()));
        ends.note("sooner", Duration::ZERO);
        assert_eq!(ends.next(), Some(Instant::now() + LATE));
        assert_eq!(lock(&ends.known).order.len(), MOST);
    }
}
