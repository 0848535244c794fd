//! A ZooKeeper server of a test's own, and an ensemble of three.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use super::{
    clock::Clock,
    jute::Session,
    process::Process,
    proxy::TcpProxy,
    scratch::{ScratchDir, free_port},
};

const REMEDY: &str = "scripts/test installs it";
const JARS: [&str; 3] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
    "/usr/share/java/slf4j-api.jar",
];

/// How long a server may take to serve on a busy machine. Only reached by failures.
const PATIENCE: Duration = Duration::from_secs(60);

/// The servers' unit of time: sessions end that much late at most.
pub const TICK: Duration = Duration::from_millis(200);

/// A real ZooKeeper server on a loopback port. Killed on drop.
///
/// Its data is in memory, so it outlives the process and not the machine.
/// Everything takes `&self`; what asks the server blocks for a moment, also in async tests.
#[derive(Debug)]
pub struct ZooKeeperServer {
    dir: ScratchDir,
    port: u16,
    /// What its configuration says beside its own ports and directory.
    config: String,
    id: usize,
    properties: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    /// `None` while it is down.
    process: Mutex<Option<Process>>,
}

/// What the installed servers call themselves, such as `3.8.0`.
pub fn version() -> String {
    let mut command = Command::new("java");
    command.args(["-cp", &JARS.join(":")]);
    command.arg("org.apache.zookeeper.version.VersionInfoMain");
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("java: {error}: {REMEDY}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split("version ").nth(1).unwrap_or_default();
    version
        .split([' ', '-', ','])
        .next()
        .unwrap_or_default()
        .to_owned()
}

impl ZooKeeperServer {
    /// A server that stands alone.
    pub fn start() -> Self {
        Self::start_with("", &[])
    }

    /// The same with these lines in its configuration, and these system properties
    /// (`-Dzookeeper..`).
    pub fn start_with(config: &str, properties: &[&str]) -> Self {
        for _ in 0..20 {
            let mut server = Self::new(1, config.to_owned());
            server.properties = properties.iter().map(|&one| one.to_owned()).collect();
            match server.spawn() {
                Ok(()) => {
                    server.wait_until_it_serves();
                    return server;
                }
                Err(log) if log.contains("in use") => {}
                Err(log) => panic!("ZooKeeper did not start:\n{log}"),
            }
        }
        panic!("ZooKeeper found no free port");
    }

    fn new(id: usize, config: String) -> Self {
        Self {
            dir: ScratchDir::in_memory(),
            port: free_port(),
            config,
            id,
            properties: Vec::new(),
            environment: Vec::new(),
            process: Mutex::new(None),
        }
    }

    /// Starts the process, or returns its log.
    fn spawn(&self) -> Result<(), String> {
        let dir = self.dir.path();
        let data = dir.join("data");
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("myid"), self.id.to_string()).unwrap();
        let tick = TICK.as_millis();
        let config = format!(
            "tickTime={tick}\ninitLimit=50\nsyncLimit=5\nminSessionTimeout={}\n\
             maxSessionTimeout=60000\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{}\n",
            2 * tick,
            data.display(),
            self.port,
            self.config
        );
        let file = dir.join("zoo.cfg");
        fs::write(&file, config).unwrap();
        for jar in JARS {
            assert!(Path::new(jar).exists(), "{jar} is missing: {REMEDY}");
        }
        let mut command = Command::new("java");
        command
            .envs(self.environment.iter().cloned())
            .args(["-Xms16m", "-Xmx192m", "-XX:+UseSerialGC"])
            .args(["-XX:TieredStopAtLevel=1", "-Xshare:auto"])
            .args(["-Djava.net.preferIPv4Stack=true"])
            .args(["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024"])
            .args(["-Dorg.slf4j.simpleLogger.logFile=System.out"])
            .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"])
            // Clients that are not served would fill the log that a failure shows.
            .arg("-Dorg.slf4j.simpleLogger.log.org.apache.zookeeper.server.NIOServerCnxn=error")
            .args(&self.properties)
            .args(["-cp", &JARS.join(":")])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(&file);
        let process = Process::spawn(&mut command, REMEDY);
        let begun = Instant::now();
        // Its port is open soon; it serves when there is a majority.
        while TcpStream::connect(self.address()).is_err() {
            if !process.is_running() {
                return Err(process.log());
            }
            assert!(begun.elapsed() < PATIENCE, "{}", process.log());
            thread::sleep(Duration::from_millis(10));
        }
        *self.process.lock().unwrap() = Some(process);
        Ok(())
    }

    pub fn wait_until_it_serves(&self) {
        let begun = Instant::now();
        let data = self.dir.path().display().to_string();
        loop {
            let config = self.ask("conf");
            let ours = config.contains(&data);
            if ours && self.mode().is_some() {
                return;
            }
            // Another server on this port would serve just as well.
            assert!(
                ours || !config.contains("dataDir"),
                "somebody else's server"
            );
            assert!(
                begun.elapsed() < PATIENCE,
                "it does not serve: {}",
                self.log()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The last lines of its log, while it runs.
    pub fn log(&self) -> String {
        let process = self.process.lock().unwrap();
        process.as_ref().map(Process::log).unwrap_or_default()
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.address())
    }

    /// `leader`, `follower` or `standalone`; `None` while it does not serve.
    pub fn mode(&self) -> Option<String> {
        let answer = self.ask("srvr");
        let mode = answer
            .lines()
            .find_map(|line| line.strip_prefix("Mode: "))?;
        Some(mode.to_owned())
    }

    /// The answer to a four letter word; empty if there is none.
    pub fn ask(&self, word: &str) -> String {
        let mut answer = Vec::new();
        let asked = TcpStream::connect(self.address()).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(word.as_bytes())?;
            stream.read_to_end(&mut answer)
        });
        match asked {
            Ok(_) => String::from_utf8_lossy(&answer).into_owned(),
            Err(_) => String::new(),
        }
    }

    /// A figure of `mntr`, such as `zk_watch_count`.
    pub fn figure(&self, name: &str) -> f64 {
        let answer = self.ask("mntr");
        let line = answer
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        let figure = line.and_then(|figure| figure.trim().parse().ok());
        figure.unwrap_or_else(|| panic!("no {name} in:\n{answer}"))
    }

    /// The ephemeral nodes, by the session that made them.
    pub fn ephemerals(&self) -> BTreeMap<String, Vec<String>> {
        let mut sessions = BTreeMap::new();
        let answer = self.ask("dump");
        let mut session = None;
        for line in answer.lines() {
            match line.strip_prefix('\t') {
                Some(path) => {
                    if let Some(session) = &session {
                        let paths: &mut Vec<_> =
                            sessions.entry(String::clone(session)).or_default();
                        paths.push(path.to_owned());
                    }
                }
                None => {
                    let of = line.strip_suffix(':').filter(|id| id.starts_with("0x"));
                    session = of.map(str::to_owned);
                }
            }
        }
        sessions
    }

    /// The nodes of holders and waiters under this path, of all sessions.
    pub fn standing(&self, path: &str) -> Vec<String> {
        let all = self.ephemerals().into_values().flatten();
        let mut under: Vec<_> = all
            .filter(|node| {
                node.strip_prefix(path)
                    .is_some_and(|rest| rest.starts_with('/'))
            })
            .filter(|node| !node.contains("/~"))
            .collect();
        under.sort();
        under
    }

    /// A session of a test's own.
    pub fn session(&self) -> Session {
        Session::open(self.address()).expect("it serves")
    }

    /// The nodes of keys under this base, those under them, and those of records; not those of
    /// sessions.
    pub fn nodes_left(&self, base: &str) -> Vec<String> {
        let mut session = self.session();
        let mut left = self.records_left(base);
        for key in session.children(base) {
            let path = format!("{base}/{key}");
            if !key.starts_with('~') {
                let children = session.children(&path);
                left.extend(children.iter().map(|child| format!("{path}/{child}")));
                left.push(path);
            }
        }
        left
    }

    /// The nodes of records under this base.
    pub fn records_left(&self, base: &str) -> Vec<String> {
        let mut session = self.session();
        let all = format!("{base}/~records");
        let mut left = Vec::new();
        for bucket in session.children(&all) {
            let bucket = format!("{all}/{bucket}");
            let records = session.children(&bucket);
            left.extend(records.iter().map(|record| format!("{bucket}/{record}")));
        }
        left
    }

    /// SIGKILL. Its data is kept for [`restart`](Self::restart).
    pub fn kill(&self) {
        *self.process.lock().unwrap() = None;
    }

    /// SIGSTOP: the kernel goes on accepting connections and bytes for it.
    pub fn pause(&self) {
        self.with_process(Process::pause);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.with_process(Process::resume);
    }

    /// Killed, if it runs, and started again on the same port with its data.
    pub fn restart(&self) {
        self.start_again();
        self.wait_until_it_serves();
    }

    /// The same, without waiting until it serves: it may need others for that.
    pub fn start_again(&self) {
        self.kill();
        if let Err(log) = self.spawn() {
            panic!("ZooKeeper did not start again:\n{log}");
        }
    }

    /// Killed, if it runs, and started again on the same port without data.
    pub fn restart_empty(&self) {
        self.kill();
        self.dir.clear().unwrap();
        self.restart();
    }

    fn with_process<R>(&self, f: impl FnOnce(&Process) -> R) -> R {
        f(self.process.lock().unwrap().as_ref().expect("it runs"))
    }
}

/// Three servers that agree. Killed on drop.
#[derive(Debug)]
pub struct Ensemble {
    pub servers: Vec<ZooKeeperServer>,
    /// What stands between them: from the server of the first number to that of the second.
    links: BTreeMap<(usize, usize), [TcpProxy; 2]>,
}

impl Ensemble {
    pub fn start() -> Self {
        Self::launch(false, &[], &[])
    }

    /// With a proxy on every way between two of them, so that it can be cut.
    pub fn start_with_links() -> Self {
        Self::launch(true, &[], &[])
    }

    /// The same with these system properties, and each server with the clock in its place, if
    /// there is one.
    pub fn start_with_links_and(properties: &[&str], clocks: &[Clock]) -> Self {
        Self::launch(true, properties, clocks)
    }

    fn launch(has_links: bool, properties: &[&str], clocks: &[Clock]) -> Self {
        for _ in 0..20 {
            let mut this = Self::plan(has_links);
            for (n, server) in this.servers.iter_mut().enumerate() {
                server.properties = properties.iter().map(|&one| one.to_owned()).collect();
                server.environment = clocks.get(n).map(Clock::environment).unwrap_or_default();
            }
            let spawned: Result<(), String> = thread::scope(|scope| {
                let spawning: Vec<_> = this
                    .servers
                    .iter()
                    .map(|s| scope.spawn(|| s.spawn()))
                    .collect();
                spawning.into_iter().try_for_each(|one| one.join().unwrap())
            });
            match spawned {
                Ok(()) => {
                    this.wait_until_it_serves();
                    return this;
                }
                Err(log) if log.contains("in use") => this.servers.clear(),
                Err(log) => panic!("the ensemble did not start:\n{log}"),
            }
        }
        panic!("the ensemble found no free ports");
    }

    fn plan(has_links: bool) -> Self {
        let ports: Vec<[u16; 2]> = (0..3).map(|_| [free_port(), free_port()]).collect();
        let mut links = BTreeMap::new();
        for from in 0..3 {
            for to in (0..3).filter(|&to| has_links && to != from) {
                let proxy = |port| TcpProxy::start((Ipv4Addr::LOCALHOST, port).into());
                links.insert((from, to), ports[to].map(proxy));
            }
        }
        let server = |this: usize| {
            let mut config = "standaloneEnabled=false\n".to_owned();
            if has_links {
                // A follower that is cut off serves reads for so long: 10 s.
                config += "syncLimit=50\n";
            }
            for (other, &own) in ports.iter().enumerate() {
                let [quorum, election] = match links.get(&(this, other)) {
                    Some(proxies) => [0, 1].map(|n| proxies[n].address().port()),
                    None => own,
                };
                let id = other + 1;
                // It tells others its own address, by which they would pass the proxies: but not
                // if it has no name.
                let ip = if has_links && other == this {
                    Ipv4Addr::UNSPECIFIED
                } else {
                    Ipv4Addr::LOCALHOST
                };
                config += &format!("server.{id}={ip}:{quorum}:{election}\n");
            }
            ZooKeeperServer::new(this + 1, config)
        };
        let servers = (0..3).map(server).collect();
        Self { servers, links }
    }

    pub fn wait_until_it_serves(&self) {
        for server in &self.servers {
            server.wait_until_it_serves();
        }
    }

    /// A connect string of all of them.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self
            .servers
            .iter()
            .map(|s| s.address().to_string())
            .collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// The number of the leader, waited for.
    pub fn leader(&self) -> usize {
        let begun = Instant::now();
        loop {
            let mut modes = self.servers.iter().map(ZooKeeperServer::mode);
            if let Some(at) = modes.position(|mode| mode.as_deref() == Some("leader")) {
                return at;
            }
            assert!(begun.elapsed() < PATIENCE, "there is no leader");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The last lines of each one's log.
    fn logs(&self) -> String {
        let numbered = self.servers.iter().enumerate();
        numbered
            .map(|(n, server)| format!("server {n}:\n{}\n", server.log()))
            .collect()
    }

    /// Waits until another one than this leads, too.
    pub fn wait_for_a_leader_beside(&self, old: usize) {
        let begun = Instant::now();
        let leads = |n: usize| self.servers[n].mode().as_deref() == Some("leader");
        while !(0..self.servers.len()).any(|n| n != old && leads(n)) {
            assert!(
                begun.elapsed() < PATIENCE,
                "no other one leads:\n{}",
                self.logs()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// How often the first one opened a way to elections of the second.
    pub fn calls(&self, from: usize, to: usize) -> usize {
        self.links[&(from, to)][1].accepted()
    }

    /// Cuts every way between these two, in silence.
    pub fn cut(&self, one: usize, other: usize) {
        for way in [(one, other), (other, one)] {
            for proxy in &self.links[&way] {
                proxy.black_hole();
            }
        }
    }

    /// Lets nothing of what the first one sends reach the second, in silence; the other way is open.
    pub fn mute(&self, one: usize, other: usize) {
        self.links[&(one, other)].iter().for_each(TcpProxy::drop_up);
        self.links[&(other, one)]
            .iter()
            .for_each(TcpProxy::drop_down);
    }

    /// Mends what was cut: it is opened anew.
    pub fn mend(&self, one: usize, other: usize) {
        for way in [(one, other), (other, one)] {
            for proxy in &self.links[&way] {
                proxy.mend();
            }
        }
    }
}
