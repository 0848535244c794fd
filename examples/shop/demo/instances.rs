//! Instances of the shop as processes of their own.

use std::{collections::HashMap, ffi::OsString, io, path::PathBuf, time::Duration};

use tokio::{
    process::{Child, ChildStdin},
    time::timeout,
};

use super::process::{self, Signal};
use crate::{BoxError, args::OnLost, signal::Stop, store::Payment};

const START: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(2);

/// What the instances of a run have in common.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) backend: String,
    pub(super) db: PathBuf,
    pub(super) ttl: Duration,
    pub(super) lock: bool,
    pub(super) on_lost: OnLost,
}

/// Running instances. They are killed when this is dropped.
#[derive(Debug)]
pub(super) struct Instances {
    running: Vec<Instance>,
}

#[derive(Debug)]
struct Instance {
    child: Child,
    /// Apart from the child, which closes it before it waits: an instance would end at once
    /// instead of draining.
    _leash: Option<ChildStdin>,
    address: String,
}

impl Setup {
    /// Starts this many instances, unless it is told to stop.
    pub(super) async fn start(&self, count: u32, stop: &Stop) -> Result<Instances, BoxError> {
        tokio::select! {
            started = self.start_all(count) => started,
            () = stop.wait() => Err(super::INTERRUPTED.into()),
        }
    }

    /// Each listens on a free port of its own.
    async fn start_all(&self, count: u32) -> Result<Instances, BoxError> {
        // Dropped with those that run already if one does not start.
        let mut instances = Instances {
            running: Vec::new(),
        };
        for _ in 0..count {
            let mut child = process::this_program(self.arguments())?
                .kill_on_drop(true)
                .spawn()?;
            let address = timeout(START, process::first(&mut child, address))
                .await
                .map_err(|_| "an instance did not start in time")??
                .ok_or("an instance ended before it listened")?;
            instances.running.push(Instance {
                _leash: child.stdin.take(),
                child,
                address,
            });
        }
        Ok(instances)
    }

    fn arguments(&self) -> Vec<OsString> {
        let ttl = humantime::format_duration(self.ttl).to_string();
        let mut arguments: Vec<OsString> = vec!["--leashed".into()];
        for (option, value) in [
            ("--listen", "127.0.0.1:0"),
            ("--backend", &self.backend),
            ("--ttl", &ttl),
            ("--wait", "60s"),
            ("--on-lost", self.on_lost.name()),
        ] {
            arguments.extend([option.into(), value.into()]);
        }
        arguments.extend(["--db".into(), self.db.clone().into()]);
        if !self.lock {
            arguments.push("--no-lock".into());
        }
        arguments
    }
}

impl Instances {
    /// Where they listen.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.running
            .iter()
            .map(|instance| instance.address.clone())
            .collect()
    }

    /// Does `work` with them, unless it is told to stop, and stops them.
    pub(super) async fn during<T>(
        mut self,
        stop: &Stop,
        work: impl AsyncFnOnce(&mut Self) -> Result<T, BoxError>,
    ) -> Result<T, BoxError> {
        let done = tokio::select! {
            done = work(&mut self) => done,
            () = stop.wait() => Err(super::INTERRUPTED.into()),
        };
        self.stop().await;
        done
    }

    /// Kills one in the middle of whatever it does, and waits for its end.
    pub(super) async fn kill(&mut self, which: usize) -> Result<(), BoxError> {
        Ok(self.running[which].child.kill().await?)
    }

    /// Stops one in the middle of whatever it does; its connections stay open.
    pub(super) fn pause(&self, which: usize) -> io::Result<()> {
        process::send(&self.running[which].child, Signal::Pause)
    }

    /// Lets a paused one go on.
    pub(super) fn resume(&self, which: usize) -> io::Result<()> {
        process::send(&self.running[which].child, Signal::Resume)
    }

    /// Asks them to drain, so that they release their locks, and kills those that take too long.
    async fn stop(mut self) {
        for Instance { child, .. } in &mut self.running {
            terminate(child);
        }
        for Instance { child, .. } in &mut self.running {
            if timeout(DRAIN, child.wait()).await.is_err() {
                let _ = child.kill().await;
            }
        }
    }
}

/// Asks where that is possible, and kills elsewhere.
fn terminate(child: &mut Child) {
    if process::send(child, Signal::Terminate).is_ok() {
        // One that is paused would not hear it.
        let _ = process::send(child, Signal::Resume);
    } else {
        let _ = child.start_kill();
    }
}

/// Where an instance says that it listens.
fn address(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("Listening on http://")?;
    Some(rest.split_once(',')?.0.to_owned())
}

/// Names the instances of payments A, B, C, and so on.
pub(super) fn name(payments: &mut [Payment], addresses: &[String]) {
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
