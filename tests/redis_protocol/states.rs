//! What is left on the server, and what a server that is down costs.

use std::{mem::ManuallyDrop, time::Duration};

use tokio::time::{Instant, sleep};
use tower_lock::{
    BackendErrorKind, LockBackend, LockKey, Mode, RedisBackend,
    backend::AcquireRequest,
    lease::{Lease, OwnerToken},
};

use crate::{
    scripts::{ABANDON, GATE, Inbox, Keys, LOOK, OFFER, QUEUE_LIFE, RELEASE, STEP, call},
    servers::RedisServer,
};

/// The last reader crashed; another had a lease of ten minutes and gave it back.
#[tokio::test]
async fn nothing_of_readers_outlives_the_last_of_them() {
    let server = RedisServer::shared();
    let prefix = format!("readers-{:08x}:", fastrand::u32(..));
    let builder = RedisBackend::builder(&server.url()).with_prefix(prefix.clone());
    let backend = builder.connect().await.unwrap();
    let key = LockKey::new("order", 7);
    let read = |ttl| AcquireRequest::new(key.clone(), ttl).with_mode(Mode::Shared);
    let long = backend
        .acquire(&read(Duration::from_secs(600)))
        .await
        .unwrap();
    let short = backend
        .acquire(&read(Duration::from_millis(300)))
        .await
        .unwrap();
    let _crashed = ManuallyDrop::new(short);
    long.release().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(server.keys_left(&prefix), Vec::<String>::new());
    assert_eq!(
        server.keys_left(&format!("{{{prefix}")),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn a_server_that_is_down_is_refused_at_once() {
    let server = RedisServer::start();
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    server.kill();
    let request = || AcquireRequest::new(LockKey::new("order", 7), Duration::from_secs(60));
    let error = backend.acquire(&request()).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Unavailable);
    // By now it is known.
    sleep(Duration::from_millis(1200)).await;
    let mut quickest = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let error = backend.acquire(&request()).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Unavailable);
        quickest = quickest.min(started.elapsed());
    }
    assert!(quickest < Duration::from_millis(300), "{quickest:?}");
}

/// Tokens that were reserved into the future are not given again when the counter has gone.
#[tokio::test]
async fn a_counter_ahead_of_the_clock_lives_until_the_clock_has_passed_it() {
    let server = RedisServer::start();
    let backend = RedisBackend::connect(&server.url()).await.unwrap();
    let key = LockKey::new("order", 7);
    let request = AcquireRequest::new(key, Duration::from_secs(60)).with_tokens(u32::MAX);
    let mut last = 0;
    for _ in 0..40 {
        let mut request = request.clone();
        request.owner = OwnerToken::random();
        let lease = backend.acquire(&request).await.unwrap();
        last = lease.fencing_token().get() + u64::from(u32::MAX) - 1;
        lease.release().await.unwrap();
    }
    let counter = server.command(&["KEYS", "tower-lock:token:*"]).texts();
    assert_eq!(server.command(&["GET", &counter[0]]).int(), last as i64);
    let time = server.command(&["TIME"]).texts();
    let now: u64 = time[0].parse().unwrap();
    let ahead = last / 1_000_000 - now;
    assert!(ahead > 86_400, "{ahead} s");
    let ttl = server.command(&["TTL", &counter[0]]).int() as u64;
    assert!(ttl > ahead + 86_000, "{ttl} s, and it is {ahead} s ahead");
}

/// Who was woken without the key and goes is the last who waited: those who wait for a free key
/// are told.
#[tokio::test]
async fn a_gate_opens_when_the_last_waiter_gives_up() {
    let server = RedisServer::shared();
    let mut client = server.client();
    let keys = Keys::new(&format!("gate-{:08x}", fastrand::u32(..)));
    let channel = format!("{}:inbox", keys.lock());
    let mut inbox = Inbox::open(server, &channel);
    let owners = ["a".repeat(32), "b".repeat(32)];
    let who = |n: usize| format!("{} {channel}", owners[n]);
    let me = |n: usize| format!("{} x 60000 1", who(n));
    let mut run = |script: &str, args: &[&str]| call(&mut client, &keys.eval(script, None, args));
    for (n, order) in ["fq", "uq"].into_iter().enumerate() {
        run(&STEP, &[&who(n), "x", "60000", order]);
    }
    let gate = format!("gate {channel} 1");
    run(&GATE, &[&gate]);
    run(&ABANDON, &[&who(0), &me(0)]);
    let woken = format!("w {} {}", owners[1], keys.lock());
    assert_eq!(inbox.messages(), [woken]);
    run(&ABANDON, &[&who(1), &me(1)]);
    assert_eq!(inbox.messages(), [format!("f {}", keys.lock())]);
}

/// A script as it is, but for the offers.
fn with_queues_that_live_long(script: &str) -> String {
    let short = format!("'{OFFER}', '{QUEUE_LIFE}'");
    assert!(script.contains(&short), "the times stand elsewhere");
    script.replace(&short, &format!("'{OFFER}', '15000'"))
}

/// However many of a process wait, it costs the others one offer if it hangs.
#[tokio::test]
async fn thousands_of_waiters_of_a_process_that_hangs_go_at_once() {
    let server = RedisServer::shared();
    let mut client = server.client();
    let keys = Keys::new(&format!("crowd-{:08x}", fastrand::u32(..)));
    let channels = [0, 1].map(|n| format!("{}:inbox:{n}", keys.lock()));
    let _hangs = Inbox::open(server, &channels[0]);
    let mut other = Inbox::open(server, &channels[1]);
    // The queue is not to end before the offer has lapsed.
    let [step_script, abandon, look] =
        [&*STEP, &*ABANDON, &*LOOK].map(|script| with_queues_that_live_long(script));
    let mut step = |owner: u128, channel: &str| {
        let who = format!("{owner:032x} {channel}");
        let args = [&who, "x", "60000", "fq"];
        call(&mut client, &keys.eval(&step_script, None, &args));
    };
    for owner in 0..3000 {
        step(owner, &channels[0]);
    }
    step(3000, &channels[1]);
    let first = format!("{:032x} {}", 0, channels[0]);
    let me = format!("{first} x 60000 1");
    call(&mut client, &keys.eval(&abandon, None, &[&first, &me]));
    sleep(Duration::from_millis(OFFER + 10)).await;
    call(&mut client, &keys.eval(&look, None, &[&channels[1]]));
    let told = other.messages();
    assert!(
        told[0].starts_with(&format!("g {:032x} ", 3000)),
        "{told:?}"
    );
}

/// Readers that hold together share one token, so none of them has more.
#[tokio::test]
async fn a_reader_reserves_no_tokens_that_others_get() {
    let backend = RedisBackend::connect(&RedisServer::shared().url())
        .await
        .unwrap();
    let key = LockKey::new("test", format_args!("{:032x}", fastrand::u128(..)));
    let request = || AcquireRequest::new(key.clone(), Duration::from_secs(60));
    let first = backend
        .acquire(&request().with_mode(Mode::Shared))
        .await
        .unwrap();
    let many = request().with_mode(Mode::Shared).with_tokens(1_000_000_000);
    let second = backend.acquire(&many).await.unwrap();
    let last = second.fencing_token().get() + u64::from(second.reserved_tokens()) - 1;
    first.release().await.unwrap();
    second.release().await.unwrap();
    let writer = backend.acquire(&request()).await.unwrap();
    assert!(
        writer.fencing_token().get() > last,
        "{writer:?} after {last}"
    );
    writer.release().await.unwrap();
}

/// A reader finds that the process of the first writer is gone, and with it a reader before that:
/// the places in the queue move, and the next writer still stands in the way.
#[test]
fn a_process_that_goes_takes_nobody_past_the_next_writer() {
    let server = RedisServer::shared();
    let mut client = server.client();
    let keys = Keys::new(&format!("moved-{:08x}", fastrand::u32(..)));
    let channels = [0, 1, 2].map(|n| format!("{}:inbox:{n}", keys.lock()));
    let who = |owner: u32, n: usize| format!("{owner:032x} {}", channels[n]);
    let mut run = |script: &str, args: &[&str]| call(&mut client, &keys.eval(script, None, args));
    let goes = Inbox::open(server, &channels[0]);
    let _stays = Inbox::open(server, &channels[1]);
    let held = run(&STEP, &[&who(0, 1), "x", "60000", "fq"]);
    for (owner, n, mode) in [(1, 0, "s"), (2, 0, "x"), (3, 1, "x"), (4, 1, "s")] {
        run(&STEP, &[&who(owner, n), mode, "60000", "fq"]);
    }
    let value = format!("1 {} {held}", who(0, 1));
    run(&RELEASE, &[&value]);
    // The first reader is offered its place, and its process ends.
    drop(goes);
    let inbox = channels[0].as_str();
    while server.command(&["PUBSUB", "NUMSUB", inbox]).texts()[1] != "0" {
        std::thread::yield_now();
    }
    run(&STEP, &[&who(5, 2), "s", "60000", "fq"]);
    let readers = server
        .command(&["ZRANGE", keys.readers(), "0", "-1"])
        .texts();
    assert_eq!(readers, [who(1, 0)], "readers passed a writer");
}

/// The only waiter is offered the key and its process hangs for good: its place ends too.
#[test]
fn a_queue_of_one_that_is_offered_the_key_has_an_end() {
    let server = RedisServer::shared();
    let mut client = server.client();
    let keys = Keys::new(&format!("one-{:08x}", fastrand::u32(..)));
    let inbox = format!("{}:inbox", keys.lock());
    let _hangs = Inbox::open(server, &inbox);
    let mut run = |script: &str, args: &[&str]| call(&mut client, &keys.eval(script, None, args));
    let who = |owner: u32| format!("{owner:032x} {inbox}");
    let held = run(&STEP, &[&who(0), "x", "60000", "fq"]);
    run(&STEP, &[&who(1), "x", "60000", "fq"]);
    run(&RELEASE, &[&format!("1 {} {held}", who(0))]);
    assert_eq!(
        server.command(&["EXISTS", keys.queue()]).int(),
        1,
        "it is marked"
    );
    assert!(
        server.command(&["PTTL", keys.queue()]).int() > 0,
        "it has no end"
    );
}
