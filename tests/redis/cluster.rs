//! A Redis Cluster: slots move, masters are replaced, and what is in other slots goes on.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, LockKey, Loss, RedisBackend,
    backend::{AcquireRequest, Mode, WaitBound, redis::RedisLease},
};

use crate::{
    servers::{ClusterServers, ClusterSetup, RedisServer},
    storage::Storage,
    support::{
        LONG, PREFIX, SLACK, UNDONE, Waiting, connect_with, hold, key, name, patient, served,
        timed, try_it, until, wait, waiters,
    },
};

/// How long a fail-over may take.
const FAIL_OVER: Duration = Duration::from_secs(20);

async fn connect(servers: &ClusterServers) -> RedisBackend {
    RedisBackend::connect(&servers.url()).await.unwrap()
}

/// Nobody takes its nodes away, so none is to be given up while the machine is busy.
fn start_three() -> ClusterServers {
    ClusterServers::start_with(ClusterSetup {
        node_timeout: Duration::from_secs(15),
        ..ClusterSetup::default()
    })
}

fn node_of<'a>(servers: &'a ClusterServers, key: &LockKey) -> &'a RedisServer {
    servers.node(servers.node_of_key(&name(key)))
}

/// A key whose slot this node has.
fn key_at(servers: &ClusterServers, node: usize) -> LockKey {
    let mut keys = (0..).map(key);
    keys.find(|key| servers.node_of_key(&name(key)) == node)
        .unwrap()
}

async fn until_had(backend: &RedisBackend, key: &LockKey) -> RedisLease {
    let begun = Instant::now();
    loop {
        match try_it(backend, key).await {
            Ok(lease) => return lease,
            Err(error) => assert!(begun.elapsed() < FAIL_OVER, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_nothing_is_left(servers: &ClusterServers, limit: Duration) {
    let begun = Instant::now();
    loop {
        let left = servers.keys_left(PREFIX);
        if left.is_empty() {
            return;
        }
        assert!(begun.elapsed() < limit, "left after {limit:?}: {left:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_all_slots_with_a_counter_and_a_channel_for_each() {
    let servers = start_three();
    let (one, two) = (connect(&servers).await, connect(&servers).await);
    for node in 0..3 {
        let key = key_at(&servers, node);
        let held = hold(&one, &key).await;
        let waiting = wait(servers.node(node), &two, &key).await;
        // One sharded channel for the slot and each process that waits there.
        let tag = format!("{PREFIX}inbox:*");
        until("the waiter hears", async || {
            let channels = servers
                .node(node)
                .command(&["PUBSUB", "SHARDCHANNELS", &tag]);
            let of_slot = channels
                .texts()
                .into_iter()
                .filter(|channel| servers.slot_of(channel) == servers.slot_of(&name(&key)));
            of_slot.count() == 1
        })
        .await;
        held.release().await.unwrap();
        let (next, _) = served(waiting, SLACK).await;
        assert!(next.fencing_token() > held.fencing_token());
        next.release().await.unwrap();
        let counters = servers
            .node(node)
            .command(&["KEYS", &format!("{PREFIX}token:*")]);
        let slots: Vec<_> = counters
            .texts()
            .iter()
            .map(|name| servers.slot_of(name))
            .collect();
        assert!(slots.contains(&servers.slot_of(&name(&key))), "{slots:?}");
    }
    until_nothing_is_left(&servers, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_moves_while_it_is_held_and_waited_for() {
    let servers = start_three();
    let (one, two) = (connect(&servers).await, connect(&servers).await);
    let key = key_at(&servers, 0);
    let held = hold(&one, &key).await;
    let first = wait(servers.node(0), &two, &key).await;
    let second = wait(servers.node(0), &one, &key).await;
    let slot = servers.slot_of(&name(&key));
    let moving = servers.begin_move(slot, 1);

    // Here, there, and in between: a renewal names one key only, so it goes on.
    held.renew().await.unwrap();
    moving.these_keys(&[name(&key)]);
    held.renew().await.unwrap();
    assert_eq!(held.lost().get(), None);

    // A release names several, which are in two places now: it waits for the end of the move.
    let release = tokio::spawn(async move {
        held.release().await.unwrap();
        held
    });
    let inspected = tokio::spawn({
        let (one, key) = (one.clone(), key.clone());
        async move { one.inspect(&key).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!release.is_finished() && !inspected.is_finished());
    moving.keys();
    moving.end();
    let held = timeout(SLACK, release).await.expect("released").unwrap();
    inspected.await.unwrap().unwrap();

    // Whose process hears at the new node first is first.
    let (mut first, mut second) = (first, second);
    let either = async {
        tokio::select! {
            lease = &mut first => (lease, second),
            lease = &mut second => (lease, first),
        }
    };
    let (next, last) = timeout(SLACK * 2, either).await.expect("one is served");
    let next = next.unwrap().unwrap();
    assert!(next.fencing_token() > held.fencing_token());
    // The inbox of the other one has moved too, or it asks again when it has.
    next.release().await.unwrap();
    let (last, _) = served(last, SLACK * 2).await;
    assert!(last.fencing_token() > next.fencing_token());
    assert_eq!(servers.node(1).command(&["EXISTS", &name(&key)]).int(), 1);
    last.release().await.unwrap();
    until_nothing_is_left(&servers, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_slots_move_under_load_and_nobody_holds_twice_or_hangs() {
    let servers = start_three();
    // Longer than a busy machine takes to find a slot that moves again and again.
    let timeout = Duration::from_secs(5);
    let backends = [
        connect_with(&servers.url(), timeout).await,
        connect_with(&servers.url(), timeout).await,
    ];
    let keys: Vec<_> = (0..8).map(key).collect();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let holders: std::sync::Arc<Vec<std::sync::atomic::AtomicU64>> =
        std::sync::Arc::new((0..8).map(|_| Default::default()).collect());
    let grants: std::sync::Arc<Vec<std::sync::atomic::AtomicU64>> =
        std::sync::Arc::new((0..16).map(|_| Default::default()).collect());
    let mut tasks = Vec::new();
    for (n, backend) in backends.iter().cycle().take(16).cloned().enumerate() {
        let (key, stop, holders) = (keys[n % 8].clone(), stop.clone(), holders.clone());
        let grants = grants.clone();
        tasks.push(tokio::spawn(async move {
            use std::sync::atomic::Ordering::SeqCst;
            let mut token = 0;
            while !stop.load(SeqCst) {
                let lease = backend.acquire(&patient(&key, LONG)).await.unwrap();
                assert_eq!(holders[n % 8].fetch_add(1, SeqCst), 0, "two hold");
                assert!(lease.fencing_token().get() > token);
                token = lease.fencing_token().get();
                tokio::task::yield_now().await;
                holders[n % 8].fetch_sub(1, SeqCst);
                lease.release().await.unwrap();
                grants[n].fetch_add(1, SeqCst);
            }
        }));
    }
    for round in 0..3 {
        for key in &keys {
            let slot = servers.slot_of(&name(key));
            // What nodes still tell each other of the moves before may make one doubt for a moment.
            servers.ok().await;
            let to = (servers.node_of(slot) + 1 + round % 2) % 3;
            servers.move_slot(slot, to);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    // However busy the machine was meanwhile: everybody is served, also after the last move.
    let counts = || {
        grants
            .iter()
            .map(|n| n.load(std::sync::atomic::Ordering::SeqCst))
    };
    let before: Vec<_> = counts().collect();
    until("everybody is served again", async || {
        counts().zip(&before).all(|(now, before)| now > before + 3)
    })
    .await;
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    until_nothing_is_left(&servers, UNDONE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_takes_over_and_other_slots_do_not_notice() {
    let servers = ClusterServers::start_with(ClusterSetup {
        replicas_per_master: 1,
        options: vec!["--cluster-require-full-coverage".into(), "no".into()],
        ..ClusterSetup::default()
    });
    // Over before a replica can take over.
    let short = Duration::from_millis(300);
    let (one, two) = (
        connect_with(&servers.url(), short).await,
        connect(&servers).await,
    );
    let (key, other) = (key_at(&servers, 0), key_at(&servers, 1));
    let held = hold(&one, &key).await;
    // It waits through the fail-over.
    let waiting = wait(servers.node(0), &two, &key).await;
    // A connection waits for what it wrote itself, which is behind all that was written before.
    let mut client = servers.node(0).client();
    let last = format!("{{{}}}:last", name(&key));
    client.call(&["SET", &last, "1"]).unwrap();
    assert_eq!(client.call(&["WAIT", "1", "10000"]).unwrap().int(), 1);

    servers.kill(0);
    let (refused, took) = timed(try_it(&one, &key)).await;
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(took < short * 2 + SLACK, "{took:?}");
    // One caller of this client waits for the slot that is down, and its others go on.
    for _ in 0..20 {
        let (lease, took) = timed(try_it(&two, &other)).await;
        assert!(took < SLACK, "{took:?}");
        lease.unwrap().release().await.unwrap();
    }

    servers.taken_over(0).await;
    let begun = Instant::now();
    while let Err(error) = held.renew().await {
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(begun.elapsed() < FAIL_OVER, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    held.release().await.unwrap();
    let (next, _) = served(waiting, FAIL_OVER).await;
    assert!(next.fencing_token() > held.fencing_token());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_without_a_server_is_unavailable_and_the_others_go_on() {
    let servers = ClusterServers::start_with(ClusterSetup {
        options: vec!["--cluster-require-full-coverage".into(), "no".into()],
        ..ClusterSetup::default()
    });
    let short = Duration::from_secs(1);
    let backend = connect_with(&servers.url(), short).await;
    let (down, other) = (key_at(&servers, 2), key_at(&servers, 0));
    servers.kill(2);
    let begun = Instant::now();
    // From the first refusal of a connection to the cluster's own word that the slot is down.
    while begun.elapsed() < Duration::from_secs(3) {
        let (refused, took) = timed(try_it(&backend, &down)).await;
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
        assert!(took < short * 2 + SLACK, "{took:?}");
        let (lease, took) = timed(try_it(&backend, &other)).await;
        assert!(took < SLACK, "{took:?}");
        lease.unwrap().release().await.unwrap();
    }
    // A new client finds the others too.
    let fresh = connect_with(&servers.url(), short).await;
    hold(&fresh, &other).await.release().await.unwrap();
    servers.node(2).restart();
    until_had(&backend, &down).await.release().await.unwrap();
}

/// As behind Sentinels: a fail-over can forget a lock, and the token tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_can_grant_twice_and_the_token_tells() {
    let servers = ClusterServers::start(3, 1);
    let (one, two) = (connect(&servers).await, connect(&servers).await);
    let key = key_at(&servers, 0);
    servers.cut_off_replicas(0);
    let stale = hold(&one, &key).await;
    servers.node(0).pause();
    servers.taken_over(0).await;
    let fresh = until_had(&two, &key).await;
    // Not told yet, perhaps: whether or not, its time was not over when the next one got the key.
    assert!(stale.valid_until() > Instant::now(), "two hold");
    let mut storage = Storage::default();
    assert!(storage.takes(fresh.fencing_token()));
    assert!(
        !storage.takes(stale.fencing_token()),
        "the stale one is refused"
    );
    let lost = timeout(FAIL_OVER, stale.lost().wait()).await;
    assert_eq!(lost.expect("it is told"), Loss::Revoked);
    servers.node(0).resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_gates_and_operators_find_the_slot_too() {
    let servers = start_three();
    let (one, two) = (connect(&servers).await, connect(&servers).await);
    let key = key_at(&servers, 2);
    let shared = AcquireRequest::new(key.clone(), LONG).with_mode(Mode::Shared);
    let readers = [
        one.acquire(&shared).await.unwrap(),
        two.acquire(&shared).await.unwrap(),
    ];
    servers.move_slot(servers.slot_of(&name(&key)), 0);
    for reader in &readers {
        reader.renew().await.unwrap();
    }
    assert_eq!(two.inspect(&key).await.unwrap().holders.len(), 2);
    let gate = tokio::spawn({
        let (one, key) = (one.clone(), key.clone());
        async move { one.wait_free(&key, WaitBound::Forever).await }
    });
    let node = node_of(&servers, &key);
    // Its entry stands in the same queue, and is not to be taken for the writer's.
    until("the gate is there", async || waiters(node, &key) == 1).await;
    let writer: Waiting = wait(node, &two, &key).await;
    for reader in readers {
        reader.release().await.unwrap();
    }
    let (lease, _) = served(writer, SLACK).await;
    assert!(!gate.is_finished());
    assert!(one.force_release(&key).await.unwrap());
    let lost = timeout(SLACK, lease.lost().wait()).await;
    assert_eq!(lost.expect("told at once"), Loss::ForceReleased);
    timeout(SLACK, gate).await.expect("open").unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_url_is_said() {
    let servers = start_three();
    let single = RedisServer::start();
    let refused = async |url: String, part: &str| {
        let error = RedisBackend::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    };
    refused(servers.node(0).url(), "redis+cluster://").await;
    let url = format!("redis+cluster://{}", single.address());
    refused(url, "no node of a Redis Cluster").await;
    // One node that is there will do.
    let dead = "127.0.0.1:1";
    let url = format!("redis+cluster://{dead},{}", servers.node(1).address());
    let backend = RedisBackend::connect(&url).await.unwrap();
    hold(&backend, &key(1)).await.release().await.unwrap();
}
