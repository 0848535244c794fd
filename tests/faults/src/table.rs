//! The table of what was found, for those who choose a backend.

use std::{fmt::Write as _, fs, path::Path, process::Command, time::Duration};

use crate::{
    args::Args,
    cell::Outcome,
    checks::{Figures, Kind},
    expect,
    faults::Fault,
    nemesis::Brought,
    servers::zookeeper,
    stage::Backend,
};

const BEGIN: &str = "<!-- table: written by `scripts/faults --table` -->";
const END: &str = "<!-- end of the table -->";

/// Puts the table into this file, between its marks.
pub(crate) fn write(path: &Path, args: &Args, outcomes: &[Outcome]) -> Result<(), String> {
    let wrong = |error| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let parts = text
        .split_once(BEGIN)
        .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = parts else {
        return Err(wrong(format!("it has no lines `{BEGIN}` and `{END}`")));
    };
    let table = table(args, outcomes);
    let text = format!("{before}{BEGIN}\n\n{table}\n{END}{after}");
    fs::write(path, text).map_err(|error| wrong(error.to_string()))
}

fn table(args: &Args, outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let all: u64 = outcomes.iter().map(|it| it.found.figures.attempts).sum();
    let grants: u64 = outcomes.iter().map(|it| it.found.figures.grants).sum();
    let time: Duration = outcomes.iter().map(|it| it.took).sum();
    let _ = writeln!(
        text,
        "{} runs with seed {}, {} hours in all: {} attempts, {} grants. {}.\n",
        outcomes.len(),
        args.seed,
        (time.as_secs_f64() / 360.0).round() / 10.0,
        grouped(all),
        grouped(grants),
        versions(),
    );
    for &backend in &args.backends {
        let mut of: Vec<_> = outcomes
            .iter()
            .filter(|it| it.cell.backend == backend)
            .collect();
        of.sort_by_key(|it| it.cell.fault);
        if of.is_empty() {
            continue;
        }
        let _ = writeln!(text, "**{}**: {}\n", backend.name(), backend.says());
        text += "| fault | brought | attempts | grants | two held | also found | stale writes refused | losses | longest recovery |\n";
        text += "|---|---|---|---|---|---|---|---|---|\n";
        for outcome in of {
            row(&mut text, outcome);
        }
        text.push('\n');
        if !backend.is_control() {
            without(&mut text, backend);
        }
    }
    text
}

/// What was not done to it, and why.
fn without(text: &mut String, backend: Backend) {
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for fault in Fault::ALL {
        if let Err(why) = fault.applies(backend) {
            let name = format!("`{}`", fault.name());
            match reasons.iter_mut().find(|(reason, _)| *reason == why) {
                Some((_, names)) => names.push(name),
                None => reasons.push((why, vec![name])),
            }
        }
    }
    let reasons = reasons.iter();
    let reasons = reasons.map(|(why, names)| format!("{} ({why})", names.join(", ")));
    let _ = writeln!(
        text,
        "Not here: {}.\n",
        reasons.collect::<Vec<_>>().join("; ")
    );
}

fn row(text: &mut String, outcome: &Outcome) {
    let Figures {
        attempts,
        grants,
        stale_writes_refused,
        losses,
        recoveries,
        longest_recovery,
        ..
    } = outcome.found.figures;
    let cell = outcome.cell;
    // Where it may be, it is told; where not, it would have failed.
    let two_held = match outcome.found.count(Kind::DoubleHold) {
        0 => "0".to_owned(),
        count => format!("**{count}**"),
    };
    let others = Kind::ALL
        .into_iter()
        .filter(|kind| *kind != Kind::DoubleHold);
    let others = others.filter_map(|kind| match outcome.found.count(kind) {
        0 => None,
        count => Some(format!("{} {}", kind.says(), grouped(count as u64))),
    });
    let others: Vec<_> = others.collect();
    let Brought { rounds, unasked } = outcome.brought;
    let brought = match unasked {
        0 => rounds.to_string(),
        _ => format!("{rounds} and {unasked} fail-over(s) by itself"),
    };
    let (allowed, why) = expect::allowed(cell.backend, cell.fault);
    let excuse = if allowed.is_empty() || cell.backend.is_control() {
        String::new()
    } else {
        format!(" ({why})")
    };
    let _ = writeln!(
        text,
        "| {}{excuse} | {} | {} | {} | {} | {} | {} | {} | {} |",
        cell.fault.name(),
        brought,
        grouped(attempts),
        grouped(grants),
        two_held,
        if others.is_empty() {
            "–".to_owned()
        } else {
            others.join(", ")
        },
        stale_writes_refused,
        losses,
        match (recoveries, longest_recovery / 1_000_000) {
            (0, _) => "–".to_owned(),
            (_, ..50) => "< 0.1 s".to_owned(),
            (_, millis) => format!("{:.1} s", millis as f64 / 1000.0),
        },
    );
}

/// With a narrow space between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// The servers that were used, as they call themselves.
fn versions() -> String {
    let says = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().map(str::to_owned)
    };
    let word = |line: Option<String>, before: &str| {
        let line = line.unwrap_or_default();
        let rest = line.split(before).nth(1).unwrap_or_default();
        rest.split_whitespace().next().unwrap_or("?").to_owned()
    };
    let redis = word(says("redis-server", "--version"), "v=");
    let etcd = word(says("etcd", "--version"), "Version: ");
    let zookeeper = zookeeper::version();
    format!("Redis {redis}, etcd {etcd}, ZooKeeper {zookeeper}")
}

impl Backend {
    /// What it is here.
    fn says(self) -> &'static str {
        match self {
            Self::Memory => "one process.",
            Self::Redis => "one server, with its append-only file.",
            Self::Sentinel => "a master, a replica and three Sentinels.",
            Self::SentinelAcked => "the same, with `ReplicaAck::Require(1)`.",
            Self::Cluster => "three masters with a replica each.",
            Self::RedLock => "three nodes.",
            Self::Etcd => "three members.",
            Self::ZooKeeper => "three servers.",
            Self::Naive => "not ours: `SET NX PX` by hand, without a look at the clock.",
            Self::NaiveCounter => "not ours: the same, with a counter for a fencing token.",
            Self::NaiveSentinel => "not ours: the same on whatever server is the master.",
            Self::NaiveRedLock => "not ours: the same on three servers, without a guard.",
            Self::Barging => "ours on one server, asked to keep no order, and judged as if it did.",
        }
    }
}
