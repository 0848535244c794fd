//! Every fault on every backend, once. `scripts/faults --seconds 60` does it for longer.

use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// One at a time, however many tests run: what a machine can do does not grow with them.
static MACHINE: Mutex<()> = Mutex::new(());

/// What takes longer does not happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// All of them at once, so that none is waited for alone. What is known to be broken is found
/// broken, and what the fence is for, it does.
#[test]
fn every_backend_bears_every_fault_and_what_is_broken_is_found() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let status = Command::new(env!("CARGO_BIN_EXE_tower-lock-faults"))
        .args(["--jobs", "6"])
        .status()
        .expect("the harness starts");
    assert!(status.success(), "see above");
}

/// However it ends: what it started, and the directories of that, are gone soon.
#[test]
fn nothing_outlives_the_harness() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    for signal in ["TERM", "KILL"] {
        let mut harness = Command::new(env!("CARGO_BIN_EXE_tower-lock-faults"))
            .args(["--backend", "redis", "--fault", "calm", "--seconds", "60"])
            .stdout(Stdio::null())
            .spawn()
            .expect("the harness starts");
        // The storage's socket is in a directory of its own, which the processes are told.
        let started = until(|| {
            let started = started_by(&harness);
            let rigs = started.iter().filter(|it| it.says.contains("--rig"));
            let serves = started.iter().any(|it| it.says.contains("redis-server"));
            (rigs.count() == 3 && serves).then_some(started)
        });
        let directory = started
            .iter()
            .find_map(directory_of)
            .expect("rigs have one");
        assert!(fs::exists(&directory).expect("it can be asked"));
        let pid = harness.id().to_string();
        let kill = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(kill.expect("a program of every system").success());
        harness.wait().expect("it was started");
        until(|| {
            let is_gone = |it: &Started| says(it.pid).is_none_or(|says| says != it.says);
            started.iter().all(is_gone).then_some(())
        });
        until(|| (!fs::exists(&directory).expect("it can be asked")).then_some(()));
    }
}

struct Started {
    pid: u32,
    /// Its command line.
    says: String,
}

fn started_by(parent: &Child) -> Vec<Started> {
    let is_child = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = format!("PPid:\t{}", parent.id());
        status.lines().any(|line| line == parent)
    };
    let processes = fs::read_dir("/proc").expect("it is Linux");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(is_child)
        .filter_map(|pid| says(pid).map(|says| Started { pid, says }))
        .collect()
}

/// The command line of a process; `None` if it has ended.
fn says(pid: u32) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    (!bytes.is_empty()).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

fn directory_of(rig: &Started) -> Option<String> {
    let (_, rest) = rig.says.split_once("\"storage\":\"")?;
    let (path, _) = rest.split_once('"')?;
    path.rsplit_once('/')
        .map(|(directory, _)| directory.to_owned())
}

fn until<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(done) = done() {
            return done;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come to that");
        thread::sleep(Duration::from_millis(20));
    }
}
