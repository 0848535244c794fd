//! Whose history has an order.

use super::script::id;
use crate::{
    checks::linear::{Contradiction, Hold, linearize},
    history::Nanos,
};

fn hold(number: u64, call: Nanos, granted: Nanos, ends: Nanos) -> Hold {
    Hold {
        id: id((1, number)),
        token: number,
        call,
        granted,
        ends,
    }
}

#[test]
fn nothing_and_one() {
    assert!(linearize(&[]).is_ok());
    assert!(linearize(&[hold(1, 0, 5, 3)]).is_ok());
}

/// Grants may be written down in another order than they were made.
#[test]
fn late_lines() {
    assert!(linearize(&[hold(1, 0, 30, 0), hold(2, 0, 20, 25)]).is_ok());
}

#[test]
fn the_second_was_granted_before_the_first_can_have_ended() {
    let holds = [hold(1, 0, 5, 20), hold(2, 0, 19, 30)];
    let Err(Contradiction::Held(first, second, until)) = linearize(&holds) else {
        panic!("it has an order");
    };
    assert_eq!((first.token, second.token, until), (1, 2, 20));
    assert!(linearize(&[hold(1, 0, 5, 20), hold(2, 0, 20, 30)]).is_ok());
}

/// The pairs are possible, all three are not: the second leaves no time.
#[test]
fn three_of_which_each_two_have_an_order() {
    let [first, second, third] = [hold(1, 0, 5, 10), hold(2, 15, 30, 15), hold(3, 0, 12, 0)];
    assert!(linearize(&[first, second]).is_ok());
    assert!(linearize(&[first, third]).is_ok());
    assert!(linearize(&[first, second, third]).is_err());
}

#[test]
fn one_token_twice() {
    let twice = [hold(1, 0, 5, 6), hold(1, 10, 15, 16)];
    assert!(matches!(
        linearize(&twice),
        Err(Contradiction::Repeat(_, _))
    ));
}
