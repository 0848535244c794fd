//! A key that is handed on within its process.

use super::script::{Name, Script};
use crate::{
    checks::Kind,
    history::{Order, What},
};

const OTHER: Name = (2, 0);

/// The process 1 holds so many times in a row from 100 on, for 10 each. Of a batch of 4.
fn in_a_row(times: u64) -> Script {
    let mut script = Script::default();
    for turn in 0..times {
        let (name, at) = ((1, turn), 100 + turn * 10);
        script = called(script, 0, name)
            .granted(at, name, turn + 1, at + 1000)
            .releases(at + 9, name);
    }
    script
}

fn called(script: Script, at: u64, (process, number): Name) -> Script {
    let what = What::Call {
        id: super::script::id((process, number)),
        key: 7,
        order: Order::Batched(4),
        wait: 5_000_000_000,
    };
    script.at(at, what)
}

/// And another one that waits from then on comes after them.
fn then(script: Script, calls: u64) -> Script {
    called(script, calls, OTHER)
        .granted(500, OTHER, 100, 1500)
        .releases(510, OTHER)
}

#[test]
fn handed_on_too_often() {
    // Who is first, and four hand-ons.
    let found = then(in_a_row(5), 10).passes();
    assert_eq!(found.figures.places, 1);
    let found = then(in_a_row(6), 10).fails(&[Kind::HandedOn]);
    assert_eq!(
        found.violations[0].text,
        "key 7: 6 of process 1 in a row, from 1.0 (100.000 ms) to 1.5 (150.000 ms), while 2.0 waited \
         from 10.000 ms"
    );
    // So is whoever comes back before it.
    then(in_a_row(8), 10).fails(&[Kind::HandedOn; 3]);
}

#[test]
fn what_is_not_too_often() {
    // Nobody else waits, or not for long enough to stand in the queue for sure.
    in_a_row(9).passes();
    then(in_a_row(6), 90).passes();
    // It had the key itself just before.
    let before = called(in_a_row(6), 0, (2, 9))
        .granted(5, (2, 9), 0, 200)
        .releases(95, (2, 9));
    then(before, 10).passes();
    // Its contender may have been one that left, at the last moment or before.
    let left = |at| called(in_a_row(6), 5, (2, 9)).cancelled(at, (2, 9));
    then(left(120), 10).passes();
    then(left(85), 10).passes();
    then(left(70), 10).fails(&[Kind::HandedOn]);
    // Not one that came after it, and not at nearly the same time.
    let after = |call| called(in_a_row(6), call, (2, 9)).cancelled(120, (2, 9));
    then(after(14), 10).passes();
    then(after(16), 10).fails(&[Kind::HandedOn]);
    // It was cut off, or stopped.
    then(in_a_row(6), 10).fault(Some(2), 20, 30).passes();
    then(in_a_row(6), 10).stopped(2, 120, 130).passes();
    then(in_a_row(6), 10)
        .fault(Some(3), 20, 30)
        .fails(&[Kind::HandedOn]);
}
