//! Clients that leave, and instances that are asked to end. Leases last an hour here, so what the
//! others get was given back.

use std::time::Duration;

use tokio::time::Instant;

use super::{Fleet, Settings, assert_refusal};
use crate::support::{LEAVES, SOON};

/// Who leaves the queue of one instance leaves no place in it to those of others.
#[tokio::test]
async fn a_client_that_leaves_the_queue() {
    let mut fleet = Fleet::of(2).await;
    for leave in LEAVES {
        let mut holder = fleet.caller(0, "fifo/7", "holder").await;
        let holding = fleet.stage.enters("holder").await;
        let mut leaver = fleet.caller_who_may(leave, 1, "fifo/7", "leaver").await;
        fleet.waiters("7", 1).await;
        let mut next = fleet.caller(0, "fifo/7", "next").await;
        fleet.waiters("7", 2).await;
        leaver.leave();
        fleet.waiters("7", 1).await;
        holding.go().await;
        fleet.stage.enters("next").await.go().await;
        assert_eq!(holder.status().await, 200, "{leave:?}");
        assert_eq!(next.status().await, 200, "{leave:?}");
        fleet.all_free().await;
    }
}

/// Who leaves a handler of one instance has it dropped, and another instance has the key.
#[tokio::test]
async fn a_client_that_leaves_its_handler() {
    let mut fleet = Fleet::of(2).await;
    for leave in LEAVES {
        let mut leaver = fleet.caller_who_may(leave, 0, "fifo/7", "leaver").await;
        let dropped = fleet.stage.enters("leaver").await;
        let mut next = fleet.caller(1, "fifo/7", "next").await;
        fleet.waiters("7", 1).await;
        leaver.leave();
        let next_in = fleet.stage.enters("next").await;
        dropped.over().await;
        next_in.go().await;
        assert_eq!(next.status().await, 200, "{leave:?}");
        fleet.all_free().await;
    }
}

/// A detached handler keeps its lock from the other instances until it has finished.
#[tokio::test]
async fn a_client_that_leaves_a_detached_handler() {
    let mut fleet = Fleet::of(2).await;
    let mut leaver = fleet.caller(0, "detached/7", "leaver").await;
    let mut detached = fleet.stage.enters("leaver").await;
    let mut next = fleet.caller(1, "fifo/7", "next").await;
    fleet.waiters("7", 1).await;
    leaver.leave();
    let busy = fleet.ask(1, "POST", "/brief/7").await.expect("no panic");
    assert_refusal(&busy, 409, "lock-timeout");
    assert_eq!(detached.ask("held").await, "true");
    assert!(fleet.stage.is_empty());
    detached.go().await;
    fleet.stage.enters("next").await.go().await;
    assert_eq!(next.status().await, 200);
    fleet.all_free().await;
}

/// SIGTERM: waiters of this instance are refused at once, a holder may finish, and the lock is
/// the other instance's as soon as it has.
#[tokio::test]
async fn an_instance_that_ends_lets_its_holders_finish() {
    let mut fleet = Fleet::of(2).await;
    let mut holder = fleet.caller(0, "fifo/7", "holder").await;
    let mut holding = fleet.stage.enters("holder").await;
    let refused = fleet.ask(0, "POST", "/fifo/7");
    fleet.waiters("7", 1).await;
    let mut next = fleet.caller(1, "fifo/7", "next").await;
    fleet.waiters("7", 2).await;

    fleet.instances[0].process.terminate();
    assert_refusal(&refused.await.expect("no panic"), 503, "draining");
    fleet.waiters("7", 1).await;
    // The grace goes on.
    assert_eq!(holding.ask("held").await, "true");
    assert!(fleet.stage.is_empty());

    holding.go().await;
    let next_in = fleet.stage.enters("next").await;
    assert_eq!(holder.status().await, 200);
    let mut ended = fleet.instances.remove(0).process;
    assert!(ended.wait_for("drained"), "{}", ended.log());
    assert!(ended.wait(), "it ended well");
    next_in.go().await;
    assert_eq!(next.status().await, 200);
    fleet.all_free().await;
}

/// A holder that outstays the grace is stopped, and its lock given back: the other instance does
/// not wait for the hour of its lease.
#[tokio::test]
async fn an_instance_that_ends_gives_back_what_it_holds() {
    let grace = Duration::from_millis(600);
    let settings = Settings {
        grace,
        operation: SOON,
    };
    let mut fleet = Fleet::with(None, 2, settings).await;
    let mut holder = fleet.caller(0, "fifo/7", "holder").await;
    let holding = fleet.stage.enters("holder").await;
    let mut next = fleet.caller(1, "fifo/7", "next").await;
    fleet.waiters("7", 1).await;
    let begun = Instant::now();
    fleet.instances[0].process.terminate();
    let next_in = fleet.stage.enters("next").await;
    assert!(begun.elapsed() >= grace, "{:?}", begun.elapsed());
    holding.over().await;
    assert_eq!(holder.status().await, 500, "its lock was lost");
    let mut ended = fleet.instances.remove(0).process;
    assert!(ended.wait_for("drained"), "{}", ended.log());
    assert!(ended.wait(), "it ended well");
    next_in.go().await;
    assert_eq!(next.status().await, 200);
    fleet.all_free().await;
}
