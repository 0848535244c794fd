//! The bench runs, so that it does not rot. Its figures mean nothing here.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

#[test]
fn every_candidate_is_measured() {
    let output = Command::new(env!("CARGO_BIN_EXE_tower-lock-bench-consensus"))
        .args(["--quick", "all"])
        .output()
        .expect("the bench starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{text}");

    let lines = text.lines().filter(|line| line.starts_with('{'));
    let found: BTreeSet<(String, String)> = lines
        .map(|line| {
            let figure: Value = serde_json::from_str(line).expect("a measurement is JSON");
            let text = |field: &str| figure[field].as_str().unwrap_or_default().to_owned();
            (text("bench"), text("candidate"))
        })
        .collect();
    for (bench, candidates) in [
        (
            "latency",
            &[
                "create, list, delete",
                "put and get, delete",
                "ZooKeeperBackend",
                "EtcdBackend",
                "LockManager",
            ][..],
        ),
        (
            "hand-off",
            &[
                "ZooKeeperBackend",
                "EtcdBackend",
                "zookeeper-client's recipe",
                "kazoo",
                "Curator",
                "etcd's own Lock",
            ],
        ),
    ] {
        for candidate in candidates {
            let wanted = (bench.to_owned(), (*candidate).to_owned());
            assert!(found.contains(&wanted), "{bench} lacks {candidate}");
        }
    }
}
