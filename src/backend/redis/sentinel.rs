//! Where the master of a service is, as Redis Sentinels say.
//!
//! Every Sentinel of the URL is asked each second, and whenever one of them tells of a promotion.
//! Of what they say the newest counts: the highest configuration epoch, and within it a promotion
//! that is under way. A connection to what is not the master any more is ended at once, also while
//! that server goes on taking writes, which after a planned fail-over it does for seconds.
//!
//! <https://redis.io/docs/latest/develop/reference/sentinel-clients/>

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{Cmd, PushInfo, Value};
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::{sleep, timeout},
};

use super::{
    client::Shared,
    connection::{Connection, text},
    endpoint::Endpoint,
    trouble::Trouble,
    url::Address,
};
use crate::{clock::jittered, sync::lock};

/// How often a Sentinel is asked that says nothing by itself.
const LOOKS: Duration = Duration::from_secs(1);

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Sentinels {
    service: String,
    sentinels: Vec<redis::Client>,
    /// How to connect to the master, wherever it is.
    servers: Endpoint,
    known: Mutex<Known>,
    master: watch::Sender<Option<Address>>,
}

struct Known {
    /// What each of them said last.
    reports: Vec<Result<Report, Trouble>>,
    /// How new the report is that was believed.
    newest: (u64, bool),
}

/// What one Sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Report {
    epoch: u64,
    /// It promotes this one right now: newer than what others say of the same epoch.
    promotes: bool,
    master: Address,
}

impl Sentinels {
    pub(super) fn new(
        service: String,
        sentinels: Vec<redis::Client>,
        servers: Endpoint,
    ) -> Arc<Self> {
        let reports = sentinels
            .iter()
            .map(|_| Err(Trouble::unavailable("no Sentinel has answered yet")))
            .collect();
        Arc::new(Self {
            service,
            sentinels,
            servers,
            known: Mutex::new(Known {
                reports,
                newest: (0, false),
            }),
            master: watch::Sender::new(None),
        })
    }

    /// Asks them from now on.
    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>) {
        for n in 0..self.sentinels.len() {
            let (this, limit) = (self.clone(), shared.timeout);
            shared.spawn(async move { this.watch(n, limit).await });
        }
    }

    /// A connection to the master, which ends when another is.
    pub(super) async fn open_master(
        &self,
        limit: Duration,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
        lock_runtime: &Handle,
    ) -> Result<Connection, Trouble> {
        let mut master = self.master.subscribe();
        let address = match timeout(limit, master.wait_for(Option::is_some)).await {
            Ok(Ok(address)) => address.clone(),
            _ => None,
        };
        let Some(address) = address else {
            return Err(self.trouble());
        };
        let client = self.servers.client_at(&address)?;
        let connection = Connection::open(&client, limit, on_push).await?;
        if connection.server().is_replica {
            return Err(Trouble::unavailable(
                "the server that the Sentinels name as the master is a replica (yet)",
            ));
        }
        let end = connection.end_token();
        // Not here, where a handler may block the thread.
        lock_runtime.spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                _ = master.wait_for(|now| now.as_ref() != Some(&address)) => end.cancel(),
            }
        });
        Ok(connection)
    }

    /// Why no master is known: the trouble with what could be wrong for good, if there is one.
    fn trouble(&self) -> Trouble {
        let known = lock(&self.known);
        let troubles = || {
            known
                .reports
                .iter()
                .filter_map(|report| report.as_ref().err())
        };
        let worst = troubles().find(|trouble| !trouble.may_pass());
        worst.or(troubles().next()).cloned().unwrap_or_else(|| {
            Trouble::unavailable("the Sentinels do not know where the master is")
        })
    }

    fn report(&self, n: usize, report: Result<Report, Trouble>) {
        let mut known = lock(&self.known);
        known.reports[n] = report;
        let Some(newest) = known.believable().cloned() else {
            return;
        };
        known.newest = newest.age();
        let newest = &newest.master;
        self.master.send_if_modified(|master| {
            let changes = master.as_ref() != Some(newest);
            if changes {
                *master = Some(newest.clone());
            }
            changes
        });
    }

    async fn watch(&self, n: usize, limit: Duration) {
        let mut pause = FIRST_PAUSE;
        loop {
            let trouble = match self.ask_on(n, limit, &mut pause).await {
                Ok(never) => match never {},
                Err(trouble) => trouble,
            };
            self.report(n, Err(trouble));
            sleep(jittered(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn ask_on(
        &self,
        n: usize,
        limit: Duration,
        pause: &mut Duration,
    ) -> Result<std::convert::Infallible, Trouble> {
        let heard = Arc::new(Notify::new());
        let on_push = {
            let heard = heard.clone();
            move |_| heard.notify_one()
        };
        let connection = Connection::open(&self.sentinels[n], limit, on_push).await?;
        if connection.server().mode.as_deref() != Some("sentinel") {
            return Err(Trouble::misconfigured(
                "one of the hosts before the name of the service is not a Redis Sentinel",
            ));
        }
        for event in ["+switch-master", "+promoted-slave"] {
            connection.subscribe(event).await?;
        }
        loop {
            let facts = connection.ask(&self.ask("MASTER")).await;
            let facts = facts.map_err(|trouble| {
                if trouble.answered && trouble.may_pass() {
                    return Trouble::misconfigured(
                        "the Sentinels do not know the service that the URL names",
                    );
                }
                trouble
            })?;
            let address = connection.ask(&self.ask("GET-MASTER-ADDR-BY-NAME")).await?;
            self.report(n, Report::read(&facts, &address));
            *pause = FIRST_PAUSE;
            tokio::select! {
                () = connection.ended() => {
                    return Err(Trouble::unavailable("the connection to a Sentinel has ended"));
                }
                () = heard.notified() => {}
                () = sleep(jittered(LOOKS)) => {}
            }
        }
    }

    fn ask(&self, what: &str) -> Cmd {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg(what).arg(&self.service);
        cmd
    }
}

impl Known {
    /// The newest report, unless a newer one was believed before: whoever said that may be away.
    /// When all agree that they know of nothing newer, they were set up anew.
    fn believable(&self) -> Option<&Report> {
        let reports = self.reports.iter().flatten();
        let newest = reports.max_by_key(|report| report.age())?;
        let all_answer = self.reports.iter().all(Result::is_ok);
        (all_answer || newest.age() >= self.newest).then_some(newest)
    }
}

impl Report {
    fn age(&self) -> (u64, bool) {
        (self.epoch, self.promotes)
    }

    /// From the answers to `SENTINEL MASTER` and `SENTINEL GET-MASTER-ADDR-BY-NAME`.
    fn read(facts: &Value, address: &Value) -> Result<Self, Trouble> {
        let facts: HashMap<&str, &str> = match facts {
            Value::Map(pairs) => pairs
                .iter()
                .filter_map(|(name, value)| Some((text(name)?, text(value)?)))
                .collect(),
            Value::Array(flat) => flat
                .chunks_exact(2)
                .filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?)))
                .collect(),
            _ => return Err(Trouble::strange()),
        };
        let Value::Array(address) = address else {
            return Err(Trouble::strange());
        };
        let [host, port] = address.as_slice() else {
            return Err(Trouble::strange());
        };
        let read = |host: Option<&str>, port: Option<&str>| {
            Some(Address {
                host: host?.to_owned(),
                port: port?.parse().ok()?,
            })
        };
        let master = read(text(host), text(port)).ok_or_else(Trouble::strange)?;
        let configured = read(facts.get("ip").copied(), facts.get("port").copied());
        let epoch = facts
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok());
        Ok(Self {
            epoch: epoch.ok_or_else(Trouble::strange)?,
            promotes: configured.as_ref() != Some(&master),
            master,
        })
    }
}

/// The clients of these Sentinels.
pub(super) fn clients(
    sentinels: &[Address],
    endpoint: &Endpoint,
) -> Result<Vec<redis::Client>, Trouble> {
    sentinels
        .iter()
        .map(|address| endpoint.client_at(address))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::url, *};

    fn report(epoch: u64, promotes: bool, host: &str) -> Report {
        Report {
            epoch,
            promotes,
            master: url::address(host, 6379).unwrap(),
        }
    }

    #[test]
    fn the_newest_report_counts_whoever_says_it() {
        let away = || Err(Trouble::no_answer());
        let old = || Ok(report(1, false, "a"));
        let promotes = || Ok(report(1, true, "b"));
        let switched = || Ok(report(2, false, "b"));
        let believed = |newest, reports| {
            let known = Known { reports, newest };
            known.believable().map(|report| report.master.host.clone())
        };
        let before = (0, false);
        for (reports, host) in [
            (vec![old(), old()], "a"),
            (vec![old(), promotes(), old()], "b"),
            (vec![promotes(), old(), away()], "b"),
            (vec![old(), switched()], "b"),
            (vec![switched(), old(), promotes()], "b"),
        ] {
            assert_eq!(believed(before, reports).as_deref(), Some(host));
        }
        assert_eq!(believed(before, vec![away(), away()]), None);
        // Who told of the switch is away, and the others do not know of it yet.
        let after = (2, false);
        assert_eq!(believed(after, vec![away(), old(), old()]), None);
        assert_eq!(
            believed(after, vec![switched(), old(), away()]).as_deref(),
            Some("b")
        );
        // All of them were set up anew.
        assert_eq!(
            believed(after, vec![old(), old(), old()]).as_deref(),
            Some("a")
        );
    }

    #[test]
    fn reports_are_read_in_either_form() {
        let bulk = |text: &str| Value::BulkString(text.into());
        let facts = [("ip", "a"), ("port", "1"), ("config-epoch", "3")];
        let map = facts.map(|(name, value)| (bulk(name), bulk(value)));
        let flat = facts
            .map(|(name, value)| [bulk(name), bulk(value)])
            .concat();
        let at = |host| Value::Array(vec![bulk(host), bulk("1")]);
        for facts in [Value::Map(map.to_vec()), Value::Array(flat)] {
            let stays = Report::read(&facts, &at("a")).unwrap();
            assert_eq!((stays.epoch, stays.promotes), (3, false));
            let promotes = Report::read(&facts, &at("b")).unwrap();
            assert!(promotes.promotes);
            assert_eq!(promotes.master.host, "b");
            assert!(Report::read(&facts, &Value::Nil).is_err());
        }
        assert!(Report::read(&Value::Nil, &at("a")).is_err());
    }
}
