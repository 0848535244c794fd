//! The servers and the proxy do what their users count on.

use std::{
    collections::HashSet,
    fs,
    io::Write as _,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::{fd::AsRawFd, unix::process::ExitStatusExt as _},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::servers::{
    ForeignClient, RedisServer, Reply, TcpProxy, heir::HEIR, ports::Ports, resp::Client,
    scratch::ScratchDir, sockets,
};

const OK: &str = "OK";

#[test]
fn a_server_is_its_own_and_restarts_with_or_without_data() {
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let server = RedisServer::start_with(&durable);
    assert_eq!(server.command(&["SET", "a", "1"]).text(), OK);
    assert_eq!(server.command(&["GET", "b"]), Reply::Nil);
    assert_eq!(server.calls("get"), 1);
    server.restart();
    assert_eq!(server.command(&["GET", "a"]).int(), 1);
    server.restart_empty();
    assert_eq!(server.command(&["GET", "a"]), Reply::Nil);

    for key in ["p:x", "{p:x}:q", "p:token:7", "{p:x}:u:owner", "other"] {
        server.command(&["SET", key, "1"]);
    }
    let mut left = server.keys_left("p:");
    left.sort();
    assert_eq!(left, ["p:x", "{p:x}:q"]);
    assert!(matches!(server.try_command(&["NONSENSE"]), Reply::Error(_)));
}

/// Who has ended is not ended once more: its pid may be another's by then.
#[test]
fn the_heir_ends_those_who_are_left_and_nobody_else() {
    let dir = ScratchDir::new();
    let mut processes = [0; 4].map(|_| {
        let spawned = Command::new("sleep").arg("60").spawn();
        spawned.expect("sleep is part of every system")
    });
    let pids = processes.each_ref().map(Child::id);
    let mut sh = Command::new("sh");
    let heir = sh.args(["-c", HEIR]).stdin(Stdio::piped()).spawn();
    let mut heir = heir.expect("sh is part of every system");
    let [a, b, c, d] = pids;
    let told = format!("+ {a}\n+ {b}\n- {a}\n- {a}\n- {b}\n+ {c}\n+ {d}\n- {c}\n- 1{d}\n");
    let mut stdin = heir.stdin.take().expect("it is piped");
    let inherits = format!("{told}+ {}\n", dir.path().display());
    stdin.write_all(inherits.as_bytes()).expect("it reads");
    drop(stdin);
    heir.wait().expect("it ends");
    // Those who are well end by this, and not before.
    let ended = processes.each_mut().map(|process| {
        let terminated = Command::new("kill").arg(process.id().to_string()).status();
        assert!(terminated.is_ok_and(|status| status.success()));
        process.wait().expect("it ends").signal()
    });
    let [term, kill] = [Some(15), Some(9)];
    assert_eq!(ended, [term, term, term, kill]);
    assert!(!dir.path().exists());
}

#[test]
fn a_paused_server_answers_when_it_is_resumed() {
    let server = RedisServer::start();
    server.pause();
    let mut client = Client::connect(server.address()).unwrap();
    client.send(&["PING"]).unwrap();
    client.set_patience(Duration::from_millis(50));
    assert!(client.read().is_err());
    server.resume();
    client.set_patience(Duration::from_secs(30));
    assert_eq!(client.read().unwrap().text(), "PONG");
    let begun = Instant::now();
    let mut sleeper = server.begin(&["DEBUG", "SLEEP", "0.1"]);
    assert_eq!(server.command(&["ECHO", "late"]).text(), "late");
    assert!(begun.elapsed() > Duration::from_millis(100));
    assert_eq!(sleeper.read().unwrap().text(), OK);
}

#[test]
fn latency_is_exact_and_keeps_the_order() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    let mut client = Client::connect(proxy.address()).unwrap();
    // A busy machine is slow at times: the quickest of many is what the proxy does.
    let mut quickest = || {
        let ping = |_| {
            let begun = Instant::now();
            client.call(&["PING"]).unwrap();
            begun.elapsed()
        };
        (0..200).map(ping).min().unwrap()
    };
    let bare = quickest();
    let half = Duration::from_micros(500);
    proxy.set_latency(half, half);
    let delayed = quickest();
    println!("bare {bare:?}, delayed {delayed:?}");
    assert!(delayed > half * 2, "{delayed:?}");
    assert!(delayed < bare + half * 5 / 2, "{delayed:?}");

    for number in 0..100 {
        client.send(&["ECHO", &number.to_string()]).unwrap();
        if number == 50 {
            proxy.set_latency(Duration::ZERO, Duration::ZERO);
        }
    }
    for number in 0..100 {
        assert_eq!(client.read().unwrap().int(), number);
    }
}

/// However the kernel is asked.
#[test]
fn a_socket_is_found_by_its_addresses() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (own, other) = (here.local_addr().unwrap(), here.peer_addr().unwrap());
    let file = fs::read_link(format!("/proc/self/fd/{}", here.as_raw_fd())).unwrap();
    let listed = sockets::inode_in_list(own, other).unwrap().unwrap();
    assert_eq!(file.to_str(), Some(&*format!("socket:[{listed}]")));
    assert_eq!(sockets::inode_in_list(own, own).unwrap(), None);
    // Where it may be asked at all.
    if let Ok(asked) = sockets::inode(own, other) {
        assert_eq!(asked, Some(listed));
        assert_eq!(sockets::inode(own, own).unwrap(), None);
    }
}

#[test]
fn what_is_aimed_at_one_process_befalls_no_other() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    // One who comes is a process of its own, the other is this one.
    let replica = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let port = proxy.address().port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    until(|| replica.info("master_link_status") == "up");
    let connect = || Client::connect(proxy.address()).unwrap();
    let short = Duration::from_millis(100);
    let mut ours = connect();
    let mut set = |value: &str| assert_eq!(ours.call(&["SET", "a", value]).unwrap().text(), OK);
    set("1");
    until(|| replica.command(&["GET", "a"]) == Reply::Text("1".to_owned()));

    proxy.cut(&[replica.id()]);
    for value in 2..100 {
        set(&value.to_string());
    }
    assert_eq!(connect().call(&["GET", "a"]).unwrap().int(), 99);
    assert_eq!(replica.command(&["GET", "a"]).int(), 1);
    // Only what lost something is opened anew.
    proxy.mend();
    until(|| replica.command(&["GET", "a"]) == Reply::Text("99".to_owned()));
    set("100");

    proxy.cut(&[std::process::id()]);
    ours.set_patience(short);
    assert!(ours.call(&["PING"]).is_err());
    let mut cut_off = connect();
    cut_off.set_patience(short);
    assert!(cut_off.call(&["PING"]).is_err());
    server.command(&["SET", "a", "101"]);
    until(|| replica.command(&["GET", "a"]) == Reply::Text("101".to_owned()));
    proxy.mend();
    assert_eq!(connect().call(&["GET", "a"]).unwrap().int(), 101);
    ours.set_patience(Duration::from_secs(30));
    assert!(ours.call(&["PING"]).is_err());
}

#[test]
fn what_is_dropped_is_gone_and_what_is_held_comes_late() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    let connect = || {
        let mut client = Client::connect(proxy.address()).unwrap();
        client.call(&["PING"]).unwrap();
        client
    };
    let [mut lost, mut mute, mut late] = [connect(), connect(), connect()];
    assert_eq!(proxy.connections(), 3);

    // A reply that is lost was a request that was done.
    proxy.drop_down();
    mute.send(&["SET", "mute", "1"]).unwrap();
    until(|| !server.command(&["GET", "mute"]).is_nil());
    mute.set_patience(Duration::from_millis(20));
    assert!(mute.read().is_err());
    until(|| proxy.broken() == 1);
    proxy.heal();

    proxy.drop_up();
    lost.send(&["SET", "lost", "1"]).unwrap();
    until(|| proxy.broken() == 2);
    proxy.heal();
    assert_eq!(server.command(&["GET", "lost"]), Reply::Nil);
    lost.send(&["SET", "lost", "2"]).unwrap();

    // Its client is gone, and still it arrives.
    proxy.hold_up();
    late.send(&["SET", "late", "1"]).unwrap();
    drop(late);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(server.command(&["GET", "late"]), Reply::Nil);
    proxy.heal();
    until(|| !server.command(&["GET", "late"]).is_nil());
    until(|| proxy.connections() == 2);
    assert_eq!(server.command(&["GET", "lost"]), Reply::Nil);

    // Only what is connected now is stranded.
    let mut stranded = connect();
    proxy.strand();
    stranded.send(&["SET", "late", "2"]).unwrap();
    connect().call(&["SET", "other", "1"]).unwrap();
    assert_eq!(server.command(&["GET", "late"]).int(), 1);
    proxy.heal();
    until(|| server.command(&["GET", "late"]).int() == 2);
    drop(stranded);
    until(|| proxy.connections() == 2);

    // The far end of a connection with a hole hears of the close, after the heal.
    drop((lost, mute));
    until(|| proxy.connections() == 0);
    assert_eq!(server.info("connected_clients"), "1");
    assert_eq!(proxy.accepted(), 5);
}

#[test]
fn connections_are_reset_closed_and_refused() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    let connect = || Client::connect(proxy.address()).unwrap();
    // Already the connect may be told.
    let refused = || Client::connect(proxy.address()).and_then(|mut client| client.call(&["PING"]));

    let mut client = connect();
    client.call(&["PING"]).unwrap();
    proxy.reset();
    assert_eq!(
        client.read().unwrap_err().kind(),
        std::io::ErrorKind::ConnectionReset
    );
    let mut client = connect();
    client.call(&["PING"]).unwrap();
    proxy.close();
    assert_eq!(
        client.read().unwrap_err().kind(),
        std::io::ErrorKind::UnexpectedEof
    );

    proxy.refuse();
    refused().unwrap_err();
    proxy.heal();
    connect().call(&["PING"]).unwrap();
    server.kill();
    refused().unwrap_err();
    assert_eq!(proxy.connections(), 0);
}

#[test]
fn much_data_passes() {
    let server = RedisServer::start();
    let proxy = TcpProxy::start(server.address());
    let mut client = Client::connect(proxy.address()).unwrap();
    let much = "x".repeat(16 << 20);
    assert_eq!(client.call(&["SET", "much", &much]).unwrap().text(), OK);
    assert_eq!(client.call(&["GET", "much"]).unwrap().text(), much);
}

/// Waits until it is so.
fn until(mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_server_speaks_tls_and_over_a_unix_socket() {
    let server = RedisServer::start_tls(&["--tls-auth-clients", "yes"]);
    let certificates = server.certificates();
    let mut by_tls = Command::new("redis-cli");
    by_tls
        .args(["-h", "localhost", "-p", &server.tls_port().to_string()])
        .args(["--tls", "--cacert"])
        .arg(certificates.certificate("root"));
    let mut by_tls_as_client = Command::new("redis-cli");
    by_tls_as_client
        .args(by_tls.get_args())
        .arg("--cert")
        .arg(certificates.certificate("client"))
        .arg("--key")
        .arg(certificates.key("client"));
    let mut by_socket = Command::new("redis-cli");
    by_socket.arg("-s").arg(server.socket());
    for (mut command, served) in [(by_tls, false), (by_tls_as_client, true), (by_socket, true)] {
        let output = command
            .arg("PING")
            .output()
            .expect("scripts/test installs redis-cli");
        let pong = output.stdout.starts_with(b"PONG");
        assert_eq!(pong, served, "{command:?}: {output:?}");
    }
}

#[test]
fn foreign_clients_exclude_each_other() {
    let server = RedisServer::start();
    let ttl = Duration::from_secs(60);
    let mut python = ForeignClient::redis_py(&server.url());
    let mut node = ForeignClient::redlock(&server.url());
    assert!(python.acquire("k", ttl, Duration::ZERO));
    assert!(!node.acquire("k", ttl, Duration::ZERO));
    node.begin_acquire("k", ttl, ttl);
    assert!(node.is_silent_for(Duration::from_millis(50)));
    assert!(python.release("k"));
    assert!(node.answer());
    assert!(!python.acquire("k", ttl, Duration::from_millis(20)));
    assert!(node.extend("k", ttl));
    server.command(&["DEL", "k"]);
    assert!(!node.release("k"));
}

/// Whether its servers have bound them yet, or are down.
#[test]
fn ports_are_one_process_own() {
    let (mut one, mut other) = (Ports::of_blocks(1), Ports::of_blocks(1));
    let mut taken: Vec<u16> = (0..150).map(|_| one.port()).collect();
    taken.extend((0..150).map(|_| other.port()));
    let unique: HashSet<u16> = taken.iter().copied().collect();
    assert_eq!(unique.len(), taken.len());
    assert!(taken.iter().all(|port| (12_000..32_000).contains(port)));
    // Once all have been given, those that are not in use are given again.
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, taken[0])).unwrap();
    assert!((0..1000).all(|_| one.port() != taken[0]));
    drop(server);
    assert!((0..1000).any(|_| one.port() == taken[0]));
}
