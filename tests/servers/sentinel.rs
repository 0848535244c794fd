//! Redis under Sentinel, of a test's own.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    sync::Mutex,
    thread,
    time::Duration,
};

use super::{
    front,
    patience::{block_until, wait_until},
    ports::free_port,
    process::Process,
    redis::{RedisServer, redis_server},
    resp::{Client, Reply},
    scratch::ScratchDir,
};

/// What the sentinels call the master.
pub const SERVICE: &str = "mymaster";

/// How many of the three sentinels have to agree.
const QUORUM: usize = 2;

/// What is to be started.
#[derive(Clone, Debug)]
pub struct SentinelSetup {
    pub replicas: usize,
    /// After how much silence a server counts as down.
    pub down_after: Duration,
    pub failover_timeout: Duration,
    /// What the master and the replicas ask for.
    pub password: Option<String>,
    /// What the sentinels ask for.
    pub sentinel_password: Option<String>,
    /// More options of the master and the replicas.
    pub options: Vec<String>,
    /// Whether proxies stand before the master and the replicas, for everybody who comes.
    pub fronts: bool,
}

impl Default for SentinelSetup {
    fn default() -> Self {
        Self {
            replicas: 1,
            down_after: Duration::from_secs(1),
            failover_timeout: Duration::from_secs(5),
            password: None,
            sentinel_password: None,
            options: Vec::new(),
            fronts: false,
        }
    }
}

/// A master, its replicas, and three sentinels that watch them. Killed on drop.
///
/// Who waits for the sentinels does so without blocking the runtime; everything else blocks for
/// the moment that a server takes.
#[derive(Debug)]
pub struct SentinelServers {
    pub(super) setup: SentinelSetup,
    /// The first is the master at the start.
    pub(super) nodes: Vec<RedisServer>,
    sentinels: Vec<Sentinel>,
    dir: ScratchDir,
}

#[derive(Debug)]
struct Sentinel {
    port: u16,
    /// The sentinel itself writes to it too.
    config: PathBuf,
    password: Option<String>,
    /// `None` while it is down.
    process: Mutex<Option<Process>>,
}

impl SentinelServers {
    /// A master with so many replicas that are in sync, and sentinels that know all of it.
    pub fn start(replicas: usize) -> Self {
        Self::start_with(SentinelSetup {
            replicas,
            ..SentinelSetup::default()
        })
    }

    pub fn start_with(setup: SentinelSetup) -> Self {
        let mut options = vec!["--repl-diskless-sync-delay", "0"];
        if let Some(password) = &setup.password {
            options.extend(["--requirepass", password, "--masterauth", password]);
        }
        options.extend(setup.options.iter().map(String::as_str));
        let launch = match setup.fronts {
            true => front::start,
            false => RedisServer::start_with,
        };
        let master = launch(&options);
        let replica_of = format!("127.0.0.1 {}", master.announced_port());
        options.extend(["--replicaof", &replica_of]);
        let mut nodes = vec![master];
        nodes.extend(thread::scope(|scope| {
            let start = |_| scope.spawn(|| launch(&options));
            let starting: Vec<_> = (0..setup.replicas).map(start).collect();
            let started = starting.into_iter().map(|it| it.join().unwrap());
            started.collect::<Vec<_>>()
        }));
        let mut this = Self {
            setup,
            nodes,
            sentinels: Vec::new(),
            dir: ScratchDir::new(),
        };
        this.start_sentinels();
        block_until("the replicas are in sync and the sentinels ready", || {
            this.is_ready().then_some(())
        });
        this
    }

    fn start_sentinels(&mut self) {
        for _ in 0..20 {
            self.sentinels.clear();
            let ports: Vec<_> = (0..3).map(|_| free_port()).collect();
            // Other than by what they tell each other, which takes seconds.
            let ids: Vec<_> = (0..3)
                .map(|_| format!("{:040x}", fastrand::u128(..)))
                .collect();
            for (n, &port) in ports.iter().enumerate() {
                let config = self.dir.path().join(format!("{n}.conf"));
                fs::write(&config, self.config(n, &ports, &ids)).unwrap();
                self.sentinels.push(Sentinel {
                    port,
                    config,
                    password: self.setup.sentinel_password.clone(),
                    process: Mutex::new(None),
                });
            }
            match self.sentinels.iter().try_for_each(Sentinel::spawn) {
                Ok(()) => return,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("a sentinel did not start:\n{log}"),
            }
        }
        panic!("the sentinels found no free ports");
    }

    fn config(&self, n: usize, ports: &[u16], ids: &[String]) -> String {
        let SentinelSetup {
            down_after,
            failover_timeout,
            password,
            sentinel_password,
            ..
        } = &self.setup;
        let (master, replicas) = self.nodes.split_first().expect("a master");
        let mut lines = vec![
            format!("port {}", ports[n]),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", self.dir.path().display()),
            format!("sentinel myid {}", ids[n]),
            format!(
                "sentinel monitor {SERVICE} 127.0.0.1 {} {QUORUM}",
                master.announced_port()
            ),
            format!(
                "sentinel down-after-milliseconds {SERVICE} {}",
                down_after.as_millis()
            ),
            format!(
                "sentinel failover-timeout {SERVICE} {}",
                failover_timeout.as_millis()
            ),
        ];
        if let Some(password) = password {
            lines.push(format!("sentinel auth-pass {SERVICE} {password}"));
        }
        if let Some(password) = sentinel_password {
            lines.push(format!("requirepass {password}"));
            lines.push(format!("sentinel sentinel-pass {password}"));
        }
        for replica in replicas {
            lines.push(format!(
                "sentinel known-replica {SERVICE} 127.0.0.1 {}",
                replica.announced_port()
            ));
        }
        for (other, (port, id)) in ports.iter().zip(ids).enumerate() {
            if other != n {
                lines.push(format!(
                    "sentinel known-sentinel {SERVICE} 127.0.0.1 {port} {id}"
                ));
            }
        }
        lines.join("\n") + "\n"
    }

    /// Whether a master that fails now would be replaced.
    fn is_ready(&self) -> bool {
        let Some(master) = self.agreed() else {
            return false;
        };
        let replicas = self.nodes.len() - 1;
        let says =
            |node: &RedisServer, name, what: &str| node.ask_info(name).as_deref() == Some(what);
        says(master, "connected_slaves", &replicas.to_string())
            && (self.others(master)).all(|node| says(node, "master_link_status", "up"))
            && self.sentinels.iter().all(|sentinel| {
                let flags = |what, flag| {
                    let Some(Reply::List(them)) = sentinel.ask(&["SENTINEL", what, SERVICE]) else {
                        return 0;
                    };
                    // Whoever is down or not connected has more flags.
                    let good = |it: &&Reply| it.field("flags") == Some(flag);
                    them.iter().filter(good).count()
                };
                let known = sentinel.ask(&["SENTINEL", "MASTER", SERVICE]);
                known.is_some_and(|known| known.field("flags") == Some("master"))
                    && flags("REPLICAS", "slave") == replicas
                    && flags("SENTINELS", "sentinel") == self.sentinels.len() - 1
            })
    }

    /// Where the sentinels listen.
    pub fn sentinels(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Sentinel::address).collect()
    }

    /// The processes of the sentinels that run.
    pub(super) fn sentinel_ids(&self) -> Vec<u32> {
        let id = |it: &Sentinel| it.process.lock().unwrap().as_ref().map(Process::id);
        self.sentinels.iter().filter_map(id).collect()
    }

    /// The sentinels' addresses, as a URL lists them.
    pub fn hosts(&self) -> String {
        let hosts = self.sentinels.iter().map(|it| it.address().to_string());
        hosts.collect::<Vec<_>>().join(",")
    }

    /// The URL of the master, without passwords.
    pub fn url(&self) -> String {
        self.url_of(SERVICE)
    }

    /// The URL of what may or may not be watched under this name.
    pub fn url_of(&self, service: &str) -> String {
        format!("redis+sentinel://{}/{service}", self.hosts())
    }

    /// The servers, the first of which was the master at the start.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Waits until all sentinels that run agree on the master: the port that it announces.
    pub async fn leader(&self) -> u16 {
        let agreed = || self.agreed().map(RedisServer::announced_port);
        wait_until("the sentinels agree", agreed).await
    }

    /// The server that is the master, as all sentinels that run say.
    pub fn master(&self) -> &RedisServer {
        self.agreed()
            .expect("the sentinels do not agree: wait for `switched_from`")
    }

    /// The others.
    pub fn replicas(&self) -> impl Iterator<Item = &RedisServer> {
        self.others(self.master())
    }

    /// All servers but this one.
    pub(super) fn others(&self, than: &RedisServer) -> impl Iterator<Item = &RedisServer> {
        let port = than.port();
        self.nodes.iter().filter(move |node| node.port() != port)
    }

    pub(super) fn agreed(&self) -> Option<&RedisServer> {
        let mut said = (self.sentinels.iter())
            .filter(|sentinel| sentinel.runs())
            .map(Sentinel::master_port);
        let port = said.next()??;
        let all = said.all(|other| other == Some(port));
        let mut nodes = self.nodes.iter();
        nodes.find(|node| all && node.announced_port() == port)
    }

    /// Waits until a master that fails now would be replaced: some 10 s after it was.
    pub async fn ready(&self) {
        wait_until("the replicas are in sync and the sentinels ready", || {
            self.is_ready().then_some(())
        })
        .await;
    }

    /// Waits until all sentinels that run announce another master than this one, and it is one.
    pub async fn switched_from(&self, old: &RedisServer) -> &RedisServer {
        wait_until("another master is announced", || {
            let new = self.agreed()?;
            let is_master = || new.ask_info("role").is_some_and(|role| role == "master");
            (new.port() != old.port() && is_master()).then_some(new)
        })
        .await
    }

    /// Lets the sentinels replace the master, which goes on running, and waits until they have
    /// announced the new one. The old one is told some 10 s later.
    pub async fn failover(&self) -> &RedisServer {
        let old = self.master();
        wait_until("the sentinels agree to replace the master", || {
            let sentinel = self.sentinels.iter().find(|sentinel| sentinel.runs())?;
            // Refused while one is under way, and for a moment after it; and given up where the
            // replica was just about to follow the master.
            if sentinel.master_port() == Some(old.announced_port()) {
                sentinel.ask(&["SENTINEL", "FAILOVER", SERVICE]);
                return None;
            }
            Some(())
        })
        .await;
        self.switched_from(old).await
    }

    /// SIGKILL; the server that was the master.
    pub fn kill_master(&self) -> &RedisServer {
        let master = self.master();
        master.kill();
        master
    }

    /// SIGSTOP; the server that is still the master for a while.
    pub fn pause_master(&self) -> &RedisServer {
        let master = self.master();
        master.pause();
        master
    }

    /// SIGKILL for a sentinel.
    pub fn kill_sentinel(&self, n: usize) {
        *self.sentinels[n].process.lock().unwrap() = None;
    }

    /// Starts it again, with what it knew.
    pub fn restart_sentinel(&self, n: usize) {
        self.kill_sentinel(n);
        if let Err(log) = self.sentinels[n].spawn() {
            panic!("a sentinel did not start again:\n{log}");
        }
    }

    /// The last lines of the logs of the sentinels that run, by their ports.
    pub fn sentinel_logs(&self) -> Vec<(u16, String)> {
        let log = |it: &Sentinel| {
            let process = it.process.lock().unwrap();
            Some((it.port, process.as_ref()?.log()))
        };
        self.sentinels.iter().filter_map(log).collect()
    }

    /// [`RedisServer::keys_left`] of the master.
    pub fn keys_left(&self, prefix: &str) -> Vec<String> {
        self.master().keys_left(prefix)
    }
}

impl Drop for SentinelServers {
    /// Whoever waited in vain for the sentinels wants to know what they did meanwhile.
    fn drop(&mut self) {
        if thread::panicking() {
            for (port, log) in self.sentinel_logs() {
                eprintln!("sentinel at {port}:\n{log}");
            }
        }
    }
}

impl Sentinel {
    fn spawn(&self) -> Result<(), String> {
        let mut command: Command = redis_server();
        command.arg(&self.config).arg("--sentinel");
        let mut process = Process::spawn(&mut command, "scripts/test installs it");
        if !process.wait_for("+monitor master") {
            return Err(process.log());
        }
        let pid = process.id();
        *self.process.lock().unwrap() = Some(process);
        // Another server on this port would answer just as well.
        let answer = self.ask(&["INFO", "server"]);
        match answer.as_ref().and_then(|info| info.field("process_id")) {
            Some(answered) if answered == pid.to_string() => {}
            other => return Err(format!("Address already in use by process {other:?}")),
        }
        // Else it does nothing for 30 s where the clock was set or the machine stood still.
        let answer = self.ask(&["SENTINEL", "DEBUG", "TILT-TRIGGER", "3600000"]);
        assert_eq!(answer, Some(Reply::Text("OK".to_owned())));
        Ok(())
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn runs(&self) -> bool {
        let process = self.process.lock().unwrap();
        process.as_ref().is_some_and(Process::is_running)
    }

    fn ask(&self, command: &[&str]) -> Option<Reply> {
        let mut client = Client::connect(self.address()).ok()?;
        if let Some(password) = &self.password {
            client.call(&["AUTH", password]).ok()?;
        }
        client.call(command).ok()
    }

    fn master_port(&self) -> Option<u16> {
        let address = self.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])?;
        address.list().get(1)?.text().parse().ok()
    }
}
