//! Two instances fail in the middle of a payment, and the order goes on to the next.
//!
//! The first is killed: its lock ends with its lease, and who waits gets it. The second
//! is paused, as by a virtual machine that is moved or a disk that hangs, and cannot notice that
//! its lease ends too. When it goes on, it writes. The layer mostly stops such a handler, but no
//! lock can stop one that is paused right before its write. The storage can: it has been shown a
//! higher token.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use console::style;
use http::StatusCode;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    client::{Answer, Client},
    instances::{Instances, Setup},
    say,
};
use crate::{
    BoxError,
    args::{Demo, OnLost},
    server::millis,
    signal::Stop,
    store::{Order, Store},
};

const ORDER: u32 = 1;
/// How long the payment works during which its instance is killed: to its end it never comes.
const LONG: Duration = Duration::from_secs(60);
/// How long the last payment works.
const SHORT: Duration = Duration::from_millis(50);
/// How long an instance may take for what takes no time.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the order may be left alone after the end of a lease. Usually it is milliseconds.
const LATE: Duration = Duration::from_secs(2);

/// What came out.
#[derive(Debug)]
pub(super) struct Takeover {
    /// The tokens of the three grants, in their order.
    tokens: [i64; 3],
    /// What the paused instance answered after its write.
    late: StatusCode,
    /// What the storage holds at the end.
    stored: Order,
}

impl Takeover {
    /// What should not have happened, if anything.
    pub(super) fn failure(&self) -> Option<String> {
        let expected = Order {
            paid_count: 1,
            refused_stale_writes: 1,
        };
        if !self.tokens.is_sorted_by(|before, after| before < after) {
            Some(format!("the tokens do not grow: {:?}.", self.tokens))
        } else if self.late != StatusCode::CONFLICT || self.stored != expected {
            Some(format!(
                "the late write was answered with {}, and the storage holds {:?}.",
                self.late, self.stored
            ))
        } else {
            None
        }
    }
}

/// Starts three instances, and makes two of them fail.
pub(super) async fn play(args: &Demo, stop: &Stop) -> Result<Option<Takeover>, BoxError> {
    if !cfg!(unix) {
        say("Only on Unix can an instance be paused, so none fails here.");
        return Ok(None);
    }
    let dir = tempfile::tempdir()?;
    let db = dir.path().join("orders.db");
    let store = Store::open(&db)?;
    let setup = Setup {
        backend: args.backend.clone(),
        db,
        ttl: args.ttl,
        lock: true,
        // So that the write is seen: with `Abort` the payment would be dropped before it.
        on_lost: OnLost::Signal,
    };
    let instances = setup.start(3, stop).await?;
    say(format_args!(
        "{}: A is killed and B is paused while they pay order {ORDER}, with a lease of {}\n",
        style("When instances fail").bold(),
        humantime::format_duration(args.ttl),
    ));
    let (tokens, late) = instances
        .during(stop, async |instances| {
            scene(instances, &store, args.ttl).await
        })
        .await?;
    let stored = store.order(ORDER).await?;
    say(format_args!(
        "\n  Order {ORDER}: paid × {}, refused stale writes: {}\n",
        stored.paid_count, stored.refused_stale_writes
    ));
    Ok(Some(Takeover {
        tokens,
        late,
        stored,
    }))
}

async fn scene(
    instances: &mut Instances,
    store: &Store,
    ttl: Duration,
) -> Result<([i64; 3], StatusCode), BoxError> {
    let addresses = instances.addresses();
    let [a, b, c] = [0, 1, 2].map(|n| addresses[n].as_str());
    let client = Client::new();
    let began = Instant::now();
    let tell = |what: &dyn Display| {
        let time = began.elapsed().as_secs_f64();
        say(format_args!("  {time:6.2} s  {what}"));
    };

    // Each asks once the one before has claimed the order, so that it is known who gets it, whether
    // or not the backend serves in arrival order. A claim that is seen is done: nobody is paused who
    // keeps the others from the storage.
    let killed = pay(&client, a, LONG);
    let first = claimed(store, 0, PATIENCE).await?;
    tell(&format_args!("A pays, under token {first}"));
    // So long that it is at work whenever it is paused, and late when it goes on.
    let paused = pay(&client, b, ttl);
    waits(&client, b).await?;
    tell(&"B is asked to pay it too, and waits");

    instances.kill(0).await?;
    let died = Instant::now();
    tell(&"A is killed (kill -9)");
    if killed.await?.is_ok() {
        return Err("A answered before it was killed".into());
    }
    let second = claimed(store, first, ttl + LATE).await?;
    let after = died.elapsed().as_secs_f64();
    tell(&format_args!(
        "B pays, under token {second}, {after:.2} s after A's death"
    ));
    let last = pay(&client, c, SHORT);
    waits(&client, c).await?;
    tell(&"C is asked to pay it too, and waits");
    instances.pause(1)?;
    tell(&"B is paused (kill -STOP)");

    let paid = timeout(ttl + LATE + SHORT, last)
        .await
        .map_err(|_| "C did not get the order in time")???;
    let third = paid.body["fencing_token"]
        .as_i64()
        .ok_or("C did not pay the order")?;
    tell(&format_args!("C has paid, under token {third}"));

    instances.resume(1)?;
    tell(&"B goes on where it was (kill -CONT), and writes");
    let late = timeout(PATIENCE, paused)
        .await
        .map_err(|_| "B did not go on in time")???
        .status;
    tell(&match late {
        StatusCode::CONFLICT => "The storage refuses: it has seen C's token".to_owned(),
        late => format!("B answers with {late}"),
    });
    Ok(([first, second, third], late))
}

/// Requests a payment, beside whatever else happens.
fn pay(client: &Client, address: &str, work: Duration) -> JoinHandle<Result<Answer, BoxError>> {
    let (client, address) = (client.clone(), address.to_owned());
    tokio::spawn(async move { client.pay(&address, ORDER, millis(work)).await })
}

/// Waits until somebody with a token above `last` has claimed the order.
async fn claimed(store: &Store, last: i64, patience: Duration) -> Result<i64, BoxError> {
    let found = async || Ok(store.last_claim(ORDER).await?.filter(|&token| token > last));
    until(patience, found).await
}

/// Waits until somebody waits for the order at this instance.
async fn waits(client: &Client, address: &str) -> Result<(), BoxError> {
    let waiters = async || Ok(client.locks(address).await?["waiting"][0]["waiters"].as_u64());
    until(PATIENCE, waiters).await.map(drop)
}

/// Looks until there is something to see: neither the storage nor an instance calls us.
async fn until<T>(
    patience: Duration,
    look: impl AsyncFn() -> Result<Option<T>, BoxError>,
) -> Result<T, BoxError> {
    let seen = async {
        loop {
            if let Some(seen) = look().await? {
                return Ok(seen);
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(patience, seen)
        .await
        .map_err(|_| "no instance got or asked for the order in time")?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_but_rising_tokens_and_one_refused_write_is_a_failure() {
        let order = |paid_count, refused_stale_writes| Order {
            paid_count,
            refused_stale_writes,
        };
        let failure = |tokens, late, stored| {
            let takeover = Takeover {
                tokens,
                late,
                stored,
            };
            takeover.failure()
        };
        let refused = StatusCode::CONFLICT;
        assert_eq!(failure([1, 2, 3], refused, order(1, 1)), None);
        assert!(failure([1, 2, 2], refused, order(1, 1)).is_some());
        assert!(failure([1, 2, 3], StatusCode::OK, order(1, 1)).is_some());
        assert!(failure([1, 2, 3], refused, order(2, 1)).is_some());
        assert!(failure([1, 2, 3], refused, order(1, 0)).is_some());
    }
}
