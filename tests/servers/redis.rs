//! A Redis server of a test's own.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
};

use super::{
    certificates::Certificates,
    front::Front,
    ports::free_port,
    process::Process,
    resp::{Client, Reply},
    scratch::ScratchDir,
};

/// The rights that a page of the documentation tells operators to set: those that are needed, and
/// the rest, which stand in the last line.
pub fn documented_rights(page: &'static str) -> (Vec<&'static str>, Vec<&'static str>) {
    let (_, after) = page
        .split_once("redis-cli ACL SETUSER locks on '>secret' \\\n")
        .unwrap();
    let (command, _) = after.split_once("```").unwrap();
    let lines = command.trim().lines().map(|line| {
        let words = line.trim_end_matches('\\').split_whitespace();
        words
            .map(|word| word.trim_matches('\''))
            .collect::<Vec<_>>()
    });
    let mut lines: Vec<_> = lines.collect();
    let optional = lines.pop().unwrap();
    (lines.concat(), optional)
}

/// A real `redis-server` on a loopback port and a Unix socket. Killed on drop.
///
/// Everything takes `&self`, so that a test can share it; commands block for the moment that the
/// server takes, also in async tests.
#[derive(Debug)]
pub struct RedisServer {
    dir: ScratchDir,
    port: u16,
    tls: Option<(u16, Certificates)>,
    options: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    /// What it announces in place of itself.
    front: Option<Front>,
    /// `None` while it is down.
    process: Mutex<Option<Process>>,
}

impl RedisServer {
    /// A server without persistence.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with these options, such as `&["--appendonly", "yes", "--appendfsync", "always"]`.
    pub fn start_with(options: &[&str]) -> Self {
        Self::launch(options, false, Vec::new())
    }

    /// A server without persistence, with this in its environment.
    pub fn start_in(environment: Vec<(&'static str, PathBuf)>) -> Self {
        Self::launch(&[], false, environment)
    }

    /// A server that speaks TLS too, with a root certificate of its own. It asks for no client
    /// certificate, unless the options say `--tls-auth-clients yes`.
    pub fn start_tls(options: &[&str]) -> Self {
        Self::launch(options, true, Vec::new())
    }

    /// The same as [`start_with`](Self::start_with) on this port; or its log, which says `Address
    /// already in use` where another has one of its ports.
    pub(super) fn try_start_on(port: u16, options: &[&str]) -> Result<Self, String> {
        let this = Self::new(port, options, None);
        this.spawn().map(|()| this)
    }

    /// The same behind proxies that it announces.
    pub(super) fn try_start_behind(
        front: Front,
        port: u16,
        options: &[&str],
    ) -> Result<Self, String> {
        let mut this = Self::new(port, options, None);
        this.options.extend(front.options());
        this.front = Some(front);
        this.spawn().map(|()| this)
    }

    fn new(port: u16, options: &[&str], tls: Option<(u16, Certificates)>) -> Self {
        Self {
            dir: ScratchDir::new(),
            port,
            tls,
            options: options.iter().map(|&option| option.to_owned()).collect(),
            environment: Vec::new(),
            front: None,
            process: Mutex::new(None),
        }
    }

    fn launch(options: &[&str], tls: bool, environment: Vec<(&'static str, PathBuf)>) -> Self {
        let mut this = Self::new(0, options, tls.then(|| (0, Certificates::new())));
        this.environment = environment;
        for _ in 0..20 {
            this.port = free_port();
            if let Some((port, _)) = &mut this.tls {
                *port = free_port();
            }
            match this.spawn() {
                Ok(()) => return this,
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("redis-server did not start:\n{log}"),
            }
        }
        panic!("redis-server found no free port");
    }

    /// Starts the process on its ports and waits until it is ready, or returns its log.
    fn spawn(&self) -> Result<(), String> {
        let mut command = redis_server();
        command
            .envs(self.environment.iter().cloned())
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .args(["--enable-debug-command", "yes", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.dir.path())
            .arg("--unixsocket")
            .arg(self.socket());
        if let Some((port, certificates)) = &self.tls {
            command
                .args(["--tls-port", &port.to_string()])
                .args(["--tls-auth-clients", "no", "--tls-ca-cert-file"])
                .arg(certificates.certificate("root"))
                .arg("--tls-cert-file")
                .arg(certificates.certificate("server"))
                .arg("--tls-key-file")
                .arg(certificates.key("server"));
        }
        let mut process = Process::spawn(command.args(&self.options), "scripts/test installs it");
        // Said once the data is loaded and every port is open.
        if !process.wait_for("Ready to accept connections") {
            return Err(process.log());
        }
        let pid = process.id();
        *self.process.lock().unwrap() = Some(process);
        // Another server on this port would answer just as well.
        match self.info("process_id") {
            answered if answered == pid.to_string() => Ok(()),
            other => Err(format!("Address already in use by process {other}")),
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// What stands before it, if anything does.
    pub fn front(&self) -> Option<&Front> {
        self.front.as_ref()
    }

    /// The port by which others find it.
    pub fn announced_port(&self) -> u16 {
        let front = self.front.as_ref();
        front.map_or(self.port, |front| front.server.address().port())
    }

    /// Of its process.
    pub fn id(&self) -> u32 {
        self.with_process(Process::id)
    }

    /// The last lines of its log, while it runs.
    pub fn log(&self) -> String {
        let process = self.process.lock().unwrap();
        process.as_ref().map(Process::log).unwrap_or_default()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where it has its socket and its data.
    pub fn directory(&self) -> &Path {
        self.dir.path()
    }

    /// The path of its Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn tls_port(&self) -> u16 {
        self.tls.as_ref().expect("start_tls").0
    }

    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}", self.tls_port())
    }

    pub fn certificates(&self) -> &Certificates {
        &self.tls.as_ref().expect("start_tls").1
    }

    /// SIGKILL. Its data is kept for [`restart`](Self::restart), as far as it persisted it.
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

    /// Killed, if it runs, and started again on the same port with the data that it persisted.
    pub fn restart(&self) {
        self.kill();
        if let Err(log) = self.spawn() {
            panic!("redis-server did not start again:\n{log}");
        }
    }

    /// Killed, if it runs, and started again on the same port without data; a node of a Cluster is
    /// the same one.
    pub fn restart_empty(&self) {
        self.kill();
        let nodes = self.dir.path().join("nodes.conf");
        let known = fs::read(&nodes).ok();
        self.dir.clear().unwrap();
        if let Some(known) = known {
            fs::write(&nodes, known).unwrap();
        }
        self.restart();
    }

    fn with_process<R>(&self, f: impl FnOnce(&Process) -> R) -> R {
        f(self.process.lock().unwrap().as_ref().expect("it runs"))
    }

    /// Whether it is neither down nor paused.
    pub fn runs(&self) -> bool {
        let process = self.process.lock().unwrap();
        (process.as_ref()).is_some_and(|process| process.is_running() && !process.is_paused())
    }

    /// A new control connection, as the default user.
    pub fn client(&self) -> Client {
        self.try_client().expect("it accepts connections")
    }

    fn try_client(&self) -> io::Result<Client> {
        let mut client = Client::connect(self.address())?;
        let password = self
            .options
            .iter()
            .skip_while(|&o| o != "--requirepass")
            .nth(1);
        if let Some(password) = password {
            client.call(&["AUTH", password])?;
        }
        Ok(client)
    }

    /// What it answers, if it runs and does.
    pub(super) fn ask(&self, command: &[&str]) -> Option<Reply> {
        let answer = || self.try_client()?.call(command);
        self.runs().then(answer)?.ok()
    }

    /// Runs a command, on a connection of its own; panics where it is refused.
    pub fn command(&self, command: &[&str]) -> Reply {
        match self.try_command(command) {
            Reply::Error(error) => panic!("{command:?}: {error}"),
            reply => reply,
        }
    }

    /// The same; an error is a reply.
    pub fn try_command(&self, command: &[&str]) -> Reply {
        self.client()
            .call(command)
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Sends a command and does not wait for its answer (`DEBUG SLEEP`). The connection that comes
    /// back ends the wait for it.
    pub fn begin(&self, command: &[&str]) -> Client {
        let mut client = self.client();
        // Behind an answer, the server reads this connection as soon as it has something.
        client.call(&["PING"]).unwrap();
        client.send(command).unwrap();
        client
    }

    /// A field of `INFO all`, or an empty string.
    pub fn info(&self, field: &str) -> String {
        let info = self.command(&["INFO", "all"]);
        info.field(field).unwrap_or_default().to_owned()
    }

    /// The same, where it may be down.
    pub(super) fn ask_info(&self, field: &str) -> Option<String> {
        Some(self.ask(&["INFO", "all"])?.field(field)?.to_owned())
    }

    /// How many times it ran this command (lower case, such as `evalsha`), scripts' calls included.
    pub fn calls(&self, command: &str) -> u64 {
        let stat = self.info(&format!("cmdstat_{command}"));
        let calls = stat.split(',').find_map(|s| s.strip_prefix("calls="));
        calls.map_or(0, |calls| calls.parse().unwrap())
    }

    /// Sets every counter of [`calls`](Self::calls) to zero.
    pub fn reset_calls(&self) {
        self.command(&["CONFIG", "RESETSTAT"]);
    }

    /// Every key with this prefix, those beside locks (`{<prefix>..}:..`) included, but what may
    /// stay: token counters (`<prefix>token:<n>`) and tombstones (`{..}:u:<owner>`).
    pub fn keys_left(&self, prefix: &str) -> Vec<String> {
        let counters = format!("{prefix}token:");
        let ours = |key: &str| key.strip_prefix('{').unwrap_or(key).starts_with(prefix);
        let mut keys = self.command(&["KEYS", "*"]).texts();
        keys.retain(|key| ours(key) && !key.starts_with(&counters) && !key.contains("}:u:"));
        keys
    }
}

/// The program of servers and sentinels.
pub(super) fn redis_server() -> Command {
    let mut command = Command::new("redis-server");
    // In sbin on some systems, which is not in everybody's PATH.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    command.env("PATH", path);
    command
}
