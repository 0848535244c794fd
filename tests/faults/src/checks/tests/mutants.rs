//! Nothing is found in the histories of a lock that is right, and every lock with a flaw is found
//! out.

use std::collections::BTreeSet;

use super::model::{Flaw, rules, run};
use crate::checks::{Kind, check};

/// How many histories a flaw may pass before it is found out.
const SEEDS: u64 = 60;

/// `TOWER_LOCK_HISTORIES` is how many to look at.
fn histories() -> u64 {
    let asked = std::env::var("TOWER_LOCK_HISTORIES").ok();
    asked.map_or(150, |asked| asked.parse().expect("a number"))
}

#[test]
fn a_lock_that_is_right() {
    let (mut attempts, mut grants, mut losses, mut excluded, mut stale) = (0, 0, 0, 0, 0);
    let (mut hand_offs, mut longest) = (0, 0);
    let mut smallest = i64::MAX;
    for seed in 0..histories() {
        let found = check(&run(seed, None), &rules());
        assert_eq!(found.violations, [], "seed {seed}: {:#?}", found.figures);
        let figures = found.figures;
        assert_eq!(figures.fenced_lost, 0);
        attempts += figures.attempts;
        grants += figures.grants;
        losses += figures.losses;
        excluded += figures.losses_excluded + figures.overtaken_excluded;
        stale += figures.stale_claims_refused + figures.stale_writes_refused;
        hand_offs += figures.hand_offs;
        longest = longest.max(figures.longest_hand_off);
        smallest = smallest.min(figures.smallest_margin.unwrap_or(i64::MAX));
    }
    println!(
        "{attempts} attempts, {grants} grants, {losses} losses (smallest margin {smallest} ns), \
         {excluded} excluded, {stale} stale claims and writes refused, {hand_offs} hand-offs (longest \
         {longest} ns): nothing wrong"
    );
    // It has been through something.
    assert!(losses > 100 && excluded > 100 && stale > 100 && hand_offs > 1000);
}

#[test]
fn locks_with_a_flaw() {
    let flaws = [
        (Flaw::NoOwnerCheck, Kind::DoubleHold),
        (Flaw::NoFence, Kind::Corrupt),
        (Flaw::FenceOnWritesOnly, Kind::LostUpdate),
        (Flaw::RefusesHolder, Kind::WrongRefusal),
        (Flaw::CounterLost, Kind::TokenInversion),
        (Flaw::TokenKeptAtExpiry, Kind::TokenRepeat),
        (Flaw::HoldersLost, Kind::NotLinearizable),
        (Flaw::LastFirst, Kind::Overtaken),
        (Flaw::FromReply, Kind::DoubleHold),
        (Flaw::ForgetsWaiter, Kind::NeverAnswered),
        (Flaw::AnswersLate, Kind::Overdue),
        (Flaw::TellsLate, Kind::LossLate),
        (Flaw::SleepsAfterFault, Kind::SlowRecovery),
        (Flaw::RefusesAfterFault, Kind::NotServed),
        (Flaw::ReleaseDoesNothing, Kind::SlowHandOff),
    ];
    let mut missed = Vec::new();
    for (flaw, kind) in flaws {
        let mut kinds = BTreeSet::new();
        let found = (0..SEEDS).find(|seed| {
            let found = check(&run(*seed, Some(flaw)), &rules());
            kinds.extend(found.violations.iter().map(|one| one.kind));
            if let Some(one) = found.of(kind).next() {
                println!("{flaw:?}, seed {seed}: {}", one.text);
            }
            found.count(kind) > 0
        });
        if found.is_none() {
            missed.push((flaw, kind, kinds));
        }
    }
    println!("{} of {} found", flaws.len() - missed.len(), flaws.len());
    assert!(missed.is_empty(), "{missed:?}");
}
