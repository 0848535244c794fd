//! A ZooKeeper server of a test's own.

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
    clock::Clock, jute::Session, patience::block_until, ports::free_port, process::Process,
    scratch::ScratchDir,
};

const REMEDY: &str = "scripts/test installs it";
const JARS: [&str; 3] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
    "/usr/share/java/slf4j-api.jar",
];

/// How long a server may take to serve on a busy machine. Only reached by failures.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

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
            server.run_with(properties, None);
            match server.spawn().and_then(|()| server.serves()) {
                Ok(()) => return server,
                Err(log) if log.contains("in use") => {}
                Err(log) => panic!("ZooKeeper did not start:\n{log}"),
            }
        }
        panic!("ZooKeeper found no free port");
    }

    /// With no more than its part of the configuration; it does not run yet.
    pub(super) fn new(id: usize, config: String) -> Self {
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

    /// From its next start on it has these system properties, and this clock.
    pub(super) fn run_with(&mut self, properties: &[&str], clock: Option<&Clock>) {
        self.properties = properties.iter().map(|&one| one.to_owned()).collect();
        self.environment = clock.map(Clock::environment).unwrap_or_default();
    }

    /// Starts the process, or returns its log.
    pub(super) fn spawn(&self) -> Result<(), String> {
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
        let served = self.serves();
        served.unwrap_or_else(|log| panic!("it does not serve:\n{log}"));
    }

    /// Waits until it serves, or returns its log: one that finds its other ports taken ends seconds
    /// after the one for clients was open.
    pub(super) fn serves(&self) -> Result<(), String> {
        let begun = Instant::now();
        let data = self.dir.path().display().to_string();
        loop {
            let config = self.ask("conf");
            let ours = config.contains(&data);
            if ours && self.mode().is_some() {
                return Ok(());
            }
            // Another server on this port would serve just as well.
            assert!(
                ours || !config.contains("dataDir"),
                "somebody else's server"
            );
            let process = self.process.lock().unwrap();
            let is_running = process.as_ref().is_some_and(Process::is_running);
            drop(process);
            if !is_running || begun.elapsed() > PATIENCE {
                return Err(self.log());
            }
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

    /// The same of a server that serves: asked again until there is one.
    fn answer(&self, word: &str) -> String {
        block_until(&format!("ZooKeeper answers {word}"), || {
            let answer = self.ask(word);
            let serves = !answer.is_empty() && !answer.contains("not currently serving");
            serves.then_some(answer)
        })
    }

    /// A figure of `mntr`, such as `zk_watch_count`.
    pub fn figure(&self, name: &str) -> f64 {
        let answer = self.answer("mntr");
        let line = answer
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
        let figure = line.and_then(|figure| figure.trim().parse().ok());
        figure.unwrap_or_else(|| panic!("no {name} in:\n{answer}"))
    }

    /// The ephemeral nodes, by the session that made them.
    pub fn ephemerals(&self) -> BTreeMap<String, Vec<String>> {
        let mut sessions = BTreeMap::new();
        let answer = self.answer("dump");
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
