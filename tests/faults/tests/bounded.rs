//! Every fault on every backend, once. `scripts/faults --seconds 60` does it for longer.

use std::{
    process::Command,
    sync::{Mutex, PoisonError},
};

/// One backend at a time, however many tests run: what a machine can do does not grow with them.
static MACHINE: Mutex<()> = Mutex::new(());

fn bears(backends: &str) {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let status = Command::new(env!("CARGO_BIN_EXE_tower-lock-faults"))
        .args(["--jobs", "4", "--backend", backends])
        .status()
        .expect("the harness starts");
    assert!(status.success(), "{backends}: see above");
}

#[test]
fn memory() {
    bears("memory");
}

#[test]
fn one_redis() {
    bears("redis");
}

#[test]
fn redis_behind_sentinels() {
    bears("sentinel");
}

#[test]
fn redis_behind_sentinels_with_acknowledgements() {
    bears("sentinel-acked");
}

#[test]
fn redis_in_a_cluster() {
    bears("cluster");
}

#[test]
fn redlock() {
    bears("redlock");
}

#[test]
fn etcd() {
    bears("etcd");
}

#[test]
fn zookeeper() {
    bears("zookeeper");
}

/// What is known to be broken is found broken, and what the fence is for, it does.
#[test]
fn the_harness_sees() {
    bears("naive,naive-counter,naive-sentinel,naive-redlock,barging");
}
