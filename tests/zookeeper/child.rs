//! A client in a process of its own, to be killed or stopped: this test binary once more.

use std::{env, io, process::Command};

use tokio::runtime::Runtime;
use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, LockKey,
    backend::{AcquireRequest, Found, LockingRecordStore as _, WaitBound},
    record::{Opening, Save},
};

use crate::{
    servers::Process,
    support::{LONG, SESSION, connect_with},
};

/// The connect string of the servers, where this binary runs as a client.
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

    /// Gets a free key, for longer than any test takes.
    pub(crate) fn hold(&mut self, key: &str) {
        self.0.send(&format!("hold {key}"));
        assert!(self.0.wait_for("holds"), "{}", self.0.log());
    }

    /// Begins on a key that nobody holds.
    pub(crate) fn begin(&mut self, key: &str) {
        self.0.send(&format!("begin {key}"));
        assert!(self.0.wait_for("begun"), "{}", self.0.log());
    }

    /// Saves as what it has begun; whether that was accepted.
    pub(crate) fn save(&mut self, bytes: &str) -> bool {
        self.0.send(&format!("save {bytes}"));
        assert!(self.0.wait_for("save was"), "{}", self.0.log());
        self.0.log().trim_end().ends_with("accepted")
    }

    /// So many waiters for this key; each says so when it is served, and releases.
    pub(crate) fn wait(&mut self, key: &str, waiters: usize) {
        self.0.send(&format!("wait {key} {waiters}"));
    }

    /// Waits until another of its waiters was served.
    pub(crate) fn is_served(&mut self) {
        assert!(self.0.wait_for("served"), "{}", self.0.log());
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
    let backend = runtime.block_on(connect_with(&url, SESSION));
    println!("connected");
    let (mut held, mut begun) = (Vec::new(), None);
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match words.as_slice() {
            ["hold", key] => {
                let request = AcquireRequest::new(LockKey::new("order", key), LONG);
                held.push(runtime.block_on(backend.acquire(&request)).unwrap());
                println!("holds");
            }
            ["begin", key] => {
                let request = AcquireRequest::new(LockKey::new("order", key), LONG);
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
            ["wait", key, count] => {
                for _ in 0..count.parse().unwrap() {
                    let request = AcquireRequest::new(LockKey::new("order", key), LONG)
                        .with_wait(WaitBound::Forever);
                    let backend = backend.clone();
                    runtime.spawn(async move {
                        let lease = backend.acquire(&request).await.unwrap();
                        println!("served");
                        lease.release().await.unwrap();
                    });
                }
            }
            _ => panic!("{line}"),
        }
    }
}
