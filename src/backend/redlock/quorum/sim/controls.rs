//! That the simulation finds mistakes: each rule, taken away or weakened, shows.

use super::*;

/// Fewer nodes, so that more depends on each.
const THREE: Settings = Settings { nodes: 3, ..USUAL };

fn twisted(twist: Twist, settings: Settings) -> Found {
    let settings = Settings { twist, ..settings };
    let (found, seen, seed) = histories(settings, 7 << 32, 1500);
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
fn two_hold_if_a_ballot_has_the_name_of_the_one_before() {
    assert!(twisted(Twist::OneName, THREE).doubles > 0);
}

#[test]
fn weaker_rules_of_tokens_repeat_or_invert_them() {
    for twist in [
        Twist::Highest,
        Twist::Proposal,
        Twist::RaiseNotAbove,
        Twist::RaiseUnowned,
    ] {
        let found = twisted(twist, THREE);
        assert!(found.inverted > 0, "{twist:?}");
        assert_eq!(found.doubles, 0, "{twist:?}");
    }
}

#[test]
fn tokens_go_back_if_lost_counters_are_not_learned() {
    let found = twisted(Twist::NotLearned, THREE);
    assert!(found.overtaken > 0);
    assert_eq!(found.doubles, 0);
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
