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
    assert!(linearize(&[]).is_empty());
    assert!(linearize(&[hold(1, 0, 5, 3)]).is_empty());
}

/// Grants may be written down in another order than they were made.
#[test]
fn late_lines() {
    assert!(linearize(&[hold(1, 0, 30, 0), hold(2, 0, 20, 25)]).is_empty());
}

#[test]
fn the_second_was_granted_before_the_first_can_have_ended() {
    let holds = [hold(1, 0, 5, 20), hold(2, 0, 19, 30)];
    let [Contradiction::Held(first, second, until)] = linearize(&holds)[..] else {
        panic!("it has an order");
    };
    assert_eq!((first.token, second.token, until), (1, 2, 20));
    assert!(linearize(&[hold(1, 0, 5, 20), hold(2, 0, 20, 30)]).is_empty());
}

/// The pairs are possible, all three are not: the second leaves no time.
#[test]
fn three_of_which_each_two_have_an_order() {
    let [first, second, third] = [hold(1, 0, 5, 10), hold(2, 15, 30, 15), hold(3, 0, 12, 0)];
    assert!(linearize(&[first, second]).is_empty());
    assert!(linearize(&[first, third]).is_empty());
    assert!(!linearize(&[first, second, third]).is_empty());
}

#[test]
fn one_token_twice() {
    let twice = [hold(1, 0, 5, 6), hold(1, 10, 15, 16)];
    assert!(matches!(
        linearize(&twice)[..],
        [Contradiction::Repeat(_, _)]
    ));
}

/// Each that contradicts those before is told, by the one that holds for the longest.
#[test]
fn all_contradictions() {
    let told = |holds: &[Hold]| -> Vec<(u64, u64)> {
        let told = linearize(holds).into_iter();
        told.map(|one| match one {
            Contradiction::Held(first, second, _) | Contradiction::Repeat(first, second) => {
                (first.token, second.token)
            }
        })
        .collect()
    };
    // Two while the first holds, and much later two at once again.
    let holds = [
        hold(1, 0, 5, 100),
        hold(2, 0, 20, 30),
        hold(3, 0, 40, 50),
        hold(4, 0, 110, 120),
        hold(5, 900, 905, 1000),
        hold(6, 900, 950, 960),
    ];
    assert_eq!(told(&holds), [(1, 2), (1, 3), (5, 6)]);
    // The second outlasts the first.
    let holds = [
        hold(1, 0, 5, 25),
        hold(2, 0, 20, 100),
        hold(3, 0, 40, 50),
        hold(4, 0, 101, 110),
    ];
    assert_eq!(told(&holds), [(1, 2), (2, 3)]);
    let twice = [hold(1, 0, 5, 6), hold(1, 10, 15, 16), hold(1, 20, 25, 26)];
    assert_eq!(told(&twice).len(), 2);
}
