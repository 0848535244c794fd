//! Records beside locks: what they cost, what stands on the server, and what ends.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tower_lock::{
    BackendErrorKind, FencingToken, Lease as _, LockKey, ZooKeeperBackend,
    backend::{AcquireRequest, Found, LockingRecordStore as _, zookeeper::ZooKeeperLease},
    record::{Opening, Orphans, Record, RecordStore as _, Save},
};

use crate::{
    servers::ZooKeeperServer,
    support::{BASE, LONG, connect, hold, key, patient, until, until_nothing_is_left},
};

pub(crate) fn opening(bytes: &'static str) -> Opening {
    Opening::new(bytes, LONG)
}

pub(crate) fn keep(request: &AcquireRequest, lease: &ZooKeeperLease, bytes: &'static str) -> Save {
    let token = lease.fencing_token();
    Save::keep(request.key.clone(), request.owner, token, bytes, LONG)
}

pub(crate) fn forget(request: &AcquireRequest, lease: &ZooKeeperLease) -> Save {
    Save::forget(request.key.clone(), request.owner, lease.fencing_token())
}

/// Begins, on a key that nobody holds: its request, lease, and the orphan that it replaced.
pub(crate) async fn begin(
    backend: &ZooKeeperBackend,
    key: &LockKey,
) -> (AcquireRequest, ZooKeeperLease, Option<Record>) {
    let request = AcquireRequest::new(key.clone(), LONG);
    match backend
        .acquire_or_load(&request, Some(&opening("begun")))
        .await
    {
        Ok(Found::Lease { lease, previous }) => (request, lease, previous),
        other => panic!("{other:?}"),
    }
}

/// What stands in the node of a key's record; empty if there is none.
pub(crate) fn stands(server: &ZooKeeperServer, key: &LockKey) -> String {
    let name = format!("/{}", key.as_str());
    let mut records = server.records_left(BASE).into_iter();
    let path = records.find(|path| path.ends_with(&name));
    let data = path.map(|path| server.session().data(&path));
    String::from_utf8(data.unwrap_or_default()).unwrap()
}

fn zxid(server: &ZooKeeperServer) -> u64 {
    let answer = server.ask("srvr");
    let line = answer
        .lines()
        .find_map(|line| line.strip_prefix("Zxid: 0x"));
    u64::from_str_radix(line.unwrap_or_else(|| panic!("{answer}")), 16).unwrap()
}

/// How many writes this is, at least: heartbeats and what is cleaned up come in between.
async fn writes(server: &ZooKeeperServer, action: impl AsyncFn(i32)) -> u64 {
    let mut least = u64::MAX;
    for round in 0..8 {
        let before = zxid(server);
        action(round).await;
        least = least.min(zxid(server) - before);
    }
    least
}

/// A request that runs is two writes if its key is new, as one of a lock alone; a replay is none, and
/// neither is a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_two_writes_and_a_replay_none() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    // The bucket is made with the first of its records, and stays.
    begin(&backend, &key(0)).await.1.release().await.unwrap();
    let same = (1..).filter(|n| bucket(&key(*n)) == bucket(&key(0)));
    let keys: Vec<_> = same.take(8).map(key).collect();
    let begun = Mutex::new(Vec::new());
    let begins = writes(&server, async |n| {
        let (request, lease, _) = begin(&backend, &keys[n as usize]).await;
        begun.lock().unwrap().push((request, lease));
    });
    assert_eq!(begins.await, 1);
    let open = opening("x");
    let refusals = writes(&server, async |n| {
        let wish = AcquireRequest::new(keys[n as usize].clone(), LONG);
        let found = backend.acquire_or_load(&wish, Some(&open)).await;
        assert!(
            matches!(found, Ok(Found::Held { open: Some(_), .. })),
            "{found:?}"
        );
    });
    assert_eq!(refusals.await, 0);
    let saves = writes(&server, async |_| {
        let next = begun.lock().unwrap().pop();
        let (request, lease) = next.unwrap();
        let save = keep(&request, &lease, "result");
        backend.save_and_release(&save).await.unwrap();
    });
    assert_eq!(saves.await, 1);
    let replays = writes(&server, async |n| {
        let wish = AcquireRequest::new(keys[n as usize].clone(), LONG);
        let found = backend.acquire_or_load(&wish, Some(&open)).await;
        assert!(matches!(found, Ok(Found::Record(_))), "{found:?}");
        assert!(backend.load(&wish.key).await.unwrap().is_some());
    });
    assert_eq!(replays.await, 0);
}

/// The owner's node is its turn, whoever made it.
#[tokio::test(flavor = "multi_thread")]
async fn a_save_in_another_process_is_the_holders() {
    let server = ZooKeeperServer::start();
    let (one, two) = (connect(&server).await, connect(&server).await);
    for (n, releases) in [(0, false), (1, true), (2, true), (3, true)] {
        let (request, lease, _) = begin(&one, &key(n)).await;
        let token = lease.fencing_token();
        if n == 3 {
            // One of a higher token, so that it is refused.
            let last = Save::keep(key(n), request.owner, FencingToken::MAX, "last", LONG);
            two.save(&last).await.unwrap();
        }
        let save = match n {
            2 => forget(&request, &lease),
            _ => keep(&request, &lease, "result"),
        };
        let saved = match releases {
            true => two.save_and_release(&save).await,
            false => two.save(&save).await,
        };
        let refused = saved.err().map(|error| error.kind());
        assert_eq!(refused, (n == 3).then_some(BackendErrorKind::Lost));
        let tokens = one.load(&key(n)).await.unwrap().map(|record| record.token);
        let expected = [Some(token), Some(token), None, Some(FencingToken::MAX)];
        assert_eq!(tokens, expected[n as usize]);
        if releases {
            hold(&two, &key(n)).await.release().await.unwrap();
            assert!(lease.renew().await.is_err());
        } else {
            lease.renew().await.unwrap();
        }
        lease.release().await.unwrap();
    }
}

/// A renewal meanwhile may find the node gone, which is no loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_saves_and_releases_is_not_lost() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    for n in 0..100 {
        let (request, lease, _) = begin(&backend, &key(n)).await;
        let save = keep(&request, &lease, "result");
        let (saved, ..) = tokio::join!(
            backend.save_and_release(&save),
            lease.renew(),
            lease.renew()
        );
        saved.unwrap();
        let renewed = lease.renew().await.unwrap_err();
        assert_eq!(renewed.kind(), BackendErrorKind::Lost);
        assert_eq!(lease.lost().get(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_stand_beside_their_key_in_the_documented_form() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let key = key(7);
    let (request, lease, _) = begin(&backend, &key).await;
    assert_eq!(
        server.records_left(BASE),
        [format!("{BASE}/~records/{}/{}", bucket(&key), key.as_str())]
    );
    let open = stands(&server, &key);
    let owner = u128::from_be_bytes(*request.owner.as_bytes());
    assert_eq!(open, format!("o 0 600000 {owner:032x} 0 begun"));
    backend
        .save_and_release(&keep(&request, &lease, "result"))
        .await
        .unwrap();
    let token = lease.fencing_token();
    assert_eq!(stands(&server, &key), format!("c {token} 600000 result"));
    // The key's own node goes, its record stays.
    until("the key's node is deleted", async || {
        !server.session().exists(&crate::support::path(&key))
    })
    .await;
    assert_eq!(backend.load(&key).await.unwrap().unwrap().bytes, "result");
}

/// As documented: 64-bit FNV-1a, its halves folded, modulo 64.
fn bucket(key: &LockKey) -> String {
    let hash = key
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("{:02x}", (hash ^ (hash >> 32)) % 64)
}

/// One watch and one read of their process, however many wait.
#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_that_wait_have_it_together() {
    let server = ZooKeeperServer::start();
    let url = server.url();
    // So many ask at once, and the machine may be busy.
    let patient_one = || {
        let builder = ZooKeeperBackend::builder(&url).with_session_timeout(LONG / 30);
        builder.with_operation_timeout(LONG / 30).connect()
    };
    let (one, two) = (patient_one().await.unwrap(), patient_one().await.unwrap());
    let key = key(1);
    let (mut took, mut asked) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (request, lease, _) = begin(&one, &key).await;
        let mut waiting = JoinSet::new();
        for n in 0..500 {
            let backend = if n % 2 == 0 { one.clone() } else { two.clone() };
            let request = patient(&key);
            waiting
                .spawn(async move { backend.acquire_or_load(&request, Some(&opening("x"))).await });
        }
        // Each watches the one before it, and each process the record.
        let watches = async || server.figure("zk_watch_count") >= 502.0;
        until("all wait", watches).await;
        let before = server.figure("zk_packets_received");
        let begun = Instant::now();
        one.save_and_release(&keep(&request, &lease, "result"))
            .await
            .unwrap();
        while let Some(found) = waiting.join_next().await {
            match found.unwrap().unwrap() {
                Found::Record(record) => assert_eq!(record.bytes, "result"),
                other => panic!("{other:?}"),
            }
        }
        took.push(begun.elapsed());
        let gone = async || server.standing(&crate::support::path(&key)).is_empty();
        until("all have left", gone).await;
        asked.push(server.figure("zk_packets_received") - before);
        let mut operator = server.session();
        for path in server.records_left(BASE) {
            assert_eq!(operator.delete(&path), 0);
        }
    }
    took.sort();
    println!("500 who waited had it after {took:?}, with {asked:?} requests");
    // Each leaves the queue and ends its watch, and hardly one looks for itself: 1500 if all did.
    assert!(asked.iter().all(|requests| *requests < 1450.0), "{asked:?}");
}

/// What is over goes: of a process that lives, soon after its end; of one that is gone, when another
/// has come by.
#[tokio::test(flavor = "multi_thread")]
async fn records_that_have_ended_are_deleted_whoever_wrote_them() {
    const KEYS: u32 = 300;
    let server = ZooKeeperServer::start();
    let (one, gone) = (connect(&server).await, connect(&server).await);
    let ttl = Duration::from_secs(2);
    let mut tasks = JoinSet::new();
    for n in 0..KEYS {
        let backend = if n % 2 == 0 {
            one.clone()
        } else {
            gone.clone()
        };
        tasks.spawn(async move {
            let request = AcquireRequest::new(key(n), LONG);
            let open = Opening::new("x", ttl);
            let found = backend.acquire_or_load(&request, Some(&open)).await;
            let Ok(Found::Lease { lease, .. }) = found else {
                panic!("{found:?}");
            };
            // Some are results, some orphans.
            if n % 3 == 0 {
                return lease.release().await.unwrap();
            }
            let token = lease.fencing_token();
            let save = Save::keep(request.key, request.owner, token, vec![b'x'; 3000], ttl);
            backend.save_and_release(&save).await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let written = Instant::now();
    drop(gone);
    let count = || server.records_left(BASE).len();
    until("those of the process that lives are gone", async || {
        count() <= KEYS as usize / 2
    })
    .await;
    println!("its own: {:?} after they were written", written.elapsed());
    // Nobody reads those of the other one: the patrol finds them, once it is on duty.
    let took = until_nothing_is_left(&server, Duration::from_secs(90)).await;
    println!("those of nobody: {took:?} later");
    for n in 0..KEYS {
        assert!(one.load(&key(n)).await.unwrap().is_none());
    }
}

/// Both stand in one node for a while.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_records_fit_on_top_of_each_other() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let most = backend.limits().max_bytes;
    let open = |byte: u8| Opening::new(vec![byte; most], LONG);
    let key = key(1);
    for (byte, before) in [(b'a', None), (b'b', Some(b'a')), (b'c', Some(b'b'))] {
        let request = AcquireRequest::new(key.clone(), LONG);
        let found = backend.acquire_or_load(&request, Some(&open(byte))).await;
        let Ok(Found::Lease { lease, previous }) = found else {
            panic!("it is granted");
        };
        let previous = previous.map(|record| record.bytes.to_vec());
        assert!(previous == before.map(|byte| vec![byte; most]));
        lease.release().await.unwrap();
    }
    let keep = open(b'd').with_orphans(Orphans::Keep);
    let request = AcquireRequest::new(key.clone(), LONG);
    match backend.acquire_or_load(&request, Some(&keep)).await {
        Ok(Found::Record(record)) => assert!(record.bytes == vec![b'c'; most]),
        other => panic!("{other:?}"),
    }
}

/// What somebody else left under a record's name costs neither the key nor anybody's patience.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_record_is_refused_and_the_lock_is_free() {
    let server = ZooKeeperServer::start();
    let backend = connect(&server).await;
    let key = key(1);
    begin(&backend, &key).await.1.release().await.unwrap();
    let path = server.records_left(BASE).remove(0);
    let mut operator = server.session();
    assert_eq!(operator.delete(&path), 0);
    assert_eq!(operator.create(&path), 0);
    let open = opening("x");
    for wish in [AcquireRequest::new(key.clone(), LONG), patient(&key)] {
        let found = backend.acquire_or_load(&wish, Some(&open)).await;
        let refused = found.unwrap_err();
        assert_eq!(refused.kind(), BackendErrorKind::Misconfigured);
    }
    let loaded = backend.load(&key).await.unwrap_err();
    assert_eq!(loaded.kind(), BackendErrorKind::Misconfigured);
    hold(&backend, &key).await.release().await.unwrap();
    assert_eq!(operator.delete(&path), 0);
    begin(&backend, &key).await.1.release().await.unwrap();
}
