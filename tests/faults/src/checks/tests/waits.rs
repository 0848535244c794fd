//! The order of the queue, answers in time, recovery.

use super::script::{MS, Script, id, rules};
use crate::{
    checks::{Kind, Rules},
    history::What,
};

const A: (u32, u64) = (1, 0);
const B: (u32, u64) = (2, 0);
const C: (u32, u64) = (3, 0);

/// A holds until 500; B waits from 100, C calls at that time, and is granted before B.
fn overtaken(c: (u32, u64), calls: u64) -> Script {
    Script::default()
        .holds(0, 1, 500, A, 1)
        .call(100, B, 5000)
        .call(calls, c, 5000)
        .granted(510, c, 2, 2000)
        .releases(520, c)
        .granted(530, B, 3, 2000)
        .releases(540, B)
}

#[test]
fn queue_jumped() {
    let found = overtaken(C, 150).fails(&[Kind::Overtaken]);
    assert_eq!(found.figures.overtakings, 1);
    // Within the time that a request may take.
    overtaken(C, 110).passes();
    // Within one process, only as long as a task may take.
    overtaken((2, 1), 110).fails(&[Kind::Overtaken]);
    overtaken((2, 1), 104).passes();
}

/// Tokens of places in the queue, and the places are not kept.
#[test]
fn queue_jumped_with_tokens_of_places() {
    Script::default()
        .holds(0, 1, 500, A, 1)
        .call(100, B, 5000)
        .call(150, C, 5000)
        .granted(510, C, 3, 2000)
        .releases(520, C)
        .granted(530, B, 2, 2000)
        .releases(540, B)
        .fails(&[Kind::Overtaken, Kind::NotLinearizable]);
}

#[test]
fn who_did_not_stay_connected_may_lose_its_place() {
    for script in [
        overtaken(C, 150).stopped(2, 200, 300),
        overtaken(C, 150).fault(Some(2), 200, 300),
        overtaken(C, 150).fault(None, 200, 300),
        overtaken(C, 150).fault(None, 50, 120),
    ] {
        let found = script.passes();
        assert_eq!(found.figures.overtaken_excluded, 1);
    }
    overtaken(C, 150)
        .fault(Some(3), 200, 300)
        .fails(&[Kind::Overtaken]);
    // It had time to come back, or had not.
    overtaken(C, 150)
        .fault(None, 20, 60)
        .fails(&[Kind::Overtaken]);
    overtaken(C, 150).fault(None, 20, 90).passes();
    let fault = |healed| {
        let name = "late".to_owned();
        match healed {
            false => What::Fault {
                name,
                process: None,
            },
            true => What::Healed {
                name,
                process: None,
            },
        }
    };
    overtaken(C, 150)
        .at(200, fault(false))
        .at(300, fault(true))
        .fails(&[Kind::Overtaken]);
}

/// Servers that hang answer in any order: one whom no fault covers is told.
#[test]
fn servers_that_hung_make_no_order() {
    let told = |at: u64| {
        let (name, why) = ((4, 0), "backend_unavailable".to_owned());
        overtaken(C, 150)
            .call(90, name, 5000)
            .at(at, What::Refused { id: id(name), why })
    };
    let excluded = |script: Script| script.passes().figures.overtaken_excluded;
    assert_eq!(excluded(told(300)), 1);
    assert_eq!(excluded(told(570)), 1);
    told(95).fails(&[Kind::Overtaken]);
    told(590).fails(&[Kind::Overtaken]);
    // It is the fault that it was told of, or its own end.
    told(300).fault(Some(4), 200, 260).fails(&[Kind::Overtaken]);
    told(300).stopped(4, 200, 260).fails(&[Kind::Overtaken]);
    told(300)
        .at(280, What::Drains { process: 4 })
        .fails(&[Kind::Overtaken]);
}

/// Nobody knows in which order they arrived when the machine stood still in between.
#[test]
fn a_machine_that_stood_still_makes_no_order() {
    let beats = |script: Script| script.beats(0, 100).beats(450, 600);
    let found = beats(
        Script::default()
            .holds(0, 1, 500, A, 1)
            .call(100, B, 5000)
            .call(460, C, 5000)
            .granted(510, C, 2, 2000)
            .releases(520, C)
            .granted(530, B, 3, 2000)
            .releases(540, B),
    )
    .passes();
    assert_eq!(found.figures.stalled, 350 * MS);
}

#[test]
fn overtaken_until_its_time_is_over() {
    let script = |ends: u64| {
        Script::default()
            .holds(0, 1, 500, A, 1)
            .call(100, B, 900)
            .call(200, C, 5000)
            .granted(510, C, 2, 2000)
            .releases(520, C)
            .refused(ends, B)
    };
    script(1001).fails(&[Kind::Overtaken]);
    // Refused for another reason: nobody knows whether it waited.
    script(990).passes();
    // A try waits for nobody, and is overtaken by nobody.
    Script::default()
        .holds(0, 1, 500, A, 1)
        .call(100, B, 0)
        .refused(101, B)
        .holds(200, 510, 520, C, 2)
        .passes();
}

#[test]
fn a_try_jumps_no_queue() {
    Script::default()
        .holds(0, 1, 500, A, 1)
        .call(100, B, 5000)
        .call(505, C, 0)
        .granted(510, C, 2, 2000)
        .releases(520, C)
        .granted(530, B, 3, 2000)
        .releases(540, B)
        .fails(&[Kind::Overtaken]);
}

#[test]
fn waiter_forgotten() {
    let script = || {
        Script::default()
            .holds(0, 1, 500, A, 1)
            .call(100, B, 1000)
            .beats(0, 3000)
    };
    script().fails(&[Kind::NeverAnswered, Kind::SlowHandOff]);
    // Its process ended before its time was over.
    script().at(400, What::Killed { process: 2 }).passes();
    script().at(400, What::Drains { process: 2 }).passes();
    // It did not.
    script()
        .at(1500, What::Killed { process: 2 })
        .fails(&[Kind::NeverAnswered]);
    script().refused(1100, B).passes();
}

#[test]
fn wait_outlives_its_time() {
    let script = |ends: u64| {
        Script::default()
            .holds(0, 1, 5000, A, 1)
            .call(100, B, 1000)
            .refused(ends, B)
    };
    script(1300).passes();
    script(1301).fails(&[Kind::Overdue]);
    // Its timers did not run.
    script(1800).stopped(2, 500, 1100).passes();
    script(1801).stopped(2, 1000, 1500).fails(&[Kind::Overdue]);
    // Another process was stopped.
    script(1800).stopped(3, 500, 1100).fails(&[Kind::Overdue]);
    // Nothing at all ran, but for what its silence does not show.
    script(1800).beats(0, 500).beats(1100, 1900).passes();
    script(1800).fails(&[Kind::Overdue]);
    script(1800).beats(0, 1900).fails(&[Kind::Overdue]);
    // A grant that comes too late, and one whose caller had long to go.
    let late = |what: Script| what.fails(&[Kind::Overdue]);
    late(
        Script::default()
            .call(0, A, 0)
            .granted(201, A, 1, 1000)
            .releases(300, A),
    );
    late(Script::default().call(0, A, 1000).cancelled(1500, A));
}

#[test]
fn nobody_is_told_too_early_that_another_holds() {
    let script = |why: &str| {
        let why = why.to_owned();
        Script::default()
            .holds(0, 1, 5000, A, 1)
            .call(100, B, 1000)
            .at(600, What::Refused { id: id(B), why })
    };
    script("backend_unavailable").passes();
    script("wait_timed_out").fails(&[Kind::Hasty]);
    script("409").fails(&[Kind::Hasty]);
}

#[test]
fn blocked_threads_are_a_stop() {
    let fault = |at: u64, script: Script| {
        let name = "blocked".to_owned();
        let process = Some(2);
        script.at(at, What::Fault { name, process })
    };
    let healed = |at: u64, script: Script| {
        let name = "blocked".to_owned();
        let process = Some(2);
        script.at(at, What::Healed { name, process })
    };
    let script = Script::default()
        .holds(0, 1, 5000, A, 1)
        .call(100, B, 1000)
        .refused(1800, B);
    healed(1100, fault(500, script)).passes();
}

#[test]
fn recovery() {
    // Healed at 1000, granted at that time.
    let script = |granted: u64| {
        Script::default()
            .fault(None, 100, 1000)
            .call(200, B, 9000)
            .granted(granted, B, 1, granted + 1000)
            .releases(granted + 10, B)
    };
    let found = script(2900).passes();
    assert_eq!(found.figures.longest_recovery, 1900 * MS);
    let found = script(3500).fails(&[Kind::SlowRecovery]);
    assert_eq!(found.figures.longest_recovery, 2500 * MS);
    // A fault that begins again is measured by itself.
    script(3500).fault(None, 2000, 2600).passes();
    // One that goes on all the time.
    script(3500)
        .fault(Some(9), 900, 1500)
        .fails(&[Kind::SlowRecovery]);
}

/// A holds until 3000, beyond a fault that is healed at 1000. B waits.
fn held_beyond_a_fault() -> Script {
    Script::default()
        .call(0, A, 0)
        .granted(1, A, 1, 9000)
        .releases(3000, A)
        .fault(None, 100, 1000)
        .call(200, B, 9000)
}

/// A holds by its right until 3000, unless its process does not run.
#[test]
fn recovery_begins_when_a_holder_is_done() {
    let script = |granted: u64| {
        held_beyond_a_fault()
            .granted(granted, B, 2, granted + 1000)
            .releases(granted + 10, B)
    };
    let found = script(4900).passes();
    assert_eq!(found.figures.longest_recovery, 1900 * MS);
    script(5100).fails(&[Kind::SlowRecovery]);
    // The next fault came while it held: only what follows that one counts.
    let found = script(6300).fault(None, 2000, 4400).passes();
    assert_eq!(found.figures.longest_recovery, 1900 * MS);
    // Stopped from before the fault is healed.
    Script::default()
        .call(0, A, 0)
        .granted(1, A, 1, 3000)
        .stopped(1, 500, 4000)
        .fault(None, 100, 1000)
        .call(200, B, 9000)
        .granted(3500, B, 2, 4500)
        .releases(3510, B)
        .fails(&[Kind::SlowRecovery]);
}

/// C, which is granted beside A, is wrong, and stands in the way of B all the same: until 6000.
#[test]
fn recovery_begins_when_all_that_hold_are_done() {
    let script = |granted: u64| {
        held_beyond_a_fault()
            .holds(200, 2000, 6000, C, 2)
            .granted(granted, B, 3, granted + 1000)
            .releases(granted + 10, B)
            .check()
    };
    let found = script(6010);
    assert!(found.count(Kind::DoubleHold) > 0, "{found:#?}");
    assert_eq!(found.count(Kind::SlowRecovery), 0, "{found:#?}");
    assert_eq!(script(8500).count(Kind::SlowRecovery), 1);
}

/// A process is granted something after the fault; or nothing, while the machine ran or stood still.
#[test]
fn who_is_looked_at_after_a_fault() {
    let script = |awake: u64| {
        Script::default()
            .fault(None, 0, 50)
            .beats(0, awake)
            .beats(2000, 2500)
    };
    let figures = |script: Script| {
        let figures = script.passes().figures;
        (figures.looked_at, figures.served, figures.stood_still)
    };
    assert_eq!(figures(script(2000).holds(100, 110, 200, A, 1)), (1, 1, 0));
    let refused = |script: Script| script.call(100, A, 0).refused(110, A);
    assert_eq!(figures(refused(script(2000))), (1, 0, 0));
    assert_eq!(figures(refused(script(200))), (0, 0, 1));
}

#[test]
fn a_dead_lock_is_not_hidden_by_callers_that_give_up_and_come_again() {
    let mut script = Script::default().fault(None, 0, 50);
    for turn in 0..8 {
        let name = (1 + turn as u32 % 2, turn);
        script = script
            .call(turn * 450, name, 500)
            .refused(turn * 450 + 500, name);
    }
    script.fails(&[Kind::SlowRecovery]);
    // Nobody waits in between: nobody could be served.
    let mut script = Script::default().fault(None, 0, 50);
    for turn in 0..8 {
        let name = (1 + turn as u32 % 2, turn);
        script = script
            .call(turn * 600, name, 500)
            .refused(turn * 600 + 500, name);
    }
    let found = script.passes();
    assert_eq!(found.figures.longest_recovery, 450 * MS);
}

/// Only one waits, and it is cut off until 5000.
#[test]
fn who_is_cut_off_cannot_be_served() {
    let script = |granted: u64| {
        Script::default()
            .call(0, A, 9000)
            .fault(Some(1), 50, 5000)
            .at(100, What::Killed { process: 2 })
            .granted(granted, A, 1, granted + 1000)
            .releases(granted + 10, A)
    };
    let found = script(5100).passes();
    assert_eq!(found.figures.longest_recovery, 100 * MS);
    script(7100).fails(&[Kind::SlowRecovery]);
}

#[test]
fn recovery_from_a_killed_holder() {
    let script = |granted: u64| {
        Script::default()
            .call(0, A, 5000)
            .granted(1, A, 1, 1000)
            .call(10, B, 9000)
            .at(100, What::Killed { process: 1 })
            .granted(granted, B, 2, granted + 1000)
            .releases(granted + 10, B)
    };
    script(2000).passes();
    script(2200).fails(&[Kind::SlowRecovery]);
    let patient = Rules {
        recovery: 3000 * MS,
        ..rules()
    };
    assert_eq!(script(2200).check_by(&patient).violations, []);
}

/// A gives back at 100, and B, which waits from 50 on, is granted at that time.
fn handed_on(granted: u64) -> Script {
    Script::default()
        .holds(0, 1, 100, A, 1)
        .call(50, B, 5000)
        .granted(granted, B, 2, granted + 1000)
        .releases(granted + 10, B)
}

#[test]
fn slow_hand_off() {
    let found = handed_on(1600).passes();
    // That of the first, too.
    assert_eq!(found.figures.hand_offs, 2);
    assert_eq!(found.figures.longest_hand_off, 1500 * MS);
    let found = handed_on(1601).fails(&[Kind::SlowHandOff]);
    let text = &found.violations[0].text;
    assert_eq!(
        text,
        "key 7: free and waited for at 100.000 ms, and was granted until 1601.000 ms, after 1501.000 ms"
    );
    // As its caller had gone.
    let gone = |granted: u64| {
        Script::default()
            .call(0, A, 5000)
            .granted(1, A, 1, 9000)
            .cancelled(100, A)
            .call(50, B, 5000)
            .granted(granted, B, 2, granted + 1000)
            .releases(granted + 10, B)
    };
    gone(1600).passes();
    gone(1601).fails(&[Kind::SlowHandOff]);
    // It was free when B came.
    let free = |granted: u64| {
        Script::default()
            .holds(0, 1, 100, A, 1)
            .call(150, B, 5000)
            .granted(granted, B, 2, granted + 1000)
            .releases(granted + 10, B)
    };
    free(1650).passes();
    free(1651).fails(&[Kind::SlowHandOff]);
    // Nobody is granted, and those who wait come and go.
    Script::default()
        .holds(0, 1, 100, A, 1)
        .call(50, B, 1000)
        .refused(1050, B)
        .call(1000, C, 1000)
        .refused(2000, C)
        .fails(&[Kind::SlowHandOff]);
    Script::default()
        .holds(0, 1, 100, A, 1)
        .call(50, B, 1000)
        .refused(1050, B)
        .call(1100, C, 1000)
        .refused(2100, C)
        .passes();
}

#[test]
fn what_is_no_slow_hand_off() {
    let none = |script: Script, measured: u64| {
        let found = script.passes();
        assert_eq!(found.figures.hand_offs, measured);
    };
    // Something befalls somebody, or befell it within the time of a recovery.
    none(handed_on(1700).stopped(3, 90, 200), 1);
    none(handed_on(1700).at(30, What::Killed { process: 3 }), 1);
    none(handed_on(1700).at(30, What::Drains { process: 3 }), 1);
    none(handed_on(1700).fault(Some(3), 10, 20), 1);
    // Somebody lost the backend, without a fault.
    let away = |at: u64| {
        let why = "backend_unavailable".to_owned();
        handed_on(1700)
            .call(at - 1, C, 5000)
            .at(at, What::Refused { id: id(C), why })
    };
    none(away(60), 1);
    none(away(1640), 2);
    away(1660).fails(&[Kind::SlowHandOff]);
    // A second blow ends the measuring.
    none(handed_on(1700).stopped(3, 1500, 1550), 2);
    handed_on(1700)
        .stopped(3, 1650, 1660)
        .fails(&[Kind::SlowHandOff]);
    // One under which the order is kept is none.
    let named = |at: u64, begins: bool, script: Script| {
        let (name, process) = ("late".to_owned(), None);
        script.at(
            at,
            if begins {
                What::Fault { name, process }
            } else {
                What::Healed { name, process }
            },
        )
    };
    named(300, false, named(30, true, handed_on(1700))).fails(&[Kind::SlowHandOff]);
    // The machine stood still.
    none(handed_on(1700).beats(0, 500).beats(900, 1800), 2);
    // Who lost it, or held it for longer than its lease, gave nothing back.
    let ends = |script: Script| {
        script
            .call(50, B, 5000)
            .granted(1700, B, 2, 2000)
            .releases(1710, B)
    };
    let held = |valid: u64| Script::default().call(0, A, 5000).granted(1, A, 1, valid);
    none(ends(held(1000).lost(100, A)), 1);
    none(ends(held(90).releases(100, A)), 1);
    // Somebody else holds.
    let other = Script::default()
        .call(0, A, 5000)
        .granted(1, A, 1, 1000)
        .releases(100, A)
        .call(0, C, 5000)
        .granted(90, C, 2, 2500)
        .releases(2000, C)
        .call(50, B, 5000)
        .granted(2100, B, 3, 3000)
        .releases(2110, B);
    let found = other.check();
    assert_eq!(found.count(Kind::SlowHandOff), 0, "{found:#?}");
}
