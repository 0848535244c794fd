//! The bench runs, so that it does not rot. Its figures mean nothing here, but no queue may be
//! served out of order.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

#[test]
fn every_bench_runs_and_no_queue_is_served_out_of_order() {
    let output = Command::new(env!("CARGO_BIN_EXE_tower-lock-bench-redis"))
        .args(["--quick", "all"])
        .output()
        .expect("the bench starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}\n{text}");

    let lines = text.lines().filter(|line| line.starts_with('{'));
    let figures: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("a measurement is a JSON object"))
        .collect();
    let names = |field| -> BTreeSet<&str> {
        figures
            .iter()
            .filter_map(|figure| figure[field].as_str())
            .collect()
    };
    let benches = [
        "batched",
        "cluster",
        "cost",
        "depth",
        "hand-off",
        "latency",
        "redlock",
        "replicas",
        "throughput",
    ];
    assert_eq!(names("bench"), BTreeSet::from(benches));
    for candidate in [
        "RedisBackend",
        "LockManager-Fifo",
        "rslock",
        "redis-py",
        "npm-redlock",
        "RedLock, 3 nodes",
        "RedLock, 5 nodes",
        "ReplicaAck::Require(1)",
        "RedisBackend, 3 masters",
    ] {
        assert!(
            names("candidate").contains(candidate),
            "{candidate} is missing"
        );
    }
    for figure in &figures {
        let inversions = figure["inversions"].as_u64();
        assert!(matches!(inversions, None | Some(0)), "{figure}");
    }
}
