//! Instances of the shop as processes of their own.

use std::{collections::HashMap, path::Path, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::{BoxError, store::Payment};

const START: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(5);

/// Running instances. They are killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Instances {
    running: Vec<(Child, String)>,
}

impl Instances {
    /// Starts this many instances, each on a free port of its own.
    pub(crate) async fn start(
        count: u32,
        backend: &str,
        db: &Path,
        no_lock: bool,
    ) -> Result<Self, BoxError> {
        let mut running = Vec::new();
        for _ in 0..count {
            let mut command = Command::new(std::env::current_exe()?);
            command
                .args([
                    "--listen",
                    "127.0.0.1:0",
                    "--backend",
                    backend,
                    "--wait",
                    "60s",
                    "--db",
                ])
                .arg(db)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .kill_on_drop(true);
            if no_lock {
                command.arg("--no-lock");
            }
            let mut child = command.spawn()?;
            let address = timeout(START, address(&mut child))
                .await
                .map_err(|_| "an instance did not start in time")??;
            running.push((child, address));
        }
        Ok(Self { running })
    }

    /// Where they listen.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.running
            .iter()
            .map(|(_, address)| address.clone())
            .collect()
    }

    /// Asks them to drain, and kills those that take too long.
    pub(crate) async fn stop(mut self) {
        for (child, _) in &mut self.running {
            terminate(child);
        }
        for (child, _) in &mut self.running {
            if timeout(DRAIN, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        }
    }
}

/// Sends SIGTERM where there is one.
fn terminate(child: &mut Child) {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok()) {
            return;
        }
    }
    let _ = child.start_kill();
}

/// Reads where the instance listens from its first line.
async fn address(child: &mut Child) -> Result<String, BoxError> {
    let stdout = child.stdout.take().ok_or("an instance has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    let first = lines.next_line().await?.unwrap_or_default();
    let address = first
        .split_once("http://")
        .and_then(|(_, rest)| rest.split_once(','))
        .map(|(address, _)| address.to_owned())
        .ok_or("an instance ended before it listened")?;
    // Read on, or it would find its output closed.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok(address)
}

/// Names the instances of payments A, B, C, and so on.
pub(crate) fn name(payments: &mut [Payment], addresses: &[String]) {
    let names: HashMap<&str, String> = addresses
        .iter()
        .zip('A'..='Z')
        .map(|(address, letter)| (address.as_str(), letter.to_string()))
        .collect();
    for payment in payments {
        if let Some(name) = names.get(payment.instance.as_str()) {
            payment.instance.clone_from(name);
        }
    }
}
