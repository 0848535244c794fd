//! Lock clients of other languages.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::process::Process;

const REMEDY: &str = "scripts/test installs it";

/// A process with a lock client that knows nothing of us: `SET key value NX PX ttl`, and a script
/// that compares the value on release. One request at a time.
#[derive(Debug)]
pub struct ForeignClient {
    process: Process,
    /// An answer that was seen and not taken.
    answered: Option<String>,
}

impl ForeignClient {
    /// Python's redis-py with its `Lock`.
    pub fn redis_py(url: &str) -> Self {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", installed("python"));
        Self::start(python.arg(script("lock.py")).arg(url))
    }

    /// npm's `redlock` on one node, over `ioredis`.
    pub fn redlock(url: &str) -> Self {
        Self::redlock_of(&[url.to_owned()])
    }

    /// The same on several nodes.
    pub fn redlock_of(urls: &[String]) -> Self {
        let mut node = Command::new("node");
        node.env("NODE_PATH", installed("node_modules"));
        Self::start(node.arg(script("lock.js")).args(urls))
    }

    /// Python's redlock-py on several nodes. It extends nothing.
    pub fn redlock_py(urls: &[String]) -> Self {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", installed("python"));
        Self::start(python.arg(script("redlock_py.py")).args(urls))
    }

    /// Python's kazoo with one of its locks: `Lock`, `ReadLock` or `WriteLock`. Keys are paths, and
    /// its session is the ttl.
    pub fn kazoo(servers: SocketAddr, kind: &str) -> Self {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", installed("python"));
        let script = interop("zookeeper/lock.py");
        Self::start(python.arg(script).arg(servers.to_string()).arg(kind))
    }

    /// Java's Curator with one of its locks: `Mutex`, `Read` or `Write`. The same.
    pub fn curator(servers: SocketAddr, kind: &str) -> Self {
        const JARS: [&str; 8] = [
            "curator-recipes",
            "curator-framework",
            "curator-client",
            "guava",
            "slf4j-api",
            "slf4j-nop",
            "zookeeper",
            "zookeeper-jute",
        ];
        let jars = JARS.map(|jar| format!("/usr/share/java/{jar}.jar"));
        for jar in &jars {
            assert!(Path::new(jar).exists(), "{jar} is missing: {REMEDY}");
        }
        let mut java = Command::new("java");
        java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-cp", &jars.join(":")])
            .arg(interop("zookeeper/Lock.java"));
        Self::start(java.arg(servers.to_string()).arg(kind))
    }

    fn start(command: &mut Command) -> Self {
        let mut process = Process::spawn(command, REMEDY);
        assert_eq!(process.line(), "ready");
        Self {
            process,
            answered: None,
        }
    }

    /// Tries to lock the key, for at most `wait`; whether it holds it.
    pub fn acquire(&mut self, key: &str, ttl: Duration, wait: Duration) -> bool {
        self.begin_acquire(key, ttl, wait);
        self.answer()
    }

    /// Asks the same; [`answer`](Self::answer) takes the outcome.
    pub fn begin_acquire(&mut self, key: &str, ttl: Duration, wait: Duration) {
        let (ttl, wait) = (ttl.as_millis(), wait.as_millis());
        self.process.send(&format!("acquire {key} {ttl} {wait}"));
    }

    /// Makes its lock of the key last so long from now; whether it still held it.
    pub fn extend(&mut self, key: &str, ttl: Duration) -> bool {
        self.process
            .send(&format!("extend {key} {}", ttl.as_millis()));
        self.answer()
    }

    /// Releases its lock of the key; whether it still held it.
    pub fn release(&mut self, key: &str) -> bool {
        self.process.send(&format!("release {key}"));
        self.answer()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Whether what was asked last was done; waits for it.
    pub fn answer(&mut self) -> bool {
        let line = self.answered.take().unwrap_or_else(|| self.process.line());
        match line.as_str() {
            "ok" => true,
            "busy" | "lost" => false,
            other => panic!("{other}"),
        }
    }

    /// Whether it has answered what was asked last, without taking the answer.
    pub fn has_answered(&mut self) -> bool {
        !self.is_silent_for(Duration::ZERO)
    }

    /// Whether it has not answered yet, after so long.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        if self.answered.is_none() {
            self.answered = self.process.line_within(time);
        }
        self.answered.is_none()
    }
}

fn script(name: &str) -> PathBuf {
    interop("redis").join(name)
}

fn interop(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/interop")
        .join(name)
}

/// What `scripts/test` puts beside the builds.
pub fn installed(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this program has a path");
    // Tests are in <target>/<profile>/deps, programs one above.
    let path = this
        .ancestors()
        .map(|above| above.join("clients").join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| Path::new("<target>/clients").join(name));
    assert!(path.exists(), "{} is missing: {REMEDY}", path.display());
    path
}
