//! The bench runs, so that it does not rot. Its figures mean nothing here, but no queue may be
//! served out of order, and a first request is two scripts.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

#[test]
fn every_bench_runs_and_what_it_counts_is_right() {
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
        "first-run",
        "flight",
        "hand-off",
        "latency",
        "redlock",
        "replay",
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
        "replay, IdempotencyLayer",
        "tokio::sync::watch, no request",
        "SingleFlightLayer, MemoryBackend, share_response",
        "SingleFlightLayer, RedisBackend",
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

    let figures = |bench| {
        figures
            .iter()
            .filter(move |figure| figure["bench"] == bench)
    };
    let of_layers = figures("first-run").filter(|figure| {
        let name = figure["candidate"].as_str();
        name.is_some_and(|name| name.ends_with("Layer"))
    });
    let scripts: Vec<_> = of_layers
        .map(|figure| figure["scripts_per_request"].as_f64().expect("a number"))
        .collect();
    // Of three layers, over two networks. Maybe one more for a script that the server had to learn.
    assert_eq!(scripts.len(), 6);
    assert!(
        scripts.iter().all(|each| (2.0..2.5).contains(each)),
        "a first request is two scripts: {scripts:?}"
    );
    let processes: BTreeSet<_> = figures("flight")
        .map(|figure| figure["processes"].as_u64().expect("a number"))
        .collect();
    assert_eq!(processes, BTreeSet::from([1, 3]));
}
