//! One session with the servers: how it is opened, kept alive and judged.
//!
//! The client library reports an expired session late, and only once it has reached a server again.
//! So the end of a session is judged here, by the heartbeats that were acknowledged
//! ([`beats`](super::beats)), and is final: the library's session is closed, nothing is asked over it
//! any more, and the next one is another.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use zookeeper_client as zk;

use super::{
    answer::readable,
    beats::{Beats, Stamp},
    config::Config,
    server_clock::{Reading, ServerClock},
    trouble::{Trouble, ends_session},
    watches::{self, Watches},
};
use crate::{clock, sync::lock};

/// How long to wait after a heartbeat failed, at first.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Session {
    /// Until it is over.
    client: Mutex<Option<Arc<zk::Client>>>,
    pub(super) id: i64,
    /// As the server granted it.
    pub(super) timeout: Duration,
    beats: Mutex<Beats>,
    clock: Mutex<Option<ServerClock>>,
    /// A heartbeat was acknowledged.
    beaten: Notify,
    /// One is wanted before its time.
    wanted: Notify,
    /// Since when there has been no connection.
    away: watch::Sender<Option<Instant>>,
    over: CancellationToken,
    node: String,
    /// What goes before each path on the wire.
    chroot: usize,
    watches: Watches,
}

impl Session {
    /// Connects, and tries what will be done later.
    pub(super) async fn open(config: &Config) -> Result<Self, Trouble> {
        let limit = config.session_timeout.max(config.timeout * 2);
        let begun = Instant::now();
        let opened = async {
            loop {
                match Self::connect(config).await {
                    // The connection broke, or a server was too slow.
                    Err(trouble)
                        if trouble.may_pass()
                            && !trouble.answered
                            && begun.elapsed() < config.session_timeout =>
                    {
                        sleep(PAUSE).await;
                    }
                    result => return result,
                }
            }
        };
        timeout(limit, opened)
            .await
            .unwrap_or_else(|_| Err(Trouble::no_connection()))
    }

    async fn connect(config: &Config) -> Result<Self, Trouble> {
        let mut asked = config.session_timeout;
        let (created, client) = loop {
            // The leader counts the session from when it is created, which is later.
            let created = Stamp::now();
            let client = Self::client_of(config, asked).await?;
            let granted = client.session_timeout();
            // The library would find connections dead too soon or too late.
            let fits = granted.abs_diff(asked) <= granted / 10;
            // It tried servers that hang: the session would be over before a heartbeat is proven.
            let is_fresh = created.at.elapsed() <= granted * 2 / 5;
            if fits && is_fresh {
                break (created, client);
            }
            // What the servers' bounds made of the wish they grant as it is; else they disagree.
            asked = match asked == config.session_timeout {
                true => granted,
                false => config.session_timeout,
            };
        };
        let session = Self {
            id: client.session_id().0,
            timeout: client.session_timeout(),
            beats: Mutex::new(Beats::new(created, client.session_timeout())),
            clock: Mutex::new(None),
            beaten: Notify::new(),
            wanted: Notify::new(),
            away: watch::Sender::new(None),
            over: CancellationToken::new(),
            node: format!("{}/~session-{:016x}", config.base, fastrand::u64(..)),
            chroot: config.chroot.len(),
            watches: Watches::default(),
            client: Mutex::new(None),
        };
        readable(session.prepare(&client, config)).await?;
        *lock(&session.client) = Some(Arc::new(client));
        Ok(session)
    }

    async fn client_of(config: &Config, session_timeout: Duration) -> Result<zk::Client, Trouble> {
        let mut connector = zk::Client::connector()
            .with_session_timeout(session_timeout)
            // The library may try the server that hangs once more before another: found dead twice,
            // it must not cost the locks, which live for half a session timeout at least.
            .with_connection_timeout(session_timeout / 5);
        if let Some(user) = &config.digest {
            connector = connector.with_auth("digest", user.as_bytes());
        }
        readable(connector.connect(&config.servers))
            .await
            .map_err(|error| match error {
                zk::Error::BadArguments(_) => {
                    Trouble::misconfigured("the connect string of ZooKeeper is not usable")
                }
                zk::Error::AuthFailed => Trouble::from(zk::Error::AuthFailed),
                _ => Trouble::no_connection(),
            })
    }

    /// Makes the base, and tries in it on nodes of its own what locks will need.
    async fn prepare(&self, client: &zk::Client, config: &Config) -> Result<(), Trouble> {
        config.make_base(client).await?;
        let trial = format!("{}/~trial-{:016x}", config.base, fastrand::u64(..));
        let child = format!("{trial}/lock-");
        let mut writer = client.new_multi_writer();
        writer.add_create(&trial, b"", &config.parents())?;
        writer.add_create(&child, b"", &config.nodes())?;
        let sent = Stamp::now();
        let made = writer.commit().await.map_err(zk::Error::from)?;
        // As good as a heartbeat.
        lock(&self.beats).acknowledge(sent, Instant::now());
        let mut writer = client.new_multi_writer();
        for result in made.iter().rev() {
            if let zk::MultiWriteResult::Create { path, .. } = result {
                writer.add_delete(path, None)?;
            }
        }
        writer.commit().await.map_err(zk::Error::from)?;
        self.make_node(client, config).await?;
        let sent = Instant::now();
        let stat = client.set_data(&self.node, &config.data, None).await?;
        if stat.ephemeral_owner != self.id {
            // No node would ever be taken for ours.
            return Err(Trouble::unavailable(
                "ZooKeeper does not agree with itself which session this is",
            ));
        }
        self.tells_time(&stat, sent);
        Ok(())
    }

    fn tells_time(&self, stat: &zk::Stat, sent: Instant) {
        let reading = Reading::new(stat.mtime, sent);
        let mut clock = lock(&self.clock);
        match &mut *clock {
            Some(clock) => clock.read(reading),
            None => *clock = Some(ServerClock::new(reading, self.timeout / 4)),
        }
    }

    /// Milliseconds since 1970, as the servers have it.
    pub(super) fn servers_now(&self) -> i64 {
        // It was read before anybody had this session.
        lock(&self.clock)
            .as_ref()
            .map_or(i64::MIN, ServerClock::now)
    }

    async fn make_node(&self, client: &zk::Client, config: &Config) -> Result<(), Trouble> {
        let options = zk::CreateMode::Ephemeral.with_acls(config.acls());
        match client.create(&self.node, &config.data, &options).await {
            // Made by an attempt whose answer was lost: nobody else has this name.
            Ok(_) | Err(zk::Error::NodeExists) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// What to ask over.
    pub(super) fn client(&self) -> Result<Arc<zk::Client>, Trouble> {
        lock(&self.client).clone().ok_or_else(Trouble::no_session)
    }

    /// `None` if so much is watched that this node should be looked at instead.
    pub(super) fn room_for_watch(&self, path: &str) -> Option<watches::Room> {
        self.watches.room_for(self.chroot + path.len())
    }

    /// Until when what it holds is held.
    pub(super) fn valid_until(&self, suspended: Duration) -> Instant {
        lock(&self.beats).valid_until(suspended)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Resolves when it has ended.
    pub(super) async fn over(&self) {
        self.over.cancelled().await;
    }

    /// Whether there has been no connection for so long.
    pub(super) fn is_away_for(&self, limit: Duration) -> bool {
        self.away
            .borrow()
            .is_some_and(|since| since.elapsed() >= limit)
    }

    /// Resolves when there has been no connection for so long.
    pub(super) async fn away_for(&self, limit: Duration) {
        let mut away = self.away.subscribe();
        loop {
            let since = *away.borrow_and_update();
            let left = match since {
                None => None,
                Some(since) => match limit.checked_sub(since.elapsed()) {
                    None | Some(Duration::ZERO) => return,
                    left => left,
                },
            };
            tokio::select! {
                // The sender lives as long as this.
                _ = away.changed() => {}
                () = sleep(left.unwrap_or_default()), if left.is_some() => {}
            }
        }
    }

    /// Waits for the acknowledgement of a heartbeat that was sent about now.
    pub(super) async fn hear(&self, now: Instant, limit: Duration) -> Result<(), Trouble> {
        // One that is just over counts too, or many locks would mean many heartbeats.
        let since = now.checked_sub(self.timeout / 24).unwrap_or(now);
        let heard = async {
            loop {
                let beaten = self.beaten.notified();
                tokio::pin!(beaten);
                beaten.as_mut().enable();
                if lock(&self.beats).is_fresh(since, clock::suspended()) {
                    return Ok(());
                }
                self.wanted.notify_one();
                tokio::select! {
                    () = beaten => {}
                    () = self.over() => return Err(Trouble::no_session()),
                }
            }
        };
        timeout(limit, heard)
            .await
            .unwrap_or_else(|_| Err(Trouble::no_answer()))
    }

    /// Whether a heartbeat that is sent from now on is acknowledged within this time.
    pub(super) async fn answers(&self, limit: Duration) -> bool {
        let heard = self.hear(Instant::now() + self.timeout / 24, limit).await;
        if self.is_over() {
            // Whoever asks is told of that.
            std::future::pending::<()>().await;
        }
        heard.is_ok()
    }

    /// Keeps it alive; returns when it has ended, or nobody can know that it has not.
    pub(super) async fn live(&self, config: &Config) {
        let Ok(client) = self.client() else {
            return;
        };
        tokio::select! {
            () = self.beat(&client, config) => {}
            () = self.expire() => {}
            () = self.watch_connection(&client) => {}
            () = self.over() => {}
        }
    }

    /// The end, for all that was held or waited for in it.
    pub(super) fn end(&self) {
        self.over.cancel();
        // The library closes the session when the last user is gone: what is left of it in the
        // servers goes at once if they are reachable, else when they end it.
        drop(lock(&self.client).take());
    }

    async fn beat(&self, client: &zk::Client, config: &Config) {
        let period = Beats::period(self.timeout);
        let mut pause = PAUSE;
        loop {
            let sent = Stamp::now();
            let wait = match readable(client.set_data(&self.node, &config.data, None)).await {
                Ok(stat) => {
                    lock(&self.beats).acknowledge(sent, Instant::now());
                    self.tells_time(&stat, sent.at);
                    self.beaten.notify_waiters();
                    pause = PAUSE;
                    period
                }
                Err(error) if ends_session(&error) => return,
                Err(error) => {
                    if error == zk::Error::NoNode {
                        // Somebody has deleted it.
                        let _ = readable(self.make_node(client, config)).await;
                    }
                    pause = (pause * 2).min(period);
                    pause
                }
            };
            tokio::select! {
                () = sleep(wait) => {}
                () = self.wanted.notified() => {}
            }
        }
    }

    async fn expire(&self) {
        /// Suspends of the machine are noticed as often.
        const LOOK: Duration = Duration::from_secs(1);
        loop {
            let end = self.valid_until(clock::suspended());
            match end.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => return,
                Some(left) => sleep(left.min(LOOK)).await,
            }
        }
    }

    async fn watch_connection(&self, client: &zk::Client) {
        let mut states = client.state_watcher();
        let mut state = client.state();
        loop {
            let connected = state == zk::SessionState::SyncConnected;
            self.away.send_if_modified(|away| {
                let changes = away.is_none() != connected;
                if changes {
                    *away = (!connected).then(Instant::now);
                }
                changes
            });
            if state.is_terminated() {
                return;
            }
            state = states.changed().await;
        }
    }
}
