//! The servers under Sentinel and in a cluster do what their users count on.

use std::time::{Duration, Instant};

use crate::servers::{
    ClusterServers, ClusterSetup, RedisServer, Reply, SentinelServers, SentinelSetup, resp::Client,
};

fn is_down(address: std::net::SocketAddr) -> bool {
    Client::connect(address).is_err()
}

#[tokio::test]
async fn sentinels_replace_a_master_that_was_killed() {
    let begun = Instant::now();
    let servers = SentinelServers::start(2);
    println!("started in {:?}", begun.elapsed());
    let first = servers.master();
    assert_eq!(first.port(), servers.nodes()[0].port());
    assert_eq!(servers.replicas().count(), 2);
    let mut client = first.client();
    client.call(&["SET", "p:kept", "1"]).unwrap();
    assert_eq!(client.call(&["WAIT", "2", "10000"]).unwrap().int(), 2);

    let begun = Instant::now();
    let old = servers.kill_master();
    assert!(is_down(old.address()));
    let new = servers.switched_from(old).await;
    println!("switched after {:?}", begun.elapsed());
    assert_ne!(new.port(), old.port());
    assert_eq!(new.command(&["GET", "p:kept"]).int(), 1);
    assert_eq!(servers.keys_left("p:"), ["p:kept"]);
    assert_eq!(servers.master().port(), new.port());

    // A sentinel that comes back knows what it knew.
    servers.kill_sentinel(0);
    servers.restart_sentinel(0);
    servers.kill_sentinel(1);
    assert_eq!(servers.switched_from(old).await.port(), new.port());
}

#[tokio::test]
async fn a_failover_is_announced_before_the_old_master_knows() {
    let servers = SentinelServers::start(1);
    let old = servers.master();
    let begun = Instant::now();
    let new = servers.failover().await;
    println!("switched after {:?}", begun.elapsed());
    assert_eq!(new.info("role"), "master");
    assert_ne!(old.port(), new.port());
    assert_eq!(servers.master().port(), new.port());
}

#[tokio::test]
async fn what_a_replica_that_is_cut_off_did_not_get_is_lost() {
    let servers = SentinelServers::start(1);
    let old = servers.master();
    let mut client = old.client();
    client.call(&["SET", "p:a", "1"]).unwrap();
    assert_eq!(client.call(&["WAIT", "1", "10000"]).unwrap().int(), 1);
    servers.cut_off_replicas();
    client.call(&["SET", "p:b", "1"]).unwrap();
    assert_eq!(client.call(&["WAIT", "1", "20"]).unwrap().int(), 0);
    assert_eq!(servers.pause_master().port(), old.port());
    let new = servers.switched_from(old).await;
    assert_eq!(new.command(&["KEYS", "*"]).texts(), ["p:a"]);
    old.resume();
    assert_eq!(old.command(&["GET", "p:b"]).int(), 1);
}

#[tokio::test]
async fn replicas_that_were_cut_off_come_back() {
    let servers = SentinelServers::start(1);
    servers.cut_off_replicas();
    let mut client = servers.master().client();
    client.call(&["SET", "a", "1"]).unwrap();
    servers.reconnect_replicas().await;
    assert_eq!(client.call(&["WAIT", "1", "10000"]).unwrap().int(), 1);
}

#[tokio::test]
async fn sentinels_and_servers_ask_for_passwords() {
    let servers = SentinelServers::start_with(SentinelSetup {
        password: Some("of-servers".to_owned()),
        sentinel_password: Some("of-sentinels".to_owned()),
        ..SentinelSetup::default()
    });
    let refused = |address: std::net::SocketAddr, command: &[&str]| {
        let answer = Client::connect(address).unwrap().call(command).unwrap();
        assert!(
            matches!(&answer, Reply::Error(e) if e.starts_with("NOAUTH")),
            "{answer:?}"
        );
    };
    refused(servers.master().address(), &["GET", "a"]);
    for host in servers.hosts().split(',') {
        refused(host.parse().unwrap(), &["SENTINEL", "MASTERS"]);
    }
    assert!(servers.url().ends_with("/mymaster"));
    servers.cut_off_replicas();
    servers.reconnect_replicas().await;
    servers.failover().await;
}

#[tokio::test]
async fn a_cluster_moves_slots_step_by_step() {
    let begun = Instant::now();
    let servers = ClusterServers::start(3, 0);
    println!("started in {:?}", begun.elapsed());
    assert_eq!(servers.masters(), [0, 1, 2]);
    assert_eq!(
        [0, 5_461, 16_383].map(|slot| servers.node_of(slot)),
        [0, 1, 2]
    );
    let slot = servers.slot_of("{p:a}:x");
    assert_eq!(slot, servers.slot_of("p:a"));
    let from = servers.node_of(slot);
    let to = (from + 1) % 3;
    servers.node(from).command(&["SET", "p:a", "1"]);
    servers.node(from).command(&["SET", "{p:a}:x", "1"]);
    let error = |node: usize, key| match servers.node(node).try_command(&["GET", key]) {
        Reply::Error(error) => error.split(' ').next().unwrap_or_default().to_owned(),
        _ => "none".to_owned(),
    };
    assert_eq!([error(from, "p:a"), error(to, "p:a")], ["none", "MOVED"]);
    let moving = servers.begin_move(slot, to);
    assert_eq!(
        [error(from, "p:a"), error(from, "{p:a}:new")],
        ["none", "ASK"]
    );
    moving.these_keys(&["p:a", "{p:a}:never"]);
    assert_eq!(moving.left(), ["{p:a}:x"]);
    assert_eq!(
        [error(from, "p:a"), error(from, "{p:a}:x")],
        ["ASK", "none"]
    );
    assert_eq!(error(to, "p:a"), "MOVED");
    moving.keys();
    assert_eq!(moving.left(), [""; 0]);
    moving.end();
    servers.ok().await;
    assert_eq!(servers.node_of_key("p:a"), to);
    assert_eq!([error(from, "p:a"), error(to, "p:a")], ["MOVED", "none"]);

    let mut left = servers.keys_left("p:");
    left.sort();
    assert_eq!(left, ["p:a", "{p:a}:x"]);
    servers.move_slot(slot, from);
    servers.begin_move(slot, to).cancel();
    servers.ok().await;
    assert_eq!([error(from, "p:a"), error(to, "p:a")], ["none", "MOVED"]);
}

/// The code of the library that finds slots, on its own.
#[path = "../../src/backend/redis/slots.rs"]
#[allow(dead_code)]
mod slots;

#[test]
fn the_server_finds_the_same_slots() {
    let servers = ClusterServers::shared();
    let mut client = servers.node(0).client();
    let mut is_same = |key: &str| {
        let slot = client.call(&["CLUSTER", "KEYSLOT", key]).unwrap().int();
        assert_eq!(slot, i64::from(slots::slot(key.as_bytes())), "{key}");
    };
    for key in [
        "", "{", "}", "{}", "a{}b", "a{}{b}", "{a}", "a{b}c{d}", "{{a}}", "a}{b", "é{ü}",
    ] {
        is_same(key);
    }
    let piece = |_| ["{", "}", "a", "order:1.7;", "é"][fastrand::usize(..5)];
    for length in 0..2_000 {
        is_same(&(0..length % 12).map(piece).collect::<String>());
    }
    for slot in (0..slots::SLOTS).step_by(61) {
        let name = format!("tower-lock:{{{}}}", slots::tag(slot));
        assert_eq!(slots::slot(name.as_bytes()), slot);
        is_same(&name);
    }
}

#[tokio::test]
async fn a_replica_of_a_cluster_takes_over() {
    let begun = Instant::now();
    let servers = ClusterServers::start_with(ClusterSetup {
        replicas_per_master: 1,
        password: Some("secret".to_owned()),
        ..ClusterSetup::default()
    });
    println!("started in {:?}", begun.elapsed());
    assert_eq!([0, 1, 2].map(|n| servers.replicas_of(n)), [[3], [4], [5]]);
    let master = servers.node_of_key("a");
    servers.node(master).command(&["SET", "a", "1"]);
    let begun = Instant::now();
    let new = servers.failover(master).await;
    println!("handed over after {:?}", begun.elapsed());
    assert_eq!(new, master + 3);
    assert_eq!(servers.node_of_key("a"), new);
    assert_eq!(servers.node(new).command(&["GET", "a"]).int(), 1);
    // The old master is a replica now, and in its turn the master again.
    until_in_sync(servers.node(master)).await;
    servers.cut_off_replicas(new);
    servers.node(new).command(&["SET", "a", "2"]);
    let begun = Instant::now();
    servers.kill(new);
    servers.taken_over(new).await;
    println!("taken over after {:?}", begun.elapsed());
    assert_eq!(servers.node_of_key("a"), master);
    assert_eq!(servers.node(master).command(&["GET", "a"]).int(), 1);
}

async fn until_in_sync(node: &RedisServer) {
    while node.info("master_link_status") != "up" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
