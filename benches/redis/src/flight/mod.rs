//! `flight`: how long after the leader's end a thousand who waited for it have their answers.

mod candidate;
mod fleet;
mod flights;
mod worker;

use serde_json::json;

use self::fleet::Fleet;
pub(crate) use self::worker::work;
use crate::{
    report::{Effort, cell, line, ratio, round, table, us},
    server::Server,
};
use candidate::Candidate;

pub(crate) fn flight(effort: &Effort) {
    for threads in [1, 2] {
        measure(effort, threads);
    }
}

/// Every candidate's processes stand ready; they take turns.
fn measure(effort: &Effort, threads: usize) {
    let server = Server::start();
    let followers = effort.pick(1000, 60);
    let wanted = |(candidate, _): &(Candidate, usize)| effort.wants(&candidate.to_string());
    let mut fleets: Vec<_> = Candidate::runs()
        .into_iter()
        .filter(wanted)
        .map(|(candidate, processes)| Fleet::start(candidate, processes, threads, &server.url()))
        .collect();
    for fleet in &mut fleets {
        // To warm up.
        fleet.fly(&server, followers);
        fleet.forget();
    }
    for round in 0..effort.pick(21, 2) {
        for turn in 0..fleets.len() {
            let at = (round + turn) % fleets.len();
            fleets[at].fly(&server, followers);
        }
    }
    report(threads, followers, &fleets);
}

fn report(threads: usize, followers: usize, fleets: &[Fleet]) {
    let base = |q| {
        let bare = fleets.iter().find(|f| f.candidate == Candidate::Watch);
        bare.map_or(f64::NAN, |bare| bare.latency(q) as f64)
    };
    let rows: Vec<_> = fleets
        .iter()
        .map(|fleet| {
            let (p50, p99, max) = (fleet.latency(0.5), fleet.latency(0.99), fleet.latency(1.0));
            let figures = json!({
                "threads": threads,
                "processes": fleet.processes(),
                "followers": followers,
                "flights": fleet.flights(),
                "p50_us": us(p50),
                "p99_us": us(p99),
                "max_us": us(max),
                "worst_us": us(fleet.worst()),
                "first_us": us(fleet.latency(0.0)),
                "leader_p50_us": us(fleet.leader()),
                "scripts": round(fleet.scripts()),
                "calls": fleet.calls(),
            });
            line("flight", &fleet.candidate.to_string(), &figures);
            vec![
                fleet.candidate.to_string(),
                fleet.processes().to_string(),
                cell(us(fleet.leader())),
                cell(us(fleet.latency(0.0))),
                cell(us(p50)),
                ratio(p50 as f64, base(0.5)),
                cell(us(p99)),
                ratio(p99 as f64, base(0.99)),
                cell(us(max)),
                cell(us(fleet.worst())),
                cell(fleet.scripts()),
            ]
        })
        .collect();
    table(
        &format!(
            "{followers} followers, from their leader's end to their answers, \
             threads of each process: {threads}; µs, the median of the flights'"
        ),
        &[
            "",
            "processes",
            "the leader's answer",
            "first",
            "p50",
            "to watch",
            "p99",
            "to watch",
            "max",
            "worst of all flights",
            "scripts",
        ],
        &rows,
    );
}
