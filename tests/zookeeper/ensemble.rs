//! Three servers that agree: one of them dies, hangs or is cut off, or all of them restart.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, Loss, ZooKeeperBackend, backend::AcquireRequest,
};

use crate::{
    child::Child,
    servers::{Ensemble, zookeeper::TICK},
    support::{
        SESSION, SLACK, begin, connect_with, hold, key, patient, served, standing, try_it, until,
        until_it_works,
    },
};

/// The time in which three servers on a busy machine agree on a new leader.
const ELECTION: Duration = Duration::from_secs(4);

/// Longer than that: a lock outlives an election.
const LASTING: Duration = Duration::from_secs(30);

/// What does not depend on what happens to which server.
async fn survives(ensemble: &Ensemble, harm: impl FnOnce(usize), mend: impl FnOnce(usize)) {
    let connect = || {
        ZooKeeperBackend::builder(&ensemble.url())
            .with_session_timeout(LASTING)
            // Waiters stay for as long.
            .with_operation_timeout(Duration::from_secs(10))
            .connect()
    };
    let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
    let held = hold(&one, &key(1)).await;
    let next = hold(&two, &key(2)).await;
    let first = begin(&two, patient(&key(1)));
    until("it waits", async || {
        two.inspect(&key(1)).await.unwrap().waiters == 1
    })
    .await;
    let second = begin(&one, patient(&key(1)));
    until("both wait", async || {
        two.inspect(&key(1)).await.unwrap().waiters == 2
    })
    .await;

    let leader = ensemble.leader();
    let begun = Instant::now();
    harm(leader);
    // No lock is lost, and none is granted twice.
    until("both are there again", async || {
        held.renew().await.is_ok() && next.renew().await.is_ok()
    })
    .await;
    until("there is a leader", async || {
        let refused = try_it(&one, &key(2)).await.unwrap_err();
        refused.kind() == BackendErrorKind::Contended
    })
    .await;
    println!("it served {:?} after that", begun.elapsed());
    assert!(!first.is_finished() && !second.is_finished());
    held.renew().await.unwrap();
    // The queue is as it was.
    held.release().await.unwrap();
    let (first, _) = served(first, ELECTION).await;
    assert!(!second.is_finished());
    assert!(first.fencing_token() > held.fencing_token());
    first.release().await.unwrap();
    let (second, _) = served(second, ELECTION).await;
    assert!(second.fencing_token() > first.fencing_token());
    mend(leader);
    second.release().await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_costs_no_lock_and_no_place() {
    let ensemble = Ensemble::start();
    let server = |leader: usize| &ensemble.servers[leader];
    survives(&ensemble, |leader| server(leader).kill(), |_| {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hangs_costs_no_lock_and_no_place() {
    let ensemble = Ensemble::start();
    let server = |leader: usize| &ensemble.servers[leader];
    let harm = |leader| server(leader).pause();
    survives(&ensemble, harm, |leader| server(leader).resume()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_successor_of_a_killed_process_comes_when_its_session_has_ended() {
    let ensemble = Ensemble::start();
    let backend = connect_with(&ensemble.url(), SESSION).await;
    let mut child = Child::start(&ensemble.url());
    child.hold("1");
    let waiting = begin(&backend, patient(&key(1)));
    until("it waits", async || {
        backend.inspect(&key(1)).await.unwrap().waiters == 1
    })
    .await;
    let begun = Instant::now();
    child.kill();
    let (lease, _) = served(waiting, SESSION + Duration::from_secs(1) + SLACK).await;
    println!("served {:?} after the kill", begun.elapsed());
    lease.release().await.unwrap();
}

/// The server of the higher number calls back whoever calls it, at the address that it is told.
#[tokio::test(flavor = "multi_thread")]
async fn what_servers_say_to_each_other_passes_the_links() {
    let ensemble = Ensemble::start_with_links();
    for (lower, higher) in [(0, 1), (0, 2), (1, 2)] {
        let before = ensemble.calls(higher, lower);
        ensemble.servers[lower].restart();
        assert!(
            ensemble.calls(higher, lower) > before,
            "{higher} to {lower}"
        );
    }
}

/// The trap: a follower that is cut off from its leader goes on answering pings and reads, so its
/// clients feel well, while the leader ends their sessions.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_server_is_cut_off_is_told_before_another_holds() {
    let ensemble = Ensemble::start_with_links();
    let leader = ensemble.leader();
    let [follower, other] = [(leader + 1) % 3, (leader + 2) % 3];
    // So short that the follower notices later than the leader gives the key away.
    let session = Duration::from_secs(4);
    for round in 0..2 {
        let holder = connect_with(&ensemble.servers[follower].url(), session).await;
        let successor = connect_with(&ensemble.servers[other].url(), LASTING).await;
        let held = hold(&holder, &key(1)).await;
        let waiting = begin(&successor, patient(&key(1)));
        until("it waits", async || {
            standing(&ensemble.servers[other], &key(1)) == 2
        })
        .await;
        // Somewhere between two heartbeats, long after the session was opened.
        let pause = session + session * fastrand::u32(0..100) / 200;
        tokio::time::sleep(pause).await;
        held.renew().await.unwrap();

        let begun = Instant::now();
        ensemble.cut(follower, leader);
        let renewing = async {
            // As a manager does all the time.
            loop {
                let _ = held.renew().await;
                tokio::time::sleep(session / 20).await;
            }
        };
        let (told, taken) = tokio::join!(
            async {
                tokio::select! {
                    _ = held.lost().wait() => {}
                    () = renewing => {}
                }
                assert!(held.valid_until() <= tokio::time::Instant::now());
                Instant::now()
            },
            async {
                let (next, _) = served(waiting, session + 2 * TICK + SLACK * 2).await;
                (Instant::now(), next)
            }
        );
        let (taken, next) = taken;
        println!(
            "round {round}: told {:?} after the cut, {:?} before another held",
            told - begun,
            taken.saturating_duration_since(told)
        );
        assert!(told <= taken, "two held it for {:?}", told - taken);
        assert_eq!(held.lost().get(), Some(Loss::Expired));
        assert!(next.fencing_token() > held.fencing_token());
        next.release().await.unwrap();
        ensemble.mend(follower, leader);
        until("it follows again", async || {
            ensemble.servers[follower].mode().as_deref() == Some("follower")
        })
        .await;
        until_it_works(&holder, &key(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_over_a_restart_of_all_servers() {
    let ensemble = Ensemble::start();
    let backend = connect_with(&ensemble.url(), SESSION).await;
    let held = hold(&backend, &key(1)).await;
    for server in &ensemble.servers {
        server.kill();
    }
    // Nobody can say any more that it is held.
    let loss = timeout(SESSION, held.lost().wait()).await;
    assert_eq!(loss, Ok(Loss::Expired));
    let refused = backend
        .acquire(&AcquireRequest::new(key(2), SESSION))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), BackendErrorKind::Unavailable);
    for server in &ensemble.servers {
        server.start_again();
    }
    ensemble.wait_until_it_serves();
    until_it_works(&backend, &key(2)).await;
    // The servers keep the old session for as long as it was promised.
    let (next, _) = served(begin(&backend, patient(&key(1))), SESSION * 3).await;
    assert!(next.fencing_token() > held.fencing_token());
    next.release().await.unwrap();
}
