//! The requests, and how they ended.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::StatusCode;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::{sync::Semaphore, task::JoinSet};

use super::client::Client;
use crate::BoxError;

/// How many requests are under way at a time.
pub(super) const CONCURRENCY: usize = 50;

/// What to fire.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) addresses: Vec<String>,
    pub(crate) orders: u32,
    pub(crate) requests: u32,
    pub(crate) ms: u64,
}

/// How it ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Answered with 200.
    pub(crate) accepted: u32,
    /// Answered with another status, or not at all.
    pub(crate) errors: u32,
    pub(crate) took: Duration,
}

impl Load {
    /// Fires the requests, with a progress bar where somebody sees it.
    pub(crate) async fn fire(&self, label: &'static str) -> Outcome {
        let bar = ProgressBar::new(self.requests.into()).with_message(label);
        bar.set_style(
            ProgressStyle::with_template(
                "{msg:>16} {wide_bar:.cyan/dim} {pos:>4}/{len} {elapsed:>4}",
            )
            .expect("the template is valid")
            .progress_chars("━╸─"),
        );
        let client = Client::new();
        let slots = Arc::new(Semaphore::new(CONCURRENCY));
        let started = Instant::now();
        let mut requests = JoinSet::new();
        for (address, order) in self.payments() {
            let (client, slots) = (client.clone(), Arc::clone(&slots));
            let (address, ms) = (address.to_owned(), self.ms);
            requests.spawn(async move {
                let _slot = slots.acquire_owned().await?;
                let answer = client.pay(&address, order, ms).await?;
                Ok::<_, BoxError>(answer.status)
            });
        }
        let mut outcome = Outcome::default();
        while let Some(done) = requests.join_next().await {
            match done {
                Ok(Ok(StatusCode::OK)) => outcome.accepted += 1,
                _ => outcome.errors += 1,
            }
            bar.inc(1);
        }
        outcome.took = started.elapsed();
        bar.finish_and_clear();
        outcome
    }

    /// Where to pay which order: every order meets every instance in turn.
    fn payments(&self) -> impl Iterator<Item = (&str, u32)> {
        (0..self.requests).map(|n| {
            let turn = (n / self.orders) as usize;
            let address = &self.addresses[turn % self.addresses.len()];
            (address.as_str(), n % self.orders + 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_meets_every_instance() {
        let load = Load {
            addresses: vec!["a".into(), "b".into(), "c".into()],
            orders: 3,
            requests: 9,
            ms: 5,
        };
        let mut payments: Vec<_> = load.payments().collect();
        assert_eq!(payments[0], ("a", 1));
        payments.sort();
        payments.dedup();
        assert_eq!(payments.len(), 9);
    }
}
