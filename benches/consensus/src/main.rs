//! What a lock of the ZooKeeper and etcd backends costs, beside its peers. See `benches/README.md`.
//!
//! Needs the servers, and for hand-offs kazoo and Curator, which `scripts/test` installs.

mod etcd;
mod hand_off;
mod latency;
mod locks;
mod peers;
mod report;
#[path = "../../../tests/servers/mod.rs"]
mod servers;
mod zookeeper;

use self::report::Effort;

const USAGE: &str = "usage: tower-lock-bench-consensus [--quick] [all | zookeeper | etcd]..";

fn main() {
    let mut backends = Vec::new();
    let mut quick = false;
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--quick" => quick = true,
            "all" | "zookeeper" | "etcd" => backends.push(arg),
            _ => panic!("what is {arg}?\n{USAGE}"),
        }
    }
    let effort = Effort { quick };
    let wanted = |name: &str| {
        let wants = |backend: &String| backend == name || backend == "all";
        backends.is_empty() || backends.iter().any(wants)
    };
    if wanted("zookeeper") {
        zookeeper::run(effort);
    }
    if wanted("etcd") {
        etcd::run(effort);
    }
}
