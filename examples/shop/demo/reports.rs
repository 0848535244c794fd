//! One report that everybody wants at once, of every instance.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use console::style;
use http::StatusCode;
use tokio::task::JoinSet;

use super::{client::Client, say};
use crate::{BoxError, store::Store};

/// How many ask for it.
const TIMES: usize = 300;
/// How long it takes to build, in ms.
const MS: u64 = 500;
/// A report like any other.
const ID: u32 = 7;

/// What came out.
#[derive(Debug, Default)]
pub(super) struct Reports {
    rebuilds: i64,
    answers: usize,
    /// Different texts, which should be one.
    texts: BTreeMap<String, usize>,
    followers: usize,
}

impl Reports {
    /// What should not have happened, if anything.
    pub(super) fn failure(&self) -> Option<String> {
        let is_right = self.rebuilds == 1 && self.answers == TIMES && self.texts.len() == 1;
        (!is_right).then(|| {
            format!(
                "of one report, asked for {TIMES} times, there are {} rebuilds, {} answers and {} \
                 different texts.",
                self.rebuilds,
                self.answers,
                self.texts.len()
            )
        })
    }
}

/// Asks all instances for one report at once.
pub(super) async fn play(store: &Store, addresses: &[String]) -> Result<Reports, BoxError> {
    let client = Client::new();
    let began = Instant::now();
    let mut requests = JoinSet::new();
    for n in 0..TIMES {
        let (client, address) = (client.clone(), addresses[n % addresses.len()].clone());
        requests.spawn(async move { client.report(&address, ID, MS).await });
    }
    let mut reports = Reports::default();
    while let Some(done) = requests.join_next().await {
        let Ok(Ok(answer)) = done else { continue };
        if answer.status != StatusCode::OK {
            continue;
        }
        reports.answers += 1;
        let text = |name: &str| answer.body[name].as_str().unwrap_or_default();
        *reports.texts.entry(text("text").to_owned()).or_default() += 1;
        reports.followers += usize::from(text("flight") == "follows");
    }
    let took = began.elapsed();
    reports.rebuilds = store.rebuilds(ID).await?;
    say(format_args!(
        "{}: one report of {:?}, asked for {TIMES} times: {} rebuilt, {} waited for it and went on \
         together, in {:.2} s\n",
        style("When a cache is empty").bold(),
        Duration::from_millis(MS),
        reports.rebuilds,
        reports.followers,
        took.as_secs_f64(),
    ));
    Ok(reports)
}
