//! Clients of other languages, each a program that measures as [`hand_off`](crate::hand_off) does
//! and prints `<hand-offs> <seconds> <p50 in µs> <p99 in µs>`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    hand_off::{HandOffs, WAITERS, lasts},
    report::Effort,
    servers::{foreign, scratch::ScratchDir},
};

pub(crate) fn kazoo(effort: Effort, server: SocketAddr) -> HandOffs {
    let mut command = Command::new("python3");
    command
        .arg(program("kazoo_lock.py"))
        .env("PYTHONPATH", foreign::installed("python"));
    run(effort, "kazoo", command, server)
}

pub(crate) fn curator(effort: Effort, server: SocketAddr) -> HandOffs {
    let classes = ScratchDir::new();
    let path = "/usr/share/java/*";
    let compiled = Command::new("javac")
        .args(["-cp", path, "-d"])
        .arg(classes.path())
        .arg(program("CuratorLock.java"))
        .status()
        .expect("javac is missing: scripts/test installs it");
    assert!(compiled.success(), "CuratorLock.java was not compiled");
    let mut command = Command::new("java");
    command.args(["-Xmx128m", "-cp"]);
    command.arg(format!("{}:{path}", classes.path().display()));
    command.arg("CuratorLock");
    run(effort, "Curator", command, server)
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("peers")
        .join(name)
}

fn run(effort: Effort, name: &str, mut command: Command, server: SocketAddr) -> HandOffs {
    let (warm_up, time) = lasts(effort);
    let output = command
        .arg(server.to_string())
        .arg(WAITERS.to_string())
        .arg(warm_up.as_millis().to_string())
        .arg(time.as_millis().to_string())
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}; scripts/test installs what is missing"));
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text
        .lines()
        .last()
        .unwrap_or_default()
        .split(' ')
        .filter_map(|figure| figure.parse().ok())
        .collect();
    let [count, seconds, p50_us, p99_us] = figures[..] else {
        let errors = String::from_utf8_lossy(&output.stderr);
        panic!("{name} says {text}{errors}");
    };
    HandOffs {
        name: name.to_owned(),
        p50_us,
        p99_us,
        per_second: count / seconds,
        requests: None,
    }
}
