//! Instances that die or hang, holding or waiting.

use tokio::time::Instant;

use super::{Fleet, LATE, TTL, assert_refusal, body, status};
use crate::{servers::Process, support::soon};

impl Fleet {
    /// So many processes, our own among them, have an inbox at the server.
    async fn processes(&self, count: usize) {
        let inboxes = format!("{}*", self.prefix);
        let known = || self.server().command(&["PUBSUB", "CHANNELS", &inboxes]);
        soon("the server knows who is there", async {
            while known().texts().len() != count {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

/// The lease of a holder that was killed ends when the server said it would, and the next one has
/// the key then, with a greater token.
#[tokio::test]
async fn a_killed_holder_is_succeeded_at_the_end_of_its_lease() {
    let mut fleet = Fleet::of(2).await;
    let _holder = fleet.caller(0, "mortal/7", "holder").await;
    let holder = fleet.stage.enters("holder").await;
    let mut next = fleet.caller(1, "mortal/7", "next").await;
    fleet.waiters("7", 1).await;

    let asked = Instant::now();
    let remains = fleet.remaining("7").await;
    fleet.instances[0].process.kill();
    let killed = Instant::now();
    let token = holder.token;
    holder.over().await;
    let next_in = fleet.stage.enters("next").await;
    // It may have been renewed between the look and the kill.
    assert!(asked.elapsed() >= remains, "{:?}", asked.elapsed());
    assert!(killed.elapsed() <= TTL + LATE, "{:?}", killed.elapsed());
    assert!(next_in.token > token);
    next_in.go().await;
    assert_eq!(next.status().await, 200);
    fleet.all_free().await;
}

/// A waiter whose process was killed costs those behind it nothing: not even the time in which an
/// offer could be taken.
#[tokio::test]
async fn a_killed_waiter_costs_nothing() {
    let mut fleet = Fleet::of(3).await;
    let mut holder = fleet.caller(0, "fifo/7", "holder").await;
    let holding = fleet.stage.enters("holder").await;
    let mut doomed = Vec::new();
    for n in 1..=5 {
        doomed.push(fleet.caller(1, "fifo/7", "doomed").await);
        fleet.waiters("7", n).await;
    }
    let mut next = fleet.caller(2, "fifo/7", "next").await;
    fleet.waiters("7", 6).await;
    fleet.processes(4).await;
    fleet.instances[1].process.kill();
    // Its sockets are closed; the server has to have read that.
    fleet.processes(3).await;

    let freed = Instant::now();
    holding.go().await;
    let next_in = fleet.stage.enters("next").await;
    assert!(freed.elapsed() < LATE, "{:?}", freed.elapsed());
    next_in.go().await;
    assert_eq!(holder.status().await, 200);
    assert_eq!(next.status().await, 200);
    fleet.all_free().await;
}

/// A process that hangs costs those behind it the second in which it could have taken its offer,
/// however many it has in the queue. When it goes on, its own are served in their order.
#[tokio::test]
async fn a_hung_waiter_costs_one_offer() {
    const HUNG: usize = 5;
    let mut fleet = Fleet::of(3).await;
    let mut callers = vec![fleet.caller(0, "fifo/7", "holder").await];
    let holding = fleet.stage.enters("holder").await;
    for n in 0..HUNG {
        callers.push(fleet.caller(1, "fifo/7", n).await);
        fleet.waiters("7", n as u64 + 1).await;
    }
    callers.push(fleet.caller(2, "fifo/7", "next").await);
    fleet.waiters("7", HUNG as u64 + 1).await;
    let hung = Paused::new(&fleet.instances[1].process);

    let freed = Instant::now();
    holding.go().await;
    let next_in = fleet.stage.enters("next").await;
    let offer = std::time::Duration::from_secs(1);
    let took = freed.elapsed();
    assert!(took >= offer && took < offer * 2 + LATE, "{took:?}");

    drop(hung);
    // They ask again, each at its place.
    fleet.waiters("7", HUNG as u64).await;
    let mut before = next_in.token;
    next_in.go().await;
    for n in 0..HUNG {
        let actor = fleet.stage.enters(&n.to_string()).await;
        assert!(actor.token > before);
        before = actor.token;
        actor.go().await;
    }
    for mut caller in callers {
        assert_eq!(caller.status().await, 200);
    }
    fleet.all_free().await;
}

/// A process that is stopped for longer than its lease: the next one has the key with a greater
/// token. When the old one goes on, its handler is dropped before it can do more, or is told, and
/// storage that has seen the greater token refuses it; its end touches nothing of its successor.
#[tokio::test]
async fn a_holder_that_was_stopped_for_too_long() {
    let mut fleet = Fleet::of(2).await;
    let mut stopped = fleet.caller(0, "mortal/7", "stopped").await;
    let dropped = fleet.stage.enters("stopped").await;
    let mut warned = fleet.caller(0, "told/8", "warned").await;
    let mut told = fleet.stage.enters("warned").await;
    // Claimed at the first contact, before anything is read.
    let mut storage = told.token;

    let pause = Paused::new(&fleet.instances[0].process);
    let mut next = Vec::new();
    let mut successors = Vec::new();
    for (id, before) in [("7", dropped.token), ("8", told.token)] {
        let route = format!("fifo/{id}");
        next.push(fleet.caller(1, &route, "next").await);
        let actor = fleet.stage.enters("next").await;
        assert!(actor.token > before, "{id}");
        successors.push(actor);
    }
    storage = storage.max(successors[1].token);
    drop(pause);

    dropped.over().await;
    assert_eq!(stopped.status().await, 500, "lost");
    assert!(told.says().await.starts_with("lost "));
    assert_eq!(told.ask("held").await, "false");
    assert!(told.token < storage, "a stale write is refused");
    told.go().await;
    assert_eq!(warned.status().await, 200, "its handler decides");

    for (id, actor) in ["7", "8"].iter().zip(successors) {
        let holders = fleet.key(id).await.holders;
        let token = holders[0].fencing_token.map(|token| token.get());
        assert_eq!(token, Some(actor.token), "the successor's");
        actor.go().await;
    }
    for mut next in next {
        assert_eq!(next.status().await, 200);
    }
    fleet.all_free().await;
}

/// A process that is stopped until this is dropped.
struct Paused<'a>(&'a Process);

impl<'a> Paused<'a> {
    fn new(process: &'a Process) -> Self {
        process.pause();
        Self(process)
    }
}

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.resume();
    }
}

/// A checkout whose process was killed in the middle is run again by another instance, or refused
/// for good, as its route says; never before the lease has ended.
#[tokio::test]
async fn a_killed_checkout_is_run_again_or_refused() {
    let mut fleet = Fleet::of(2).await;
    let (mut clients, mut charges) = (Vec::new(), Vec::new());
    for route in ["checkout/7", "careful/7"] {
        clients.push(fleet.caller(0, route, "charge").await);
        charges.push(fleet.stage.enters("charge").await);
        let again = fleet.ask(1, "POST", &fleet.path(route, "charge"));
        assert_refusal(&again.await.expect("no panic"), 409, "in-progress");
    }
    fleet.instances[0].process.kill();
    let died = Instant::now();
    for charge in charges {
        charge.over().await;
    }

    let path = fleet.path("checkout/7", "charge");
    let (charge, answer) = loop {
        let mut answer = fleet.ask(1, "POST", &path);
        tokio::select! {
            charge = fleet.stage.entered() => break (charge, answer),
            answer = &mut answer => {
                assert_refusal(&answer.expect("no panic"), 409, "in-progress");
            }
        }
    };
    assert!(died.elapsed() <= TTL + LATE, "{:?}", died.elapsed());
    let token = charge.token;
    charge.go().await;
    let live = answer.await.expect("no panic");
    assert_eq!((status(&live), body(&live)), (200, &*token.to_string()));
    let replay = fleet.ask(1, "POST", &path).await.expect("no panic");
    assert!(replay.contains("idempotent-replayed: true"), "{replay}");
    assert_eq!(body(&replay), body(&live));

    let path = fleet.path("careful/7", "charge");
    let answer = loop {
        let answer = fleet.ask(1, "POST", &path).await.expect("no panic");
        if !answer.contains("in-progress") {
            break answer;
        }
    };
    assert_eq!(status(&answer), 409);
    assert!(answer.contains("outcome-unknown"), "{answer}");
    assert!(fleet.stage.is_empty());
}

/// A leader's process is killed: of those who wait for it elsewhere one leads, once its lease has
/// ended, and the others follow that one.
#[tokio::test]
async fn a_killed_leader_has_one_successor() {
    let mut fleet = Fleet::of(3).await;
    let path = fleet.path("report/7", "report");
    let _cut = fleet.ask(0, "GET", &path);
    let leader = fleet.stage.enters("report").await;
    assert_ne!(leader.token, 0);
    let crowd: Vec<_> = (0..20)
        .map(|n| fleet.ask(1 + n % 2, "GET", &path))
        .collect();
    fleet.waiters_at(1, 10).await;
    fleet.waiters_at(2, 10).await;
    fleet.instances[0].process.kill();
    let died = Instant::now();
    let before = leader.token;
    leader.over().await;

    let next = fleet.stage.enters("report").await;
    assert!(died.elapsed() <= TTL + LATE, "{:?}", died.elapsed());
    assert!(next.token > before, "{} after {before}", next.token);
    assert!(fleet.stage.is_empty(), "the others wait on");
    let token = next.token;
    next.go().await;
    // All of them are in before any of them is let go.
    let mut together = Vec::new();
    for _ in 0..19 {
        together.push(fleet.stage.enters("report").await);
    }
    for follower in together {
        assert_eq!(follower.token, 0);
        follower.go().await;
    }
    let mut led = 0;
    for answer in crowd {
        let answer = answer.await.expect("no panic");
        assert_eq!(status(&answer), 200, "{answer}");
        led += usize::from(body(&answer) == token.to_string());
    }
    assert_eq!(led, 1);
}
