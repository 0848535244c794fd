//! The figures of one run.

use std::{collections::HashMap, time::Duration};

use super::load::Outcome;
use crate::store::{Order, Payment};

/// Requests that came closer to each other than this, in µs, came at the same time: instances
/// take turns on the processor, and connect at their first requests.
const SAME_TIME: i64 = 10_000;

/// What became of the payments of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) accepted: u32,
    pub(crate) errors: u32,
    /// Accepted payments that the orders do not show.
    pub(crate) lost_updates: i64,
    pub(crate) refused_stale_writes: i64,
    /// Of the lock, if there was one.
    pub(crate) grants: Option<Grants>,
    pub(crate) took: Duration,
}

/// How long payments waited, and in which order they were served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grants {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// The share of grants, in percent, that overtook nobody who came before.
    pub(crate) in_order: f64,
    /// Whether each token was above that of the order's grant before.
    pub(crate) tokens_grew: bool,
}

impl Figures {
    pub(crate) fn new(
        outcome: &Outcome,
        stored: Order,
        payments: &[Payment],
        locked: bool,
    ) -> Self {
        Self {
            accepted: outcome.accepted,
            errors: outcome.errors,
            lost_updates: i64::from(outcome.accepted) - stored.paid_count,
            refused_stale_writes: stored.refused_stale_writes,
            grants: locked.then(|| Grants::new(payments)).flatten(),
            took: outcome.took,
        }
    }
}

impl Grants {
    /// Of payments in the order of their grants; `None` if there are none.
    fn new(payments: &[Payment]) -> Option<Self> {
        let mut waits: Vec<_> = payments
            .iter()
            .map(|p| u64::try_from(p.granted - p.arrived).unwrap_or(0))
            .collect();
        waits.sort_unstable();
        let last = waits.len().checked_sub(1)?;
        let overtook = payments.iter().enumerate().filter(|&(n, granted)| {
            payments[n + 1..].iter().any(|later| {
                later.order == granted.order && later.arrived + SAME_TIME < granted.arrived
            })
        });
        let share = overtook.count() as f64 / waits.len() as f64;
        Some(Self {
            p50: Duration::from_micros(waits[last / 2]),
            p99: Duration::from_micros(waits[last * 99 / 100]),
            in_order: 100.0 * (1.0 - share),
            tokens_grew: tokens_grew(payments),
        })
    }
}

/// Of payments in the order of their grants.
fn tokens_grew(payments: &[Payment]) -> bool {
    let mut last = HashMap::new();
    payments.iter().all(|payment| {
        let before = last.insert(payment.order, payment.fence).flatten();
        payment.fence.is_some() && before < payment.fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(order: u32, arrived: i64, granted: i64) -> Payment {
        Payment {
            order,
            instance: "A".into(),
            arrived,
            granted,
            written: granted + 1,
            paid_count: 1,
            fence: Some(granted),
        }
    }

    #[test]
    fn a_grant_before_an_earlier_arrival_overtakes() {
        let fair = [
            granted(1, 0, 10_000),
            granted(2, 50_000, 60_000),
            granted(1, 5_000, 70_000),
        ];
        assert_eq!(Grants::new(&fair).unwrap().in_order, 100.0);

        let unfair = [granted(1, 50_000, 60_000), granted(1, 0, 70_000)];
        assert_eq!(Grants::new(&unfair).unwrap().in_order, 50.0);
        assert_eq!(Grants::new(&[]), None);
    }

    #[test]
    fn tokens_must_grow_for_each_order() {
        let mut payments = [granted(1, 0, 10), granted(2, 0, 5), granted(1, 0, 20)];
        assert!(tokens_grew(&payments));
        payments[2].fence = Some(10);
        assert!(!tokens_grew(&payments));
        payments[2].fence = None;
        assert!(!tokens_grew(&payments));
    }

    #[test]
    fn what_the_orders_do_not_show_is_lost() {
        let outcome = Outcome {
            accepted: 10,
            ..Outcome::default()
        };
        let stored = Order {
            paid_count: 4,
            refused_stale_writes: 0,
        };
        let figures = Figures::new(&outcome, stored, &[], false);
        assert_eq!(figures.lost_updates, 6);
        assert_eq!(figures.grants, None);
    }
}
