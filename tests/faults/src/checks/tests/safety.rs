//! Exclusion, tokens, the storage, losses, and whether an order explains it all.

use super::script::Script;
use crate::{checks::Kind, history::What};

const A: (u32, u64) = (1, 0);
const B: (u32, u64) = (2, 0);
const C: (u32, u64) = (3, 0);

fn script() -> Script {
    Script::default()
}

#[test]
fn holders_in_turn() {
    let found = script()
        .holds(0, 10, 20, A, 1)
        .holds(5, 20, 30, B, 2)
        .holds(6, 31, 40, C, 3)
        .claim(11, A, 1, true)
        .write(19, A, 1, true)
        .claim(21, B, 2, true)
        .write(29, B, 2, true)
        .sum(50, 0)
        .passes();
    assert_eq!((found.figures.grants, found.figures.writes), (3, 2));
}

#[test]
fn two_holders() {
    let found = script()
        .holds(0, 10, 30, A, 1)
        .call(5, B, 5000)
        .granted(20, B, 2, 1000)
        .releases(40, B)
        .fails(&[Kind::DoubleHold, Kind::LossLate, Kind::NotLinearizable]);
    let text = &found.of(Kind::DoubleHold).next().unwrap().text;
    assert_eq!(
        text,
        "key 7: 2.0 (token 2) was granted at 20.000 ms while 1.0 (token 1, granted at 10.000 ms) \
         held until 30.000 ms"
    );
}

/// Each is told of by the one that lasts longest, not by its neighbour.
#[test]
fn holders_inside_a_long_hold() {
    let found = script()
        .holds(0, 10, 100, A, 1)
        .holds(5, 20, 30, B, 2)
        .holds(5, 40, 50, C, 3)
        .check();
    assert_eq!(found.count(Kind::DoubleHold), 2);
}

#[test]
fn a_grant_that_was_over_when_it_was_written_down_is_held_by_nobody() {
    script()
        .call(0, A, 5000)
        .granted(50, A, 1, 20)
        .lost(50, A)
        .holds(5, 30, 60, B, 2)
        .passes();
}

#[test]
fn renewals_count() {
    script()
        .call(0, A, 5000)
        .granted(10, A, 1, 100)
        .renewed(90, A, 190)
        .holds(20, 150, 160, B, 2)
        .releases(180, A)
        .fails(&[Kind::DoubleHold, Kind::LossLate, Kind::NotLinearizable]);
}

#[test]
fn repeated_token() {
    let repeat = || script().holds(0, 10, 20, A, 1).holds(5, 21, 30, B, 1);
    repeat().fails(&[Kind::TokenRepeat, Kind::NotLinearizable]);
    // Between keys, tokens are not compared.
    let other = What::Call {
        id: super::script::id(C),
        key: 8,
        order: crate::history::Order::Fifo,
        wait: 0,
    };
    script()
        .holds(0, 10, 20, A, 1)
        .at(30, other)
        .granted(31, C, 1, 40)
        .releases(32, C)
        .passes();
}

#[test]
fn repeated_token_of_one_that_died_before_it_wrote_down_its_grant() {
    script()
        .call(0, A, 5000)
        .claim(11, A, 1, true)
        .at(12, What::Killed { process: 1 })
        .holds(5, 21, 30, B, 1)
        .fails(&[Kind::TokenRepeat, Kind::NotLinearizable]);
    script()
        .call(0, A, 5000)
        .claim(11, A, 1, true)
        .at(12, What::Killed { process: 1 })
        .holds(5, 21, 30, B, 2)
        .passes();
}

#[test]
fn token_inversion() {
    script()
        .holds(0, 10, 20, A, 5)
        .holds(15, 21, 30, B, 4)
        .fails(&[Kind::TokenInversion, Kind::NotLinearizable]);
    // Granted when the first was not known to hold: either may have been first.
    script()
        .call(0, A, 5000)
        .granted(20, A, 5, 1000)
        .releases(22, A)
        .call(15, B, 5000)
        .granted(23, B, 4, 24)
        .lost(23, B)
        .passes();
}

/// The current holder sets it free at its end; one that has lost it frees somebody else's.
#[test]
fn unlock_without_a_look_at_the_owner() {
    script()
        .call(0, A, 5000)
        .granted(1, A, 1, 100)
        .stopped(1, 50, 200)
        .call(2, B, 5000)
        .granted(120, B, 2, 1000)
        // A wakes up, and its release frees what B holds.
        .releases(201, A)
        .call(3, C, 5000)
        .granted(205, C, 3, 1000)
        .releases(210, C)
        .releases(220, B)
        .fails(&[Kind::DoubleHold, Kind::LossLate, Kind::NotLinearizable]);
}

/// A's request was on its way until 40, and its lease of 100 ms began there, not at the reply.
#[test]
fn lease_counted_from_the_reply() {
    script()
        .call(0, A, 5000)
        .granted(80, A, 1, 180)
        .call(10, B, 5000)
        .granted(142, B, 2, 1000)
        .lost(179, A)
        .releases(200, B)
        .fails(&[Kind::DoubleHold, Kind::LossLate]);
    script()
        .call(0, A, 5000)
        .granted(80, A, 1, 100)
        .call(10, B, 5000)
        .lost(99, A)
        .granted(142, B, 2, 1000)
        .releases(200, B)
        .passes();
}

#[test]
fn lost_update() {
    let found = script()
        .holds(0, 10, 20, A, 1)
        .claim(11, A, 1, true)
        .write(19, A, 1, true)
        .sum(30, 1)
        .fails(&[Kind::LostUpdate]);
    assert_eq!(found.figures.fenced_lost, 1);
}

#[test]
fn what_the_storage_says_and_its_lines() {
    let sum = What::Sum {
        key: 7,
        accepted: 2,
        fenced: 2,
        written: 4,
        unfenced: 3,
    };
    let found = script()
        .holds(0, 10, 20, A, 1)
        .claim(11, A, 1, true)
        .write(19, A, 1, true)
        .at(30, sum)
        .fails(&[Kind::Torn]);
    assert_eq!(found.figures.unfenced_lost, 1);
}

#[test]
fn stale_write() {
    let stale = || {
        script()
            .call(0, A, 5000)
            .granted(1, A, 1, 100)
            .claim(2, A, 1, true)
            .stopped(1, 50, 200)
            .holds(3, 120, 300, B, 2)
            .claim(121, B, 2, true)
            .lost(201, A)
    };
    let found = stale()
        .write(202, A, 1, false)
        .write(203, B, 2, true)
        .sum(400, 0)
        .passes();
    assert_eq!(found.figures.stale_writes_refused, 1);
    assert_eq!(found.figures.losses_excluded, 1);
    stale()
        .write(202, A, 1, true)
        .write(203, B, 2, true)
        .sum(400, 0)
        .fails(&[Kind::Corrupt]);
}

#[test]
fn stale_claim() {
    let found = script()
        .call(0, A, 5000)
        .granted(1, A, 1, 100)
        .stopped(1, 50, 200)
        .holds(3, 120, 300, B, 2)
        .claim(121, B, 2, true)
        .claim(201, A, 1, false)
        .lost(202, A)
        .passes();
    assert_eq!(found.figures.stale_claims_refused, 1);
    script()
        .call(0, A, 5000)
        .granted(1, A, 1, 100)
        .stopped(1, 50, 200)
        .holds(3, 120, 300, B, 2)
        .claim(121, B, 2, true)
        .claim(201, A, 1, true)
        .lost(202, A)
        .fails(&[Kind::Corrupt]);
}

#[test]
fn a_write_that_nobody_claimed() {
    script()
        .holds(0, 10, 20, A, 1)
        .write(19, A, 1, true)
        .fails(&[Kind::Corrupt]);
}

#[test]
fn wrong_refusals() {
    let holds = || script().holds(0, 10, 20, A, 1);
    holds().claim(11, A, 1, false).fails(&[Kind::WrongRefusal]);
    holds()
        .claim(11, A, 1, true)
        .write(19, A, 1, false)
        .fails(&[Kind::WrongRefusal]);
    // The fence is right by its numbers, and who holds is locked out all the same.
    script()
        .holds(0, 10, 20, A, 5)
        .claim(11, A, 5, true)
        .holds(25, 31, 40, B, 4)
        .claim(32, B, 4, false)
        .fails(&[
            Kind::TokenInversion,
            Kind::WrongRefusal,
            Kind::NotLinearizable,
        ]);
}

#[test]
fn losses_and_their_margin() {
    let losing = |told: u64| {
        script()
            .call(0, A, 5000)
            .granted(1, A, 1, 100)
            .holds(3, 150, 400, B, 2)
            .lost(told, A)
    };
    let found = losing(90).passes();
    assert_eq!(found.figures.losses, 1);
    assert_eq!(found.figures.smallest_margin, Some(60_000_000));
    // Its bound had passed: a line may be a little late.
    let found = losing(170).passes();
    assert_eq!(found.figures.smallest_margin, Some(-20_000_000));
    assert_eq!(found.figures.losses_within_slack, 1);
}

#[test]
fn loss_told_late() {
    let losing = |told: u64| {
        script()
            .call(0, A, 5000)
            .granted(1, A, 1, 100)
            .holds(3, 150, 400, B, 2)
            .lost(told, A)
    };
    losing(300).fails(&[Kind::LossLate]);
    // Stopped when it should have been told, or woken just before.
    let found = losing(300).stopped(1, 60, 299).passes();
    assert_eq!(found.figures.losses_excluded, 1);
    losing(200).stopped(1, 60, 99).passes();
    losing(300).stopped(1, 60, 99).fails(&[Kind::LossLate]);
    // Cut off is no excuse: it has a clock.
    losing(300).fault(Some(1), 50, 300).fails(&[Kind::LossLate]);
    // A server that forgets a lease while it runs. Told by little too late is too late.
    script()
        .call(0, A, 5000)
        .granted(1, A, 1, 1000)
        .holds(3, 150, 400, B, 2)
        .lost(151, A)
        .fails(&[Kind::DoubleHold, Kind::LossLate]);
    // Never told.
    script()
        .call(0, A, 5000)
        .granted(1, A, 1, 100)
        .holds(3, 150, 400, B, 2)
        .fails(&[Kind::LossLate]);
    // Dead, or ended: there is nobody to tell.
    for ends in [What::Killed { process: 1 }, What::Drained { process: 1 }] {
        script()
            .call(0, A, 5000)
            .granted(1, A, 1, 100)
            .at(50, ends)
            .holds(3, 150, 400, B, 2)
            .passes();
    }
}

/// A server may see that a connection has ended, and who is dead does nothing.
#[test]
fn the_dead_hold_nothing() {
    script()
        .call(0, A, 5000)
        .granted(1, A, 1, 10_000)
        .at(20, What::Killed { process: 1 })
        .holds(3, 25, 40, B, 2)
        .passes();
    script()
        .call(0, A, 5000)
        .granted(1, A, 1, 10_000)
        .holds(3, 15, 40, B, 2)
        .at(20, What::Killed { process: 1 })
        .fails(&[Kind::DoubleHold, Kind::NotLinearizable]);
}

#[test]
fn who_left_while_it_held_has_given_it_back() {
    script()
        .call(0, A, 5000)
        .granted(1, A, 1, 100)
        .cancelled(20, A)
        .holds(3, 25, 40, B, 2)
        .passes();
}
