//! What holds for each part by itself, whatever the nodes answer, and in whatever order.

use std::time::Duration;

use proptest::{collection::vec, prelude::*, sample::subsequence};

use super::{
    Moment, Nodes,
    ballot::{Ballot, FLOOR, HIGHEST, Next, Raise, Vote},
    drift_margin,
    guard::{State, Step, guard_time, step, teachers},
    renewal::{Answer, Outcome, Places, Renewal},
};

const TTL: Duration = Duration::from_secs(10);
const SENT: Moment = Duration::from_secs(100);

fn votes() -> impl Strategy<Value = Vec<Vote>> {
    let seen = 1..1000_u64;
    let vote = prop_oneof![
        4 => (any::<bool>(), seen.clone()).prop_map(|(took, seen)| Vote::Granted { took, seen }),
        1 => (proptest::option::of(1..9000_u64), seen).prop_map(|(ms, seen)| Vote::Held {
            remaining: ms.map(Duration::from_millis),
            seen,
        }),
        1 => Just(Vote::Abstains),
        1 => Just(Vote::Silent),
    ];
    vec(vote, 3..8)
}

fn raises(nodes: usize) -> impl Strategy<Value = Vec<Raise>> {
    let raise = prop_oneof![
        4 => Just(Raise::Took),
        2 => (1..2000_u64).prop_map(|seen| Raise::TooLow { seen }),
        1 => Just(Raise::NotHeld),
        1 => Just(Raise::Silent),
    ];
    vec(raise, nodes)
}

fn answers() -> impl Strategy<Value = Vec<(bool, Answer)>> {
    let answer = prop_oneof![
        4 => Just(Answer::Renewed),
        2 => Just(Answer::Added),
        1 => Just(Answer::Lost),
        1 => Just(Answer::Abstains),
        1 => Just(Answer::Silent),
    ];
    vec((any::<bool>(), answer), 3..8)
}

/// So many numbers in any order.
fn order(n: usize) -> impl Strategy<Value = Vec<usize>> {
    Just((0..n).collect::<Vec<_>>()).prop_shuffle()
}

fn ballot(nodes: usize, proposal: u64) -> Ballot {
    Ballot::new(Nodes(nodes), TTL, SENT, proposal)
}

fn granted(votes: &[Vote]) -> usize {
    let granted = |vote: &&Vote| matches!(vote, Vote::Granted { .. });
    votes.iter().filter(granted).count()
}

fn took(votes: &[Vote]) -> usize {
    let took = |vote: &&Vote| matches!(vote, Vote::Granted { took: true, .. });
    votes.iter().filter(took).count()
}

proptest! {
    #[test]
    fn a_ballot_ends_the_same_in_any_order(
        (votes, order) in votes().prop_flat_map(|votes| {
            let n = votes.len();
            (Just(votes), order(n))
        }),
        proposal in 1..1000_u64,
    ) {
        let mut ballot = ballot(votes.len(), proposal);
        let majority = Nodes(votes.len()).majority();
        let mut next = ballot.next(SENT);
        for node in order {
            prop_assert_eq!(next, Next::Wait);
            // Silence is heard by the end of the time alone.
            if votes[node] != Vote::Silent {
                ballot.vote(node, votes[node]);
                next = ballot.next(SENT);
            }
            if next != Next::Wait {
                break;
            }
        }
        if next == Next::Wait {
            ballot.close_votes();
            next = ballot.next(SENT);
        }
        if took(&votes) >= majority {
            let valid_until = SENT + TTL - drift_margin(TTL);
            prop_assert_eq!(next, Next::Grant { token: proposal, valid_until });
        } else if granted(&votes) >= majority {
            prop_assert!(matches!(next, Next::Raise { token } if token > proposal), "{:?}", next);
        } else {
            prop_assert!(matches!(next, Next::Refuse { .. }), "{:?}", next);
        }
    }

    #[test]
    fn a_raise_is_above_all_that_was_seen_and_grants_what_a_majority_took(
        (votes, rounds) in votes().prop_flat_map(|votes| {
            let n = votes.len();
            (Just(votes), vec((raises(n), order(n)), 4))
        }),
    ) {
        let mut ballot = ballot(votes.len(), 1);
        let majority = Nodes(votes.len()).majority();
        for (node, vote) in votes.iter().enumerate() {
            ballot.vote(node, *vote);
        }
        ballot.close_votes();
        let holds: Vec<_> = ballot.holds().collect();
        let mut next = ballot.next(SENT);
        prop_assert_ne!(next, Next::Wait);
        let mut rounds = rounds.into_iter();
        while let (Next::Raise { token }, Some((answers, order))) = (next, rounds.next()) {
            for vote in &votes {
                if let Vote::Granted { seen, .. } | Vote::Held { seen, .. } = vote {
                    prop_assert!(token > *seen);
                }
            }
            let (mut taken, mut seen) = (0, 0);
            next = Next::Wait;
            for node in order {
                ballot.raised(node, answers[node]);
                match answers[node] {
                    Raise::Took => taken += usize::from(holds.contains(&node)),
                    Raise::TooLow { seen: higher } => seen = seen.max(higher),
                    _ => {}
                }
                next = ballot.next(SENT);
                if next != Next::Wait {
                    break;
                }
            }
            if next == Next::Wait {
                ballot.close_raise();
                next = ballot.next(SENT);
            }
            prop_assert_ne!(next, Next::Wait);
            match next {
                Next::Grant { token: granted, .. } => {
                    prop_assert_eq!(granted, token);
                    prop_assert!(taken >= majority);
                }
                Next::Raise { token: higher } => {
                    prop_assert!(taken < majority && higher > token && higher > seen);
                }
                _ => prop_assert!(taken < majority),
            }
        }
    }

    #[test]
    fn nothing_is_granted_when_the_lease_is_over(votes in votes(), late in 0..20_000_u64) {
        let mut ballot = ballot(votes.len(), 1);
        for (node, vote) in votes.iter().enumerate() {
            ballot.vote(node, *vote);
        }
        let now = SENT + Duration::from_millis(late);
        match ballot.next(now) {
            Next::Grant { valid_until, .. } => {
                prop_assert!(valid_until <= SENT + TTL - drift_margin(TTL));
                prop_assert!(now + FLOOR <= valid_until);
            }
            Next::Raise { .. } => prop_assert!(now + FLOOR <= ballot.valid_until()),
            Next::Refuse { .. } => {}
            Next::Wait => prop_assert!(false, "all have answered"),
        }
    }

    #[test]
    fn a_refused_owner_waits_until_a_majority_may_be_free(votes in votes()) {
        let mut ballot = ballot(votes.len(), 1);
        for (node, vote) in votes.iter().enumerate() {
            ballot.vote(node, *vote);
        }
        if let Next::Refuse { after: Some(after) } = ballot.next(SENT) {
            let held_longer = |vote: &&Vote| {
                matches!(vote, Vote::Held { remaining: Some(left), .. } if *left > after)
            };
            let held_longer = votes.iter().filter(held_longer).count();
            prop_assert!(votes.len() - held_longer >= Nodes(votes.len()).majority());
        }
    }

    #[test]
    fn a_renewal_ends_the_same_in_any_order(
        (answers, order) in answers().prop_flat_map(|answers| {
            let n = answers.len();
            (Just(answers), order(n))
        }),
    ) {
        let nodes = Nodes(answers.len());
        let ours = (0..nodes.0).filter(|&node| answers[node].0);
        let mut renewal = Renewal::new(Places::new(nodes, ours, SENT), TTL, SENT);
        let mut outcome = renewal.outcome();
        for node in order {
            prop_assert_eq!(outcome, Outcome::Wait);
            if answers[node].1 != Answer::Silent {
                renewal.answer(node, answers[node].1);
                outcome = renewal.outcome();
            }
            if outcome != Outcome::Wait {
                break;
            }
        }
        if outcome == Outcome::Wait {
            renewal.close();
            outcome = renewal.outcome();
        }
        let count = |wanted: fn(&(bool, Answer)) -> bool| {
            answers.iter().filter(|it| wanted(it)).count()
        };
        let renewed = count(|(_, answer)| *answer == Answer::Renewed);
        let gone = count(|it| matches!(it, (_, Answer::Lost) | (true, Answer::Added)));
        prop_assert_eq!(outcome, if renewed >= nodes.majority() {
            Outcome::Extended(SENT + TTL - drift_margin(TTL))
        } else if nodes.0 - gone < nodes.majority() {
            Outcome::Lost
        } else {
            Outcome::Unknown
        });
    }

    #[test]
    fn a_node_joins_by_enough_members_or_by_all(
        watched in vec(0..20_000_u64, 3..8),
        kinds in vec(0..3_u8, 8),
    ) {
        let states: Vec<_> = watched.iter().zip(kinds).map(|(ms, kind)| match kind {
            0 => State::Member,
            1 => State::Silent,
            _ => State::Joining { watched: Duration::from_millis(*ms) },
        }).collect();
        let members = states.iter().filter(|state| **state == State::Member).count();
        for (node, state) in states.iter().enumerate() {
            let enough = members >= teachers(Nodes(states.len()));
            let all = !states.contains(&State::Silent);
            let expected = match state {
                State::Joining { watched } if *watched < guard_time(TTL) => {
                    Step::Watch(guard_time(TTL) - *watched)
                }
                State::Joining { .. } if enough || all => Step::Join,
                State::Joining { .. } => Step::TooFew,
                _ => Step::Nothing,
            };
            prop_assert_eq!(step(&states, node, TTL), expected);
        }
    }

    /// Whichever majority wrote a token, and whichever members tell: one of them wrote it.
    #[test]
    fn teachers_share_a_node_with_every_majority(
        (nodes, wrote, tell) in (3..10_usize).prop_flat_map(|n| (
            Just(Nodes(n)),
            subsequence((0..n).collect::<Vec<_>>(), Nodes(n).majority()),
            subsequence((1..n).collect::<Vec<_>>(), teachers(Nodes(n))),
        )),
    ) {
        prop_assert!(teachers(nodes) < nodes.0);
        prop_assert!(tell.iter().any(|node| wrote.contains(node)), "{:?} {:?}", wrote, tell);
    }
}

#[test]
fn a_node_that_was_given_the_key_anew_counts_from_the_next_round_on() {
    let round = |places, answers: [Answer; 3]| {
        let mut renewal = Renewal::new(places, TTL, SENT);
        for (node, answer) in answers.into_iter().enumerate() {
            renewal.answer(node, answer);
        }
        (renewal.outcome(), renewal.into_places())
    };
    use Answer::{Added, Renewed, Silent};
    let extended = Outcome::Extended(SENT + TTL - drift_margin(TTL));
    let ours = || Places::new(Nodes(3), [0, 1].into_iter(), SENT);
    // One that it did not have before: the next round.
    let (outcome, places) = round(ours(), [Renewed, Silent, Added]);
    assert_eq!(outcome, Outcome::Unknown);
    let (outcome, _) = round(places, [Renewed, Silent, Renewed]);
    assert_eq!(outcome, extended);
    // One that had lost it: not before the lease was extended without it.
    let (outcome, places) = round(ours(), [Renewed, Added, Silent]);
    assert_eq!(outcome, Outcome::Unknown);
    let (outcome, places) = round(places, [Renewed, Renewed, Silent]);
    assert_eq!(outcome, Outcome::Unknown);
    let (outcome, places) = round(places, [Renewed, Renewed, Added]);
    assert_eq!(outcome, Outcome::Unknown);
    let (outcome, places) = round(places, [Renewed, Renewed, Renewed]);
    assert_eq!(outcome, extended);
    let (outcome, _) = round(places, [Renewed, Renewed, Silent]);
    assert_eq!(outcome, extended);
    // Two that had lost it: another may have held.
    let (outcome, _) = round(ours(), [Added, Added, Added]);
    assert_eq!(outcome, Outcome::Lost);
}

/// What ended in silence on a node says nothing of others, while a majority had the key all the time.
#[test]
fn a_node_that_was_silent_for_a_ttl_is_as_one_that_is_new() {
    let round = |places, sent, answers: [Answer; 3]| {
        let mut renewal = Renewal::new(places, TTL, sent);
        for (node, answer) in answers.into_iter().enumerate() {
            renewal.answer(node, answer);
        }
        (renewal.outcome(), renewal.into_places())
    };
    use Answer::{Added, Renewed, Silent};
    for (since, in_the_end) in [(TTL / 3, false), (TTL * 2, true)] {
        let mut places = Places::new(Nodes(3), 0..3, SENT);
        let mut sent = SENT;
        while sent < SENT + since {
            sent += TTL / 3;
            let (outcome, next) = round(places, sent, [Renewed, Renewed, Silent]);
            assert!(matches!(outcome, Outcome::Extended(_)));
            places = next;
        }
        // It comes back empty, and another one goes.
        let (outcome, places) = round(places, sent, [Renewed, Silent, Added]);
        assert_eq!(outcome, Outcome::Unknown);
        let (outcome, _) = round(places, sent, [Renewed, Silent, Renewed]);
        assert_eq!(matches!(outcome, Outcome::Extended(_)), in_the_end);
    }
}

#[test]
fn tokens_end_where_lua_cannot_count_on() {
    let mut ballot = ballot(3, HIGHEST);
    for node in 0..3 {
        let seen = HIGHEST;
        ballot.vote(node, Vote::Granted { took: false, seen });
    }
    assert_eq!(ballot.next(SENT), Next::Refuse { after: None });
}
