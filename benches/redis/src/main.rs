//! What a lock of the Redis backend costs, beside its peers. See `benches/README.md`.
//!
//! Needs `redis-server`; the contended runs also redis-py and npm's redlock, which `scripts/test`
//! installs.

mod candidate;
mod cluster;
mod contended;
mod cost;
mod depth;
mod first_run;
mod flight;
mod hand_off;
mod latency;
mod locks;
mod recipe;
mod redlock;
mod replay;
mod replicas;
mod report;
mod requests;
mod server;
#[path = "../../../tests/servers/mod.rs"]
mod servers;
mod socket;
mod throughput;
mod timed;
mod wires;
mod worker;

use self::{candidate::Candidate, report::Effort};

const USAGE: &str = "\
usage: tower-lock-bench-redis [--quick] [--only <candidate>].. [all | <bench>..]
benches: latency, hand-off, batched, cost, throughput, depth, redlock, replicas, cluster,
         replay, first-run, flight";

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut quick, mut only, mut benches) = (false, Vec::new(), Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "worker" => {
                let (name, url) = (args.next(), args.next());
                return Candidate::work(&name.expect("a candidate"), &url.expect("a URL"));
            }
            "flight-worker" => {
                let mut arg = || args.next().expect("a candidate, the threads and a URL");
                return flight::work(&arg(), &arg(), &arg());
            }
            "--quick" => quick = true,
            "--only" => only.push(args.next().expect("a candidate")),
            _ => benches.push(arg),
        }
    }
    let effort = &Effort { quick, only };
    if benches.is_empty() {
        benches.push("all".to_owned());
    }
    for bench in &benches {
        let wanted = |name: &str| bench == name || bench == "all";
        let mut ran = false;
        let mut run = |name: &str, bench: &dyn Fn()| {
            if wanted(name) {
                ran = true;
                bench();
            }
        };
        run("latency", &|| latency::latency(effort));
        run("hand-off", &|| hand_off::hand_off(effort));
        run("batched", &|| hand_off::batched(effort));
        run("cost", &|| cost::cost(effort));
        run("throughput", &|| throughput::throughput(effort));
        run("depth", &|| depth::depth(effort));
        run("redlock", &|| redlock::redlock(effort));
        run("replicas", &|| replicas::replicas(effort));
        run("cluster", &|| cluster::cluster(effort));
        run("replay", &|| replay::replay(effort));
        run("first-run", &|| first_run::first_run(effort));
        run("flight", &|| flight::flight(effort));
        assert!(ran, "no bench is called {bench}\n{USAGE}");
    }
}
