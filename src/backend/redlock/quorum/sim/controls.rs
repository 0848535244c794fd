//! That the simulation finds mistakes: each rule, taken away or weakened, shows.

use super::{
    super::ballot::{Raise, Vote},
    node::{Node, Owner},
    *,
};

/// Fewer nodes, so that more depends on each.
const THREE: Settings = Settings { nodes: 3, ..USUAL };

fn twisted(twist: Twist, settings: Settings) -> Found {
    let settings = Settings { twist, ..settings };
    let (found, seen, seed) = histories(settings, 7 << 32, 3000);
    println!("{twist:?} {seed:?}: {found:?} {seen:?}");
    found
}

#[test]
fn two_hold_without_the_guard() {
    assert!(twisted(Twist::NoGuard, THREE).doubles > 0);
}

#[test]
fn two_hold_if_a_node_is_not_watched_for_long_enough() {
    assert!(twisted(Twist::Impatient, THREE).doubles > 0);
    assert!(twisted(Twist::Nameless, THREE).doubles > 0);
}

#[test]
fn two_hold_by_half_of_the_nodes() {
    assert!(twisted(Twist::Half, Settings { nodes: 4, ..USUAL }).doubles > 0);
}

#[test]
fn two_hold_if_leases_count_from_the_answer() {
    assert!(twisted(Twist::FromReply, THREE).doubles > 0);
}

#[test]
fn two_hold_if_clocks_drift_and_there_is_no_margin() {
    let settings = Settings { nodes: 3, ..LONG };
    assert_eq!(twisted(Twist::None, settings).doubles, 0);
    assert!(twisted(Twist::NoMargin, settings).doubles > 0);
}

#[test]
fn two_hold_if_a_ballot_has_the_name_of_the_one_before() {
    assert!(twisted(Twist::OneName, THREE).doubles > 0);
}

#[test]
fn weaker_rules_of_tokens_repeat_or_invert_them() {
    for twist in [Twist::Highest, Twist::Proposal, Twist::RaiseNotAbove] {
        let found = twisted(twist, THREE);
        assert!(found.inverted > 0, "{twist:?}");
        assert_eq!(found.doubles, 0, "{twist:?}");
    }
}

#[test]
fn tokens_go_back_if_lost_counters_are_not_learned() {
    let settings = Settings { nodes: 3, ..QUIET };
    for twist in [Twist::NotLearned, Twist::FewTeachers] {
        let found = twisted(twist, settings);
        assert!(found.overtaken > 0, "{twist:?}");
        assert_eq!(found.doubles, 0, "{twist:?}");
    }
}

#[test]
fn an_owner_whose_clock_stood_still_hears_of_another() {
    let settings = Settings {
        stops: true,
        loss: 0,
        slow: 20,
        crashes: Crashes::Never,
        ..USUAL
    };
    assert_eq!(twisted(Twist::None, settings).spanned, 0);
    assert!(twisted(Twist::CountsAdded, settings).spanned > 0);
}

/// Too rare to be met by chance: an owner whose ballot ends late, on a node where it had asked
/// before another raised its counter.
#[test]
fn tokens_go_back_if_counters_are_raised_where_the_key_is_not_held() {
    let last_of_both = |twist| {
        let mut nodes = [5, 9, 0].map(Node::with_counter);
        let ask = |nodes: &mut [Node; 3], at: usize, owner, proposal| {
            nodes[at].ask(0, Twist::None, owner, 1000, proposal)
        };
        let owner = |client| Owner {
            client,
            ..Owner::default()
        };
        let (slow, quick) = (owner(0), owner(1));
        let took = |took, seen| Vote::Granted { took, seen };
        assert_eq!(ask(&mut nodes, 2, slow, 8), took(true, 8));
        assert_eq!(ask(&mut nodes, 0, quick, 6), took(true, 6));
        assert_eq!(ask(&mut nodes, 1, quick, 6), took(false, 9));
        // What is sent to the first is lost.
        let raised = [1, 2].map(|at| nodes[at].raise(0, twist, quick, 10));
        nodes.iter_mut().for_each(|node| node.release(quick));
        assert_eq!(
            ask(&mut nodes, 0, slow, 8),
            took(true, 8),
            "a majority took 8"
        );
        raised
    };
    let twisted = last_of_both(Twist::RaiseUnowned);
    assert_eq!(
        twisted,
        [Raise::Took, Raise::Took],
        "10 was granted before 8"
    );
    assert_eq!(last_of_both(Twist::None), [Raise::Took, Raise::NotHeld]);
}
