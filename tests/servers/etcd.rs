//! An etcd of a test's own: one member, or a cluster.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::Command,
    sync::Mutex,
};

use serde_json::{Value, json};

use super::{
    base64::{base64, unbase64},
    certificates::Certificates,
    patience::block_until,
    ports::free_port,
    process::Process,
    proxy::TcpProxy,
    scratch::ScratchDir,
};

/// Real `etcd` processes on loopback ports, with short elections: 500 ms, and so leases from 1 s on.
/// Killed on drop.
///
/// Everything takes `&self`, so that a test can share it; commands block for the moment that the
/// server takes, also in async tests.
#[derive(Debug)]
pub struct Etcd {
    dir: ScratchDir,
    tls: Option<Certificates>,
    options: Vec<String>,
    /// As whom `etcdctl` speaks, once that is needed.
    user: Mutex<Option<String>>,
    pub(super) members: Vec<Member>,
}

#[derive(Debug)]
pub(super) struct Member {
    client_port: u16,
    peer_port: u16,
    /// By which the other members come, if that can be cut.
    pub(super) link: Option<TcpProxy>,
    /// `None` while it is down.
    process: Mutex<Option<Process>>,
}

impl Member {
    fn plan(has_link: bool) -> Self {
        let peer_port = free_port();
        let link = || TcpProxy::start((Ipv4Addr::LOCALHOST, peer_port).into());
        Self {
            client_port: free_port(),
            peer_port,
            link: has_link.then(link),
            process: Mutex::new(None),
        }
    }

    /// Where the others find it.
    fn peer_url(&self) -> String {
        let port = self.link.as_ref().map(|link| link.address().port());
        format!("http://127.0.0.1:{}", port.unwrap_or(self.peer_port))
    }
}

impl Etcd {
    /// One member.
    pub fn start() -> Self {
        Self::launch(1, &[], false)
    }

    /// So many members.
    pub fn cluster(members: usize) -> Self {
        Self::launch(members, &[], false)
    }

    /// The same with a proxy before each, by which the others come: so that one can be
    /// [cut off](Self::cut_off) from them.
    pub fn cluster_with_links(members: usize) -> Self {
        Self::launch_with_links(members, &[], false, true)
    }

    /// One member with these options, such as `&["--auth-token-ttl", "1"]`.
    pub fn start_with(options: &[&str]) -> Self {
        Self::launch(1, options, false)
    }

    /// One member that speaks TLS alone, with a root certificate of its own. It asks for no client
    /// certificate, unless the options say `--client-cert-auth`.
    pub fn start_tls(options: &[&str]) -> Self {
        Self::launch(1, options, true)
    }

    fn launch(members: usize, options: &[&str], tls: bool) -> Self {
        Self::launch_with_links(members, options, tls, false)
    }

    fn launch_with_links(members: usize, options: &[&str], tls: bool, has_links: bool) -> Self {
        let mut this = Self {
            // It writes to the disk for every request, which is not what the tests are about.
            dir: ScratchDir::in_memory(),
            tls: tls.then(Certificates::new),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            user: Mutex::default(),
            members: Vec::new(),
        };
        for _ in 0..20 {
            this.members = (0..members).map(|_| Member::plan(has_links)).collect();
            match this.start_members() {
                Ok(()) => return this,
                Err(log) if log.contains("address already in use") => {
                    this.kill_all();
                    this.dir.clear().unwrap();
                }
                Err(log) => panic!("etcd did not start:\n{log}"),
            }
        }
        panic!("etcd found no free port");
    }

    /// Starts all members that are down, and waits until they have a leader, or returns a log.
    fn start_members(&self) -> Result<(), String> {
        let mut new = Vec::new();
        for (n, member) in self.members.iter().enumerate() {
            let mut process = member.process.lock().unwrap();
            if process.is_none() {
                *process = Some(self.spawn(n));
                new.push(member);
            }
        }
        for member in new {
            let mut process = member.process.lock().unwrap();
            let Some(process) = &mut *process else {
                continue;
            };
            // Said when the member has joined and there is a leader.
            if !process.wait_for("serving client traffic") {
                return Err(process.log());
            }
        }
        Ok(())
    }

    fn spawn(&self, n: usize) -> Process {
        let peers: Vec<_> = (self.members.iter().enumerate())
            .map(|(n, member)| format!("m{n}={}", member.peer_url()))
            .collect();
        let client = self.endpoint(n);
        let peer = format!("http://127.0.0.1:{}", self.members[n].peer_port);
        let mut command = Command::new("etcd");
        command
            .args(["--name", &format!("m{n}"), "--data-dir"])
            .arg(self.dir.path().join(format!("m{n}")))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &self.members[n].peer_url(),
            ])
            .args(["--initial-cluster", &peers.join(",")])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args([
                "--logger",
                "zap",
                "--log-level",
                "info",
                "--log-outputs",
                "stdout",
            ])
            .args(["--snapshot-count", "1000000"]);
        if let Some(certificates) = &self.tls {
            command
                .arg("--cert-file")
                .arg(certificates.certificate("server"))
                .arg("--key-file")
                .arg(certificates.key("server"));
            if self.options.iter().any(|o| o == "--client-cert-auth") {
                // With a root, it asks for certificates.
                command
                    .arg("--trusted-ca-file")
                    .arg(certificates.certificate("root"));
            }
        }
        Process::spawn(command.args(&self.options), "scripts/test installs it")
    }

    /// The client address of a member, as etcd's own tools take it.
    pub fn endpoint(&self, n: usize) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.members[n].client_port)
    }

    pub fn address(&self, n: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.members[n].client_port).into()
    }

    /// The URL of all members.
    pub fn url(&self) -> String {
        self.url_of(&(0..self.members.len()).collect::<Vec<_>>())
    }

    /// The URL of these members.
    pub fn url_of(&self, members: &[usize]) -> String {
        let hosts: Vec<_> = members
            .iter()
            .map(|&n| format!("localhost:{}", self.members[n].client_port))
            .collect();
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://{}", hosts.join(","))
    }

    pub fn certificates(&self) -> &Certificates {
        self.tls.as_ref().expect("start_tls")
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// SIGKILL. Its data is kept for [`restart`](Self::restart).
    pub fn kill(&self, n: usize) {
        *self.members[n].process.lock().unwrap() = None;
    }

    pub fn kill_all(&self) {
        for n in 0..self.members.len() {
            self.kill(n);
        }
    }

    /// Starts all members that are down, on the same ports and with their data.
    pub fn restart(&self) {
        if let Err(log) = self.start_members() {
            panic!("etcd did not start again:\n{log}");
        }
    }

    /// SIGSTOP: the kernel goes on accepting connections and bytes for it.
    pub fn pause(&self, n: usize) {
        self.with_process(n, Process::pause);
    }

    /// SIGCONT.
    pub fn resume(&self, n: usize) {
        self.with_process(n, Process::resume);
    }

    pub(super) fn with_process<R>(&self, n: usize, f: impl FnOnce(&Process) -> R) -> R {
        f(self.members[n]
            .process
            .lock()
            .unwrap()
            .as_ref()
            .expect("it runs"))
    }

    /// The last lines of the log of a member, while it runs.
    pub fn log(&self, n: usize) -> String {
        let process = self.members[n].process.lock().unwrap();
        process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// Who [`etcdctl`](Self::etcdctl) is from now on: `name:password`.
    pub fn log_in(&self, user: &str) {
        *self.user.lock().unwrap() = Some(user.to_owned());
    }

    /// `etcdctl`, not started yet.
    pub fn etcdctl_command(&self, n: usize) -> Command {
        let mut command = Command::new("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoint(n)])
            .args(["--dial-timeout", "5s", "--command-timeout", "10s"]);
        if let Some(user) = &*self.user.lock().unwrap() {
            command.args(["--user", user]);
        }
        if let Some(certificates) = &self.tls {
            command
                .arg("--cacert")
                .arg(certificates.certificate("root"));
        }
        command
    }

    /// What `etcdctl` prints at this member; it panics where that fails.
    pub fn etcdctl_of(&self, n: usize, arguments: &[&str]) -> String {
        let output = self.etcdctl_command(n).args(arguments).output();
        let output = output.unwrap_or_else(|error| {
            panic!("etcdctl is missing, scripts/test installs it: {error}")
        });
        assert!(
            output.status.success(),
            "etcdctl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What `etcdctl` prints; it panics where that fails.
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        self.etcdctl_of(self.running(), arguments)
    }

    /// The same; whether it succeeded.
    pub fn try_etcdctl(&self, arguments: &[&str]) -> bool {
        let output = self.etcdctl_command(0).args(arguments).output().unwrap();
        output.status.success()
    }

    /// Every key with this prefix, but the marks of owners that were undone.
    pub fn keys_left(&self, prefix: &str) -> Vec<String> {
        let marks = format!("{prefix}undo/");
        let mut keys = self.keys(prefix);
        keys.retain(|key| !key.starts_with(&marks));
        keys
    }

    /// Every key with this prefix. Where that is possible not by `etcdctl`, which takes its time.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        if self.tls.is_some() || self.user.lock().unwrap().is_some() {
            let keys = self.etcdctl(&["get", prefix, "--prefix", "--keys-only"]);
            let keys = keys.lines().filter(|key| !key.is_empty());
            return keys.map(str::to_owned).collect();
        }
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().expect("a prefix") += 1;
        let range = json!({
            "key": base64(prefix.as_bytes()),
            "range_end": base64(&end),
            "keys_only": true,
        });
        // An error has no header, and says nothing of the keys.
        let answer = block_until("etcd says its keys", || {
            let answer = self.http(self.running(), "POST /v3/kv/range", &range.to_string());
            let answer: Value = serde_json::from_str(&answer).expect("an answer in JSON");
            answer["header"].is_object().then_some(answer)
        });
        let keys = answer["kvs"].as_array().cloned().unwrap_or_default();
        keys.iter()
            .map(|kv| unbase64(kv["key"].as_str().expect("a key")))
            .collect()
    }

    /// The body of an answer over HTTP.
    pub(super) fn http(&self, n: usize, what: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address(n)).unwrap();
        let length = body.len();
        let request =
            format!("{what} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
        body.to_owned()
    }

    /// The numbers of all leases, as etcdctl writes them.
    pub fn leases(&self) -> Vec<String> {
        let leases = self.etcdctl(&["lease", "list"]);
        leases.lines().skip(1).map(str::to_owned).collect()
    }

    /// The sum of the metrics of a member whose lines begin like this, such as
    /// `name{label="value"`.
    pub fn metric(&self, n: usize, beginning: &str) -> f64 {
        let text = self.http(n, "GET /metrics", "");
        text.lines()
            .filter(|line| line.starts_with(beginning))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }

    pub(super) fn runs(&self, n: usize) -> bool {
        self.members[n].process.lock().unwrap().is_some()
    }

    fn running(&self) -> usize {
        let mut members = 0..self.members.len();
        members.find(|&n| self.runs(n)).expect("one runs")
    }
}
