//! A deterministic simulation: nodes, clients and a network that delays and loses, driven by a
//! seed. The algorithm is the one of this room; what a node does stands here as the scripts do it.
//!
//! Faults: messages late, lost and out of order; clients that stand still; nodes that crash and
//! come back with their memory, without it, or with an old snapshot; clocks that run faster and
//! slower, differ by seconds, and jump.

mod checker;
mod client;
mod node;
mod world;

use std::time::Duration;

use self::{checker::Found, world::World};

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// As the ballot says.
    Ours,
    /// The highest counter of the nodes that voted, which is what comes to mind first.
    Highest,
    /// The proposal, whoever took it.
    Proposal,
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    nodes: usize,
    clients: usize,
    ttl: Duration,
    lasts: Duration,
    loss: f64,
    guard: bool,
    rule: Rule,
    /// Nodes crash, and forget.
    crashes: bool,
    /// Clocks jump by more than the margin.
    jumps: bool,
    pauses: bool,
}

const USUAL: Settings = Settings {
    nodes: 5,
    clients: 4,
    ttl: Duration::from_millis(1000),
    lasts: Duration::from_secs(20),
    loss: 0.03,
    guard: true,
    rule: Rule::Ours,
    crashes: true,
    jumps: false,
    pauses: true,
};

fn histories(settings: Settings, seeds: std::ops::Range<u64>) -> Found {
    let mut all = Found::default();
    for seed in seeds {
        let history = World::run(settings, seed);
        let found = checker::check(&history);
        all.add(found, seed);
    }
    all
}

/// A bounded run: `TOWER_LOCK_HISTORIES=1000000` makes it longer.
fn count(usual: u64) -> u64 {
    let asked = std::env::var("TOWER_LOCK_HISTORIES").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn with_everything_on_one_holds_and_tokens_grow() {
    let n = count(300);
    for (at, settings) in [
        USUAL,
        Settings { nodes: 3, ..USUAL },
        Settings { nodes: 4, ..USUAL },
        Settings { ttl: Duration::from_millis(120), ..USUAL },
        Settings { clients: 2, loss: 0.0, ..USUAL },
        Settings { clients: 8, loss: 0.15, ..USUAL },
    ]
    .into_iter()
    .enumerate()
    {
        let first = at as u64 * 1_000_000;
        let found = histories(settings, first..first + n);
        println!("{settings:?}: {found:?}");
        assert_eq!(found.doubles, 0, "{settings:?} {found:?}");
        assert_eq!(found.tokens, 0, "{settings:?} {found:?}");
        assert!(found.grants > n * 5, "{settings:?} {found:?}");
        assert!(found.raised > 0 || settings.clients == 2, "{found:?}");
        assert!(found.renewals > 0, "{found:?}");
    }
}

#[test]
fn tokens_grow_also_when_clocks_jump() {
    let found = histories(Settings { jumps: true, ..USUAL }, 0..count(300));
    println!("{found:?}");
    assert_eq!(found.tokens_of_singles, 0, "{found:?}");
    assert!(found.doubles > 0, "the documented exception shows: {found:?}");
}

#[test]
fn without_the_guard_two_hold() {
    let found = histories(Settings { guard: false, ..USUAL }, 0..300);
    println!("{found:?}");
    assert!(found.doubles > 0, "{found:?}");
}

#[test]
fn weaker_rules_repeat_tokens() {
    for rule in [Rule::Highest, Rule::Proposal] {
        let settings = Settings { rule, crashes: false, pauses: false, ..USUAL };
        let found = histories(settings, 0..300);
        println!("{rule:?}: {found:?}");
        assert!(found.tokens > 0, "{rule:?} {found:?}");
        assert_eq!(found.doubles, 0, "{rule:?} {found:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for seed in 0..5 {
        let (one, other) = (World::run(USUAL, seed), World::run(USUAL, seed));
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
        assert!(!one.is_empty());
    }
}
