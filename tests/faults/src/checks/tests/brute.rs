//! The linearizability checker and a search over all orders agree.

use super::script::id;
use crate::{
    checks::linear::{Hold, linearize},
    history::Nanos,
};

/// Something that takes effect at one moment, as the search sees it.
#[derive(Clone, Copy, Debug)]
struct Operation {
    what: What,
    invoked: Nanos,
    /// It has taken effect by then. Without: it may take effect later, or never.
    returned: Option<Nanos>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// Of this attempt. Without a token: it fits between any others.
    Acquire(usize, Option<u64>),
    End(usize),
}

/// The lock.
#[derive(Clone, Copy, Default)]
struct State {
    holder: Option<usize>,
    token: u64,
}

impl State {
    fn after(self, what: What) -> Option<Self> {
        let Self { holder, token } = self;
        match (what, holder) {
            (What::Acquire(who, None), None) => Some(Self {
                holder: Some(who),
                token,
            }),
            (What::Acquire(who, Some(new)), None) if token < new => Some(Self {
                holder: Some(who),
                token: new,
            }),
            (What::End(who), Some(holder)) if who == holder => Some(Self {
                holder: None,
                token,
            }),
            _ => None,
        }
    }
}

/// Whether any order is left that explains them.
fn search(operations: &[Operation], done: u32, state: State) -> bool {
    let left = || (0..operations.len()).filter(|index| done & (1 << index) == 0);
    // Whoever has returned by then comes before whoever is invoked after.
    let first = left().filter_map(|index| operations[index].returned).min();
    let Some(first) = first else {
        return true;
    };
    left().any(|index| {
        let operation = operations[index];
        operation.invoked <= first
            && state
                .after(operation.what)
                .is_some_and(|state| search(operations, done | (1 << index), state))
    })
}

fn operations(holds: &[Hold], unknown: &[Nanos]) -> Vec<Operation> {
    let mut operations = Vec::new();
    for (who, hold) in holds.iter().enumerate() {
        operations.push(Operation {
            what: What::Acquire(who, Some(hold.token)),
            invoked: hold.call,
            returned: Some(hold.granted),
        });
        operations.push(Operation {
            what: What::End(who),
            invoked: hold.ends,
            returned: None,
        });
    }
    for (who, call) in unknown.iter().enumerate() {
        let who = holds.len() + who;
        for what in [What::Acquire(who, None), What::End(who)] {
            operations.push(Operation {
                what,
                invoked: *call,
                returned: None,
            });
        }
    }
    operations
}

/// Holds that follow each other more or less, with tokens that grow more or less.
fn random(rng: &mut fastrand::Rng) -> (Vec<Hold>, Vec<Nanos>) {
    let count = rng.usize(1..=5);
    let mut moment = 5;
    let mut holds: Vec<_> = (0..count)
        .map(|number| {
            let call = (moment - rng.i64(-2..5)).max(0) as Nanos;
            let granted = (moment + rng.i64(-1..4)).max(call as i64 + rng.i64(0..2)) as Nanos;
            moment += rng.i64(0..5);
            // Lost, or at some moment after the grant.
            let ends = match rng.u8(0..4) {
                0 => call,
                _ => granted.max(moment as Nanos) - rng.u64(0..2).min(granted),
            };
            Hold {
                id: id((1, number as u64)),
                token: 1
                    + 10 * number as u64
                    + if rng.u8(0..12) == 0 {
                        10
                    } else {
                        rng.u64(0..10)
                    },
                call,
                granted,
                ends,
            }
        })
        .collect();
    if count > 1 && rng.u8(0..8) == 0 {
        let last = holds.len() - 1;
        let token = holds[last].token;
        holds[last].token = holds[0].token;
        holds[0].token = token;
    }
    holds.sort_by_key(|hold| hold.token);
    let unknown = (0..rng.usize(0..3)).map(|_| rng.u64(0..20)).collect();
    (holds, unknown)
}

#[test]
fn agrees_with_a_search_over_all_orders() {
    let mut rng = fastrand::Rng::with_seed(20_261_121);
    let (mut explained, mut not) = (0, 0);
    for round in 0..20_000 {
        let (holds, unknown) = random(&mut rng);
        let any = search(&operations(&holds, &unknown), 0, State::default());
        let greedy = linearize(&holds);
        assert_eq!(
            any,
            greedy.is_empty(),
            "round {round}: {greedy:?} of {holds:#?}, unknown {unknown:?}"
        );
        *if any { &mut explained } else { &mut not } += 1;
    }
    println!("{explained} histories with an order, {not} without: both checkers agree");
    assert!(explained > 4000 && not > 4000, "{explained} and {not}");
}
