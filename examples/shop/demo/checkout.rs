//! One checkout that its client sends again and again, to every instance.

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use bytes::Bytes;
use console::style;
use http::StatusCode;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{client::Client, load::CONCURRENCY, say};
use crate::{BoxError, store::Store};

/// How often it is sent.
const TIMES: usize = 200;

/// What came out.
#[derive(Debug, Default)]
pub(super) struct Checkout {
    charges: i64,
    live: usize,
    replays: usize,
    /// Different answers, which should be one.
    answers: BTreeSet<Bytes>,
    /// Answered otherwise, or not at all.
    errors: usize,
}

impl Checkout {
    /// What should not have happened, if anything.
    pub(super) fn failure(&self) -> Option<String> {
        let Self {
            charges,
            live,
            replays,
            answers,
            errors,
        } = self;
        let is_right = *charges == 1
            && (*live, *replays) == (1, TIMES - 1)
            && answers.len() == 1
            && *errors == 0;
        (!is_right).then(|| {
            format!(
                "of one checkout there are {charges} charges, {live} first answers, {replays} replays, \
                 {} different answers and {errors} errors.",
                answers.len()
            )
        })
    }
}

/// Sends one checkout to all instances at once, many times.
pub(super) async fn play(
    store: &Store,
    addresses: &[String],
    ms: u64,
) -> Result<Checkout, BoxError> {
    // A new one in each run: the store may remember the last run's.
    let key = format!(
        "{:032x}",
        std::hash::BuildHasher::hash_one(
            &std::hash::RandomState::new(),
            (std::process::id(), addresses),
        )
    );
    let began = Instant::now();
    let mut checkout = send(addresses, &key, ms).await;
    let took = began.elapsed();
    checkout.charges = store.charges(&key).await?;
    say(format_args!(
        "{}: one checkout, sent {TIMES} times: {} charged, {} replays of the same answer, in {:.2} s",
        style("When a client tries again").bold(),
        checkout.charges,
        checkout.replays,
        took.as_secs_f64(),
    ));
    Ok(checkout)
}

async fn send(addresses: &[String], key: &str, ms: u64) -> Checkout {
    let client = Client::new();
    let slots = Arc::new(Semaphore::new(CONCURRENCY));
    let mut requests = JoinSet::new();
    for n in 0..TIMES {
        let address = addresses[n % addresses.len()].clone();
        let (client, key, slots) = (client.clone(), key.to_owned(), slots.clone());
        requests.spawn(async move {
            let _slot = slots.acquire_owned().await?;
            client.check_out(&address, &key, ms).await
        });
    }
    let mut checkout = Checkout::default();
    while let Some(done) = requests.join_next().await {
        match done {
            Ok(Ok((StatusCode::CREATED, answer, replayed))) => {
                checkout.replays += usize::from(replayed);
                checkout.live += usize::from(!replayed);
                checkout.answers.insert(answer);
            }
            _ => checkout.errors += 1,
        }
    }
    checkout
}
