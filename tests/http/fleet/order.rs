//! Who is next, and who is together, when requests come to several instances.

use std::time::Duration;

use tokio::time::Instant;

use super::{Fleet, LATE, assert_refusal, body, status};
use crate::servers::scratch::ScratchDir;

/// Three instances add to one number in a file. The same without the lock loses some, so the test
/// sees what is lost.
#[tokio::test]
async fn no_update_is_lost() {
    const ADDITIONS: usize = 120;
    let fleet = Fleet::of(3).await;
    let dir = ScratchDir::new();
    for (route, locked) in [("fifo", true), ("unlocked", false)] {
        let file = dir.path().join(route);
        std::fs::write(&file, "0").expect("a file");
        let path = format!("/{route}/7?counter={}", file.display());
        let asked: Vec<_> = (0..ADDITIONS)
            .map(|n| fleet.ask(n % 3, "POST", &path))
            .collect();
        let mut tokens = Vec::new();
        for answer in asked {
            let answer = answer.await.expect("no panic");
            assert_eq!(status(&answer), 200, "{answer}");
            tokens.push(body(&answer).to_owned());
        }
        let sum: usize = std::fs::read_to_string(&file)
            .expect("a file")
            .parse()
            .expect("a number");
        assert_eq!(sum == ADDITIONS, locked, "{route}: {sum} of {ADDITIONS}");
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len() == ADDITIONS, locked, "a token for each");
    }
    fleet.all_free().await;
}

/// Sixty waiters that came one after the other to three instances are served in that order, under
/// tokens that grow.
#[tokio::test]
async fn sixty_waiters_of_three_instances_in_their_order() {
    const WAITERS: usize = 60;
    let mut fleet = Fleet::of(3).await;
    let mut callers = vec![fleet.caller(0, "fifo/7", "first").await];
    let mut inside = fleet.stage.enters("first").await;
    for number in 0..WAITERS {
        // Now this instance, now that one, and sometimes the same again.
        let at = fastrand::usize(..3);
        callers.push(fleet.caller(at, "fifo/7", number).await);
        fleet.waiters("7", number as u64 + 1).await;
    }
    let mut ran = Vec::new();
    for _ in 0..WAITERS {
        assert!(fleet.stage.is_empty(), "one at a time");
        let token = inside.token;
        inside.go().await;
        inside = fleet.stage.entered().await;
        assert!(inside.token > token);
        ran.push(inside.name.parse::<usize>().expect("a number"));
    }
    inside.go().await;
    assert_eq!(ran, (0..WAITERS).collect::<Vec<_>>());
    for mut caller in callers {
        assert_eq!(caller.status().await, 200);
    }
    fleet.all_free().await;
}

/// Requests that do not get the lock in time are refused with when to come again, whoever holds
/// it where; nothing of them is left in the queue.
#[tokio::test]
async fn a_key_that_is_held_elsewhere_is_refused_in_time() {
    let mut fleet = Fleet::of(2).await;
    let mut holder = fleet.caller(0, "fifo/7", "holder").await;
    let inside = fleet.stage.enters("holder").await;

    let busy = fleet.ask(1, "POST", "/try/7").await.expect("no panic");
    assert_refusal(&busy, 409, "lock-busy");

    let begun = Instant::now();
    let waited = fleet.ask(1, "POST", "/brief/7").await.expect("no panic");
    let took = begun.elapsed();
    assert_refusal(&waited, 409, "lock-timeout");
    let wait = Duration::from_millis(500);
    assert!(took >= wait && took < wait + LATE, "{took:?}");
    fleet.waiters("7", 0).await;

    // Another key is nobody's business.
    let other = fleet.ask(1, "POST", "/try/8").await.expect("no panic");
    assert_eq!(status(&other), 200, "{other}");
    assert!(fleet.stage.is_empty());
    inside.go().await;
    assert_eq!(holder.status().await, 200);
    let free = fleet.ask(1, "POST", "/fifo/7").await.expect("no panic");
    assert_eq!(status(&free), 200, "{free}");
    fleet.all_free().await;
}

/// Readers of two instances are inside together. A writer of the third comes after them and before
/// the readers that came later.
#[tokio::test]
async fn readers_of_all_instances_and_a_writer_between() {
    let mut fleet = Fleet::of(3).await;
    let mut answers = Vec::new();
    let mut early = Vec::new();
    for at in [0, 1, 0] {
        answers.push(fleet.ask(at, "GET", &fleet.path("shared/7", "early")));
        early.push(fleet.stage.enters("early").await);
    }
    answers.push(fleet.ask(2, "POST", &fleet.path("shared/7", "writer")));
    fleet.waiters("7", 1).await;
    for (n, at) in [(2, 0), (3, 1), (4, 2)] {
        answers.push(fleet.ask(at, "GET", &fleet.path("shared/7", "late")));
        fleet.waiters("7", n).await;
    }
    assert!(fleet.stage.is_empty(), "nobody overtakes");
    let before = early.iter().map(|reader| reader.token).max();
    for reader in early {
        assert!(fleet.stage.is_empty(), "not beside a reader");
        reader.go().await;
    }
    let writer = fleet.stage.enters("writer").await;
    assert!(Some(writer.token) > before);
    assert!(fleet.stage.is_empty(), "alone");
    let token = writer.token;
    writer.go().await;
    let mut late = Vec::new();
    for _ in 0..3 {
        late.push(fleet.stage.enters("late").await);
    }
    for reader in late {
        assert!(reader.token > token);
        reader.go().await;
    }
    for answer in answers {
        let answer = answer.await.expect("no panic");
        assert_eq!(status(&answer), 200, "{answer}");
    }
    fleet.all_free().await;
}

/// An instance may hand its grant on among its own, four times here; then it is the other's turn.
#[tokio::test]
async fn batches_take_turns() {
    const EACH: usize = 12;
    const BATCH: usize = 4;
    let mut fleet = Fleet::of(2).await;
    let mut callers = vec![fleet.caller(0, "batched/7", 0).await];
    let mut inside = fleet.stage.entered().await;
    // One of each instance stands in the queue, once it is the other's turn.
    for n in 0..EACH * 2 {
        callers.push(fleet.caller(1 - n % 2, "batched/7", 1 - n % 2).await);
    }
    fleet.waiters_at(0, EACH).await;
    fleet.waiters_at(1, EACH).await;
    fleet.waiters("7", 1).await;
    let mut ran = Vec::new();
    for _ in 0..EACH * 2 {
        let token = inside.token;
        ran.push(inside.name.clone());
        assert!(fleet.stage.is_empty(), "one at a time");
        // The other instance asks again when its batch is over, which takes a moment.
        let others = ran.iter().filter(|name| **name != inside.name).count();
        let all = EACH + usize::from(inside.name == "1");
        fleet.waiters("7", (all - others).min(1) as u64).await;
        inside.go().await;
        inside = fleet.stage.entered().await;
        assert!(inside.token > token, "a token for each");
    }
    inside.go().await;
    for mut caller in callers {
        assert_eq!(caller.status().await, 200);
    }
    let turns: Vec<_> = ran.chunk_by(|a, b| a == b).map(<[String]>::len).collect();
    // Only the first may be short, and the last is long when nobody else is left.
    let (_, turns) = turns.split_last().expect("some");
    assert!(turns.iter().all(|turn| *turn <= BATCH), "{ran:?}");
    assert!(turns.len() >= EACH / BATCH, "{ran:?}");
    fleet.all_free().await;
}
