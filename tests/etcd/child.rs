//! A client in a process of its own, to be killed or stopped: this test binary once more.

use std::{env, io, process::Command, time::Duration};

use tokio::runtime::Runtime;
use tower_lock::{
    BackendErrorKind, EtcdBackend, Lease as _, LockBackend as _, LockKey,
    backend::{AcquireRequest, Found, LockingRecordStore as _, WaitBound},
    record::{Opening, Save},
};

use crate::{
    servers::Process,
    support::{LONG, keep},
};

/// The URL of the server, where this binary runs as a client.
const URL: &str = "TOWER_LOCK_TEST_CHILD";

/// Holds and waits as it is told, and says so.
#[derive(Debug)]
pub(crate) struct Child(Process);

impl Child {
    pub(crate) fn start(url: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["child::runs_as_it_is_told", "--exact", "--ignored"])
            .args(["--nocapture", "--quiet"])
            .env(URL, url);
        let mut process = Process::spawn(&mut command, "it runs right now");
        assert!(process.wait_for("connected"), "{}", process.log());
        Self(process)
    }

    /// Gets a free key for `ttl` and never renews it.
    pub(crate) fn hold(&mut self, key: &str, ttl: Duration) {
        self.0.send(&format!("hold {key} {}", ttl.as_millis()));
        assert!(self.0.wait_for("holds"), "{}", self.0.log());
    }

    /// Gets a free key and renews it, until it is lost.
    pub(crate) fn hold_and_tell(&mut self, key: &str, ttl: Duration) {
        self.0.send(&format!("keep {key} {}", ttl.as_millis()));
        assert!(self.0.wait_for("holds"), "{}", self.0.log());
    }

    /// Why it has lost the key.
    pub(crate) fn is_told(&mut self) -> String {
        self.0.line().trim_start_matches("lost ").to_owned()
    }

    /// The same, with an open record, and without renewing it.
    pub(crate) fn begin(&mut self, key: &str, ttl: Duration) {
        self.0.send(&format!("begin {key} {}", ttl.as_millis()));
        assert!(self.0.wait_for("begun"), "{}", self.0.log());
    }

    /// Saves as what it has begun; whether that was accepted.
    pub(crate) fn save(&mut self, bytes: &str) -> bool {
        self.0.send(&format!("save {bytes}"));
        assert!(self.0.wait_for("save was"), "{}", self.0.log());
        self.0.log().trim_end().ends_with("accepted")
    }

    /// So many waiters for this key, for a lock of this ttl.
    pub(crate) fn wait_for(&mut self, key: &str, waiters: usize, ttl: Duration) {
        let ttl = ttl.as_millis();
        self.0.send(&format!("wait {key} {waiters} {ttl}"));
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }

    pub(crate) fn pause(&self) {
        self.0.pause();
    }

    pub(crate) fn resume(&self) {
        self.0.resume();
    }
}

#[test]
#[ignore = "other tests run it as a process of its own"]
fn runs_as_it_is_told() {
    // By hand there is nobody who tells it anything.
    let Ok(url) = env::var(URL) else { return };
    let runtime = Runtime::new().unwrap();
    let backend = runtime.block_on(EtcdBackend::connect(&url)).unwrap();
    println!("connected");
    let mut held = Vec::new();
    let mut begun = None;
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["hold", key, ms] => {
                let ttl = Duration::from_millis(ms.parse().unwrap());
                let request = AcquireRequest::new(LockKey::new("order", key), ttl);
                held.push(runtime.block_on(backend.acquire(&request)).unwrap());
                println!("holds");
            }
            ["keep", key, ms] => {
                let ttl = Duration::from_millis(ms.parse().unwrap());
                let request = AcquireRequest::new(LockKey::new("order", key), ttl);
                let lease = runtime.block_on(backend.acquire(&request)).unwrap();
                println!("holds");
                let (lease, _) = runtime.block_on(async { keep(lease, ttl) });
                runtime.spawn(async move {
                    let loss = lease.lost().wait().await;
                    println!("lost {}", loss.as_str());
                });
            }
            ["begin", key, ms] => {
                let ttl = Duration::from_millis(ms.parse().unwrap());
                let request = AcquireRequest::new(LockKey::new("order", key), ttl);
                let opening = Opening::new("child", LONG);
                let found = backend.acquire_or_load(&request, Some(&opening));
                match runtime.block_on(found).unwrap() {
                    Found::Lease { lease, .. } => begun = Some((request, lease)),
                    other => panic!("{other:?}"),
                }
                println!("begun");
            }
            ["save", bytes] => {
                let (request, lease) = begun.take().unwrap();
                let token = lease.fencing_token();
                let bytes = bytes.to_string();
                let save = Save::keep(request.key, request.owner, token, bytes, LONG);
                match runtime.block_on(backend.save_and_release(&save)) {
                    Ok(()) => println!("save was accepted"),
                    Err(error) => {
                        assert_eq!(error.kind(), BackendErrorKind::Lost, "{error}");
                        println!("save was refused");
                    }
                }
            }
            ["wait", key, count, ms] => {
                let ttl = Duration::from_millis(ms.parse().unwrap());
                for _ in 0..count.parse().unwrap() {
                    let request = AcquireRequest::new(LockKey::new("order", key), ttl)
                        .with_wait(WaitBound::Forever);
                    let backend = backend.clone();
                    runtime.spawn(async move {
                        let lease = backend.acquire(&request).await.unwrap();
                        lease.release().await.unwrap();
                    });
                }
            }
            _ => panic!("{line}"),
        }
    }
}
