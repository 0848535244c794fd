//! The network between us and the nodes loses, delays and reorders.

use std::time::Duration;

use tokio::time::Instant;
use tower_lock::{
    BackendErrorKind, Lease as _, LockBackend as _, RedLockBackend,
    backend::{AcquireRequest, WaitBound},
};

use crate::{
    servers::{RedLockServers, TcpProxy},
    support::{
        LONG, SLACK, UNDONE, connect, deploy, hold, key, kind, name, patient, renewed, standing,
        timed, try_it, until, until_nothing_is_left, wait_with,
    },
};

/// A client whose connections all go through proxies, a node each.
async fn behind_proxies(nodes: usize) -> (RedLockServers, Vec<TcpProxy>, RedLockBackend) {
    let (servers, _) = deploy(nodes).await;
    let start = |node: &crate::servers::RedisServer| TcpProxy::start(node.address());
    let proxies: Vec<_> = servers.iter().map(start).collect();
    let backend = RedLockBackend::builder_of(proxies.iter().map(TcpProxy::redis_url))
        .with_max_ttl(LONG)
        .with_node_timeout(Duration::from_millis(100))
        .connect()
        .await
        .unwrap();
    backend.until_voting().await;
    // The nodes know every script.
    hold(&backend, &key(0)).await.release().await.unwrap();
    (servers, proxies, backend)
}

/// What was asked is done, and nobody hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_whose_replies_were_lost_is_undone() {
    let (servers, proxies, backend) = behind_proxies(5).await;
    for proxy in &proxies {
        proxy.drop_down();
    }
    let (refused, took) = timed(try_it(&backend, &key(1))).await;
    assert_eq!(kind(refused), BackendErrorKind::Unavailable);
    assert!(took < Duration::from_millis(1500) + SLACK, "{took:?}");
    // The undo gets through, also without replies.
    until_nothing_is_left(&servers, UNDONE).await;
    for proxy in &proxies {
        proxy.heal();
    }
    until("it works again", async || {
        try_it(&backend, &key(1)).await.is_ok()
    })
    .await;
    until_nothing_is_left(&servers, Duration::from_secs(3)).await;
}

/// Where the replies of two are lost the other three are enough, and the two are not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_of_a_minority_leave_nothing() {
    let (servers, proxies, backend) = behind_proxies(5).await;
    proxies[0].drop_down();
    proxies[4].drop_down();
    let lease = hold(&backend, &key(1)).await;
    until("all have it", async || {
        standing(&servers, &[0, 1, 2, 3, 4], &key(1)) == 5
    })
    .await;
    renewed(&lease).await;
    lease.release().await.unwrap();
    until_nothing_is_left(&servers, Duration::from_secs(3)).await;
}

/// What was sent and given up arrives after all that was sent later, over other connections.
#[tokio::test(flavor = "multi_thread")]
async fn an_ask_that_comes_late_does_nothing() {
    let (servers, proxies, backend) = behind_proxies(3).await;
    for proxy in &proxies {
        proxy.strand();
    }
    // New connections pass, so it may have the key after all.
    let (result, took) = timed(try_it(&backend, &key(1))).await;
    assert!(took < Duration::from_millis(1500) + SLACK, "{took:?}");
    match result {
        Ok(lease) => lease.release().await.unwrap(),
        Err(error) => assert_eq!(error.kind(), BackendErrorKind::Unavailable),
    }
    // The key goes to somebody else, whom nothing disturbs.
    let other = connect(&servers).await;
    let lease = hold(&other, &key(1)).await;
    until("it works again", async || {
        match try_it(&backend, &key(2)).await {
            Ok(lease) => lease.release().await.is_ok(),
            Err(_) => false,
        }
    })
    .await;
    for proxy in &proxies {
        proxy.heal();
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    renewed(&lease).await;
    lease.release().await.unwrap();
    until_nothing_is_left(&servers, Duration::from_secs(3)).await;
}

/// A user who may not end connections: what a try gave up between two ballots comes late, and does
/// not take away what the second ballot got on the same node.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_back_late_takes_no_later_vote_away() {
    let (servers, _) = deploy(3).await;
    for node in servers.iter() {
        let rights = ["~*", "&*", "+@all", "-client|kill"];
        let mut command = vec!["ACL", "SETUSER", "worker", "reset", "on", ">secret"];
        command.extend(rights);
        node.command(&command);
    }
    let proxy = TcpProxy::start(servers.node(0).address());
    let at = |address: std::net::SocketAddr| format!("redis://worker:secret@{address}");
    let urls = [
        at(proxy.address()),
        at(servers.node(1).address()),
        at(servers.node(2).address()),
    ];
    let backend = RedLockBackend::builder_of(urls)
        .with_max_ttl(LONG)
        .with_node_timeout(Duration::from_millis(100))
        .connect()
        .await
        .unwrap();
    backend.until_voting().await;
    hold(&backend, &key(0)).await.release().await.unwrap();
    // It does not vote, so both others are needed.
    servers.node(2).command(&["FLUSHALL"]);
    let mut lease = None;
    for n in 1..10 {
        proxy.strand();
        // The first ballot is stranded, and with it what gives it back; the next may pass.
        if let Ok(granted) = try_it(&backend, &key(n)).await {
            lease = Some((granted, key(n)));
            break;
        }
        proxy.heal();
    }
    let (lease, key) = lease.expect("one of them passes over a new connection");
    assert_eq!(standing(&servers, &[0, 1], &key), 2);
    proxy.heal();
    // All that was stranded is executed before this is answered, which came after it.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(standing(&servers, &[0, 1], &key), 2);
    renewed(&lease).await;
    lease.release().await.unwrap();
    until_nothing_is_left(&servers, Duration::from_secs(3)).await;
}

/// A waiter whose request was the last to arrive at a free node does not keep it from the holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_gets_a_node_back_while_another_waits() {
    let (servers, holder) = deploy(3).await;
    let lease = hold(&holder, &key(1)).await;
    let proxies: Vec<_> = servers
        .iter()
        .map(|node| TcpProxy::start(node.address()))
        .collect();
    let other = RedLockBackend::builder_of(proxies.iter().map(TcpProxy::redis_url))
        .with_max_ttl(LONG)
        .with_node_timeout(Duration::from_millis(500))
        .connect()
        .await
        .unwrap();
    other.until_voting().await;
    // A majority has refused before this one has answered.
    proxies[2].set_latency(Duration::ZERO, Duration::from_millis(20));
    let for_ever = AcquireRequest::new(key(1), LONG).with_wait(WaitBound::Forever);
    let waiting = wait_with(&other, for_ever).await;
    // As a node that was restarted, and is a member again.
    servers.node(2).command(&["DEL", &name(&key(1))]);
    let asked = servers.node(2).calls("evalsha");
    until("the waiter has asked it", async || {
        servers.node(2).calls("evalsha") > asked
    })
    .await;
    let owner = servers
        .node(0)
        .command(&["GET", &name(&key(1))])
        .text()
        .to_owned();
    let owner = owner.split(' ').nth(1).unwrap().to_owned();
    until("the holder has it again", async || {
        let renewed = lease.renew().await;
        let value = servers.node(2).command(&["GET", &name(&key(1))]);
        renewed.is_ok() && !value.is_nil() && value.text().contains(&owner)
    })
    .await;
    // Now it can do without another one.
    servers.node(1).command(&["FLUSHALL"]);
    renewed(&lease).await;
    waiting.abort();
    lease.release().await.unwrap();
    until_nothing_is_left(&servers, Duration::from_secs(3)).await;
}

/// Which side of a split has the majority can lock; the other learns that it cannot.
#[tokio::test(flavor = "multi_thread")]
async fn one_side_of_a_split_goes_on() {
    let (servers, proxies, cut_off) = behind_proxies(5).await;
    let lease = hold(&cut_off, &key(1)).await;
    let other = connect(&servers).await;
    for proxy in &proxies[..3] {
        proxy.black_hole();
        proxy.reset();
    }
    until("it is cut off", async || {
        kind(try_it(&cut_off, &key(2)).await) == BackendErrorKind::Unavailable
    })
    .await;
    // Held until its lease ends, whoever can be asked.
    assert_eq!(
        kind(try_it(&other, &key(1)).await),
        BackendErrorKind::Contended
    );
    hold(&other, &key(2)).await.release().await.unwrap();
    assert_eq!(kind(lease.renew().await), BackendErrorKind::Unavailable);
    assert_eq!(lease.lost().get(), None);
    for proxy in &proxies[..3] {
        proxy.heal();
        proxy.reset();
    }
    renewed(&lease).await;
    lease.release().await.unwrap();
    until_nothing_is_left(&servers, Duration::from_secs(3)).await;
}

/// Resets in the middle of everything: no error lasts, no lock is left.
#[tokio::test(flavor = "multi_thread")]
async fn resets_in_the_middle_of_everything_leave_nothing() {
    let (servers, proxies, backend) = behind_proxies(3).await;
    let (enough, mut told) = tokio::sync::oneshot::channel();
    let chaos = tokio::spawn(async move {
        let mut resets = 0;
        // Until there were some grants in between, however long a busy machine takes for them.
        while resets < 60 || told.try_recv().is_err() {
            tokio::time::sleep(Duration::from_millis(fastrand_ms(resets))).await;
            proxies[resets % 3].reset();
            resets += 1;
        }
        (proxies, resets)
    });
    let (mut granted, mut enough, begun) = (0, Some(enough), Instant::now());
    while !chaos.is_finished() {
        if let Ok(lease) = backend.acquire(&patient(&key(1), LONG)).await {
            granted += 1;
            let _ = lease.renew().await;
            let _ = lease.release().await;
        }
        if granted > 20
            && let Some(enough) = enough.take()
        {
            enough.send(()).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{granted}");
    }
    let (_proxies, resets) = chaos.await.unwrap();
    println!("{granted} grants between {resets} resets");
    until_nothing_is_left(&servers, Duration::from_secs(3)).await;
}

/// Uneven, and the same in every run.
fn fastrand_ms(n: usize) -> u64 {
    5 + (n as u64 * 7919) % 30
}
