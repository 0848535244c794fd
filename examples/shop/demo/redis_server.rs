//! A Redis of the demonstration's own, for who has none at hand.

use std::{io, net::TcpListener, process::Stdio, time::Duration};

use tokio::{
    process::{Child, Command},
    time::timeout,
};

use super::process;
use crate::BoxError;

/// Names of the server; Valkey speaks the same protocol.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];
const START: Duration = Duration::from_secs(10);
/// How often to start it anew because somebody else took the free port first.
const ATTEMPTS: u32 = 5;

/// A running server on a free port of this host. It keeps nothing on disk.
#[derive(Debug)]
pub(super) struct RedisServer {
    /// What runs the server and ends it: with its standard input, so with this.
    leash: Child,
    port: u16,
}

impl RedisServer {
    pub(super) async fn start() -> Result<Self, BoxError> {
        let program = program().await?;
        // It keeps nothing here, but a server has to be somewhere.
        let dir = std::env::temp_dir();
        for _ in 0..ATTEMPTS {
            let port = free_port()?;
            let mut leash = process::this_program([
                "leash",
                program,
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--dir",
                &dir.to_string_lossy(),
                "--save",
                "",
                "--appendonly",
                "no",
            ])?
            .spawn()?;
            let ready = |line: &str| line.contains("Ready to accept connections").then_some(());
            let ready = timeout(START, process::first(&mut leash, ready)).await;
            if ready
                .map_err(|_| format!("{program} did not start in time"))??
                .is_some()
            {
                return Ok(Self { leash, port });
            }
        }
        Err(format!("{program} ended before it was ready").into())
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Ends it, and waits for that.
    pub(super) async fn stop(mut self) -> io::Result<()> {
        // Waiting closes the standard input first.
        self.leash.wait().await.map(drop)
    }
}

/// The first of the names that is installed.
async fn program() -> Result<&'static str, BoxError> {
    for program in PROGRAMS {
        let asked = Command::new(program)
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .await;
        match asked {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{program} cannot be run: {error}").into()),
            Ok(_) => return Ok(program),
        }
    }
    Err(format!(
        "`--backend redis:` starts a server, but {} is not installed.\n\
         Debian, Ubuntu: apt-get install redis-server; Fedora: dnf install valkey; \
         macOS: brew install redis.\n\
         Or name one that runs: --backend redis://127.0.0.1:6379",
        PROGRAMS.join(" or ")
    )
    .into())
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
