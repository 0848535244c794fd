//! The requests, and how they ended.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::BoxError;

/// How many requests are under way at a time.
const CONCURRENCY: usize = 50;

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
        let client = Client::builder(TokioExecutor::new()).build_http();
        let slots = Arc::new(Semaphore::new(CONCURRENCY));
        let started = Instant::now();
        let mut requests = JoinSet::new();
        for uri in self.uris() {
            let (client, slots) = (client.clone(), Arc::clone(&slots));
            requests.spawn(async move {
                let _slot = slots.acquire_owned().await?;
                pay(&client, uri).await
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

    /// Every order meets every instance in turn.
    fn uris(&self) -> impl Iterator<Item = String> {
        (0..self.requests).map(|n| {
            let order = n % self.orders + 1;
            let turn = (n / self.orders) as usize;
            let address = &self.addresses[turn % self.addresses.len()];
            format!("http://{address}/orders/{order}/pay?ms={}", self.ms)
        })
    }
}

async fn pay(
    client: &Client<HttpConnector, Empty<Bytes>>,
    uri: String,
) -> Result<StatusCode, BoxError> {
    let request = Request::post(uri).body(Empty::new())?;
    let response = client.request(request).await?;
    let status = response.status();
    // Read to its end, so that the connection can be used again.
    response.into_body().collect().await?;
    Ok(status)
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
        let mut uris: Vec<_> = load.uris().collect();
        assert_eq!(uris[0], "http://a/orders/1/pay?ms=5");
        uris.sort();
        uris.dedup();
        assert_eq!(uris.len(), 9);
    }
}
