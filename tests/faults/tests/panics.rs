//! A panic of a process under test is in its history, where the harness finds it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

/// Its storage is missing, on which the first holder panics: in a task, which nobody awaits yet.
#[test]
fn a_panic_is_told() {
    let dir = std::env::temp_dir().join(format!("tower-lock-panics-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory of our own");
    let events = dir.join("events.jsonl");
    let setup = format!(
        r#"{{"process": 5, "seed": 1, "locks": "memory", "ttl": {{"secs": 2, "nanos": 0}},
            "storage": {:?}, "events": {events:?}, "load": {{"tasks": 1, "cancels": 0,
            "fifo": true, "barges": false, "queue": 20, "batch": 0, "long": 0, "ttls": 1.0}}}}"#,
        dir.join("none"),
    );
    let mut rig = Command::new(env!("CARGO_BIN_EXE_tower-lock-faults"))
        .args(["--rig", &setup])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the harness starts");
    let stderr = BufReader::new(rig.stderr.take().expect("it is piped"));
    let mut lines = stderr.lines().map_while(Result::ok);
    // Said after it was written down.
    let said = lines.find(|line| line.contains("panicked at"));
    rig.kill().expect("it runs");
    rig.wait().expect("it ends");
    let history = fs::read_to_string(&events).unwrap_or_default();
    let _ = fs::remove_dir_all(&dir);
    assert!(said.is_some(), "it does not panic");
    let told = history.lines().any(|line| {
        line.contains(r#""what":"panicked""#)
            && line.contains(r#""process":5"#)
            && line.contains("the storage answers")
    });
    assert!(told, "{history}");
}
