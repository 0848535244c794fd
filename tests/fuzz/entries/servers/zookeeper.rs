//! A ZooKeeper server whose replies are spoilt.

use std::{net::SocketAddr, time::Duration};

use tokio::sync::OnceCell;
use tower_lock::{BackendError, ZooKeeperBackend};

use super::{
    drill::{ANSWER, Subject},
    relay::{FRAMED, Relay, Wire},
    runtime,
};
use crate::{entries::Entry, servers::ZooKeeperServer};

pub const ENTRY: Entry = Entry {
    name: "zookeeper",
    run,
    words: FRAMED,
};

const WIRE: Wire = Wire { frame, mistype };

const SESSION: Duration = Duration::from_secs(2);

/// A length, and so many bytes.
fn frame(bytes: &[u8]) -> Option<usize> {
    let length = i32::from_be_bytes(*bytes.first_chunk()?);
    let all = 4 + usize::try_from(length).expect("a server of ours is right");
    (bytes.len() >= all).then_some(all)
}

/// The numbers that a reply holds are elsewhere: lengths, codes, versions, times.
const NUMBERS: [i64; 32] = [
    0,
    1,
    -1,
    -2,
    2,
    4,
    16,
    100,
    1000,
    0xffff,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    -4,
    -101,
    -102,
    -103,
    -108,
    -110,
    -111,
    -112,
    -113,
    -114,
    -115,
    -118,
    -120,
    -122,
    -127,
    i64::MAX,
    i64::MIN,
    0x1_0000_0000,
];

/// The number at this place, in fours, is another: half of them four bytes long, half eight. Place 0
/// is the length of all, 1 what was asked, 2 and 3 the zxid, 4 the error.
fn mistype(frame: &[u8], which: u8, what: u8) -> Vec<u8> {
    let number = NUMBERS[usize::from(what) % NUMBERS.len()];
    let mut frame = frame.to_vec();
    let bytes = number.to_be_bytes();
    let bytes = if what & 0x80 == 0 {
        &bytes[4..]
    } else {
        &bytes[..]
    };
    let places = frame.len().div_ceil(4).max(1);
    let at = usize::from(which) % places * 4;
    for (to, from) in frame[at..].iter_mut().zip(bytes) {
        *to = *from;
    }
    frame
}

/// A server tells zxids in eight bytes.
fn tells(token: u64) -> Vec<Vec<u8>> {
    vec![token.to_be_bytes().to_vec()]
}

async fn connect(address: SocketAddr) -> Result<ZooKeeperBackend, BackendError> {
    let builder = ZooKeeperBackend::builder(&format!("zookeeper://{address}"));
    let builder = builder.with_session_timeout(SESSION);
    builder.with_operation_timeout(ANSWER).connect().await
}

fn run(data: &[u8]) {
    runtime().block_on(async {
        static CLEAN: OnceCell<ZooKeeperBackend> = OnceCell::const_new();
        let server = ZooKeeperServer::shared();
        let clean = async || {
            let clean = ZooKeeperBackend::builder(&server.url()).with_session_timeout(SESSION);
            clean.connect().await.expect("it answers well")
        };
        let clean = CLEAN.get_or_init(clean).await.clone();
        let relay = Relay::start(WIRE, server.address(), data).await;
        let connect = async || connect(relay.address()).await;
        let subject = Subject {
            clean,
            connect,
            tells,
            has_session: true,
        };
        subject.drill(std::slice::from_ref(&relay)).await;
    });
}
