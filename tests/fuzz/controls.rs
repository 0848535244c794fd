//! That what is wrong is found: each control is run in a process of its own, and has to fail there.

use std::{env, process::Command, thread, time::Duration};

use crate::{
    entries::{Entry, watch},
    runner::Runner,
};

fn fails(name: &str, saying: &str) {
    let output = Command::new(env::current_exe().expect("this binary"))
        .args([
            "--exact",
            &format!("controls::{name}"),
            "--ignored",
            "--test-threads=1",
        ])
        .output()
        .expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(!output.status.success(), "{name} does not fail");
    assert!(said.contains(saying), "{name} fails otherwise:\n{said}");
}

#[test]
fn what_is_wrong_is_found() {
    fails("an_input_that_fails", "input: \"");
    fails("a_panic_of_another_thread", "behind the caller's back");
    fails("a_secret_in_a_log", "logged as password");
    fails(
        "memory_for_a_claim",
        "memory allocation of 2147483648 bytes failed",
    );
}

fn control(run: fn(&[u8]), words: &'static [&'static str]) {
    let entry = Entry {
        name: "control",
        run,
        words,
    };
    // One thread: two that end the process at once would write into each other's last words.
    Runner::of(entry, Duration::from_secs(20), 1).run();
}

#[test]
#[ignore = "a control"]
fn an_input_that_fails() {
    control(
        |data| assert!(!data.windows(4).any(|part| part == b"ab\nc")),
        &["ab", "\nc"],
    );
}

#[test]
#[ignore = "a control"]
fn a_panic_of_another_thread() {
    control(
        |data| {
            if data.len() > 3 {
                let _ = thread::spawn(|| panic!("nobody joins it")).join();
            }
        },
        &[],
    );
}

#[test]
#[ignore = "a control"]
fn a_secret_in_a_log() {
    control(
        |data| {
            if data.len() > 3 {
                tracing::debug!(target: "tower_lock::control", password = watch::SECRET);
            }
        },
        &[],
    );
}

#[test]
#[ignore = "a control"]
fn memory_for_a_claim() {
    control(
        |data| {
            if data.len() > 3 {
                std::hint::black_box(Vec::<u8>::with_capacity(1 << 31));
            }
        },
        &[],
    );
}
