//! An etcd whose replies are spoilt: within frames of HTTP/2, or these themselves.

use std::{net::SocketAddr, time::Duration};

use tokio::sync::OnceCell;
use tower_lock::{BackendError, EtcdBackend};

use super::{
    drill::Subject,
    relay::{FRAMED, Relay, Wire},
    runtime,
};
use crate::{entries::Entry, servers::Etcd};

pub const ENTRY: Entry = Entry {
    name: "etcd",
    run,
    words: FRAMED,
};

const WIRE: Wire = Wire { frame, mistype };

/// One operation, all of its tries.
const ANSWER: Duration = Duration::from_millis(900);

const HEAD: usize = 9;
const DATA: u8 = 0;

/// A frame of HTTP/2.
fn frame(bytes: &[u8]) -> Option<usize> {
    let head = bytes.first_chunk::<HEAD>()?;
    let all = HEAD + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    (bytes.len() >= all).then_some(all)
}

/// With data, a byte of its message is another, or the message is longer or shorter than it was and
/// its lengths say so; with anything else, the type of the frame, its flags or its stream are others.
fn mistype(frame: &[u8], which: u8, what: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame[3] != DATA || frame.len() <= HEAD + 5 {
        let at = 3 + usize::from(which) % 6;
        frame[at] = what;
        return frame;
    }
    // One frame holds one message, as far as is known: a flag, the length of the rest, the rest.
    let mut message = frame[HEAD + 5..].to_vec();
    let at = usize::from(which) % message.len();
    match what {
        0xf0 => message.truncate(at),
        // A field of a number that is not known, and one of bytes that are not there.
        0xf1 => message.extend([
            0x78, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1,
        ]),
        0xf2 => message.extend([0x0a, 0xff, 0xff, 0xff, 0xff, 7]),
        // The largest numbers that fit.
        0xf3 => drop(message.splice(at..=at, [0xff; 9].into_iter().chain([1]))),
        0xf4 => drop(message.splice(at..=at, [0xff; 8].into_iter().chain([0x7f]))),
        0xf5 => message.clear(),
        other => message[at] = other,
    }
    let length = message.len() as u32;
    let mut spoilt = (length + 5).to_be_bytes()[1..].to_vec();
    spoilt.extend(&frame[3..HEAD + 1]);
    spoilt.extend(length.to_be_bytes());
    spoilt.extend(message);
    spoilt
}

/// A server tells revisions as varints.
fn tells(mut token: u64) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    while token >= 0x80 {
        bytes.push(token as u8 | 0x80);
        token >>= 7;
    }
    bytes.push(token as u8);
    vec![bytes]
}

async fn connect(address: SocketAddr) -> Result<EtcdBackend, BackendError> {
    let builder = EtcdBackend::builder(&format!("etcd://{address}"));
    builder.with_operation_timeout(ANSWER).connect().await
}

fn run(data: &[u8]) {
    runtime().block_on(async {
        static CLEAN: OnceCell<EtcdBackend> = OnceCell::const_new();
        let server = Etcd::shared();
        let clean = async || {
            EtcdBackend::connect(&server.url())
                .await
                .expect("it answers well")
        };
        let clean = CLEAN.get_or_init(clean).await.clone();
        let relay = Relay::start(WIRE, server.address(0), data).await;
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
