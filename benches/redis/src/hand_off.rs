//! `hand-off`: one hot key against those who poll for it, near and far. `batched`: the same with
//! local hand-offs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    candidate::Candidate,
    contended::Pair,
    report::{Effort, cell, line, quantile, ratio, table, us},
    server::Server,
    servers::TcpProxy,
    socket::{Socket, pack},
};

/// Each way; there and back it is a millisecond.
const AWAY: Duration = Duration::from_micros(500);

pub(crate) fn hand_off(effort: &Effort) {
    let all = [
        Candidate::Backend,
        Candidate::Fifo,
        Candidate::Poll(10),
        Candidate::Poll(50),
        Candidate::Rslock,
        Candidate::RedisPy,
        Candidate::NpmRedlock,
    ];
    let candidates = chosen(effort, &all);
    near(effort, &candidates, 16);
    if !effort.quick {
        near(effort, &candidates, 64);
    }
    far(effort, &candidates, 16);
}

pub(crate) fn batched(effort: &Effort) {
    let candidates = chosen(effort, &[Candidate::Fifo, Candidate::Batched]);
    let server = Server::start();
    let url = server.url();
    let mut pairs = start(&candidates, &url);
    contend(effort, &server, &mut pairs, 16);
    report("batched", &pairs, &[("waiters", json!(16))]);
    let base = base(&pairs);
    let rows: Vec<_> = pairs
        .iter()
        .map(|pair| {
            let grants = pair.grants_per_s();
            vec![
                pair.candidate.to_string(),
                cell(grants),
                ratio(grants, base.grants_per_s()),
                cell(us(pair.hand_off(0.5))),
                cell(pair.cpu_us()),
            ]
        })
        .collect();
    table(
        "One hot key, 16 waiters in two processes, handed on within a process",
        &[
            "",
            "grants/s",
            "ratio",
            "hand-off p50, µs",
            "server CPU per grant, µs",
        ],
        &rows,
    );
}

fn chosen(effort: &Effort, all: &[Candidate]) -> Vec<Candidate> {
    let chosen = all.iter().filter(|c| effort.wants(&c.to_string()));
    chosen.copied().collect()
}

fn start(candidates: &[Candidate], url: &str) -> Vec<Pair> {
    candidates.iter().map(|&c| Pair::start(c, url)).collect()
}

/// Rounds in which all take turns.
fn contend(effort: &Effort, server: &Server, pairs: &mut [Pair], waiters: usize) {
    let millis = if effort.quick { 200 } else { 1000 };
    for round in 0..effort.pick(9, 1) {
        for turn in 0..pairs.len() {
            let at = (round + turn) % pairs.len();
            pairs[at].contend(server, waiters, millis);
        }
    }
}

/// They ask so far apart that the order in which they ask is the one in which they arrive.
fn drain(effort: &Effort, server: &Server, pairs: &mut [Pair], waiters: usize) {
    let step = if effort.quick { 5_000_000 } else { 10_000_000 };
    for _ in 0..effort.pick(5, 1) {
        for pair in &mut *pairs {
            pair.drain(server, waiters, step);
        }
    }
}

fn near(effort: &Effort, candidates: &[Candidate], waiters: usize) {
    let server = Server::start();
    let mut pairs = start(candidates, &server.url());
    contend(effort, &server, &mut pairs, waiters);
    drain(effort, &server, &mut pairs, waiters);
    report(
        "hand-off",
        &pairs,
        &[("waiters", json!(waiters)), ("added_ms", json!(0))],
    );
    let base = pairs.iter().find(|p| p.candidate == Candidate::Poll(10));
    let base = base
        .or(pairs.first())
        .expect("a candidate")
        .hand_offs_per_s();
    let rows: Vec<_> = pairs
        .iter()
        .map(|pair| {
            vec![
                pair.candidate.to_string(),
                cell(pair.hand_offs_per_s()),
                ratio(pair.hand_offs_per_s(), base),
                cell(pair.grants_per_s()),
                cell(us(pair.hand_off(0.5))),
                cell(pair.overtaken() * 100.0),
                cell(pair.cpu_us()),
                cell(pair.drain_ms()),
                inversions(pair),
            ]
        })
        .collect();
    table(
        &format!("One hot key, {waiters} waiters in two processes"),
        &[
            "",
            "hand-offs/s",
            "to polling every 10 ms",
            "grants/s",
            "hand-off p50, µs",
            "overtaken, %",
            "server CPU per grant, µs",
            "queue drained, ms",
            "inversions in queues",
        ],
        &rows,
    );
}

/// The same a millisecond away.
fn far(effort: &Effort, candidates: &[Candidate], waiters: usize) {
    let server = Server::start();
    let proxy = TcpProxy::start(server.address());
    proxy.set_latency(AWAY, AWAY);
    let mut pairs = start(candidates, &proxy.redis_url());
    let before = round_trip(&proxy);
    contend(effort, &server, &mut pairs, waiters);
    let trip = u64::midpoint(before, round_trip(&proxy));
    drain(effort, &server, &mut pairs, waiters);
    report(
        "hand-off",
        &pairs,
        &[
            ("waiters", json!(waiters)),
            ("added_ms", json!(1)),
            ("round_trip_us", json!(us(trip))),
        ],
    );
    let rows: Vec<_> = pairs
        .iter()
        .map(|pair| {
            vec![
                pair.candidate.to_string(),
                cell(us(pair.hand_off(0.5))),
                ratio(pair.hand_off(0.5) as f64, trip as f64),
                cell(pair.hand_offs_per_s()),
                cell(pair.grants_per_s()),
                cell(pair.drain_ms()),
                inversions(pair),
            ]
        })
        .collect();
    table(
        &format!(
            "One hot key, {waiters} waiters, {} µs per round trip",
            us(trip)
        ),
        &[
            "",
            "hand-off p50, µs",
            "in round trips",
            "hand-offs/s",
            "grants/s",
            "queue drained, ms",
            "inversions in queues",
        ],
        &rows,
    );
}

/// The median of a `PING`, in nanoseconds.
fn round_trip(proxy: &TcpProxy) -> u64 {
    let mut socket = Socket::connect(proxy.address());
    let ping = pack(&["PING"]);
    let mut samples: Vec<u64> = (0..100)
        .map(|_| {
            let start = Instant::now();
            socket.call(&ping);
            start.elapsed().as_nanos() as u64
        })
        .collect();
    quantile(&mut samples, 0.5)
}

fn report(bench: &str, pairs: &[Pair], facts: &[(&str, Value)]) {
    for pair in pairs {
        let mut figures = pair.figures();
        for (name, value) in facts {
            figures[*name] = value.clone();
        }
        line(bench, &pair.candidate.to_string(), &figures);
    }
}

fn inversions(pair: &Pair) -> String {
    match &*pair.inversions() {
        [] => "–".to_owned(),
        queues => format!("{} in {}", queues.iter().sum::<usize>(), queues.len()),
    }
}

fn base(pairs: &[Pair]) -> &Pair {
    pairs.first().expect("a candidate")
}
